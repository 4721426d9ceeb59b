"""Format and decisions of the journal, without I/O: the records of each group, and the groups that a replay finds.

The journal is a directory of *segments*: files that are written from front to back, and reused. Each use of a file is
an *epoch*, with a greater number than all earlier ones. A segment begins with a page that identifies it:

    offset size  segment header, at 0 and again at 2048 (zeros: never used)
         0    4  magic          "QJSG"
         4    4  crc            CRC32C over bytes 8 .. 64
         8    2  version        1
        10    2  zero
        12    4  salt           random, new with each epoch; seeds the checksums of the epoch's groups
        16    8  epoch          >= 1
        24    8  first number   of the first group that is written in this epoch
        32   16  bookie         UUID
        48    8  incarnation    of the bookie
        56    8  mark           when the epoch began: every group up to this one was in the entry logs

*Groups* start at 4096, each at a multiple of 4096. A group is the unit of one durable disk write:

    offset size  group header
         0    4  magic          "QJGR"
         4    4  crc            CRC32C, seeded with the salt, over bytes 8 .. length
         8    4  length         in bytes, including this header, without the padding to whole pages
        12    4  zero
        16    8  epoch          of the segment
        24    8  number         of the group; it increases by one from group to group, over all segments
        32       records, without gaps

A record is an unchanged block (`wire/block`, magic "QBLK"), or a *control* of 24 bytes:

         0    4  magic          "QCTL"
         4    2  kind           1 fence, 2 explicit LAC, 3 tombstone
         6    2  zero
         8    8  ledger
        16    8  value          signed: LAC or version of the tombstone, else 0

All integers are big-endian. Because of the salt, bytes that a client sent, or that remain from an earlier epoch, are
never valid as a group. (The [WAL of SQLite](https://www.sqlite.org/fileformat2.html#walformat) has salts for the same
reason.)

One group is written at a time, so only the last one can be incomplete. So a replay distinguishes two cases (rule 23).
An invalid group is a *torn tail* if no valid group of its epoch follows, and no later epoch's first number is greater
than the invalid group's number. A torn tail was never acknowledged, and is ignored. Any other invalid or missing group
is *damage*, because acknowledged groups are lost. Then all valid groups are replayed, and the caller must put all
ledgers in limbo. The next epoch begins in another file, so a torn tail is not overwritten while it may be read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from quire.runtime.disk import PAGE_BYTES, pages_up
from quire.runtime.limits import JOURNAL_GROUP_BYTES_MAX
from quire.wire import block
from quire.wire.block import BlockError, Buffer
from quire.wire.bookie import AddDone, Status
from quire.wire.checksum import crc32c

SEGMENT_MAGIC: Final = 0x514A5347
GROUP_MAGIC: Final = 0x514A4752
CONTROL_MAGIC: Final = 0x5143544C
VERSION: Final = 1

_SEGMENT: Final = Struct(">HHIQQ16sQQ")  # version, zero, salt, epoch, first number, bookie, incarnation, mark
_SEGMENT_PREFIX: Final = Struct(">II")
_SECOND_COPY: Final = PAGE_BYTES // 2
_GROUP: Final = Struct(">IIIIQQ")
_GROUP_CHECKED: Final = 8
_CONTROL: Final = Struct(">IHHQq")
_CONTROL_OPENING: Final = CONTROL_MAGIC.to_bytes(4, "big")
GROUP_HEADER_BYTES: Final = _GROUP.size
CONTROL_BYTES: Final = _CONTROL.size

assert _SEGMENT_PREFIX.size + _SEGMENT.size == 64
assert GROUP_HEADER_BYTES == 32 and CONTROL_BYTES == 24


# -- records ---------------------------------------------------------------------------------------------
class ControlKind(IntEnum):
    FENCE = 1
    LAC = 2
    TOMBSTONE = 3


class Control(NamedTuple):
    """Change of a ledger's state that is not a block."""

    kind: ControlKind
    ledger_id: int
    value: int = 0


def encode_control(control: Control) -> bytes:
    return _CONTROL.pack(CONTROL_MAGIC, control.kind, 0, control.ledger_id, control.value)


def records(group: bytes) -> Iterator[tuple[block.BlockHeader, memoryview] | Control]:
    """Yield the records of a valid group in order; blocks are views into `group`.

    Raises `BlockError` for an invalid record, from a faulty writer or one of another version.
    """
    view = memoryview(group)
    position, end = GROUP_HEADER_BYTES, len(group)
    while position < end:
        if group.startswith(_CONTROL_OPENING, position):
            yield _control_at(group, position)
            position += CONTROL_BYTES
        else:
            header = block.read_header(group, position)
            yield header, view[position : position + header.length]
            position += header.length


