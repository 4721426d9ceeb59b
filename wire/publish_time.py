"""Publish times of a block's messages, by the clients' clocks.

The generated parser reads the metadata of each entry, in about a microsecond. So this module is for searches and the
archive, not for the data path. An unreadable entry matches any time, so that a search does not skip it.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final

from google.protobuf.message import DecodeError

from quire.runtime.limits import METADATA_LOOKED_INTO_BYTES_MAX
from quire.wire import block as blocks
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import BlockHeader, Buffer

ANY_TIME_MS: Final = 2**63 - 1
"""Publish time of an unreadable entry, in ms: the greatest number that the field can contain."""

_METADATA_OFFSET: Final = 10
_MAGIC: Final = 0x0E01
_opening: Final = Struct(">H4xI").unpack_from
_parse: Final = pb.MessageMetadata.FromString


def publish_times(buffer: Buffer, header: BlockHeader) -> list[int]:
    """Return the publish time of each entry of a block, in ms; an empty list for a block of lost entries."""
    if blocks.is_blank(header):
        return []
    body = memoryview(buffer)[header.entries_offset : header.length]
    times: list[int] = []
    start = 0
    for end in blocks.ends(buffer, header):
        times.append(publish_time(body, start, end))
        start = end
    return times


def publish_time(body: memoryview, start: int, end: int) -> int:
    """Return the publish time of the entry at `start` .. `end`-1 of `body`; `ANY_TIME_MS` if it is unreadable."""
    try:
        magic, size = _opening(body, start)
        metadata_end = start + _METADATA_OFFSET + size
        if magic != _MAGIC or size > METADATA_LOOKED_INTO_BYTES_MAX or metadata_end > end:
            return ANY_TIME_MS
        metadata = _parse(body[start + _METADATA_OFFSET : metadata_end].tobytes())
    except (StructError, DecodeError):
        return ANY_TIME_MS
    time_ms = metadata.publish_time
    if 0 < time_ms < ANY_TIME_MS:
        return time_ms
    return 0 if time_ms == 0 and metadata.HasField("publish_time") else ANY_TIME_MS


class PublishTimes:
    """Minimum and maximum publish time over all added blocks."""

    __slots__ = ("ahead_ms", "max_ms", "min_ms")

    def __init__(self) -> None:
        self.min_ms = ANY_TIME_MS
        self.max_ms = 0
        """Like `min_ms`, never 0 after a message was added, because 0 means "unknown" in records."""
        self.ahead_ms = -ANY_TIME_MS
        """Maximum of (publish time - clock of its block, set by the broker), in ms; negative if all are earlier."""

    def __bool__(self) -> bool:
        """Return whether any message was added."""
        return self.max_ms > 0

    def add(self, buffer: Buffer, header: BlockHeader) -> None:
        times = publish_times(buffer, header)
        if times:
            least, greatest = min(times), max(times)
            self.min_ms = min(self.min_ms, 1 if greatest == ANY_TIME_MS else max(least, 1))
            self.max_ms = max(self.max_ms, greatest, 1)
            self.ahead_ms = max(self.ahead_ms, greatest - header.clock_ms)

    def merge(self, other: PublishTimes) -> None:
        """Include the extremes of `other`."""
        self.min_ms = min(self.min_ms, other.min_ms)
        self.max_ms = max(self.max_ms, other.max_ms)
        self.ahead_ms = max(self.ahead_ms, other.ahead_ms)
