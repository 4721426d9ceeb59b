"""Metadata store in memory, for tests and simulations. Any number of sessions share it, and faults can be injected.

`MemoryStore()` opens a session on a new tree; `store.join()` opens another session on the same tree, as another process
would. A test can cut the connection (`suspend`, `resume`) and end the session (`expire`). `fail_next` lets the next
change fail, whether it is applied or not, as after a time-out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from quire.metadata.store import (
    ANY_VERSION,
    Delete,
    Node,
    OperationCounts,
    Put,
    SessionCallback,
    SessionEvent,
    Step,
    WatchCallback,
)
from quire.metadata.tree import PERSISTENT, Row, Tree, name_of, parent_of
from quire.metadata.watches import Watches
from quire.runtime.errors import Unavailable

R = TypeVar("R")


class MemoryRows:
    """Rows of a tree in a dict, with the names of each node's children."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._children: dict[str, set[str]] = {}

    def copy(self) -> MemoryRows:
        """Return a copy of the rows, which later changes of these rows do not affect."""
        made = MemoryRows()
        made._rows = dict(self._rows)
        made._children = {path: set(names) for path, names in self._children.items()}
        return made

    def find(self, path: str) -> Row | None:
        return self._rows.get(path)

    def keep(self, path: str, row: Row) -> None:
        if path not in self._rows and path != "/":
            self._children.setdefault(parent_of(path), set()).add(name_of(path))
        self._rows[path] = row

    def drop(self, path: str) -> None:
        if self._rows.pop(path, None) is not None:
            self._children[parent_of(path)].discard(name_of(path))

    def child_names(self, path: str) -> Iterable[str]:
        return self._children.get(path, ())

    def has_children(self, path: str) -> bool:
        return bool(self._children.get(path))

    def paths_of_session(self, session: int) -> list[str]:
        return [path for path, row in self._rows.items() if row.session == session]


class _Shared:
    """Shared state of all sessions on one tree in memory."""

    def __init__(self) -> None:
        self.tree = Tree(MemoryRows())
        self.sessions: list[MemoryStore] = []
        self.last_session = PERSISTENT

    def next_session(self) -> int:
        self.last_session += 1
        return self.last_session

    def notify(self, changed: set[str]) -> None:
        for session in self.sessions:
            session.watches.notify(changed)


class MemoryStore:
    """Session on a tree in memory; a `MetadataStore`. The module's docstring describes its faults."""

    def __init__(self, *, session_timeout_ms: int = 10_000, shared: _Shared | None = None) -> None:
        self._shared = shared or _Shared()
        self._shared.sessions.append(self)
        self._session = self._shared.next_session()
        self._session_timeout_ms = session_timeout_ms
        self._connected = True
        self._faults: list[tuple[Exception, bool]] = []
        self.watches = Watches()
        self.counts = OperationCounts()

    def join(self) -> MemoryStore:
        """Begin another session on the same tree."""
        return MemoryStore(session_timeout_ms=self._session_timeout_ms, shared=self._shared)

    @property
    def session_timeout_ms(self) -> int:
        return self._session_timeout_ms

    async def get(self, path: str) -> Node:
        self._check()
        self.counts.reads += 1
        return self._shared.tree.get(path)

    async def children(self, path: str) -> list[str]:
        self._check()
        self.counts.reads += 1
        return self._shared.tree.children(path)

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        session = self._session if ephemeral else PERSISTENT
        return self._change(lambda tree: tree.create(path, value, session, sequential=sequential))

    async def put(self, path: str, value: bytes, version: int) -> int:
        return self._change(lambda tree: tree.transact([Put(path, value, version)], self._session))[0]

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._change(lambda tree: tree.transact([Delete(path, version)], self._session))

    async def transact(self, steps: Sequence[Step]) -> None:
        self._change(lambda tree: tree.transact(steps, self._session))

    async def sync(self) -> None:
        self._check()

    def watch(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        return self.watches.watch(path, callback)

    def on_session(self, callback: SessionCallback) -> Callable[[], None]:
        return self.watches.on_session(callback)

    async def close(self) -> None:
        if self in self._shared.sessions:
            self._shared.sessions.remove(self)
            self._connected = False
            self.watches.clear()
            self._shared.notify(self._shared.tree.end_session(self._session))

    # -- faults, for tests -----------------------------------------------------------------------------
    def fail_next(self, error: Exception, *, happened: bool) -> None:
        """Let the next change raise `error`, after it was applied (`happened`) or instead."""
        self._faults.append((error, happened))

    def suspend(self) -> None:
        """Cut the connection: every call raises `Unavailable` until `resume` or `expire`."""
        self._connected = False
        self.watches.notify_session(SessionEvent.SUSPENDED)

    def resume(self) -> None:
        """Restore the connection and the session. All watches fire, because they may have missed a change."""
        self._connected = True
        self.watches.notify_session(SessionEvent.RESUMED)
        self.watches.notify_all()

    def expire(self) -> None:
        """End the session: its ephemeral nodes are deleted, and a new session begins."""
        self._shared.notify(self._shared.tree.end_session(self._session))
        self._session = self._shared.next_session()
        self._connected = True
        self.watches.notify_session(SessionEvent.LOST)
        self.watches.notify_all()

    def _check(self) -> None:
        if not self._connected:
            raise Unavailable("the metadata store cannot be reached; try again")

    def _change(self, change: Callable[[Tree], tuple[R, set[str]]]) -> R:
        self._check()
        self.counts.changes += 1
        error, happened = self._faults.pop(0) if self._faults else (None, True)
        if not happened:
            assert error is not None
            raise error
        result, changed = change(self._shared.tree)
        self._shared.notify(changed)
        if error is not None:
            raise error
        return result
