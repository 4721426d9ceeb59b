"""The health of a storage node: what room its disks have, what of it is broken, and so which blocks it still takes.

| what is wrong | until | new blocks | of high priority |
|---|---|---|---|
| `entries`: the entries' disk is full (see `room`) | there is room | no | as long as there is a reserve |
| `journal`: it has no spare segment and no room for one | there is room, or a segment is free again | no | yes |
| `checkpoint`: the last one found no room | one is made | no | no |
| `operator`: it is to be drained | somebody says otherwise | no | no |
| a failure: of the journal, or of a checkpoint for another reason | the next start | no | no |

Reads go on in each case. Damage of the index is noted for the next start, which rebuilds it; a damaged entry log needs
another copy, so whoever wants to know of damage is told.
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
    """`room` says what the entries' disk has left for whom."""

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
        """What is broken for good, in a sentence; empty when all is well."""
        self.is_read_only = False
        """No new blocks are taken, or only those of high priority."""
        self.is_exhausted = False
        """No new blocks at all are taken."""
        self._identity = identity
        self._disks = disks
        self._storage = storage
        self._cache = cache
        self._full: set[str] = set()
        """What is wrong, by the first column of the table."""
        self._index_is_suspect = False
        self._on_worse: list[Callable[[], None]] = []
        self._on_damage: list[Callable[[Damage], None]] = []

    def on_worse(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever fewer blocks are taken than before."""
        self._on_worse.append(callback)

    def on_damage(self, callback: Callable[[Damage], None]) -> None:
        """Call `callback` on the loop for each block that a reader or a scrub could not read."""
        self._on_damage.append(callback)

    # -- what others ask ---------------------------------------------------------------------------------
    @property
    def takes_priority(self) -> bool:
        """It is read-only, and takes blocks of high priority all the same."""
        return self.is_read_only and not self.is_exhausted

    @property
    def is_short_of_space(self) -> bool:
        """Little room is left, though there may still be enough for all."""
        return self.room.is_short

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

    def space(self) -> Space:
        """Of the entries' disk."""
        return self._disks.entries.space()

    # -- room --------------------------------------------------------------------------------------------
    def set_read_only(self, read_only: bool) -> None:
        """An operator's wish."""
        self._set_full("operator", read_only)

    def journal_full(self, is_full: bool) -> None:
        """See `SegmentPool`."""
        self._set_full("journal", is_full)

    def check_space(self) -> bool:
        """Look what room the entries' disk has; returns whether it became short of it."""
        was_short = self.room.is_short
        free_bytes = self.space().free_bytes
        left_bytes = free_bytes + self._storage.logs.unused_bytes() - self._cache.size_bytes
        self.room.look(left_bytes, free_bytes)
        self._set_full("entries", self.room.is_full)
        return self.room.is_short and not was_short

    def flushed(self) -> None:
        """A checkpoint was made."""
        self._set_full("checkpoint", False)

    def flush_failed(self, error: QuireError) -> None:
        """`DiskFull`: the checkpoint will be tried again. Else none is possible any more."""
        if isinstance(error, DiskFull):
            self._set_full("checkpoint", True)
            return
        if isinstance(error, CorruptionError):
            self.report_damage(error)
        self._fail(self.failure or f"no checkpoint is possible: {error}")
        log.critical("bookie %s takes no blocks any more: %s", self._identity.bookie_id, self.failure)

    def journal_failed(self, error: QuireError) -> None:
        """Nothing is acknowledged any more."""
        self._fail(f"the journal is dead: {error}")

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
        """A reader or a scrub could not read the entry."""
        bookie = self._identity.bookie_id
        log.error("bookie %s cannot read entry %d of ledger %d: %s", bookie, entry, ledger_id, error)
        if isinstance(error, CorruptionError):
            self.report_damage(error)
        if isinstance(error, CorruptionError | DiskError):
            for callback in self._on_damage:
                callback(Damage(ledger_id, entry, str(error)))

    def report_damage(self, error: QuireError) -> None:
        """Damage of the index heals at the next start; a damaged entry log needs another copy."""
        bookie = self._identity.bookie_id
        log.error("bookie %s: damage found: %s", bookie, error)
        if isinstance(error, CorruptionError) and error.file.endswith(".mdb") and not self._index_is_suspect:
            self._index_is_suspect = True
            try:
                self._storage.mark_index_suspect(str(error))
            except QuireError as why:
                log.error(
                    "bookie %s: the index's damage could not be noted for the next start: %s", bookie, why
                )
