"""Who keeps blocks, for a process that keeps its own on object storage: a `BookieDirectory`.

    port(wal-UUID)    the WAL that is written now; else a `ForeignWal`, also of own ones that have ended
    port(other)       a bookie, where the cluster has some
    available()       bookies, where the cluster has some; new ledgers go to `own_wal`

The own WAL is begun when the store has proven itself (`probe`), and when one ends another is begun, as soon as store
and metadata answer; the store proves itself again when it had barred us. Until then nothing is available, so topics
answer "try again", and `why_not_ready` says why.

A WAL ends with its process's session (law 18): whoever takes over closes it then, which shortens the pause. Safety
does not rest on that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from quire.metadata.records import BookieRecord, Storage
from quire.metadata.store import SessionEvent
from quire.runtime.errors import ConfigurationError, QuireError, Unavailable
from quire.runtime.tasks import Tasks
from quire.wal.context import WalContext
from quire.wal.foreign import ForeignWal
from quire.wal.own_record import OwnRecord
from quire.wal.probe import probe
from quire.wal.storage import WalStorage
from quire.wire.bookie import BookieId, BookiePort

_log = logging.getLogger(__name__)

RETRY_S: Final = 2.0
"""Before another WAL is tried to be begun."""


class Bookies(Protocol):
    """See `quire.ledger.directory.BookieDirectory`."""

    def available(self) -> Sequence[BookieRecord]: ...

    def port(self, bookie: BookieId) -> BookiePort: ...


class WalDirectory:
    """`bookies` leads to those of the cluster, which may have blocks from other times."""

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
        """What kind of reason the log has; while it is tried again, another of that kind says nothing new."""
        self._on_flushed: list[Callable[[], None]] = []
        self._doubt: asyncio.TimerHandle | None = None
        self._unwatch: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Prove the store, and begin a WAL. Raises `ConfigurationError`; a store that does not answer is waited for."""
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

    storage: Final = Storage.OBJECTS

    # -- what others ask ---------------------------------------------------------------------------------
    def own_wal(self) -> BookieId | None:
        """The WAL that is written now."""
        return self._own.bookie_id if self._own is not None else None

    @property
    def why_not_ready(self) -> str:
        """Why nothing can be published now, in a sentence; empty when all is well."""
        return "" if self._own is not None else self._why_not_ready

    @property
    def bytes_unflushed(self) -> int:
        """Bytes that were accepted and are not yet in sets; the process's budget counts them."""
        return self._own.bytes_unflushed if self._own is not None else 0

    def on_flushed(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop whenever `bytes_unflushed` has fallen."""
        self._on_flushed.append(callback)

    async def flush(self) -> None:
        """Return when everything accepted so far is in sets. Raises what prevents it."""
        if self._own is not None:
            await self._own.flush()

    def metrics(self) -> dict[str, Any]:
        """What it tells Prometheus: sizes in bytes, counts since the start of the WAL."""
        own = self._own
        return {
            "quire_wal_open": own is not None,
            "quire_wal_unflushed_bytes": self.bytes_unflushed,
            **(own.journal.metrics() if own is not None else {}),
        }

    # -- the own WAL -------------------------------------------------------------------------------------
    async def _prove(self) -> None:
        if not self._is_proven:
            await self.context.objects.prepare()
            await probe(self.context.objects)
            self._is_proven = True

    async def _begin(self) -> None:
        record = await OwnRecord.begin(self.context)
        own = WalStorage(self.context, record, self._ended)
        own.on_flushed(self._tell_flushed)
        own.start()
        self._own = own
        _log.info("what is published goes to %s of %s", own.bookie_id.uuid, record.record.store)

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
        """For ever: begin another WAL when there is none."""
        while True:
            await self._wanted.wait()
            try:
                await self._prove()
                await self._begin()
                self._told = None
                self._wanted.clear()
            except QuireError as error:
                self._not_ready(error)
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
            self._own.end(Unavailable("the session with the metadata store is over, so others may take over"))
