"""The storage node: journal, memtables, entry logs and index joined into one bookie.

    add         intake (judge, memtable, journal queue in one step) → journal → answer
    read        memtables → read cache → index and one direct read (see `reads`)
    fence, LAC, tombstone: in memory at once, answered when the journal has them
    checkpoint  frozen memtable → entry log → index and mark → journal segments are free again

Everything here runs on the event loop but for what blocks: each of journal, checkpoint and reads has threads of
its own (`runtime.disk.Worker`), and none waits for another.

A start is: locks, identity, index (rebuilt from the entry logs when it is lost), replay of the journal from the
mark, a new epoch. If the replay finds damage, or the cookies do not agree, blocks may be lost: then the
incarnation is raised, every ledger is fenced and put in limbo, and only when that is committed does the node
answer (rules 17, 18, 23). A rebuilt index has lost fences and tombstones, but no blocks: everything is fenced
and the incarnation raised, without limbo (rule 22).

What goes wrong later: a failed journal write ends all acknowledging for good. A full disk makes the node
read-only until there is room, but for what may use its reserve (`room`). Any other failure of a checkpoint leaves the
memtable and the journal as they are and makes the node read-only until its next start. Reads go on in each case. A
request for an earlier incarnation may read and recover, but never hears that an entry does not exist if blocks were
lost since.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import Any, Final, TypeVar

from quire.bookie.checkpoint import Checkpoint, decode_mark, perform
from quire.bookie.collector import Collector
from quire.bookie.disks import BookieDisks, real_disks
from quire.bookie.entry_log import EntryLogs
from quire.bookie.flusher import Flusher
from quire.bookie.identity import open_identity
from quire.bookie.index_home import INDEX_DIRECTORY
from quire.bookie.index_opening import distrust, open_index, trust_again
from quire.bookie.intake import Intake
from quire.bookie.journal import Journal
from quire.bookie.journal_replay import JournalReplay
from quire.bookie.ledgers import decode
from quire.bookie.reads import Reads
from quire.bookie.replay import Replay
from quire.bookie.requests import Requests
from quire.bookie.room import Room
from quire.bookie.scrub import Checked, Damage
from quire.bookie.segment_pool import SegmentPool
from quire.bookie.settings import BookieSettings
from quire.runtime.clock import Clock, SystemClock
from quire.runtime.disk import Worker
from quire.runtime.errors import CorruptionError, DiskError, DiskFull, QuireError
from quire.runtime.limits import ENTRY_LOG_RECORD_BYTES, ENTRY_LOG_STEP_BYTES
from quire.wire.bookie import (
    AddDone,
    AddRequest,
    BookieId,
    Request,
)

log = logging.getLogger(__name__)

R = TypeVar("R")

_LOGS_DIRECTORY: Final = "logs"
DIRECTORIES: Final = (_LOGS_DIRECTORY, INDEX_DIRECTORY)
"""Where files lie on the entries' disk; the journal's lie at its root."""


@dataclass(frozen=True)
class BookieStats:
    """A snapshot for operators. Sizes in bytes, counts since the start."""

    read_only: bool
    failure: str
    ledgers: int
    unflushed_bytes: int
    journal_groups: int
    journal_bytes: int
    journal_live_bytes: int
    checkpoints: int
    mark: int
    free_bytes: int
    total_bytes: int


class Storage:
    """One bookie, and the `BookiePort` of a process that has it inside."""

    def __init__(
        self,
        settings: BookieSettings,
        disks: BookieDisks | None = None,
        *,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        self._settings = settings
        self._disks = disks or real_disks(settings)
        self._clock = clock or SystemClock()
        self._rng = rng or SystemRandom()
        self._full: set[str] = set()
        """Why the node takes no new blocks: `journal`, `entries`, `checkpoint`, `operator`."""
        self._on_flushed: list[Callable[[], None]] = []
        self._on_damage: list[Callable[[Damage], None]] = []
        self._parts = ExitStack()
        self._workers: list[Worker] = []
        self._mark = 0
        self._index_is_suspect = False
        self.failure = ""
        """What is broken for good, in a sentence; empty when all is well."""
        self.lost_at_start = ""
        """That this start found blocks to be lost, in a sentence."""

    # -- life --------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Raises `ConfigurationError` (nothing was changed), `DiskError`."""
        journal_disk, entry_disk = self._disks.journal, self._disks.entries
        try:
            for disk in (journal_disk, entry_disk):
                disk.make_directory()
                disk.lock()
                self._parts.callback(disk.close)
            self._settings = self._settings.fitted(
                journal_disk.space().total_bytes, entry_disk.space().total_bytes
            )
            self._identity = open_identity(journal_disk, entry_disk, self._rng)
            self._open_parts()
            self._recover()
        except BaseException:
            await self._close_workers()
            self._parts.close()
            raise
        self._check_space()
        if self.bytes_unflushed:
            self._flusher.soon()

    def _open_parts(self) -> None:
        settings, disks = self._settings, self._disks
        self._logs = EntryLogs(
            disks.entries,
            _LOGS_DIRECTORY,
            file_bytes=settings.entry_log_bytes,
            step_bytes=min(ENTRY_LOG_STEP_BYTES, settings.entry_log_bytes),
            record_bytes=min(ENTRY_LOG_RECORD_BYTES, settings.entry_log_bytes // 4),
        )
        self._logs.open()
        self._parts.callback(self._logs.close)
        opened = open_index(disks, self._identity, self._logs)
        self._index, self._was_rebuilt = opened.index, opened.was_rebuilt
        self._parts.callback(self._index.close)
        self._blocks_lost = self._identity.is_suspect or opened.lost_blocks
        self._room = Room(settings.disk_reserve_bytes, settings.memtable_bytes)
        self._collector = Collector(self._index, self._logs, self._clock, self._report_damage, self._room)
        self._checkpointer = self._worker("checkpoint")
        readers = [self._worker(f"reader-{i}") for i in range(settings.read_threads)]
        writer = self._worker("journal")
        pool = SegmentPool(
            disks.journal,
            self._worker("journal-ahead"),
            self._rng,
            bookie=self._identity.uuid_bytes,
            segment_bytes=settings.journal_segment_bytes,
            group_bytes_max=settings.journal_group_bytes_max,
            on_full=self._journal_full,
        )
        self._journal = Journal(
            pool,
            writer,
            group_bytes_max=settings.journal_group_bytes_max,
            durable=not settings.unsafe_no_sync,
            on_failure=self._journal_failed,
        )
        self._intake = Intake(
            self._journal,
            self._index,
            memtable_bytes=settings.memtable_bytes,
            request_bytes_max=settings.journal_group_bytes_max,
            make_room=lambda: self._flusher.begin(),
            compare=lambda *asked: self._reads.compare(*asked),
        )
        self._reads = Reads(
            self._intake,
            self._index,
            self._logs,
            readers,
            self._checkpointer,
            self._identity,
            cache_bytes=settings.read_cache_bytes,
            on_error=self._note_read_error,
        )
        self._requests = Requests(self._identity, self._intake, self._journal, self._reads, self)

    def _worker(self, name: str) -> Worker:
        self._workers.append(self._disks.worker(name))
        return self._workers[-1]

    async def _close_workers(self) -> None:
        for worker in self._workers:
            await worker.close()

    def _recover(self) -> None:
        for ledger_id, record in self._index.ledgers():
            self._intake.ledgers[ledger_id] = decode(ledger_id, record)
        self._mark = decode_mark(self._index.mark())
        replay = self._journal.replay(
            self._mark,
            Replay(self._intake, self._index, self._flush_blocking).group,
            mark_is_lost=self._was_rebuilt,
        )
        for sentence in replay.damage:
            log.error("journal damage: %s", sentence)
            self._reads.loss = sentence
        self._blocks_lost |= bool(replay.damage)
        if self._blocks_lost or self._was_rebuilt:
            self._admit_loss(replay)
        self._identity.trust(not self._settings.unsafe_no_sync)
        self._identity.begin_run(self._rng)
        self._journal.open(self._identity.bookie_id.incarnation)
        self._flusher = Flusher(
            self._intake,
            self._journal,
            self._logs,
            self._index,
            self._collector,
            self._checkpointer,
            self,
            mark=self._mark,
            interval_ms=self._settings.flush_interval_ms,
        )
        log.info("bookie %s: replayed %d groups, %d bytes", self.bookie_id, replay.groups, replay.bytes)

    def _admit_loss(self, replay: JournalReplay) -> None:
        """Fence everything (and put it in limbo), durably, before anything is answered."""
        self._identity.raise_incarnation(blocks_lost=self._blocks_lost)
        for state in self._intake.ledgers.values():
            if self._blocks_lost:
                state.put_in_limbo()
            state.fence()
        self._intake.changed.update(self._intake.ledgers)
        self._flush_blocking(self._journal.durable_number)
        replay.forget_damage()
        if self._was_rebuilt:
            trust_again(self._disks.entries)
        what = "in limbo" if self._blocks_lost else "fenced"
        log.error(
            "bookie %s: state was lost; all %d ledgers are %s",
            self.bookie_id,
            len(self._intake.ledgers),
            what,
        )
        if self._blocks_lost:
            self.lost_at_start = (
                f"this bookie may have lost blocks of {len(self._intake.ledgers)} ledgers ({self._reads.loss}); repair "
                "copies them from other bookies, and `quire ledgers lost` names those that nobody has"
            )

    def _flush_blocking(self, mark: int) -> None:
        """A checkpoint of a start, which has nothing else to do."""
        table, changed, _ = self._intake.freeze()
        perform(Checkpoint.of(table, changed, mark), self._logs, self._index)
        self._intake.thaw()
        self._mark = mark

    async def stop(self) -> None:
        """Write everything to the entry log and give up the directories."""
        self._journal.stop_waiting()
        await self._flusher.stop()
        await self._journal.close()
        await self._close_workers()
        if not (self.failure or self.bytes_unflushed or self._intake.changed):
            self._identity.trust(True)
        self._parts.close()

    # -- what others ask about it ------------------------------------------------------------------------
    @property
    def bookie_id(self) -> BookieId:
        return self._identity.bookie_id

    @property
    def bytes_unflushed(self) -> int:
        """Bytes that were accepted and are not yet in the entry log; the process's budget counts them."""
        return self._intake.size_bytes

    def on_flushed(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop whenever `bytes_unflushed` has fallen."""
        self._on_flushed.append(callback)

    def on_damage(self, callback: Callable[[Damage], None]) -> None:
        """Call `callback` on the loop for each block that a reader or a scrub could not read."""
        self._on_damage.append(callback)

    def ledger_ids(self) -> list[int]:
        """Ledgers that have a record here, deleted ones among them, in order."""
        return sorted(self._intake.ledgers)

    def live_bytes(self) -> int:
        """Bytes of the entry logs that the index points at."""
        return sum(self._index.usage().values())

    async def check_run(self, ledger_id: int, entry: int) -> Checked:
        """Read and verify the flushed run that holds `entry`, or the next one; past every cache."""
        return await self._reads.check_run(ledger_id, entry)

    @property
    def is_read_only(self) -> bool:
        """No new blocks are taken, or only those of high priority."""
        return bool(self._full) or bool(self.failure)

    @property
    def takes_priority(self) -> bool:
        """It is read-only, and takes blocks of high priority all the same."""
        return self.is_read_only and not self._intake.is_exhausted

    @property
    def is_short_of_space(self) -> bool:
        """Little room is left, though there may still be enough for all."""
        return self._room.is_short

    @property
    def why_not_ready(self) -> str:
        """Why new blocks are refused though nobody asked for that, and what to do; empty when all is well."""
        full = [self._disks.journal] * ("journal" in self._full)
        full += [self._disks.entries] * bool(self._full & {"entries", "checkpoint"})
        return self.failure or "; ".join(
            f"the disk of {disk.root} is full and takes no new messages; delete topics or free some space"
            for disk in full
        )

    @property
    def why_read_only(self) -> str:
        """The same, or that somebody did ask for it."""
        return self.why_not_ready or ("it is being drained" if self.is_read_only else "")

    def join(self, cluster: str) -> None:
        """Remember, durably, that `cluster` knows this bookie."""
        self._identity.join(cluster)

    def leave(self, leaving: bool) -> None:
        """Remember, durably, whether all that is here is being copied to others: the next start looks if it was."""
        self._identity.leave(leaving)

    def set_read_only(self, read_only: bool) -> None:
        """An operator's wish."""
        self._set_full("operator", read_only)

    def stats(self) -> BookieStats:
        space = self._disks.entries.space()
        return BookieStats(
            read_only=self.is_read_only,
            failure=self.failure,
            ledgers=len(self._intake.ledgers),
            unflushed_bytes=self.bytes_unflushed,
            journal_groups=self._journal.groups_written,
            journal_bytes=self._journal.bytes_written,
            journal_live_bytes=self._journal.bytes_live,
            checkpoints=self._flusher.checkpoints,
            mark=self._flusher.mark,
            free_bytes=space.free_bytes,
            total_bytes=space.total_bytes,
        )

    # -- requests ----------------------------------------------------------------------------------------
    def add(self, request: AddRequest, done: AddDone) -> None:
        """See `BookiePort.add`."""
        self._requests.add(request, done)

    def ask(self, request: Request[R]) -> Coroutine[Any, Any, R]:
        """See `BookiePort.ask`."""
        return self._requests.ask(request)

    def wants_flushed(self) -> None:
        """See `Requests`."""
        self._flusher.soon()

    # -- checkpoints -------------------------------------------------------------------------------------
    async def flush(self) -> None:
        """Return when everything accepted so far is in the entry log. Raises what prevents it."""
        await self._flusher.flush()

    def flushed(self) -> None:
        """See `FlushListener`."""
        self._set_full("checkpoint", False)
        self._check_space()
        self._intake.drain()
        for callback in self._on_flushed:
            callback()

    def look_around(self) -> None:
        """See `FlushListener`. Somebody may have made room on the disks, or taken it."""
        try:
            self._check_space()
            self._journal.look_for_room()
        except QuireError as error:
            log.warning("bookie %s cannot tell what room it has: %s", self.bookie_id, error)

    def flush_failed(self, error: QuireError) -> None:
        """See `FlushListener`."""
        if isinstance(error, DiskFull):
            self._set_full("checkpoint", True)
        else:
            if isinstance(error, CorruptionError):
                self._report_damage(error)
            self.failure = self.failure or f"no checkpoint is possible: {error}"
            log.critical("bookie %s takes no blocks any more: %s", self.bookie_id, self.failure)
            self._tell_intake()

    # -- what goes wrong ---------------------------------------------------------------------------------
    def _check_space(self) -> None:
        was_short = self._room.is_short
        free_bytes = self._disks.entries.space().free_bytes
        left_bytes = free_bytes + self._logs.unused_bytes() - self.bytes_unflushed
        self._room.look(left_bytes, free_bytes)
        self._set_full("entries", self._room.is_full)
        if self._room.is_short and not was_short:
            self._flusher.collect_soon()

    def _journal_full(self, is_full: bool) -> None:
        """Without a spare segment; a checkpoint may make one of those that are used."""
        self._set_full("journal", is_full)
        if is_full:
            self._flusher.journal_is_full()

    def _set_full(self, why: str, is_full: bool) -> None:
        if is_full != (why in self._full):
            (self._full.add if is_full else self._full.discard)(why)
            log.warning(
                "bookie %s: %s is %s", self.bookie_id, why, "full, read-only" if is_full else "usable again"
            )
        self._tell_intake()

    def _tell_intake(self) -> None:
        intake = self._intake
        before = intake.is_read_only, intake.is_exhausted
        intake.is_read_only = self.is_read_only
        intake.is_exhausted = bool(
            self.failure or self._full & {"operator", "checkpoint"} or self._room.is_exhausted
        )
        if (intake.is_read_only, intake.is_exhausted) > before:
            intake.drain()

    def _journal_failed(self, error: QuireError) -> None:
        self.failure = f"the journal is dead: {error}"
        self._tell_intake()
        self._intake.drain()

    def _note_read_error(self, error: BaseException | None, ledger_id: int, entry: int) -> None:
        log.error("bookie %s cannot read entry %d of ledger %d: %s", self.bookie_id, entry, ledger_id, error)
        if isinstance(error, CorruptionError):
            self._report_damage(error)
        if isinstance(error, CorruptionError | DiskError):
            for callback in self._on_damage:
                callback(Damage(ledger_id, entry, str(error)))

    def _report_damage(self, error: QuireError) -> None:
        """Damage of the index heals at the next start; a damaged entry log needs another copy."""
        log.error("bookie %s: damage found: %s", self.bookie_id, error)
        if isinstance(error, CorruptionError) and error.file.endswith(".mdb") and not self._index_is_suspect:
            self._index_is_suspect = True
            try:
                distrust(self._disks.entries, str(error))
            except QuireError as why:
                log.error(
                    "bookie %s: the index's damage could not be noted for the next start: %s",
                    self.bookie_id,
                    why,
                )
