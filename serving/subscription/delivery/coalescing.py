"""Coalesced blocks: consecutive small blocks, dispatched as one. Performs no I/O.

Dispatching a block takes a subscription 10 to 20 µs, independent of its size. For a large block, that cost is spread
over many entries; for a block of one entry, it is not. But small blocks rarely arrive alone. The journal writes all
blocks that arrived during the last fdatasync as one group, so they are confirmed together; and a subscription with a
backlog reads many at once. So consecutive small blocks are joined into one (`block.join`: 0.5 µs per block and a copy
of their bytes) before they are dispatched, once for all subscriptions of the topic. No block waits for a later one.

    joined      consecutive blocks of one ledger, up to `COALESCED_BYTES_MAX`
    separate    a block above `SMALL_BLOCK_BYTES` or `SMALL_BLOCK_ENTRIES`: copying it would cost more than it saves;
                a block of compacted data, which has no clock; a blank block, which replaces lost entries
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.runtime.limits import BLOCK_BYTES_MAX, KIB
from quire.serving.subscription.delivery.delivery import BlockView
from quire.wire import block
from quire.wire.block import BlockHeader, Buffer, is_blank

SMALL_BLOCK_BYTES = 16 * KIB
SMALL_BLOCK_ENTRIES = 64
COALESCED_BYTES_MAX = BLOCK_BYTES_MAX

Block = tuple[Buffer, BlockHeader]


def views(blocks: Iterable[Block]) -> list[BlockView]:
    """Return views of `blocks`, in order, with consecutive small blocks joined."""
    found: list[BlockView] = []
    run: list[Block] = []
    run_bytes = 0
    for one in blocks:
        header = one[1]
        if run and not (
            _is_small(header) and run_bytes + header.length <= COALESCED_BYTES_MAX and _follows(run, header)
        ):
            found.append(_view(run))
            run, run_bytes = [], 0
        run.append(one)
        run_bytes += header.length if _is_small(header) else COALESCED_BYTES_MAX
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
