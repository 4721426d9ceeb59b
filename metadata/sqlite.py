"""The metadata store of one process, in one SQLite file.

Every change is on disk before it is answered (WAL, `synchronous=FULL`). All SQL runs on one helper thread, so the
loop never waits for the disk; what has queued up while the last commit was on its way to the disk makes one
transaction together, so a thousand topics made at once cost a handful of fsyncs. Inside it each call is still
all or nothing by itself (`tree`).

The file is locked for as long as it is open, by the operating system, so that the lock dies with the process: a
second process gets a `ConfigurationError` and changes nothing. There is one session, which lives as long as the
process; ephemeral nodes go when the store is closed and, after a crash, when it is opened again.

    nodes(path, parent, value, version, session, next_child)    session 0: persistent

Where an error leaves us: a failed statement or a full disk rolls the transaction back, so nothing in it happened
(`Unavailable`); an I/O error at the commit itself leaves `OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

from quire.metadata.store import (
    ANY_VERSION,
    Delete,
    Node,
    OperationCounts,
    Put,
    SessionCallback,
    Step,
    WatchCallback,
)
from quire.metadata.tree import PERSISTENT, ROOT, Row, Tree, name_of, parent_of
from quire.metadata.watches import Watches
from quire.runtime.errors import ConfigurationError, OutcomeUnknown, QuireError, Unavailable

FORMAT_VERSION: Final = 1
_MAGIC: Final = b"SQLite format 3\0"
SESSION: Final = 1
SESSION_TIMEOUT_MS: Final = 30_000
"""Of no consequence: the session cannot outlive its connection, which is this process."""

GROUP_CALLS_MAX: Final = 1_000
"""Calls in one transaction: bounds how long the first of them waits for the last."""

_SETTINGS: Final = (
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA cache_size = -8192",
)
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS nodes(path TEXT PRIMARY KEY, parent TEXT, value BLOB NOT NULL,"
    " version INTEGER NOT NULL, session INTEGER NOT NULL, next_child INTEGER NOT NULL)",
    "CREATE INDEX IF NOT EXISTS nodes_by_parent ON nodes(parent, path)",
    "CREATE INDEX IF NOT EXISTS nodes_by_session ON nodes(session) WHERE session != 0",
    f"PRAGMA user_version = {FORMAT_VERSION}",
)
_KEEP: Final = "INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?, ?)"
_FIND: Final = "SELECT value, version, session, next_child FROM nodes WHERE path = ?"

Outcome = tuple[Any, set[str]]
"""A call's result, and the paths that it changed."""


