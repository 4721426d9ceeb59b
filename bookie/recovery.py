"""The recovery of a start: what the index and the journal have goes into the write cache, and what is lost is admitted.

The journal's groups after the mark go back into the memtable, as they once came in. Nothing is judged again: what is in
the journal was accepted. Two things are looked at. A ledger with a tombstone takes no blocks; and a block that the
index knows already is left out, which happens when the index was rebuilt and its mark begins anew, and after a replay
that met damage and was cut short. When the memtable is full it is flushed before the next group, so a long journal
needs no more memory than a short one.

If the replay finds damage, or the cookies do not agree, blocks may be lost: then the incarnation is raised, every
ledger is fenced and put in limbo, and only when that is committed does the node answer (rules 17, 18, 23). A rebuilt
index has lost fences and tombstones, but no blocks: everything is fenced and the incarnation raised, without limbo
(rule 22). All this blocks.
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
    """One start. `mark` is the last journal group that the entry log and the index hold wholly."""

    def __init__(
        self, identity: Identity, storage: LedgerStorage, cache: WriteCache, journal: Journal
    ) -> None:
        self.mark = 0
        self.loss = "blocks were lost before an earlier start, whose log says where"
        """What stands behind an answer of limbo."""
        self.lost_at_start = ""
        """That this start found blocks to be lost, in a sentence."""
        self._identity = identity
        self._storage = storage
        self._cache = cache
        self._journal = journal

    def run(self) -> None:
        """Raises `DiskError`, and `ConfigurationError` when a journal segment belongs to another bookie."""
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
        log.info("bookie %s: replayed %d groups, %d bytes", identity.bookie_id, replay.groups, replay.bytes)

    # -- the journal's groups ----------------------------------------------------------------------------
    def _group(self, mark: int, group: bytes) -> None:
        """What is flushed with a mark that lags, because groups are missing, is in the index at the next replay."""
        if self._cache.is_full:
            self._flush(mark)
        for record in records(group):
            if isinstance(record, Control):
                self._control(record)
            else:
                self._block(*record)

    def _flush(self, mark: int) -> None:
        """A checkpoint of a start, which has nothing else to do."""
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
        """Fence everything (and put it in limbo), durably, before anything is answered."""
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
        log.error("bookie %s: state was lost; all %d ledgers are %s", bookie, count, what)
        if blocks_lost:
            self.lost_at_start = (
                f"this bookie may have lost blocks of {count} ledgers ({self.loss}); repair copies them from "
                "other bookies, and `quire ledgers lost` names those that nobody has"
            )
