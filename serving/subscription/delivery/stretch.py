"""Stretches: small blocks that follow one another, dispatched as one. A core.

Offering a block costs a subscription 10 to 20 µs, whatever is in it. A large block spreads that over its entries; a
block of one entry does not. But small blocks seldom come alone: the journal writes what arrived during the last
fdatasync as one group, so all its blocks are confirmed in one turn; and who reads behind the tail finds many at once.
So small neighbours are laid out as one block (`block.join`: 0.5 µs a block and a copy of their bytes) before they are
offered, once for all subscriptions of the topic. Nothing waits for another block to come.

    joined      blocks of one ledger, each beginning where the one before ended, up to `STRETCH_BYTES_MAX`
    alone       a block beyond `SMALL_BLOCK_BYTES` or `SMALL_BLOCK_ENTRIES`: copying it would cost more than it saves;
                a block that compaction made, which tells no time; one that stands for lost entries
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.runtime.limits import BLOCK_BYTES_MAX, KIB
from quire.serving.subscription.delivery.delivery import BlockView
from quire.wire import block
from quire.wire.block import BlockHeader, Buffer, is_blank

SMALL_BLOCK_BYTES = 16 * KIB
SMALL_BLOCK_ENTRIES = 64
STRETCH_BYTES_MAX = BLOCK_BYTES_MAX

Block = tuple[Buffer, BlockHeader]


def views(blocks: Iterable[Block]) -> list[BlockView]:
    """`blocks`, in order, as what is to be offered one after another."""
    found: list[BlockView] = []
    run: list[Block] = []
    run_bytes = 0
    for one in blocks:
        header = one[1]
        if run and not (
            _is_small(header) and run_bytes + header.length <= STRETCH_BYTES_MAX and _follows(run, header)
        ):
            found.append(_view(run))
            run, run_bytes = [], 0
        run.append(one)
        run_bytes += header.length if _is_small(header) else STRETCH_BYTES_MAX
    if run:
        found.append(_view(run))
    return found


def _is_small(header: BlockHeader) -> bool:
    return (
        header.length <= SMALL_BLOCK_BYTES
        and header.entry_count <= SMALL_BLOCK_ENTRIES
        and header.clock_ms > 0
        and not is_blank(header)
    )


def _follows(run: list[Block], header: BlockHeader) -> bool:
    before = run[-1][1]
    return before.ledger_id == header.ledger_id and before.last_entry + 1 == header.first_entry


def _view(run: list[Block]) -> BlockView:
    if len(run) == 1:
        return BlockView(*run[0])
    first = run[0][1].first_entry
    clocks = [(header.last_entry + 1 - first, header.clock_ms) for _, header in run]
    return BlockView(*block.join(run), clocks)
