"""Ids of ledgers in the metadata store, and ids under which bookies store labels.

Bookies store a ledger's label (`ledger.labels`) as a block of a separate ledger, whose id is the ledger's id with one
more bit set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quire.wire.block import Buffer, brief

FIRST_LABEL: Final = 1 << 62
"""Minimum id of the ledgers that contain labels, and the bit that is set only in their ids."""


def label_id(ledger_id: int) -> int:
    """Return the id of the ledger in which bookies store the ledger's label."""
    assert not ledger_id & FIRST_LABEL
    return ledger_id | FIRST_LABEL


def is_label(ledger_id: int) -> bool:
    return bool(ledger_id & FIRST_LABEL)


def labelled(ledger_id: int) -> int:
    """Return the ledger whose label is stored in `ledger_id`."""
    assert is_label(ledger_id)
    return ledger_id & ~FIRST_LABEL


def entry_to_tell(blocks: Sequence[Buffer]) -> tuple[int, int]:
    """Return the ledger and first entry of the first block that is not a label, for a log line.

    If all are labels, return the first label's ledger and 0.
    """
    for each in blocks:
        _, ledger_id, entry, *_ = brief(each)
        if not is_label(ledger_id):
            return ledger_id, entry
    return labelled(brief(blocks[0])[1]), 0
