"""Columnar parser of protobuf: thousands of small messages of one type in a few numpy calls.

A parser of single messages takes microseconds for each message; a query may spend only half a microsecond on a row. So
all messages are parsed together, one *field* per step. A step gathers every message's next tag and the varint after it.
For each known field it records the number, or the offsets of the bytes. Messages of one producer have the same fields
in the same order, so in a step nearly always all messages have the same tag. There are as many steps as the longest
message has fields.

    data     ....[message 0]....[message 1]..........[message 2]....
    step 1        tag value      tag value            tag value          -> field 1 of all
    step 2        tag value      tag value            tag value          -> field 2 of all

The parser never guesses. It marks a message as *odd* if it has a known field with another wire type, a group, a length
beyond the message, or more than `STEPS_MAX` fields. The plain parser, which raises errors with reasons, reads these.
Any other message is read exactly as protobuf reads it ([encoding]): the last occurrence of a scalar wins, and unknown
fields are skipped.

[encoding]: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from quire.wire.block import Buffer

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Flags = NDArray[np.bool_]

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

STEPS_MAX: Final = 64
"""Maximum number of steps. The plain parser reads messages with more fields, such as those with many properties."""

_LENGTH_MAX: Final = np.uint64(1 << 40)
_STOP_BITS: Final = np.uint64(0x8080808080808080)
_ONE: Final = np.uint64(1)


def _mask(value: int) -> np.uint64:
    return np.uint64(value)


# A varint's seven-bit groups are joined pairwise: 7 -> 14 -> 28 -> 56 bits.
_SEVENS: Final = _mask(0x7F7F7F7F7F7F7F7F)
_JOINS: Final = (
    (_mask(0x007F007F007F007F), _mask(0x7F007F007F007F00), _mask(1)),
    (_mask(0x00003FFF00003FFF), _mask(0x3FFF00003FFF0000), _mask(2)),
    (_mask(0x000000000FFFFFFF), _mask(0x0FFFFFFF00000000), _mask(4)),
)


class Bytes:
    """Buffer of at least 16 bytes that can be gathered from at any offsets. Bytes after its end read as zeros."""

    def __init__(self, data: Buffer) -> None:
        self.data = data
        self.u8: NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        self.be32: NDArray[np.uint32] = np.ndarray((len(data) - 3,), ">u4", data, 0, (1,))
        self._u64: Words = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))
        # A copy of the last words, padded with zeros.
        self._tail_at = len(data) - 15
        self._tail = bytes(memoryview(data)[self._tail_at :]) + bytes(24)
        self._tail_u64: Words = np.ndarray((32,), "<u8", self._tail, 0, (1,))

    def words(self, at: Ints) -> Words:
        """Return the 64-bit little-endian words at `at`, which may be up to 16 bytes past the end."""
        if int(at.max(initial=0)) < len(self._u64):
            return self._u64[at]
        words = self._u64[np.minimum(at, len(self._u64) - 1)]
        late = at >= self._tail_at
        words[late] = self._tail_u64[at[late] - self._tail_at]
        return words

    def __len__(self) -> int:
        return len(self.data)

    def varints(self, at: Ints) -> tuple[Words, Ints | int]:
        """Return (numbers, lengths in bytes) of the varints at `at`. An unterminated varint has a length above 10."""
        words = self.words(at)
        if not (words & _mask(0x80)).any():
            return words & _mask(0x7F), 1
        stop = ~words & _STOP_BITS
        below = (stop & (~stop + _ONE)) - _ONE  # the bits below the first stop bit
        words &= below & _SEVENS
        for low, high, shift in _JOINS:
            words = (words & low) | ((words & high) >> shift)
        lengths = (np.bitwise_count(below) >> 3).astype(np.int64) + 1
        if not stop.all():
            self._lengthen(at, words, lengths, np.flatnonzero(stop == 0))
        return words, lengths

    def _lengthen(self, at: Ints, words: Words, lengths: Ints, long: Ints) -> None:
        """Complete `words` and `lengths` for the varints of nine and ten bytes, whose indexes are `long`."""
        beyond = self.words(at[long] + 8)
        ninth, tenth = beyond & _mask(0xFF), beyond >> _mask(8) & _mask(0xFF)
        more = ninth >= 128
        words[long] |= ((ninth & _mask(0x7F)) << _mask(56)) | np.where(more, tenth << _mask(63), _mask(0))
        lengths[long] = np.where(more, np.where(tenth >= 128, 99, 10), 9)


@dataclass
class Spans:
    """Offsets `[start, end)` of one field's bytes in each message, where `present`."""

    start: Ints
    end: Ints
    present: Flags


@dataclass
class Repeated:
    """Occurrences of a repeated field, in the order of steps: for each, its message and the offsets of its bytes."""

    message: list[Ints] = field(default_factory=list)
    start: list[Ints] = field(default_factory=list)
    end: list[Ints] = field(default_factory=list)

    def sorted(self) -> tuple[Ints, Ints, Ints]:
        """Return (message, start, end) of all occurrences, by message and then in their order in the message."""
        if not self.message:
            nothing = np.empty(0, np.int64)
            return nothing, nothing, nothing
        message = np.concatenate(self.message)
        order = np.argsort(message, kind="stable")
        return message[order], np.concatenate(self.start)[order], np.concatenate(self.end)[order]


