"""Metadata store of one process, in one [SQLite](https://www.sqlite.org/wal.html) file.

Every change is on disk before its call returns (WAL, `synchronous=FULL`). All SQL runs on one helper thread, so the
event loop never waits for the disk. Calls that queue during a commit share the next transaction, so a thousand new
topics cost a handful of fsyncs. Within the transaction, each call is still atomic by itself (`tree`).

The operating system locks the file while it is open, and releases the lock when the process ends. A second process gets
a `ConfigurationError` and changes nothing. There is one session, which lasts as long as the process. Ephemeral nodes
are deleted when the store is closed and, after a crash, when it is opened again.

    nodes(path, parent, value, version, session, next_child)    session 0: persistent

Errors: after a failed statement or on a full disk, the transaction is rolled back, so it had no effect (`Unavailable`).
An I/O error at the commit itself raises `OutcomeUnknown`.
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
"""Session time-out in ms, which has no effect: the session ends with this process."""

GROUP_CALLS_MAX: Final = 1_000
"""Maximum number of calls in one transaction, which bounds the time that the first call waits."""

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
"""Result of a call, and the paths that it changed."""


class _SqliteRows:
    """SQLite table as `Rows`, used on the helper thread."""

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
    """Work for the helper thread, and the future of its result."""

    work: Callable[[Tree], Outcome]
    future: asyncio.Future[Any]


class SqliteStore:
    """`MetadataStore` in an SQLite file; created by `open`."""

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
    async def open(cls, path: Path, *, create: bool = True) -> SqliteStore:
        """Open the file at `path`; create it if `create`. Raises `ConfigurationError` if it cannot be used."""
        loop = asyncio.get_running_loop()
        return cls(*await loop.run_in_executor(None, _open, path, create))

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
        """Do nothing: the only session sees its own changes."""

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
            del (
                future
            )  # otherwise, the error in it and this frame would reference each other (`runtime.memory`)

    # -- the helper thread -----------------------------------------------------------------------------
    def _work(self) -> None:
        while calls := self._take():
            results = self._commit(calls)
            try:
                self._loop.call_soon_threadsafe(self._deliver, calls, results)
            except RuntimeError:
                break  # the event loop is closed, so no call waits
        self._database.close()

    def _take(self) -> list[_Call]:
        """Wait for at least one call and return all that are queued; an empty list means that the store was closed."""
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
        """Run the calls in one transaction. If it fails, all calls fail."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            results = [self._run(call) for call in calls]
        except sqlite3.Error as error:
            self._roll_back()
            failed: QuireError = Unavailable(
                f"the metadata store refused a change ({error}); it had no effect"
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
            raise  # the whole transaction has failed, not only this call
        except QuireError as error:
            return error.with_traceback(
                None
            )  # for the reason stated in `_call`: the frames of the traceback refer to the future
        except Exception as error:
            return error

    def _roll_back(self) -> bool:
        try:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
        except sqlite3.Error:
            return False
        return True

    # -- on the event loop again ------------------------------------------------------------------------
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
    """Refuse a path that can never be a metadata file, without creating anything. Raises `ConfigurationError`."""
    try:
        above = next(parent for parent in path.parents if parent.exists())
        if path.is_dir() or not above.is_dir():
            raise ConfigurationError(
                f"cannot create metadata file {path}: there is a {_kind(path, above)} in its place"
            )
        if path.exists():
            with path.open("rb") as file:
                if file.read(len(_MAGIC)) not in (b"", _MAGIC):
                    raise ConfigurationError(f"{path} is not a metadata file; use another path")
    except OSError as error:
        raise _explain(path, error) from error


def _kind(path: Path, above: Path) -> str:
    return "directory" if path.is_dir() else f"file {above}"


def _open(path: Path, create: bool) -> tuple[sqlite3.Connection, Tree]:
    database = None
    try:
        if not create and not path.exists():
            raise ConfigurationError(f"metadata file {path} does not exist: correct the metadata URL")
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
            f"{path} was written by a newer Quire (format {version}, this version supports {FORMAT_VERSION}); start "
            "the newer version"
        )
    if version != FORMAT_VERSION and (version or tables):
        raise ConfigurationError(
            f"{path} is not a metadata file of format {FORMAT_VERSION}; use another path"
        )
    database.execute("BEGIN EXCLUSIVE")
    for statement in _SCHEMA:
        database.execute(statement)
    database.execute("COMMIT")


def _explain(path: Path, error: Exception) -> ConfigurationError:
    if isinstance(error, ConfigurationError):
        return error
    if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
        return ConfigurationError(
            f"metadata file {path} is in use by another process; stop that process first"
        )
    return ConfigurationError(f"cannot open metadata file {path}: {error}")
