"""The journal's bytes and decisions, without I/O: what goes into which group, and what a replay finds.

The journal is a directory of *segments*: files that are written front to back and used again and again. One use of
one file is an *epoch*; epochs only grow. A segment begins with a page that tells whose it is:

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
        56    8  mark           as the epoch began: every group up to it is in the entry logs

From 4096 on lie the *groups*, each at a multiple of 4096. A group is what one disk write makes durable:

    offset size  group header
         0    4  magic          "QJGR"
         4    4  crc            CRC32C, seeded with the salt, over bytes 8 .. length
         8    4  length         in bytes, this header included, the padding to whole pages not
        12    4  zero
        16    8  epoch          the segment's
        24    8  number         of the group; numbers rise by one, over all segments
        32       records, without gaps

A record is a block as it is (`wire/block`, magic "QBLK"), or a *control* of 24 bytes:

         0    4  magic          "QCTL"
         4    2  kind           1 fence, 2 explicit LAC, 3 tombstone
         6    2  zero
         8    8  ledger
        16    8  value          signed: LAC or version of the tombstone, else 0

All integers are big-endian. The salt makes sure that bytes which a client sent, or which an earlier epoch left
behind, never pass for a group.

One group is written at a time, so only the last one can be half there. Hence the rule of replay: what is
invalid with nothing valid of its epoch after it, and no later epoch that claims to follow it, is the *torn
tail*: it was never answered, and is ignored. An invalid or missing group with a valid later one is *damage*: groups
that were answered are gone. Then everything that is still valid is replayed, and the caller must put the bookie
in limbo. The next epoch starts in another file, so a torn tail is never written over while it may be read.
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
    """A change of a ledger that is not a block."""

    kind: ControlKind
    ledger_id: int
    value: int = 0


def encode_control(control: Control) -> bytes:
    return _CONTROL.pack(CONTROL_MAGIC, control.kind, 0, control.ledger_id, control.value)


def records(group: bytes) -> Iterator[tuple[block.BlockHeader, memoryview] | Control]:
    """The records of a whole, valid group in order; blocks are views into `group`.

    Raises `BlockError` where no record begins: whoever wrote such a group was not this version, or broken.
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
        raise BlockError(f"a journal group holds a control that cannot be read: {error}") from None


# -- groups on their way to the disk ---------------------------------------------------------------------
@dataclass(slots=True)
class Group:
    """Records that become durable together, and who waits for that."""

    number: int
    bytes: int = GROUP_HEADER_BYTES
    parts: list[Buffer] = field(default_factory=list)
    waiters: list[tuple[AddDone, Sequence[Status]]] = field(default_factory=list)


class GroupQueue:
    """Gathers records into groups: one in flight, the rest in line.

    A group takes all that waits, up to `bytes_max`, but never spans a `seal`: the memtable changes there.
    """

    def __init__(self, next_number: int, bytes_max: int = JOURNAL_GROUP_BYTES_MAX) -> None:
        self.durable_number = next_number - 1
        self.in_flight: Group | None = None
        self.bytes_max = bytes_max
        self._next_number = next_number
        self._line: deque[Group] = deque()
        self._open: Group | None = None
        """The newest group in line, while it may grow."""

    def append(
        self, parts: Sequence[Buffer], size_bytes: int, done: AddDone, statuses: Sequence[Status]
    ) -> None:
        """Queue records that must not be parted; `done(statuses)` once they are durable."""
        group = self._open
        if group is None or group.bytes + size_bytes > self.bytes_max:
            group = self._open = Group(self._next_number)
            self._next_number += 1
            self._line.append(group)
        group.parts += parts
        group.bytes += size_bytes
        group.waiters.append((done, statuses))

    def barrier(self, done: AddDone, statuses: Sequence[Status]) -> bool:
        """Let `done` wait for everything queued so far. False when there is nothing to wait for."""
        group = self._line[-1] if self._line else self.in_flight
        if group is None:
            return False
        group.waiters.append((done, statuses))
        return True

    def seal(self) -> int:
        """Begin a new group with the next record; answer the number of the last group before it."""
        self._open = None
        return self._next_number - 1

    def begin(self) -> Group | None:
        """The next group to write; None when one is in flight or nothing waits."""
        if self.in_flight is not None or not self._line:
            return None
        group = self.in_flight = self._line.popleft()
        if group is self._open:
            self._open = None
        return group

    def written(self) -> Group:
        """The group in flight is durable."""
        group = self.in_flight
        assert group is not None and group.number == self.durable_number + 1
        self.in_flight = None
        self.durable_number = group.number
        return group

    def fail(self) -> list[Group]:
        """The journal is dead: every group that will never be durable."""
        groups = [self.in_flight] if self.in_flight is not None else []
        groups += self._line
        self._line.clear()
        self.in_flight = self._open = None
        return groups


