"""Runs of blocks: whole blocks of one ledger, one after the other, as logs and objects keep them.

Whoever calls has proven the bytes, by a checksum over the run; here they are only walked over.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from quire.wire.block import Buffer, peek

_U32: Final = Struct(">I")
_BLOCK_LENGTH_OFFSET: Final = 16


def first_blocks(runs: memoryview, bytes_max: int) -> list[Buffer]:
    """Blocks from the start of proven runs, as views: at least one, then as many as `bytes_max` allows."""
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
    """All blocks of proven runs, as views."""
    return first_blocks(runs, len(runs))


def skip_to_entry(runs: memoryview, start: int, entry: int) -> int:
    """The offset of the block that contains `entry`, from proven runs; `start` is that of a block before."""
    header = peek(runs[start:])
    while header.last_entry < entry:
        start += header.length
        header = peek(runs[start:])
    return start
