"""Blocks for tests of the entry log's side of the bookie."""

from random import Random

from quire.wire import block
from quire.wire.block import Buffer


def make_blocks(
    ledger_id: int, first_entry: int, sizes: list[int], *, entry_count: int = 1, seed: int = 0
) -> list[bytes]:
    """Blocks of a ledger without a gap; block i has `entry_count` entries of sizes[i] random bytes."""
    rng = Random(f"{ledger_id}/{first_entry}")
    made = []
    for size in sizes:
        entries: list[Buffer] = [rng.randbytes(size) for _ in range(entry_count)]
        made.append(
            bytes(
                block.cut(ledger_id, first_entry, first_entry - 1, 1000 + first_entry, first_entry, entries)
            )
        )
        first_entry += entry_count
    return made