class _SqliteRows:
    """The table as `Rows`. Runs on the helper thread."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._run = database.execute

    def find(self, path: str) -> Row | None:
        found = self._run(_FIND, (path,)).fetchone()
        return None if found is None else Row(*found)

    def keep(self, path: str, row: Row) -> None:
        parent = None if path == ROOT else parent_of(path)
        self._run(_KEEP, (path, parent, row.value, row.version, row.session, row.next_child))

    def drop(self, path: str) -> None:
        self._run("DELETE FROM nodes WHERE path = ?", (path,))

    def child_names(self, path: str) -> Iterable[str]:
        return [name_of(child) for (child,) in self._run("SELECT path FROM nodes WHERE parent = ?", (path,))]

    def has_children(self, path: str) -> bool:
        return self._run("SELECT 1 FROM nodes WHERE parent = ? LIMIT 1", (path,)).fetchone() is not None

    def paths_of_session(self, session: int) -> list[str]:
        return [path for (path,) in self._run("SELECT path FROM nodes WHERE session = ?", (session,))]


class _Call(NamedTuple):
    """Something to do on the helper thread, and who waits for it."""

    work: Callable[[Tree], Outcome]
    future: asyncio.Future[Any]


class SqliteStore:
    """A `MetadataStore`; make one with `open`."""

    def __init__(self, database: sqlite3.Connection, tree: Tree) -> None:
        self._database = database
        self._tree = tree
        self._loop = asyncio.get_running_loop()
        self._watches = Watches()
        self.counts = OperationCounts()
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="quire-metadata", daemon=True)
        self._thread.start()

    @classmethod
    async def open(cls, path: Path) -> SqliteStore:
        """Open or make the file at `path`. Raises `ConfigurationError` when it cannot be used."""
        loop = asyncio.get_running_loop()
        return cls(*await loop.run_in_executor(None, _open, path))

    @property
    def session_timeout_ms(self) -> int:
        return SESSION_TIMEOUT_MS

    async def get(self, path: str) -> Node:
        self.counts.reads += 1
        node: Node = await self._call(lambda tree: (tree.get(path), set()))
        return node

    async def children(self, path: str) -> list[str]:
        self.counts.reads += 1
        names: list[str] = await self._call(lambda tree: (tree.children(path), set()))
        return names

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        self.counts.changes += 1
        session = SESSION if ephemeral else PERSISTENT
        made: str = await self._call(lambda tree: tree.create(path, value, session, sequential=sequential))
        return made

    async def put(self, path: str, value: bytes, version: int) -> int:
        self.counts.changes += 1
        versions: list[int] = await self._call(
            lambda tree: tree.transact([Put(path, value, version)], SESSION)
        )
        return versions[0]

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self.counts.changes += 1
        await self._call(lambda tree: tree.transact([Delete(path, version)], SESSION))

    async def transact(self, steps: Sequence[Step]) -> None:
        self.counts.changes += 1
        await self._call(lambda tree: tree.transact(steps, SESSION))

    async def sync(self) -> None:
        """There is one session, which sees what it did."""

    def watch(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        return self._watches.watch(path, callback)

    def on_session(self, callback: SessionCallback) -> Callable[[], None]:
        return self._watches.on_session(callback)

    async def close(self) -> None:
        if self._closed:
            return
        await self._call(lambda tree: (None, tree.end_session(SESSION)))
        self._closed = True
        self._calls.put(None)
        await self._loop.run_in_executor(None, self._thread.join)
        self._watches.clear()

    async def _call(self, work: Callable[[Tree], Outcome]) -> Any:
        if self._closed:
            raise Unavailable("the metadata store is closed")
        future = self._loop.create_future()
        self._calls.put(_Call(work, future))
        try:
            return await future
        finally:
            del future  # an error in it would hold this frame, and the frame it: a circle that stays (`runtime.memory`)

    # -- the helper thread -----------------------------------------------------------------------------
    def _work(self) -> None:
        while calls := self._take():
            results = self._commit(calls)
            try:
                self._loop.call_soon_threadsafe(self._deliver, calls, results)
            except RuntimeError:
                break  # the loop is gone, and with it everyone who waits
        self._database.close()

    def _take(self) -> list[_Call]:
        """All calls that wait, at least one; none when the store closes, which comes after all calls."""
        first = self._calls.get()
        calls = [] if first is None else [first]
        try:
            while calls and len(calls) < GROUP_CALLS_MAX:
                call = self._calls.get_nowait()
                if call is None:
                    self._calls.put(None)
                    break
                calls.append(call)
        except Empty:
            pass
        return calls

    def _commit(self, calls: list[_Call]) -> list[Outcome | Exception]:
        """Run the calls in one transaction. Its failure is the failure of each."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            results = [self._run(call) for call in calls]
        except sqlite3.Error as error:
            self._roll_back()
            failed: QuireError = Unavailable(
                f"the metadata store refused a change ({error}); nothing happened"
            )
            return [failed] * len(calls)
        try:
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            rolled_back = self._roll_back() and error.sqlite_errorcode == sqlite3.SQLITE_FULL
            kind = Unavailable if rolled_back else OutcomeUnknown
            return [kind(f"the metadata store could not commit ({error})")] * len(calls)
        return results

    def _run(self, call: _Call) -> Outcome | Exception:
        try:
            return call.work(self._tree)
        except sqlite3.Error:
            raise  # the transaction is broken, not this call alone
        except QuireError as error:
            return error.with_traceback(
                None
            )  # as in `_call`: our frames, which it would hold, lead to the future
        except Exception as error:
            return error

    def _roll_back(self) -> bool:
        try:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
        except sqlite3.Error:
            return False
        return True

    # -- back on the loop ------------------------------------------------------------------------------
    def _deliver(self, calls: list[_Call], results: list[Outcome | Exception]) -> None:
        for call, result in zip(calls, results, strict=True):
            if isinstance(result, Exception):
                if not call.future.done():
                    call.future.set_exception(result)
                continue
            self._watches.notify(result[1])
            if not call.future.done():
                call.future.set_result(result[0])


def look_at_file(path: Path) -> None:
    """Refuse a path that can never be a metadata file; nothing is made. Raises `ConfigurationError`."""
    above = next(parent for parent in path.parents if parent.exists())
    if path.is_dir() or not above.is_dir():
        raise ConfigurationError(
            f"metadata file {path} cannot be made: there is a {_kind(path, above)} in its place"
        )
    try:
        if path.exists():
            with path.open("rb") as file:
                if file.read(len(_MAGIC)) not in (b"", _MAGIC):
                    raise ConfigurationError(f"{path} is not a metadata file; name another one")
    except OSError as error:
        raise _explain(path, error) from error


def _kind(path: Path, above: Path) -> str:
    return "directory" if path.is_dir() else f"file {above}"


def _open(path: Path) -> tuple[sqlite3.Connection, Tree]:
    database = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        _prepare(database, path)
        tree = Tree(_SqliteRows(database))
        tree.end_session(SESSION)
    except (OSError, sqlite3.Error, ConfigurationError) as error:
        if database is not None:
            database.close()
        raise _explain(path, error) from error
    return database, tree


def _prepare(database: sqlite3.Connection, path: Path) -> None:
    for setting in _SETTINGS:
        database.execute(setting)
    (version,) = database.execute("PRAGMA user_version").fetchone()
    (tables,) = database.execute("SELECT count(*) FROM sqlite_schema WHERE type = 'table'").fetchone()
    if version > FORMAT_VERSION:
        raise ConfigurationError(
            f"{path} was written by a newer Quire (format {version}, this one knows {FORMAT_VERSION}); start that one"
        )
    if version != FORMAT_VERSION and (version or tables):
        raise ConfigurationError(
            f"{path} is not a metadata file of format {FORMAT_VERSION}; name another one"
        )
    database.execute("BEGIN EXCLUSIVE")
    for statement in _SCHEMA:
        database.execute(statement)
    database.execute("COMMIT")


def _explain(path: Path, error: Exception) -> ConfigurationError:
    if isinstance(error, ConfigurationError):
        return error
    if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
        return ConfigurationError(f"metadata file {path} is in use by another process; stop that one first")
    return ConfigurationError(f"metadata file {path} cannot be opened: {error}")
