"""A node whose journal and entry logs are objects: one WAL, from its registration to its end, and a `BookiePort`.

    add         intake (judge, memtable, group in one step) → data object → answer
    read        memtables → runs of sets
    fence, LAC  in memory: nobody reopens a WAL, and a ledger's state is in its record
    tombstone   with the next data object, then in the catalogue
    flush       frozen memtable → set → catalogue → record (see `flusher`)

It is written by this process, under a name that is used once, and ends for good: because somebody closes it, because
the store bars us, or because the process has lost its session. Then what is pending is answered UNREACHABLE, so that
writers go on elsewhere, by an ensemble change; what was acknowledged is in objects, and is read from there like any
other's (`foreign`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

from quire.bookie.intake import Intake
from quire.bookie.requests import Requests
from quire.bookie.write_cache import WriteCache
from quire.metadata import paths
from quire.metadata.records import WalState
from quire.runtime.errors import Fenced, NotFound, QuireError, Unavailable
from quire.runtime.limits import ADD_REQUEST_BYTES_MAX
from quire.runtime.tasks import Tasks
from quire.wal.context import WalContext
from quire.wal.flusher import Flusher
from quire.wal.keeper import Keeper
from quire.wal.object_journal import ObjectJournal
from quire.wal.own_record import OwnRecord
from quire.wal.reads import Reads
from quire.wal.run_index import RunIndex
from quire.wal.run_reader import RunReader
from quire.wal.set_objects import SetObjects
from quire.wal.tombstones import LaidByOthers
from quire.wal.trash import Trash
from quire.wire.bookie import AddDone, AddRequest, BookieId, Request

R = TypeVar("R")
_log = logging.getLogger(__name__)

STOP_S: Final = 10.0
"""A store that does not answer is not waited for any longer when the process stops: others close the WAL."""


class Standing:
    """See `quire.bookie.neighbours.Standing`: a WAL takes everything, until it has ended."""

    is_short_of_space = False

    def __init__(self) -> None:
        self.failure = ""
        self.is_read_only = self.is_exhausted = False
        self._on_worse: list[Callable[[], None]] = []

    def on_worse(self, callback: Callable[[], None]) -> None:
        self._on_worse.append(callback)

    def end(self, why: str) -> None:
        self.failure = why
        self.is_read_only = self.is_exhausted = True
        for callback in self._on_worse:
            callback()


class WalStorage:
    """A `BookiePort`, and what its process knows of it. `on_end` is called once, with the reason."""

    def __init__(
        self, context: WalContext, record: OwnRecord, on_end: Callable[[WalStorage, QuireError], None]
    ) -> None:
        settings, uuid = context.settings, record.record.uuid
        self.bookie_id = BookieId(f"wal-{uuid}", 1)
        self.standing = Standing()
        self.cache = cache = WriteCache(settings.memtable_bytes)
        self._context = context
        self._record = record
        self._unwatch: Callable[[], None] = lambda: None
        self._on_end = on_end
        self._tasks = Tasks(f"wal {uuid[:8]}")
        self._index = RunIndex()
        self.journal = ObjectJournal(
            context.objects, uuid, settings, context.clock, lambda: record.record.trim_seq, self.end
        )
        self._laid = LaidByOthers(context.metadata, uuid, self._tasks)
        self._trash = Trash(context.objects, self._tasks)
        sets = SetObjects(context.objects, uuid, self._index)
        self._flusher = Flusher(
            cache,
            self.journal,
            sets,
            Keeper(record, sets, self._trash),
            self._laid,
            self._tasks,
            context.clock,
            self.end,
        )
        reads = Reads(cache, self._index, RunReader(context.objects, self._index, context.cache), self._tasks)
        intake = Intake(
            cache, self._index, self.journal, self.standing, self._flusher, reads, ADD_REQUEST_BYTES_MAX
        )
        self._requests = Requests(self, cache, self.journal, self.standing, self._flusher, reads, intake)

    def start(self) -> None:
        metadata, path = self._context.metadata, paths.wal(self._record.record.uuid)
        self._unwatch = metadata.watch(path, self._record_changed)
        self._flusher.start()
        self._laid.start()

    def _record_changed(self, _path: str) -> None:
        self._tasks.start(self._look_at_record(), "look at the record")

    async def _look_at_record(self) -> None:
        """Who closes this WAL puts a fence behind its last object, which a writer that went on would outrun."""
        try:
            record = (await OwnRecord.read(self._context.metadata, self._record.record.uuid)).record
        except Unavailable:
            return  # all watchers are told when a session begins
        except NotFound as error:
            self._fenced(str(error))
        else:
            if record.state is not WalState.OPEN:
                self._fenced(f"somebody took over what {record.broker} had")

    def _fenced(self, why: str) -> None:
        if self.journal.failure is None:
            self.end(Fenced(why))

    async def stop(self) -> None:
        """Leave all in sets, and say in the record that nothing follows; a WAL that has ended is left as it is."""
        if self.journal.failure is None:
            await self._close()
        self._unwatch()
        self._laid.stop()
        await self._tasks.stop()
        await self.journal.stop()

    async def _close(self) -> None:
        """The only writer knows that no upload is under way: the end needs no fence."""
        try:
            async with asyncio.timeout(STOP_S):
                await self._flusher.flush()
                await self._flusher.tidy()
                while (last_seq := self.journal.seal()) > self.journal.durable_seq:
                    await self._flusher.durable()
                self.journal.end(Unavailable("the process stops"))
                await self._record.change(state=WalState.CLOSED, end_seq=last_seq + 1)
                await self._trash.emptied()
        except (QuireError, TimeoutError) as error:
            _log.warning("%s is left for others to close: %s", self.bookie_id.uuid, error)

    def end(self, why: QuireError) -> None:
        """Nothing more is written here."""
        if self.standing.failure:
            return
        _log.warning("%s has ended: %s", self.bookie_id.uuid, why)
        self.journal.end(why)
        self.standing.end(str(why))
        self._on_end(self, why)

    # -- what others ask about it ------------------------------------------------------------------------
    @property
    def bytes_unflushed(self) -> int:
        """Bytes that were accepted and are not yet in sets; the process's budget counts them."""
        return self.cache.size_bytes

    def on_flushed(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop whenever `bytes_unflushed` has fallen."""
        self._flusher.on_flushed(callback)

    async def flush(self) -> None:
        """Return when everything accepted so far is in sets. Raises what prevents it."""
        await self._flusher.flush()

    async def emptied(self) -> None:
        """Return when all objects that nobody needs are deleted."""
        await self._trash.emptied()

    @property
    def laid(self) -> Mapping[int, int]:
        """Tombstones of others that no catalogue has yet: ledger and version."""
        return self._laid.waiting

    async def tidy(self) -> None:
        """Let go of what was deleted, now."""
        await self._flusher.tidy()

    # -- requests ----------------------------------------------------------------------------------------
    def add(self, request: AddRequest, done: AddDone) -> None:
        """See `BookiePort.add`."""
        self._requests.add(request, done)

    def ask(self, request: Request[R]) -> Coroutine[Any, Any, R]:
        """See `BookiePort.ask`."""
        return self._requests.ask(request)