class Table:
    """Fields of n messages, as columns. A field that no message has takes no memory until it is requested."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.odd: Flags = np.zeros(count, np.bool_)
        """Messages that the plain parser must read; their columns are invalid."""
        self._numbers: dict[int, tuple[Words, Flags]] = {}
        self._spans: dict[int, Spans] = {}
        self._repeated: dict[int, Repeated] = {}

    def has(self, number: int) -> bool:
        """Return whether any message has this field."""
        return number in self._numbers or number in self._spans or number in self._repeated

    def number(self, number: int) -> Words:
        """Return a varint field's value in every message, 0 where it is absent."""
        return self._number(number)[0]

    def given(self, number: int) -> Flags:
        """Return whether each message has this varint field."""
        return self._number(number)[1]

    def flag(self, number: int) -> Flags:
        """Return a bool field's value in every message, False where it is absent."""
        flags: Flags = self.number(number) != 0
        return flags

    def spans(self, number: int) -> Spans:
        """Return the spans of bytes field `number`, one per message; messages without the field have empty spans."""
        if number not in self._spans:
            none = np.zeros(self.count, np.int64)
            self._spans[number] = Spans(none, none.copy(), np.zeros(self.count, np.bool_))
        return self._spans[number]

    def repeated(self, number: int) -> Repeated:
        """Return all occurrences of a repeated bytes field."""
        return self._repeated.setdefault(number, Repeated())

    def _number(self, number: int) -> tuple[Words, Flags]:
        if number not in self._numbers:
            self._numbers[number] = np.zeros(self.count, np.uint64), np.zeros(self.count, np.bool_)
        return self._numbers[number]

    def put_numbers(self, number: int, messages: Ints, values: Words) -> None:
        column, given = self._number(number)
        column[messages] = values
        given[messages] = True

    def put_spans(self, number: int, messages: Ints, start: Ints, end: Ints) -> None:
        spans = self.spans(number)
        spans.start[messages] = start
        spans.end[messages] = end
        spans.present[messages] = True

    def put_repeated(self, number: int, messages: Ints, start: Ints, end: Ints) -> None:
        repeated = self.repeated(number)
        repeated.message.append(messages)
        repeated.start.append(start)
        repeated.end.append(end)


@dataclass(frozen=True)
class Shape:
    """Numbers of the fields to be read of a message type: varint fields, bytes fields, and repeated bytes fields."""

    numbers: frozenset[int]
    spans: frozenset[int]
    repeated: frozenset[int] = frozenset()

    def wire_type(self, number: int) -> int | None:
        """Return the wire type of a field to be read; None for other fields."""
        if number in self.numbers:
            return VARINT
        return BYTES if number in self.spans or number in self.repeated else None


def read(data: Bytes, start: Ints, end: Ints, shape: Shape) -> Table:
    """Read the fields of `shape` in the messages at `[start, end)`: arrays of shape (n,) with offsets in bytes."""
    table = Table(len(start))
    table.odd |= end < start
    messages = np.flatnonzero(start < end)
    whole = len(messages) == table.count
    at, stop = (start, end) if whole else (start[messages], end[messages])
    for _ in range(STEPS_MAX):
        if not len(messages):
            return table
        at = _step(data, table, messages, at, stop, shape)
        going = at < stop
        if not going.all():
            table.odd[messages[at > stop]] = True
            messages, at, stop = messages[going], at[going], stop[going]
    table.odd[messages] = True
    return table


def _step(data: Bytes, table: Table, messages: Ints, at: Ints, stop: Ints, shape: Shape) -> Ints:
    """Read the field at `at` of each message.

    Return the offset of each message's next field. It is beyond `stop` for an odd message.
    """
    tags: NDArray[Any] = data.u8[at]
    if int(tags.min()) == int(tags.max()) < 128:
        return _field(data, table, messages, at, stop, shape, int(tags[0]))
    second = data.words(at) & _mask(0xFF00)
    tags = np.where(tags < 128, tags, second | tags)
    following = np.empty_like(at)
    for tag in np.unique(tags):
        some = np.flatnonzero(tags == tag)
        following[some] = _field(data, table, messages[some], at[some], stop[some], shape, int(tag))
    return following


def _field(data: Bytes, table: Table, messages: Ints, at: Ints, stop: Ints, shape: Shape, tag: int) -> Ints:
    """Read one field that has the same tag in all `messages`.

    The tag has one byte, or two bytes of which the second one is in bits 8 to 15.
    """
    tag_bytes = 1 if tag < 128 else 2
    key = tag if tag < 128 else (tag & 0x7F) | (tag >> 8) << 7
    number, wire_type = key >> 3, key & 7
    wanted = shape.wire_type(number)
    if tag >> 15 or number == 0 or (wanted is not None and wanted != wire_type):
        return stop + 1
    if wire_type == VARINT:
        values, lengths = data.varints(at + tag_bytes)
        if wanted is not None:
            table.put_numbers(number, messages, values)
        return at + tag_bytes + lengths
    if wire_type == BYTES:
        sizes, lengths = data.varints(at + tag_bytes)
        begin = at + tag_bytes + lengths
        stop = begin + np.minimum(sizes, _LENGTH_MAX).astype(np.int64)
        if wanted is not None:
            put = table.put_repeated if number in shape.repeated else table.put_spans
            put(number, messages, begin, stop)
        return stop
    return (
        at + tag_bytes + {FIXED64: 8, FIXED32: 4}[wire_type] if wire_type in (FIXED64, FIXED32) else stop + 1
    )
