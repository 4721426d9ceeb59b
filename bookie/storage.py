"""Storage node: joins journal, write cache, entry logs and index into one bookie.

    add         intake (check, memtable, journal queue in one step) → journal → response
    read        memtables → read cache → index and one direct read (see `reads`)
    control     (fence, LAC, tombstone) effective in memory immediately → journal → response
    checkpoint  frozen memtable → entry log → index and mark → journal segments are free again

Everything here runs on the event loop, except blocking calls: journal, checkpoint and reads have separate threads
(`runtime.disk.Worker`), which do not wait for one another.

`start` locks the directories, opens identity and index (see `ledger_storage`), replays the journal from the mark,
records losses (see `recovery`), and begins a new journal epoch. Later failures are reported to `health`. Requests that
name an earlier incarnation may read and recover; if blocks may have been lost since that incarnation, they never get
NO_SUCH_ENTRY.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from random import Random, SystemRandom
from typing import Any, TypeVar

from quire.bookie.collector import Collector
from quire.bookie.disks import BookieDisks, real_disks
from quire.bookie.flusher import Flusher
from quire.bookie.health import Health
from quire.bookie.identity import open_identity
from quire.bookie.intake import Intake
from quire.bookie.journal import Journal
from quire.bookie.ledger_storage import LedgerStorage
from quire.bookie.reads import Reads
from quire.bookie.recovery import Recovery
from quire.bookie.requests import Requests
from quire.bookie.scrub import Checked
from quire.bookie.segment_pool import SegmentPool
from quire.bookie.settings import BookieSettings
from quire.bookie.write_cache import WriteCache
from quire.runtime.clock import Clock, SystemClock
from quire.runtime.disk import Worker
from quire.wire.bookie import AddDone, AddRequest, BookieId, Request

R = TypeVar("R")


class Storage:
    """One bookie, which is also its own `BookiePort` within the process. Its parts exist after `start`."""

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
        self._opened = ExitStack()
        self._workers: list[Worker] = []

    # -- life --------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Start the bookie. Raises `ConfigurationError` (nothing was changed), `DiskError`."""
        try:
            self._open()
        except BaseException:
            await self._close()
            raise
        self._flusher.start()

    def _open(self) -> None:
        disks, rng = self._disks, self._rng
        for disk in (disks.journal, disks.entries):
            disk.make_directory()
            disk.lock()
            self._opened.callback(disk.close)
        settings = self._settings.fitted(disks.journal.space().total_bytes, disks.entries.space().total_bytes)
        self.identity = identity = open_identity(disks.journal, disks.entries, rng)
        self.ledger_storage = storage = LedgerStorage(disks, identity, settings, self._worker("checkpoint"))
        self._opened.callback(storage.close)
        self.cache = cache = WriteCache(settings.memtable_bytes)
        self.health = health = Health(identity, disks, storage, cache, settings)
        collector = Collector(storage.index, storage.logs, self._clock, health.report_damage, health.room)
        readers = [self._worker(f"reader-{i}") for i in range(settings.read_threads)]
        self._journal = journal = self._make_journal(settings)
        recovery = Recovery(identity, storage, cache, journal)
        recovery.run()
        self.lost_at_start = recovery.lost_at_start
        """Description of blocks that this start found lost; "" if there are none."""
        identity.trust(not settings.unsafe_no_sync)
        identity.begin_run(rng)
        self._flusher = flusher = Flusher(
            cache, journal, storage, collector, health, recovery.mark, settings.flush_interval_ms
        )
        journal.open(identity.bookie_id.incarnation, flusher.journal_full, health.journal_failed)
        self._reads = reads = Reads(
            cache, storage, readers, identity, health, recovery.loss, settings.read_cache_bytes, self._clock
        )
        intake = Intake(
            cache, storage.index, journal, health, flusher, reads, settings.journal_group_bytes_max
        )
        self._requests = Requests(identity, cache, journal, health, flusher, reads, intake)

    def _make_journal(self, settings: BookieSettings) -> Journal:
        writer = self._worker("journal")
        pool = SegmentPool(
            self._disks.journal,
            self._worker("journal-ahead"),
            self._rng,
            bookie=self.identity.uuid_bytes,
            segment_bytes=settings.journal_segment_bytes,
            group_bytes_max=settings.journal_group_bytes_max,
        )
        return Journal(
            pool,
            writer,
            group_bytes_max=settings.journal_group_bytes_max,
            durable=not settings.unsafe_no_sync,
            clock=self._clock,
        )

    def _worker(self, name: str) -> Worker:
        self._workers.append(self._disks.worker(name))
        return self._workers[-1]

    async def _close(self) -> None:
        for worker in self._workers:
            await worker.close()
        self._opened.close()

    async def stop(self) -> None:
        """Write all blocks to the entry log, if possible, and release the directories."""
        self._journal.stop_waiting()
        await self._flusher.stop()
        await self._journal.close()
        if not (self.health.failure or self.bytes_unflushed or self.cache.changed):
            self.identity.trust(True)
        await self._close()

    # -- state -------------------------------------------------------------------------------------------
    @property
    def bookie_id(self) -> BookieId:
        return self.identity.bookie_id

    @property
    def bytes_unflushed(self) -> int:
        """Bytes of accepted requests that are not yet in the entry log; the process's byte budget includes them."""
        return self.cache.size_bytes

    @property
    def why_not_ready(self) -> str:
        """Reason why new blocks are refused, as a sentence; "" if they are accepted."""
        return self.health.why_not_ready

    def on_flushed(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the event loop whenever `bytes_unflushed` has decreased."""
        self._flusher.on_flushed(callback)

    def ledger_ids(self) -> list[int]:
        """Return the ids of all ledgers on this bookie, including deleted ones, in order."""
        return sorted(self.cache.ledgers)

    def live_bytes(self) -> int:
        """Return the number of bytes in the entry logs to which the index refers."""
        return sum(self.ledger_storage.index.usage().values())

    async def check_run(self, ledger_id: int, entry: int) -> Checked:
        """Read the flushed run that contains `entry`, or the next run, from disk, and verify it."""
        return await self._reads.check_run(ledger_id, entry)

    def metrics(self) -> dict[str, Any]:
        """Return metrics; counters start at 0 with the process."""
        space, blocks = self.health.space(), self._reads.blocks
        return {
            "quire_bookie_ledgers": len(self.cache.ledgers),
            "quire_bookie_unflushed_bytes": self.bytes_unflushed,
            "quire_bookie_journal_groups_total": self._journal.groups_written,
            "quire_bookie_journal_bytes_total": self._journal.bytes_written,
            "quire_bookie_journal_live_bytes": self._journal.bytes_live,
            "quire_bookie_journal_sync_latency_seconds": self._journal.sync_s,
            "quire_bookie_checkpoints_total": self._flusher.checkpoints,
            "quire_bookie_read_latency_seconds": self._reads.read_s,
            "quire_bookie_read_cache_hits_total": blocks.hits,
            "quire_bookie_read_cache_misses_total": blocks.misses,
            "quire_bookie_read_cache_bytes": blocks.cached_bytes,
            "quire_bookie_disk_free_bytes": space.free_bytes,
            "quire_bookie_disk_size_bytes": space.total_bytes,
            "quire_bookie_read_only": self.health.is_read_only,
            "quire_bookie_failed": bool(self.health.failure),
        }

    async def flush(self) -> None:
        """Wait until everything accepted so far is in the entry log. Raises the error that prevents it."""
        await self._flusher.flush()

    # -- requests ----------------------------------------------------------------------------------------
    def add(self, request: AddRequest, done: AddDone) -> None:
        """Add blocks; see `BookiePort.add`."""
        self._requests.add(request, done)

    def ask(self, request: Request[R]) -> Coroutine[Any, Any, R]:
        """Answer any other request; see `BookiePort.ask`."""
        return self._requests.ask(request)
