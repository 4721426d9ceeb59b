"""`BookieDirectory` of a process that stores its blocks on object storage.

    port(wal-UUID)    this process's current WAL; else a `ForeignWal`, also for its own WALs that have ended
    port(other)       a bookie, if the cluster has bookies
    available()       bookies, if the cluster has bookies; new ledgers are written to `own_wal`

The process begins its first WAL after the store has passed the `probe`. When a WAL ends, the process begins another one
as soon as both stores answer. If access was denied, it first probes the store again. Until then, publishing fails
with "try again", and `why_not_ready` returns the reason.

A WAL ends with its process's metadata session (law 18), so that a broker that takes over the process's topics can close
the WAL early. Safety does not depend on that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from quire.metadata.records import BookieRecord, Storage
from quire.metadata.store import SessionEvent
from quire.runtime.errors import ConfigurationError, QuireError, Unavailable
from quire.runtime.limits import WAL_VIEWS_BYTES_MAX
from quire.runtime.tasks import Tasks
from quire.wal.context import WalContext
from quire.wal.foreign import ForeignWal
from quire.wal.own_record import OwnRecord, all_records
from quire.wal.patience import as_quire_error
from quire.wal.probe import probe
from quire.wal.storage import WalStorage
from quire.wire.bookie import BookieId, BookiePort

_log = logging.getLogger(__name__)

RETRY_S: Final = 2.0
"""Delay in seconds before another attempt to begin a WAL."""

TIDY_S: Final = 10.0
"""Interval in seconds between evictions of idle views of other WALs."""

IDLE_S: Final = 600.0
"""Idle time in seconds after which the view of another WAL is evicted; the next request loads it again."""


class Bookies(Protocol):
    """Subset of `quire.ledger.directory.BookieDirectory`."""

    def available(self) -> Sequence[BookieRecord]: ...

    def port(self, bookie: BookieId) -> BookiePort: ...


class WalDirectory:
    """Directory of WALs, and of `bookies`, which may have blocks from before the cluster used WALs."""

    def __init__(self, context: WalContext, bookies: Bookies) -> None:
        self.context = context
        self._bookies = bookies
        self._tasks = Tasks("wal")
        self._own: WalStorage | None = None
        self._others: dict[str, ForeignWal] = {}
        self._wanted = asyncio.Event()
        self._why_not_ready = "the write-ahead log has not begun yet"
        self._is_proven = False
        self._told: type[QuireError] | None = None
        """Type of the error that was logged last; further errors of this type are not logged."""
        self._on_flushed: list[Callable[[], None]] = []
        self._doubt: asyncio.TimerHandle | None = None
        self._unwatch: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Probe the store and begin a WAL. If a store does not answer, retry in the background.

        Raises `ConfigurationError`.
        """
        self._unwatch = self.context.metadata.on_session(self._session_event)
        try:
            await self._prove()
            await self._begin()
        except ConfigurationError:
            raise
        except QuireError as error:
            self._not_ready(error)
            self._wanted.set()
        self._tasks.start(self._keep_one(), "keep a WAL open")
        self._tasks.start_every(TIDY_S, self._drop_idle, "drop views of other logs")

    async def stop(self) -> None:
        self._unwatch()
        await self._tasks.stop()
        if self._own is not None:
            await self._own.stop()
        for wal in self._others.values():
            await wal.stop()

    # -- the directory -----------------------------------------------------------------------------------
    def available(self) -> Sequence[BookieRecord]:
        return self._bookies.available()

    def port(self, bookie: BookieId) -> BookiePort:
        if not bookie.is_wal:
            return self._bookies.port(bookie)
        if self._own is not None and self._own.bookie_id == bookie:
            return self._own
        uuid = bookie.uuid.removeprefix("wal-")
        found = self._others.get(uuid)
        if found is None:
            found = self._others[uuid] = ForeignWal(self.context, uuid)
        return found

    async def _drop_idle(self) -> None:
        """Evict views that were idle for `IDLE_S`, and the longest idle ones while the memory budget is exceeded."""
        size = sum(wal.view.index.size_bytes for wal in self._others.values())
        for uuid, wal in sorted(self._others.items(), key=lambda each: -each[1].idle_s):
            if wal.idle_s > IDLE_S or (wal.idle_s and size > WAL_VIEWS_BYTES_MAX):
                size -= wal.view.index.size_bytes
                del self._others[uuid]

    storage: Final = Storage.OBJECTS

    # -- for the rest of the process ---------------------------------------------------------------------
    def own_wal(self) -> BookieId | None:
        """Return the WAL that this process writes now; None if it has no open WAL."""
        return self._own.bookie_id if self._own is not None else None

    @property
    def why_not_ready(self) -> str:
        """Reason why nothing can be published now, as a sentence; empty if publishing works."""
        return "" if self._own is not None else self._why_not_ready

    @property
    def bytes_unflushed(self) -> int:
        """Accepted bytes that are not in sets yet; they count against the process's memory budget."""
        return self._own.bytes_unflushed if self._own is not None else 0

    def on_flushed(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the event loop each time `bytes_unflushed` falls."""
        self._on_flushed.append(callback)

    async def flush(self) -> None:
        """Wait until all blocks accepted so far are in sets. Raises the error that prevents a flush."""
        if self._own is not None:
            await self._own.flush()

    def metrics(self) -> dict[str, Any]:
        """Return metrics: sizes in bytes, counts since the start of the WAL."""
        own = self._own
        return {
            "quire_wal_open": own is not None,
            "quire_wal_unflushed_bytes": self.bytes_unflushed,
            "quire_wal_views_bytes": sum(wal.view.index.size_bytes for wal in self._others.values()),
            **(own.journal.metrics() if own is not None else {}),
        }

    # -- the own WAL -------------------------------------------------------------------------------------
    async def _prove(self) -> None:
        if not self._is_proven:
            await self.context.objects.prepare()
            records = await all_records(self.context.metadata)
            await self.context.place.enter(used=[record.store for record in records.values()])
            await probe(self.context.objects)
            self._is_proven = True

    async def _begin(self) -> None:
        # A mount or the metadata may have been replaced since the last WAL.
        await self.context.place.confirm()
        record = await OwnRecord.begin(self.context)
        own = WalStorage(self.context, record, self._ended)
        own.on_flushed(self._tell_flushed)
        own.start()
        self._own = own
        _log.info("writing to the new write-ahead log %s in %s", own.bookie_id.uuid, record.record.store)

    def _ended(self, own: WalStorage, why: QuireError) -> None:
        self._own = None
        self._is_proven = self._is_proven and not isinstance(why, ConfigurationError)
        self._not_ready(why)
        self._tell_flushed()
        self._tasks.start(own.stop(), "stop a WAL that has ended")
        self._wanted.set()

    def _not_ready(self, why: QuireError) -> None:
        self._why_not_ready = f"nothing can be published: {why}"
        if type(why) is not self._told:
            log = _log.error if isinstance(why, ConfigurationError) else _log.warning
            log("%s", self._why_not_ready)
        self._told = type(why)

    async def _keep_one(self) -> None:
        """Begin a WAL whenever this process has no open one."""
        while True:
            await self._wanted.wait()
            try:
                await self._prove()
                await self._begin()
                self._told = None
                self._wanted.clear()
            except Exception as error:
                self._not_ready(as_quire_error(error, "the start of a write-ahead log"))
                await asyncio.sleep(RETRY_S)

    def _tell_flushed(self) -> None:
        for callback in self._on_flushed:
            callback()

    # -- the session -------------------------------------------------------------------------------------
    def _session_event(self, event: SessionEvent) -> None:
        if self._doubt is not None:
            self._doubt.cancel()
            self._doubt = None
        if event is SessionEvent.SUSPENDED:
            timeout_s = self.context.metadata.session_timeout_ms / 1000
            self._doubt = asyncio.get_running_loop().call_later(timeout_s, self._end_session)
        elif event is SessionEvent.LOST:
            self._end_session()

    def _end_session(self) -> None:
        if self._own is not None:
            self._own.end(
                Unavailable("the session with the metadata store ended: other brokers may take over")
            )
