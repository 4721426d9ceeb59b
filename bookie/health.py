"""Health of a storage node: free space of its disks, failures, and which blocks it accepts.

| problem | ends when | accepts ordinary blocks | accepts blocks of high priority |
|---|---|---|---|
| `entries`: the entries' disk is full (see `room`) | there is space | no | while there is a reserve |
| `journal`: no spare segment, and no space for one | there is space, or a segment is free again | no | yes |
| `checkpoint`: the last checkpoint found no space | a checkpoint succeeds | no | no |
| `operator`: the bookie is draining | the order is revoked | no | no |
| failure of the journal, or of a checkpoint for another reason | the bookie restarts | no | no |

Reads continue in each case, as on a read-only bookie of BookKeeper
([BookieStateManager](https://github.com/apache/bookkeeper/blob/master/bookkeeper-server/src/main/java/org/apache/bookkeeper/bookie/BookieStateManager.java)).
A damaged index is marked, so that the next start rebuilds it. Damage in an entry log is reported to listeners
(`on_damage`), so that repair replaces the copy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from quire.bookie.disks import BookieDisks
from quire.bookie.identity import Identity
from quire.bookie.ledger_storage import LedgerStorage
from quire.bookie.room import Room
from quire.bookie.scrub import Damage
from quire.bookie.settings import BookieSettings
from quire.bookie.write_cache import WriteCache
from quire.runtime.disk import Space
from quire.runtime.errors import CorruptionError, DiskError, DiskFull, QuireError

log = logging.getLogger(__name__)


class Health:
    """Health of one node; `room` classifies the space of the entries' disk."""

    def __init__(
        self,
        identity: Identity,
        disks: BookieDisks,
        storage: LedgerStorage,
        cache: WriteCache,
        settings: BookieSettings,
    ) -> None:
        self.room = Room(settings.disk_reserve_bytes, settings.memtable_bytes)
        self.failure = ""
        """Failure that lasts until the next start, as a sentence; "" if there is none."""
        self.is_read_only = False
        """True while no new blocks are accepted, or only blocks of high priority."""
        self.is_exhausted = False
        """True while no new blocks at all are accepted."""
        self._identity = identity
        self._disks = disks
        self._storage = storage
        self._cache = cache
        self._full: set[str] = set()
        """Current problems, named as in the first column of the module's table."""
        self._index_is_suspect = False
        self._on_worse: list[Callable[[], None]] = []
        self._on_damage: list[Callable[[Damage], None]] = []

    def on_worse(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the node stops accepting some or all blocks."""
        self._on_worse.append(callback)

    def on_damage(self, callback: Callable[[Damage], None]) -> None:
        """Call `callback` on the event loop for each block that a reader or a scrub could not read."""
        self._on_damage.append(callback)

    # -- state -------------------------------------------------------------------------------------------
    @property
    def takes_priority(self) -> bool:
        """True while the node is read-only, but accepts blocks of high priority."""
        return self.is_read_only and not self.is_exhausted

    @property
    def is_short_of_space(self) -> bool:
        """True while little space is left, even if all blocks are still accepted."""
        return self.room.is_short

    @property
    def why_not_ready(self) -> str:
        """Reason why new blocks are refused, and what to do; "" if they are accepted.

        A drain does not count here.
        """
        full = [self._disks.journal] * ("journal" in self._full)
        full += [self._disks.entries] * bool(self._full & {"entries", "checkpoint"})
        return self.failure or "; ".join(
            f"the disk of {disk.root} is full and accepts no new messages; delete topics or free some space"
            for disk in full
        )

    @property
    def why_read_only(self) -> str:
        """Reason why new blocks are refused, including a drain; "" if they are accepted."""
        return self.why_not_ready or ("the bookie is draining" if self.is_read_only else "")

    def space(self) -> Space:
        """Return the size and free space of the entries' disk."""
        return self._disks.entries.space()

    # -- room --------------------------------------------------------------------------------------------
    def set_read_only(self, read_only: bool) -> None:
        """Refuse new blocks because the bookie drains (true), or accept them again (false)."""
        self._set_full("operator", read_only)

    def journal_full(self, is_full: bool) -> None:
        """Record whether the journal lacks space for another segment; see `on_full` of `SegmentPool.open`."""
        self._set_full("journal", is_full)

    def check_space(self) -> bool:
        """Measure the free space of the entries' disk; return whether it has just become short."""
        was_short = self.room.is_short
        free_bytes = self.space().free_bytes
        left_bytes = free_bytes + self._storage.logs.unused_bytes() - self._cache.size_bytes
        self.room.look(left_bytes, free_bytes)
        self._set_full("entries", self.room.is_full)
        return self.room.is_short and not was_short

    def flushed(self) -> None:
        """Handle a successful checkpoint."""
        self._set_full("checkpoint", False)

    def flush_failed(self, error: QuireError) -> None:
        """Handle a failed checkpoint.

        It is retried after `DiskFull`; any other error prevents all later checkpoints.
        """
        if isinstance(error, DiskFull):
            self._set_full("checkpoint", True)
            return
        if isinstance(error, CorruptionError):
            self.report_damage(error)
        self._fail(self.failure or f"no checkpoint is possible: {error}")
        log.critical("bookie %s accepts no more blocks: %s", self._identity.bookie_id, self.failure)

    def journal_failed(self, error: QuireError) -> None:
        """Handle a failure of the journal, after which no block is acknowledged."""
        self._fail(f"the journal has failed: {error}")

    def _fail(self, why: str) -> None:
        self.failure = why
        self._decide()

    def _set_full(self, why: str, is_full: bool) -> None:
        if is_full != (why in self._full):
            (self._full.add if is_full else self._full.discard)(why)
            what = "full, read-only" if is_full else "usable again"
            log.warning("bookie %s: %s is %s", self._identity.bookie_id, why, what)
        self._decide()

    def _decide(self) -> None:
        before = self.is_read_only, self.is_exhausted
        self.is_read_only = bool(self._full or self.failure)
        self.is_exhausted = bool(
            self.failure or self._full & {"operator", "checkpoint"} or self.room.is_exhausted
        )
        if (self.is_read_only, self.is_exhausted) > before:
            for callback in self._on_worse:
                callback()

    # -- damage ------------------------------------------------------------------------------------------
    def read_failed(self, error: BaseException | None, ledger_id: int, entry: int) -> None:
        """Log an entry that a reader or a scrub could not read, and call the listeners."""
        bookie = self._identity.bookie_id
        log.error("bookie %s: cannot read entry %d of ledger %d: %s", bookie, entry, ledger_id, error)
        if isinstance(error, CorruptionError):
            self.report_damage(error)
        if isinstance(error, CorruptionError | DiskError):
            for callback in self._on_damage:
                callback(Damage(ledger_id, entry, str(error)))

    def report_damage(self, error: QuireError) -> None:
        """Log damage; mark a damaged index, so that the next start rebuilds it."""
        bookie = self._identity.bookie_id
        log.error("bookie %s: damage found: %s", bookie, error)
        if isinstance(error, CorruptionError) and error.file.endswith(".mdb") and not self._index_is_suspect:
            self._index_is_suspect = True
            try:
                self._storage.mark_index_suspect(str(error))
            except QuireError as why:
                log.error("bookie %s: cannot mark the index as damaged for the next start: %s", bookie, why)