def _control_at(group: bytes, position: int) -> Control:
    try:
        _, kind, _, ledger_id, value = _CONTROL.unpack_from(group, position)
        return Control(ControlKind(kind), ledger_id, value)
    except (ValueError, StructError) as error:
        raise BlockError(f"a journal group contains an invalid control: {error}") from None


# -- groups on their way to the disk ---------------------------------------------------------------------
@dataclass(slots=True)
class Group:
    """Records that become durable together, and their callbacks."""

    number: int
    bytes: int = GROUP_HEADER_BYTES
    parts: list[Buffer] = field(default_factory=list)
    waiters: list[tuple[AddDone, Sequence[Status]]] = field(default_factory=list)
    """Callbacks and their arguments. For a request over TCP, the callback is `done` in `server._Connection._begin`."""


class GroupQueue:
    """Queue of records in groups: one group in flight, the rest waiting.

    A group contains all waiting records, up to `bytes_max`. `seal` ends a group, because another memtable begins there.
    """

    def __init__(self, next_number: int, bytes_max: int = JOURNAL_GROUP_BYTES_MAX) -> None:
        self.durable_number = next_number - 1
        self.in_flight: Group | None = None
        self.bytes_max = bytes_max
        self._next_number = next_number
        self._line: deque[Group] = deque()
        self._open: Group | None = None
        """Last waiting group, while records may be added to it."""

    def append(
        self, parts: Sequence[Buffer], size_bytes: int, done: AddDone, statuses: Sequence[Status]
    ) -> None:
        """Queue records that must stay in one group; `done(statuses)` is called once they are durable."""
        assert parts and size_bytes <= self.bytes_max
        group = self._open
        if group is None or group.bytes + size_bytes > self.bytes_max:
            group = self._open = Group(self._next_number)
            self._next_number += 1
            self._line.append(group)
        group.parts += parts
        group.bytes += size_bytes
        group.waiters.append((done, statuses))

    def barrier(self, done: AddDone, statuses: Sequence[Status]) -> bool:
        """Call `done` when everything queued so far is durable; return False if nothing is queued or in flight."""
        group = self._line[-1] if self._line else self.in_flight
        if group is None:
            return False
        group.waiters.append((done, statuses))
        return True

    def seal(self) -> int:
        """Close the open group, so that the next record begins a new one; return the last closed group's number."""
        self._open = None
        return self._next_number - 1

    def begin(self) -> Group | None:
        """Return the next group to write; None if a group is in flight or no group waits."""
        if self.in_flight is not None or not self._line:
            return None
        group = self.in_flight = self._line.popleft()
        assert group.number == self.durable_number + 1, "groups are written in the order of their numbers"
        if group is self._open:
            self._open = None
        return group

    def written(self) -> Group:
        """Complete the group in flight, which is durable now, and return it."""
        group = self.in_flight
        assert group is not None and group.number == self.durable_number + 1
        self.in_flight = None
        self.durable_number = group.number
        return group

    def fail(self) -> list[Group]:
        """Remove and return all groups in flight or waiting, which cannot become durable after a failure."""
        groups = [self.in_flight] if self.in_flight is not None else []
        groups += self._line
        self._line.clear()
        self.in_flight = self._open = None
        return groups


def encode_group(group: Group, header: SegmentHeader, put: Callable[[Buffer], int], view: memoryview) -> int:
    """Write a group into page-aligned memory; return its size in whole pages.

    `put` appends bytes to the memory that `view` shows. The padding is not cleared, because a replay reads only the
    group's length.
    """
    assert group.bytes <= len(view)
    put(bytes(GROUP_HEADER_BYTES))
    for part in group.parts:
        put(part)
    _GROUP.pack_into(view, 0, GROUP_MAGIC, 0, group.bytes, 0, header.epoch, group.number)
    crc = crc32c(view[_GROUP_CHECKED : group.bytes], header.salt)
    _GROUP.pack_into(view, 0, GROUP_MAGIC, crc, group.bytes, 0, header.epoch, group.number)
    return pages_up(group.bytes)


# -- segments and what a replay finds in them ------------------------------------------------------------
class SegmentHeader(NamedTuple):
    """First page of a segment in use; see the module."""

    epoch: int
    first_number: int
    salt: int
    bookie: bytes
    incarnation: int
    mark: int = 0
    """Mark when the epoch began.

    A file is overwritten only after the mark has passed all of its groups. So all groups after the newest epoch's mark
    must exist, even if the index, which contains the current mark, is lost.
    """


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the segment's first page."""
    checked = _SEGMENT.pack(
        VERSION,
        0,
        header.salt,
        header.epoch,
        header.first_number,
        header.bookie,
        header.incarnation,
        header.mark,
    )
    copy = _SEGMENT_PREFIX.pack(SEGMENT_MAGIC, crc32c(checked)) + checked
    half = copy + bytes(_SECOND_COPY - len(copy))
    return half + half


