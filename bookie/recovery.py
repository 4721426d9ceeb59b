"""Recovery of a bookie at its start: index and journal are loaded into the write cache, and losses are recorded.

The journal's groups after the mark are added to the memtable. Records are not checked again as in `intake`, because the
journal contains only accepted records. Two kinds of blocks are skipped: blocks of a ledger with a tombstone, and blocks
that are already in the index. The latter exist after a rebuild of the index, whose mark is 0, and after an interrupted
replay of a damaged journal. A full memtable is flushed before the next group, so a long journal needs no more memory
than a short one.

If the replay finds damage, or the cookies do not agree, blocks may be lost. Then the incarnation is raised, and every
ledger is fenced and put in limbo; the bookie serves requests only after that is committed (rules 17, 18, 23). A rebuilt
index has lost fences and tombstones, but no blocks: all ledgers are fenced and the incarnation is raised, without limbo
(rule 22). All functions block.
"""

from __future__ import annotations

import logging

from quire.bookie.checkpoint import Checkpoint, decode_mark, perform
from quire.bookie.identity import Identity
from quire.bookie.journal import Journal
from quire.bookie.journal_core import Control, ControlKind, records
from quire.bookie.journal_replay import JournalReplay
from quire.bookie.ledger_storage import LedgerStorage
from quire.bookie.ledgers import decode
from quire.bookie.write_cache import WriteCache
from quire.wire.block import BlockHeader, Buffer
from quire.wire.ledger_ids import is_label

log = logging.getLogger(__name__)


class Recovery:
    """Recovery of one start.

    `mark` is the last journal group up to which everything is in the entry log and the index.
    """

    def __init__(
        self, identity: Identity, storage: LedgerStorage, cache: WriteCache, journal: Journal
    ) -> None:
        self.mark = 0
        self.loss = "blocks were lost before an earlier start; see the log of that start"
        """Error text of LIMBO responses."""
        self.lost_at_start = ""
        """Description of blocks that this start found lost; "" if there are none."""
        self._identity = identity
        self._storage = storage
        self._cache = cache
        self._journal = journal

    def run(self) -> None:
        """Recover. Raises `DiskError`, and `ConfigurationError` if a journal segment belongs to another bookie."""
        identity, storage = self._identity, self._storage
        for ledger_id, record in storage.index.ledgers():
            self._cache.ledgers[ledger_id] = decode(ledger_id, record)
        self.mark = decode_mark(storage.index.mark())
        replay = self._journal.replay(self.mark, self._group, mark_is_lost=storage.was_rebuilt)
        for sentence in replay.damage:
            log.error("journal damage: %s", sentence)
            self.loss = sentence
        blocks_lost = identity.is_suspect or storage.lost_blocks or bool(replay.damage)
        if blocks_lost or storage.was_rebuilt:
            self._admit_loss(replay, blocks_lost)
        log.info(
            "bookie %s: replayed %d journal groups, %d bytes", identity.bookie_id, replay.groups, replay.bytes
        )

    # -- the journal's groups ----------------------------------------------------------------------------
    def _group(self, mark: int, group: bytes) -> None:
        """Add a group to the memtable; before that, flush a full memtable and record `mark`.

        After damage, `mark` stays before the first missing group, and the next replay skips blocks that were flushed.
        """
        if self._cache.is_full:
            self._flush(mark)
        for record in records(group):
            if isinstance(record, Control):
                self._control(record)
            else:
                self._block(*record)

    def _flush(self, mark: int) -> None:
        """Make a checkpoint. Blocks."""
        perform(Checkpoint.of(*self._cache.freeze(), mark), self._storage.logs, self._storage.index)
        self._cache.release_frozen()
        self.mark = mark

    def _control(self, control: Control) -> None:
        state = self._cache.state(control.ledger_id)
        self._cache.changed.add(control.ledger_id)
        match control.kind:
            case ControlKind.FENCE:
                state.fence()
            case ControlKind.LAC:
                state.lac = max(state.lac, control.value)
            case ControlKind.TOMBSTONE:
                state.lay_tombstone(control.value)

    def _block(self, header: BlockHeader, block: Buffer) -> None:
        _, _, count, ledger_id, first_entry, lac, _, _ = header
        state = self._cache.state(ledger_id)
        if lac > state.lac:
            state.lac = lac
        if state.tombstone_version is not None:
            return
        last_entry = first_entry + count - 1
        if first_entry <= state.last_entry:
            rows = self._storage.index.rows(ledger_id, first_entry, 1)
            if rows and rows[0].first_entry <= last_entry:
                return
        if last_entry > state.last_entry:
            state.last_entry = last_entry
        self._cache.active.add(ledger_id, first_entry, last_entry, block)

    # -- what is lost ------------------------------------------------------------------------------------
    def _admit_loss(self, replay: JournalReplay, blocks_lost: bool) -> None:
        """Raise the incarnation, and fence all ledgers durably; also put them in limbo if blocks may be lost."""
        ledgers = self._cache.ledgers
        self._identity.raise_incarnation(blocks_lost=blocks_lost)
        for state in ledgers.values():
            if blocks_lost:
                state.put_in_limbo()
            state.fence()
        self._cache.changed.update(ledgers)
        self._flush(self._journal.durable_number)
        replay.forget_damage()
        if self._storage.was_rebuilt:
            self._storage.clear_index_suspect()
        count = sum(not is_label(ledger_id) for ledger_id in ledgers)
        what, bookie = "in limbo" if blocks_lost else "fenced", self._identity.bookie_id
        log.error("bookie %s: state was lost; all %d ledgers are now %s", bookie, count, what)
        if blocks_lost:
            self.lost_at_start = (
                f"this bookie may have lost blocks of {count} ledgers ({self.loss}); repair copies them from "
                "other bookies, and `quire ledgers lost` lists ledgers with blocks that no bookie has"
            )
