"""Replay: the journal's groups behind the mark go back into the memtable, as they once came in.

Nothing is judged again: what is in the journal was accepted. Two things are looked at. A ledger with a tombstone
takes no blocks; and a block that the index knows already is left out, which happens when the index was rebuilt and its
mark begins anew, and after a replay that met damage and was cut short. When the memtable is full it is flushed before
the next group, so a long journal needs no more memory than a short one.
"""

from __future__ import annotations

from collections.abc import Callable

from quire.bookie.index import Index
from quire.bookie.intake import Intake
from quire.bookie.journal_core import Control, ControlKind, records
from quire.wire.block import BlockHeader, Buffer


class Replay:
    """`group` is called for each group in order; `flush(mark)` empties the memtable, and blocks.

    What is flushed with a mark that lags behind, because groups are missing, is in the index when it is replayed again.
    """

    def __init__(self, intake: Intake, index: Index, flush: Callable[[int], None]) -> None:
        self._intake = intake
        self._index = index
        self._flush = flush

    def group(self, mark: int, group: bytes) -> None:
        if self._intake.is_full:
            self._flush(mark)
        for record in records(group):
            if isinstance(record, Control):
                self._control(record)
            else:
                self._block(*record)

    def _control(self, control: Control) -> None:
        state = self._intake.state(control.ledger_id)
        self._intake.changed.add(control.ledger_id)
        match control.kind:
            case ControlKind.FENCE:
                state.fence()
            case ControlKind.LAC:
                state.lac = max(state.lac, control.value)
            case ControlKind.TOMBSTONE:
                state.bury(control.value)

    def _block(self, header: BlockHeader, block: Buffer) -> None:
        _, _, count, ledger_id, first_entry, lac, _, _ = header
        state = self._intake.state(ledger_id)
        if lac > state.lac:
            state.lac = lac
        if state.tombstone_version is not None:
            return
        last_entry = first_entry + count - 1
        if first_entry <= state.last_entry:
            rows = self._index.rows(ledger_id, first_entry, 1)
            if rows and rows[0].first_entry <= last_entry:
                return
        if last_entry > state.last_entry:
            state.last_entry = last_entry
        self._intake.active.add(ledger_id, first_entry, last_entry, block)
