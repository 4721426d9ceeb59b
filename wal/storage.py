"""Open WAL of this process: a `BookiePort` like a bookie's, with the data in objects.

    add         check the blocks, add them to the memtable and to the open group in one step → data object → response
    read        memtables → runs of sets
    fence, LAC  in memory: a WAL is never reopened, and a ledger's state is in the ledger's record
    tombstone   written with the next data object, then into the catalogue
    flush       frozen memtable → set → catalogue → record (see `flusher`)

A WAL's UUID is never used again. The WAL ends when another process closes it, when the store denies access, or when
this process loses its metadata session. Then pending requests return UNREACHABLE, and the ledgers' writers change their
ensembles to another WAL. Acknowledged blocks are in objects, and are then read through `foreign`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
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
from quire.wal.proof import prove_missing
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
"""Seconds for which a stopping process waits for the store; then another process must close the WAL."""


UNREGISTER_S: Final = 2.0
"""Seconds to wait for the removal of the writer's node. If it fails, the node disappears with the session."""


class Standing:
    """Implementation of `quire.bookie.neighbours.Standing`: a WAL accepts all blocks until it ends."""

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
    """Open WAL of this process, as a `BookiePort`. `on_end` is called once, with the reason why the WAL ended."""

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
        self.laid = LaidByOthers(context.metadata, uuid, self._tasks)
        self.trash = Trash(context.objects, self._tasks)
        sets = SetObjects(context.objects, uuid, self._index)
        self.flusher = Flusher(
            cache,
            self.journal,
            sets,
            Keeper(record, sets, self.trash),
            self.laid,
            self._tasks,
            context.clock,
            self.end,
        )
        runs = RunReader(context.objects, self._index, context.cache)
        reads = Reads(cache, self._index, runs, self._tasks, self._prove)
        intake = Intake(
            cache, self._index, self.journal, self.standing, self.flusher, reads, ADD_REQUEST_BYTES_MAX
        )
        self._requests = Requests(self, cache, self.journal, self.standing, self.flusher, reads, intake)

    def start(self) -> None:
        metadata, path = self._context.metadata, paths.wal(self._record.record.uuid)
        self._unwatch = metadata.watch(path, self._record_changed)
        self.flusher.start()
        self.laid.start()

    async def _prove(self, error: QuireError) -> QuireError:
        record = self._record
        return await prove_missing(self._context.place, error, record.record.uuid, record.version)

    def _record_changed(self, _path: str) -> None:
        self._tasks.start(self._look_at_record(), "look at the record")

    async def _look_at_record(self) -> None:
        """End this WAL if another process is closing it.

        That process puts a fence after the last object, and further uploads by the writer would delay the fence.
        """
        try:
            record = (await OwnRecord.read(self._context.metadata, self._record.record.uuid)).record
        except Unavailable:
            return  # all watches fire again when a new session begins
        except NotFound as error:
            self._fenced(str(error))
        else:
            if record.state is not WalState.OPEN:
                self._fenced(f"another process is closing the WAL of broker {record.broker}")

    def _fenced(self, why: str) -> None:
        if self.journal.failure is None:
            self.end(Fenced(why))

    async def stop(self) -> None:
        """Flush all blocks into sets and close the WAL, unless it has already ended."""
        if self.journal.failure is None:
            await self._close()
        await self._unregister()
        self._unwatch()
        self.laid.stop()
        await self._tasks.stop()
        await self.journal.stop()

    async def _close(self) -> None:
        """Close the WAL without a fence, which its only writer does not need, because no upload is in flight."""
        try:
            async with asyncio.timeout(STOP_S):
                await self.flusher.flush()
                await self.flusher.tidy()
                while (last_seq := self.journal.seal()) > self.journal.durable_seq:
                    await self.flusher.durable()
                self.journal.end(Unavailable("the process is stopping"))
                await self._record.change(state=WalState.CLOSED, end_seq=last_seq + 1)
                await self.trash.emptied()
        except (QuireError, TimeoutError) as error:
            _log.warning("cannot close %s now; another broker will close it: %s", self.bookie_id.uuid, error)

    async def _unregister(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(UNREGISTER_S):
                await self._record.unregister()

    def end(self, why: QuireError) -> None:
        """End the WAL: nothing more is written."""
        if self.standing.failure:
            return
        _log.warning("%s has ended: %s", self.bookie_id.uuid, why)
        self.journal.end(why)
        self.standing.end(str(why))
        self._on_end(self, why)

    # -- for the directory -------------------------------------------------------------------------------
    @property
    def bytes_unflushed(self) -> int:
        """Accepted bytes that are not in sets yet; they count against the process's memory budget."""
        return self.cache.size_bytes

    def on_flushed(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop each time `bytes_unflushed` falls."""
        self.flusher.on_flushed(callback)

    async def flush(self) -> None:
        """Wait until all blocks accepted so far are in sets. Raises the error that prevents a flush."""
        await self.flusher.flush()

    # -- requests ----------------------------------------------------------------------------------------
    def add(self, request: AddRequest, done: AddDone) -> None:
        """Add blocks; see `BookiePort.add`."""
        self._requests.add(request, done)

    def ask(self, request: Request[R]) -> Coroutine[Any, Any, R]:
        """Answer any other request; see `BookiePort.ask`."""
        return self._requests.ask(request)