def encode_group(group: Group, header: SegmentHeader, put: Callable[[Buffer], int], view: memoryview) -> int:
    """Write a group into page-aligned memory; answer its size in whole pages.

    `put` appends to that memory, whose bytes `view` shows. What lies behind the group in its last page is left
    as it is: the length says where to stop.
    """
    put(bytes(GROUP_HEADER_BYTES))
    for part in group.parts:
        put(part)
    _GROUP.pack_into(view, 0, GROUP_MAGIC, 0, group.bytes, 0, header.epoch, group.number)
    crc = crc32c(view[_GROUP_CHECKED : group.bytes], header.salt)
    _GROUP.pack_into(view, 0, GROUP_MAGIC, crc, group.bytes, 0, header.epoch, group.number)
    return pages_up(group.bytes)


# -- segments and what a replay finds in them ------------------------------------------------------------
class SegmentHeader(NamedTuple):
    epoch: int
    first_number: int
    salt: int
    bookie: bytes
    incarnation: int
    mark: int = 0
    """Known to be passed when the epoch began. A file is written over only when the mark has passed what was in it,
    so of the newest epoch this tells which numbers may be missing, even when the index, which has the mark, is lost."""


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The segment's first page."""
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
    """A first page that was written and can no longer be read."""


def decode_segment_header(page: Buffer) -> SegmentHeader | BadSegment | None:
    """What a segment's first page says; None when the file was never used.

    Of two valid copies the newer epoch holds: the page was torn while it was written over.
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
    """A valid group: its number and where in the segment it lies, padding excluded."""

    number: int
    offset: int
    length: int


def scan_segment(image: memoryview, header: SegmentHeader) -> Iterator[FoundGroup]:
    """Every valid group of the header's epoch in the segment's bytes, in order, over damage where there is some.

    A gap in the numbers is damage; `Chain` judges it.
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
    """Follows the numbers of valid groups from the mark on and writes down what is missing.

    Feed it `segment` and `group` in the order of epochs and offsets.
    """

    mark: int
    last_number: int = -1
    whole_to: int = -1
    """The last group before which nothing is missing. A mark beyond it would hide the damage from the next replay."""
    damage: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.last_number = self.whole_to = self.mark

    def segment(self, file: str, first_number: int) -> None:
        """A later epoch begins: it claims that every number before `first_number` was written."""
        if first_number > self.last_number + 1:
            self._missing(first_number, file, 0)

    def group(self, file: str, found: FoundGroup, end_number: int | None) -> bool:
        """True when the group is to be replayed: it lies behind the mark.

        `end_number` is where the next epoch begins. What is valid beyond it was once judged a torn tail and
        never answered, and its numbers were given to others.
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
        """Whether a group behind the mark may have been on a page of a segment that cannot be read."""
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
    """Of all used segments those that may hold groups behind the mark, by epoch.

    A segment whose successor begins at or before mark + 1 holds none. The newest is always needed.
    """
    ordered = sorted(headers, key=lambda item: item[1].epoch)
    return [
        item
        for position, item in enumerate(ordered)
        if position + 1 == len(ordered) or ordered[position + 1][1].first_number > mark + 1
    ]
