"""Blocks for tests of WALs."""

from __future__ import annotations

from quire.wire import block


def made(ledger_id: int, first_entry: int, count: int = 1, size: int = 10) -> bytes:
    """A block whose clock is 1,000 and its first entry."""
    entries = [bytes([first_entry % 251]) * size] * count
    return bytes(
        block.cut(ledger_id, first_entry, first_entry - 1, 1_000 + first_entry, first_entry, entries)
    )
