"""Directory of bookies: the running bookies, and a port (client) to each.

A `BookieDirectory` answers from memory. A bookie's identity is its UUID and incarnation, not its address. A port
belongs to a UUID. Every request contains the incarnation, and the bookie decides which requests for an earlier
incarnation it can still answer. The port of an unknown bookie returns `UNREACHABLE`.

`LocalDirectory` contains ports that the process added (single process, tests); `ClusterDirectory` follows the metadata
store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from quire.metadata import paths
from quire.metadata.followed import Followed
from quire.metadata.records import BookieRecord, Storage
from quire.metadata.store import MetadataStore
from quire.runtime.tasks import Tasks
from quire.wire.bookie import AddDone, AddRequest, BookieId, BookiePort, Request, Status

R = TypeVar("R")


class BookieDirectory(Protocol):
    """Running bookies, and the ports to all of them."""

    def available(self) -> Sequence[BookieRecord]:
        """Return the running bookies, including read-only ones."""
        ...

    def port(self, bookie: BookieId) -> BookiePort:
        """Return the port to `bookie`; for an unknown one, a port that returns `UNREACHABLE`."""
        ...

    @property
    def storage(self) -> Storage:
        """Kind of storage for new ledgers whose policy does not choose one."""
        ...

    def own_wal(self) -> BookieId | None:
        """Return the write-ahead log on object storage that this process is writing, if any."""
        ...


class UnreachablePort:
    """Port of an unknown bookie: every request returns `UNREACHABLE`. A `BookiePort`."""

    def add(self, request: AddRequest, done: AddDone) -> None:
        asyncio.get_running_loop().call_soon(done, [Status.UNREACHABLE] * len(request.blocks))

    async def ask(self, request: Request[R]) -> R:
        return request.refused(Status.UNREACHABLE)


_UNREACHABLE = UnreachablePort()


class BookiesAlone:
    """Base of a `BookieDirectory` for a process without a write-ahead log on object storage."""

    storage: Final = Storage.BOOKIES

    def own_wal(self) -> BookieId | None:
        return None


class LocalDirectory(BookiesAlone):
    """Bookies in this process. A `BookieDirectory`."""

    def __init__(self) -> None:
        self._records: dict[str, Callable[[], BookieRecord]] = {}
        self._ports: dict[str, BookiePort] = {}

    def join(self, record: BookieRecord | Callable[[], BookieRecord], port: BookiePort) -> None:
        """Add a running bookie. If `record` is callable, it is called at each use and returns the current record."""
        describe = record if callable(record) else (lambda: record)
        uuid = describe().uuid
        self._records[uuid] = describe
        self._ports[uuid] = port

    def leave(self, uuid: str) -> None:
        self._records.pop(uuid, None)
        self._ports.pop(uuid, None)

    def available(self) -> Sequence[BookieRecord]:
        return [describe() for describe in self._records.values()]

    def port(self, bookie: BookieId) -> BookiePort:
        return self._ports.get(bookie.uuid, _UNREACHABLE)


class ClosablePort(BookiePort, Protocol):
    """Port that owns a connection."""

    async def close(self) -> None: ...


class ClusterDirectory(BookiesAlone):
    """Directory that follows `bookies-available` in the metadata store, and opens a bookie's port at its first use.

    A port outlives its bookie's registration: a bookie whose session expired may still answer, and its answers are
    valid. A port is closed when its UUID registers with another address, or changes its use of TLS.
    """

    def __init__(self, store: MetadataStore, connect: Callable[[BookieRecord], ClosablePort]) -> None:
        self._connect = connect
        self._tasks = Tasks("bookie directory")
        self._available = Followed(store, paths.BOOKIES_AVAILABLE, BookieRecord, self._tasks, self._learn_all)
        self._known: dict[str, BookieRecord] = {}
        self._ports: dict[str, ClosablePort] = {}

    async def start(self) -> None:
        """Read the running bookies, and follow their changes. Raises `Unavailable`."""
        await self._available.start()

    async def stop(self) -> None:
        self._available.stop()
        await self._tasks.stop()
        for port in self._ports.values():
            await port.close()
        self._ports.clear()

    def available(self) -> Sequence[BookieRecord]:
        return list(self._available.records.values())

    def port(self, bookie: BookieId) -> BookiePort:
        port = self._ports.get(bookie.uuid)
        if port is not None:
            return port
        record = self._known.get(bookie.uuid)
        if record is None:
            return _UNREACHABLE
        port = self._ports[bookie.uuid] = self._connect(record)
        return port

    def _learn_all(self) -> None:
        for record in self._available.records.values():
            self._learn(record)

    def _learn(self, record: BookieRecord) -> None:
        before = self._known.get(record.uuid)
        self._known[record.uuid] = record
        if before is None or (before.address, before.tls) == (record.address, record.tls):
            return
        port = self._ports.pop(record.uuid, None)
        if port is not None:
            self._tasks.start(port.close(), f"close the port of {record.uuid}")