class BadSegment(NamedTuple):
    """Result of decoding a first page that was written but is invalid now."""


def decode_segment_header(page: Buffer) -> SegmentHeader | BadSegment | None:
    """Decode a segment's first page; return None if the file was never used.

    If both copies are valid but differ, overwriting the page was interrupted, and the copy with the newer epoch counts.
    """
    page = bytes(page)
    copies = [found for offset in (0, _SECOND_COPY) if (found := _decode_copy(page, offset)) is not None]
    if copies:
        return max(copies)
    return BadSegment() if any(page) else None


def _decode_copy(page: bytes, offset: int) -> SegmentHeader | None:
    if len(page) < offset + 64:
        return None
    magic, crc = _SEGMENT_PREFIX.unpack_from(page, offset)
    checked = page[offset + _SEGMENT_PREFIX.size : offset + 64]
    version, _, salt, epoch, first_number, bookie, incarnation, mark = _SEGMENT.unpack(checked)
    if magic != SEGMENT_MAGIC or crc32c(checked) != crc or version != VERSION:
        return None
    return SegmentHeader(epoch, first_number, salt, bookie, incarnation, mark)


class FoundGroup(NamedTuple):
    """Valid group: its number and position in the segment, without padding."""

    number: int
    offset: int
    length: int


def scan_segment(image: memoryview, header: SegmentHeader) -> Iterator[FoundGroup]:
    """Yield every valid group of the header's epoch in the segment's bytes, in order, even after damage.

    `Chain` detects gaps in the numbers, which mean damage.
    """
    position, end = PAGE_BYTES, len(image)
    expected = header.first_number
    while position + GROUP_HEADER_BYTES <= end:
        found = _group_at(image, position, header)
        if found is None or found.number < expected:
            position += PAGE_BYTES
            continue
        yield found
        expected = found.number + 1
        position += pages_up(found.length)


def _group_at(image: memoryview, position: int, header: SegmentHeader) -> FoundGroup | None:
    magic, crc, length, _, epoch, number = _GROUP.unpack_from(image, position)
    if magic != GROUP_MAGIC or epoch != header.epoch:
        return None
    if not GROUP_HEADER_BYTES <= length <= len(image) - position:
        return None
    if crc32c(image[position + _GROUP_CHECKED : position + length], header.salt) != crc:
        return None
    return FoundGroup(number, position, length)


@dataclass(slots=True)
class Chain:
    """Check for missing groups after the mark, by the numbers of the valid groups.

    The caller calls `segment` and `group` in the order of epochs and offsets.
    """

    mark: int
    last_number: int = -1
    whole_to: int = -1
    """Last group before which no group is missing. A greater mark would hide the damage from the next replay."""
    damage: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.last_number = self.whole_to = self.mark

    def segment(self, file: str, first_number: int) -> None:
        """Begin the segment `file` of a later epoch. Its `first_number` proves that all earlier groups were written."""
        if first_number > self.last_number + 1:
            self._missing(first_number, file, 0)

    def group(self, file: str, found: FoundGroup, end_number: int | None) -> bool:
        """Add a valid group; return whether it must be replayed, because it is after the mark.

        `end_number` is the first number of the next epoch. A group of this epoch with that number or a greater one
        was a torn tail for an earlier replay: it was never acknowledged, and its number was reused.
        """
        if found.number <= self.last_number or (end_number is not None and found.number >= end_number):
            return False
        if found.number > self.last_number + 1:
            self._missing(found.number, file, found.offset)
        self.last_number = found.number
        if not self.damage:
            self.whole_to = found.number
        return True

    def may_matter(self, page: int, groups: Sequence[FoundGroup], end_number: int | None) -> bool:
        """Return whether an unreadable page (at offset `page`) may have contained a group after the mark."""
        if any(found.offset > page and found.number <= self.mark + 1 for found in groups):
            return False
        is_whole = end_number is not None and bool(groups) and groups[-1].number + 1 >= end_number
        return not is_whole or page < groups[-1].offset

    def _missing(self, number: int, file: str, offset: int) -> None:
        self.damage.append(
            f"journal groups {self.last_number + 1} to {number - 1} are missing or damaged "
            f"before {file} at offset {offset}"
        )
        self.last_number = number - 1


def segments_needed(
    headers: Sequence[tuple[str, SegmentHeader]], mark: int
) -> list[tuple[str, SegmentHeader]]:
    """Return the used segments (file name, header) that may contain groups after the mark, sorted by epoch.

    If the next segment begins at or before group mark + 1, a segment contains none. The newest one is always needed.
    """
    ordered = sorted(headers, key=lambda item: item[1].epoch)
    return [
        item
        for position, item in enumerate(ordered)
        if position + 1 == len(ordered) or ordered[position + 1][1].first_number > mark + 1
    ]
