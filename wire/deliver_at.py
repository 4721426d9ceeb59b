"""When the entries of a block are to be delivered, for those that say so (`deliver_at_time` of their metadata).

Nearly no entry does, and a block without any must cost next to nothing. The field's tag is two bytes, 0x98 0x01, so
one search over the whole block proves that there is none. Where the two bytes occur, the entry they are in is found by
the block's table: in its payload they mean nothing, and the search goes on behind it; in its metadata they may be
the field or part of another one, so the metadata is parsed, which cannot be fooled.
"""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct
from typing import Final

from google.protobuf.message import DecodeError

from quire.wire import block as blocks
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import BlockHeader, Buffer

_TAG: Final = b"\x98\x01"
_METADATA_OFFSET: Final = 10
_SIZE: Final = Struct(">6xI")
_parse: Final = pb.MessageMetadata.FromString


def delivery_times(
    buffer: Buffer, header: BlockHeader, start: int, after_ms: int
) -> tuple[list[int], list[int]]:
    """(offsets, times in ms) of the entries from offset `start` on that are to be delivered later than `after_ms`."""
    raw = bytes(buffer) if isinstance(buffer, memoryview) else buffer
    body = header.entries_offset
    hit = raw.find(_TAG, body)
    offsets: list[int] = []
    times_ms: list[int] = []
    if hit < 0:
        return offsets, times_ms
    ends = blocks.ends(buffer, header)
    while hit >= 0:
        at = bisect_right(ends, hit - body)
        if at >= header.entry_count:
            break
        begin = body + (ends[at - 1] if at else 0)
        end = body + ends[at]
        if at >= start:
            time_ms = _time_of(raw, begin, end, hit)
            if time_ms > after_ms:
                offsets.append(at)
                times_ms.append(time_ms)
        hit = raw.find(_TAG, end)
    return offsets, times_ms


def _time_of(raw: bytes | bytearray, begin: int, end: int, hit: int) -> int:
    """What the entry in `begin` .. `end`-1 says; 0 when it says nothing, or cannot be read."""
    if end - begin < _METADATA_OFFSET:
        return 0
    (size,) = _SIZE.unpack_from(raw, begin)
    stop = begin + _METADATA_OFFSET + size
    if hit >= stop or stop > end:
        return 0
    try:
        return _parse(bytes(raw[begin + _METADATA_OFFSET : stop])).deliver_at_time
    except DecodeError:
        return 0
