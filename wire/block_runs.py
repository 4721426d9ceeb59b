"""Runs of blocks: contiguous whole blocks of one ledger, as write-ahead logs and objects contain them.

The caller has verified a checksum over the run; these functions only find the blocks in it.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from quire.wire.block import Buffer, peek

_U32: Final = Struct(">I")
_BLOCK_LENGTH_OFFSET: Final = 16


def first_blocks(runs: memoryview, bytes_max: int) -> list[Buffer]:
    """Return the first blocks of verified runs as views: at least one, and more if all fit into `bytes_max`."""
    blocks: list[Buffer] = []
    start, end = 0, min(len(runs), bytes_max)
    while start < end:
        stop = start + _U32.unpack_from(runs, start + _BLOCK_LENGTH_OFFSET)[0]
        assert start < stop <= len(runs), "prove the runs first"
        if stop > end and blocks:
            break
        blocks.append(runs[start:stop])
        start = stop
    return blocks


def split(runs: memoryview) -> list[Buffer]:
    """Return all blocks of verified runs, as views."""
    return first_blocks(runs, len(runs))


def skip_to_entry(runs: memoryview, start: int, entry: int) -> int:
    """Return the offset of the block in verified runs that contains `entry`; the search begins with that at `start`."""
    header = peek(runs[start:])
    while header.last_entry < entry:
        start += header.length
        header = peek(runs[start:])
    return start
