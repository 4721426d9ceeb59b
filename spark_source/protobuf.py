"""Protobuf messages read column by column: thousands of small messages of one type in a few numpy calls.

A parser that goes message by message costs microseconds for each; the rows of a query have at most half of
one. So all messages advance together, one *field* a step: gather every message's next tag, gather the varint
after it, and note for each known field its number, or where its bytes lie. Messages of one producer
have the same fields in the same order, so a step is nearly always one tag for all, and the number of steps is the
number of fields of the longest message.

    data     ....[message 0]....[message 1]..........[message 2]....
    step 1        tag value      tag value            tag value          -> field 1 of all
    step 2        tag value      tag value            tag value          -> field 2 of all

Nothing is guessed. Whatever this reader does not understand at once (a known field with another wire type,
groups, a length beyond the message, more than `STEPS_MAX` fields) marks the message as *odd*, and the plain parser,
which names its errors, takes it. A message that is not marked has been read exactly as protobuf reads it:
the last occurrence of a scalar wins, unknown fields are skipped.
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
"""Fields of one message that are read in step; a message with more (many properties) goes to the plain parser."""

_LENGTH_MAX: Final = np.uint64(1 << 40)
_STOP_BITS: Final = np.uint64(0x8080808080808080)
_ONE: Final = np.uint64(1)


def _mask(value: int) -> np.uint64:
    return np.uint64(value)


# Seven-bit groups are joined pairwise: 7 -> 14 -> 28 -> 56 bits.
_SEVENS: Final = _mask(0x7F7F7F7F7F7F7F7F)
_JOINS: Final = (
    (_mask(0x007F007F007F007F), _mask(0x7F007F007F007F00), _mask(1)),
    (_mask(0x00003FFF00003FFF), _mask(0x3FFF00003FFF0000), _mask(2)),
    (_mask(0x000000000FFFFFFF), _mask(0x0FFFFFFF00000000), _mask(4)),
)


class Bytes:
    """A buffer of at least 16 bytes that can be gathered from at any offset. After its end lie zeros."""

    def __init__(self, data: Buffer) -> None:
        self.data = data
        self.u8: NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        self.be32: NDArray[np.uint32] = np.ndarray((len(data) - 3,), ">u4", data, 0, (1,))
        self._u64: Words = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))
        # The last words again, with room after them.
        self._tail_at = len(data) - 15
        self._tail = bytes(memoryview(data)[self._tail_at :]) + bytes(24)
        self._tail_u64: Words = np.ndarray((32,), "<u8", self._tail, 0, (1,))

    def words(self, at: Ints) -> Words:
        """The 64-bit little-endian words at `at`, each up to 16 bytes past the end."""
        if int(at.max(initial=0)) < len(self._u64):
            return self._u64[at]
        words = self._u64[np.minimum(at, len(self._u64) - 1)]
        late = at >= self._tail_at
        words[late] = self._tail_u64[at[late] - self._tail_at]
        return words

    def __len__(self) -> int:
        return len(self.data)

    def varints(self, at: Ints) -> tuple[Words, Ints | int]:
        """(numbers, lengths in bytes) of the varints at `at`. One without an end has a length above 10."""
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
        """Varints of nine and ten bytes: add the top byte's bits."""
        beyond = self.words(at[long] + 8)
        ninth, tenth = beyond & _mask(0xFF), beyond >> _mask(8) & _mask(0xFF)
        more = ninth >= 128
        words[long] |= ((ninth & _mask(0x7F)) << _mask(56)) | np.where(more, tenth << _mask(63), _mask(0))
        lengths[long] = np.where(more, np.where(tenth >= 128, 99, 10), 9)


@dataclass
class Spans:
    """Where the bytes of one field lie: `[start, end)` for each message where `present`."""

    start: Ints
    end: Ints
    present: Flags


@dataclass
class Repeated:
    """Occurrences of a repeated field in the order of steps: for each its message, and where its bytes lie."""

    message: list[Ints] = field(default_factory=list)
    start: list[Ints] = field(default_factory=list)
    end: list[Ints] = field(default_factory=list)

    def sorted(self) -> tuple[Ints, Ints, Ints]:
        """(message, start, end), by message and then in the message's order."""
        if not self.message:
            nothing = np.empty(0, np.int64)
            return nothing, nothing, nothing
        message = np.concatenate(self.message)
        order = np.argsort(message, kind="stable")
        return message[order], np.concatenate(self.start)[order], np.concatenate(self.end)[order]


class Table:
    """The fields of n messages, as columns. A field that no message has takes no room until it is asked for."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.odd: Flags = np.zeros(count, np.bool_)
        """Messages that this reader leaves to the plain parser; their columns mean nothing."""
        self._numbers: dict[int, tuple[Words, Flags]] = {}
        self._spans: dict[int, Spans] = {}
        self._repeated: dict[int, Repeated] = {}

    def has(self, number: int) -> bool:
        """Whether any message has this field."""
        return number in self._numbers or number in self._spans or number in self._repeated

    def number(self, number: int) -> Words:
        """A varint field of every message, 0 where it is absent."""
        return self._number(number)[0]

    def given(self, number: int) -> Flags:
        """Whether each message has this varint field."""
        return self._number(number)[1]

    def flag(self, number: int) -> Flags:
        """A bool field of every message, False where it is absent."""
        flags: Flags = self.number(number) != 0
        return flags

    def spans(self, number: int) -> Spans:
        """A bytes field of every message."""
        if number not in self._spans:
            none = np.zeros(self.count, np.int64)
            self._spans[number] = Spans(none, none.copy(), np.zeros(self.count, np.bool_))
        return self._spans[number]

    def repeated(self, number: int) -> Repeated:
        """All occurrences of a repeated bytes field."""
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
    """Which fields of a message type are wanted: its varint fields, its bytes fields, its repeated bytes fields."""

    numbers: frozenset[int]
    spans: frozenset[int]
    repeated: frozenset[int] = frozenset()

    def wire_type(self, number: int) -> int | None:
        """The wire type a wanted field must have; None when the field is not wanted."""
        if number in self.numbers:
            return VARINT
        return BYTES if number in self.spans or number in self.repeated else None


def read(data: Bytes, start: Ints, end: Ints, shape: Shape) -> Table:
    """The wanted fields of the messages at `[start, end)`, arrays of shape (n,), offsets in bytes."""
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
    """Read one field of each message; returns where the next one begins, beyond `stop` for an odd message."""
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
    """One field with the same tag (one byte, or two with the second above) in all `messages`."""
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
