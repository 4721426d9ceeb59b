"""Ids of ledgers: those of the metadata store, and those under which bookies keep labels.

A ledger's label (`ledger.labels`) lies on its bookies as a block of a ledger of its own: the same id, and a bit that
no other ledger has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quire.wire.block import Buffer, brief

_BIT: Final = 1 << 62


def label_id(ledger_id: int) -> int:
    """The ledger that bookies keep the label in."""
    assert not ledger_id & _BIT
    return ledger_id | _BIT


def is_label(ledger_id: int) -> bool:
    return bool(ledger_id & _BIT)


def labelled(ledger_id: int) -> int:
    """The ledger whose label lies in `ledger_id`."""
    assert is_label(ledger_id)
    return ledger_id & ~_BIT


def entry_to_tell(blocks: Sequence[Buffer]) -> tuple[int, int]:
    """For the log: ledger and first entry of the first block that is no label, or else of a label's ledger."""
    for each in blocks:
        _, ledger_id, entry, *_ = brief(each)
        if not is_label(ledger_id):
            return ledger_id, entry
    return labelled(brief(blocks[0])[1]), 0
