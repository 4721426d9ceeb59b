"""Object store in memory, for tests and simulations, with injectable faults.

`fail_next(call, error, happened=True)` lets the next call of `begin`, `write`, `finish`, `get_range`, `size`, `delete`,
`list` or `sweep` raise `error` after its work is done, as may happen at a time-out. `flip` simulates bit rot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from quire.objects.store import ObjectInfo, ObjectStore
from quire.runtime.clock import Clock, SystemClock
from quire.runtime.errors import AlreadyExists, CorruptionError, NotFound
from quire.runtime.limits import MIB
from quire.wire.block import Buffer

T = TypeVar("T")


class MemoryBlockingStore:
    """`BlockingStore` in memory, which never blocks."""

    def __init__(self, clock: Clock | None = None, url: str = "memory://") -> None:
        self.url = url
        self.read_bytes_best = MIB
        self.objects: dict[str, tuple[bytes, int]] = {}
        """Objects by name: (bytes, time of their `finish` in ms)."""
        self.uploads: dict[int, tuple[str, int]] = {}
        """Uploads that have neither ended nor been swept: (name, time of their `begin` in ms)."""
        self.calls: list[str] = []
        self.before: Callable[[str], None] = lambda call: None
        """Hook before each call, with the call's name; its exceptions propagate."""
        self._clock = clock or SystemClock()
        self._faults: dict[str, list[tuple[Exception, bool]]] = {}

    def fail_next(self, call: str, error: Exception, *, happened: bool = False) -> None:
        """Let the next `call` raise `error`, after its work is done (`happened`) or instead."""
        self._faults.setdefault(call, []).append((error, happened))

    def flip(self, name: str, offset: int, mask: int = 1) -> None:
        """Flip bits of one byte of an object, as bit rot does."""
        content, modified_ms = self.objects[name]
        changed = bytearray(content)
        changed[offset] ^= mask
        self.objects[name] = (bytes(changed), modified_ms)

    def prepare(self) -> None:
        pass

    def room_bytes(self) -> int | None:
        return None

    def begin(self, name: str) -> _MemoryUpload:
        return self.faulty("begin", lambda: _MemoryUpload(self, name, self._clock.now_ms()))

    def get_range(self, name: str, offset: int, length: int) -> Buffer:
        def get() -> Buffer:
            content = self._content(name)
            if offset + length > len(content):
                raise CorruptionError(
                    f"an object ends before {offset + length}", f"{self.url}{name}", len(content)
                )
            return memoryview(content)[offset : offset + length]

        return self.faulty("get_range", get)

    def size(self, name: str) -> int:
        return self.faulty("size", lambda: len(self._content(name)))

    def delete(self, name: str) -> None:
        self.faulty("delete", lambda: self.objects.pop(name, None))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        names = self.faulty("list", lambda: sorted(name for name in self.objects if name.startswith(prefix)))
        for name in names:
            content, modified_ms = self.objects[name]
            yield ObjectInfo(name, len(content), modified_ms)

    def sweep(self, before_ms: int) -> int:
        def throw_away() -> int:
            old = [key for key, (_, begun_ms) in self.uploads.items() if begun_ms < before_ms]
            for key in old:
                del self.uploads[key]
            return len(old)

        return self.faulty("sweep", throw_away)

    def close(self) -> None:
        pass

    def faulty(self, call: str, work: Callable[[], T]) -> T:
        """Do `work`, or raise the fault that a test has injected for `call`."""
        self.calls.append(call)
        self.before(call)
        faults = self._faults.get(call)
        if not faults:
            return work()
        error, happened = faults.pop(0)
        if happened:
            work()
        raise error

    def appear(self, name: str, content: bytes) -> None:
        """Store a finished upload. Raises `AlreadyExists` if its name is taken."""
        if name in self.objects:
            raise AlreadyExists(f"object {self.url}{name} exists already")
        self.objects[name] = (content, self._clock.now_ms())

    def _content(self, name: str) -> bytes:
        if name not in self.objects:
            raise NotFound(f"there is no object {self.url}{name}")
        return self.objects[name][0]


class _MemoryUpload:
    def __init__(self, store: MemoryBlockingStore, name: str, begun_ms: int) -> None:
        self._store = store
        self._name = name
        self._content = bytearray()
        store.uploads[id(self)] = (name, begun_ms)

    def write(self, parts: Sequence[Buffer]) -> None:
        self._store.faulty("write", lambda: self._content.extend(b"".join(parts)))

    def finish(self) -> None:
        self._store.faulty("finish", self._appear)

    def abort(self) -> None:
        self._store.uploads.pop(id(self), None)

    def _appear(self) -> None:
        self._store.appear(self._name, bytes(self._content))
        self.abort()


class MemoryObjectStore(ObjectStore):
    """`ObjectStore` over a `MemoryBlockingStore` (`faults`), without threads."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.faults = MemoryBlockingStore(clock)
        super().__init__(self.faults, threads=0)
