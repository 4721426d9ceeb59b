"""Offsets of the messages in many batches, found without a loop over messages if these have equal sizes.

A batch is a chain: each message contains its length, and so the offset of the next one. Messages of one producer mostly
have one size, and then the offsets are an arithmetic series:

1. The first message of each batch is read, and the series is computed for all batches at once.
2. All headers at these offsets are read by columns. The longest prefix whose headers have the expected sizes is valid.
3. The rest of a batch is a new series. It starts at the first message that differs, for example in the length of its
   sequence id.
4. If the series are short, the chain is followed message by message.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final

import numpy as np

from quire.spark_source.protobuf import Bytes, Flags, Ints, Shape, Table, read

PROPERTIES: Final = 1
KEY: Final = 2
PAYLOAD_SIZE: Final = 3
COMPACTED_OUT: Final = 4
EVENT_TIME: Final = 5
KEY_IS_BASE64: Final = 6
SEQUENCE_ID: Final = 8
NULL_VALUE: Final = 9

SINGLE: Final = Shape(
    numbers=frozenset((PAYLOAD_SIZE, COMPACTED_OUT, EVENT_TIME, KEY_IS_BASE64, SEQUENCE_ID, NULL_VALUE)),
    spans=frozenset((KEY,)),
    repeated=frozenset((PROPERTIES,)),
)
_ONLY_SIZE: Final = Shape(numbers=frozenset((PAYLOAD_SIZE,)), spans=frozenset())

_SERIES_MIN: Final = 16
"""Mean number of messages per series below which it is cheaper to follow the chain message by message."""

_U32: Final = Struct(">I")


class Singles:
    """Messages of n batches in order: for each message its batch, its header's columns and its payload's offsets.

    `odd` has a flag for each *batch* that the plain decoder must decode.
    """

    def __init__(
        self, data: Bytes, batch: Ints, at: Ints, size: Ints, odd: Flags, table: Table | None
    ) -> None:
        self.batch = batch
        self.table = table or read(data, at + 4, at + 4 + size, SINGLE)
        self.start = at + 4 + size
        self.end = self.start + self.table.number(PAYLOAD_SIZE).astype(np.int64)
        self.odd = odd
        self.odd[batch[self.table.odd | ~self.table.given(PAYLOAD_SIZE)]] = True


def split(data: Bytes, start: Ints, end: Ints, count: Ints) -> Singles:
    """Find `count[i]` messages in each batch `[start[i], end[i])`. Arrays have shape (n,), offsets are in bytes."""
    found: list[tuple[Ints, Ints, Ints]] = []  # for each message: its batch, its offset, its header's size
    odd = np.zeros(len(start), np.bool_)
    at, left, batch = start.copy(), count.copy(), np.flatnonzero(count > 0)
    while len(batch):
        series = _Series(data, at[batch], end[batch], left[batch])
        odd[batch[series.length == 0]] = True
        found.append((batch[series.owner], series.at, series.size[series.owner]))
        if len(found) == 1 and len(batch) == len(start) and (series.length == count).all():
            return Singles(data, series.owner, series.at, series.size[series.owner], odd, series.table)
        at[batch] += series.length * series.stride
        left[batch] -= series.length
        mean_length = series.length.mean()
        batch = batch[(left[batch] > 0) & ~odd[batch]]
        if mean_length < _SERIES_MIN:
            break
    found += [_chain(data, int(i), int(at[i]), int(end[i]), int(left[i]), odd) for i in batch]
    if not found:
        found = [(np.empty(0, np.int64),) * 3]
    owner, place, size = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.lexsort((place, owner))
    order = order[~odd[owner[order]]]
    singles = Singles(data, owner[order], place[order], size[order], odd, None)
    _prove_chain(singles, place[order], end)
    return singles


class _Series:
    """Longest valid series of messages of equal size in each batch, from `at` on, with at most `left` messages.

    A `length` of 0 means that even the first message is incomplete. `owner` and `at` have shape (m,), with an element
    for each message of all series. The other arrays have shape (n,), with an element for each batch.
    """

    def __init__(self, data: Bytes, at: Ints, end: Ints, left: Ints) -> None:
        self.size = data.be32[np.minimum(at, len(data.be32) - 1)].astype(np.int64)
        whole = at + 4 + self.size <= end
        first = read(data, np.where(whole, at + 4, 0), np.where(whole, at + 4 + self.size, 0), _ONLY_SIZE)
        payload = first.number(PAYLOAD_SIZE)
        whole &= ~first.odd & first.given(PAYLOAD_SIZE) & (payload < 1 << 31)
        self.stride = 4 + self.size + np.where(whole, payload, 0).astype(np.int64)
        fit = np.where(whole, np.minimum(left, (end - at) // self.stride), 0)
        self.owner = np.repeat(np.arange(len(at)), fit)
        begin = np.cumsum(fit) - fit
        step = np.arange(len(self.owner)) - begin[self.owner]
        self.at = at[self.owner] + step * self.stride[self.owner]
        same = data.be32[self.at] == self.size[self.owner]
        header = np.where(same, self.size[self.owner], 0)
        self.table = read(data, self.at + 4, self.at + 4 + header, SINGLE)
        same &= self.table.number(PAYLOAD_SIZE) == payload[self.owner]
        same &= self.table.given(PAYLOAD_SIZE)
        self.length = fit.copy()
        broken = np.flatnonzero(~same)
        if len(broken):
            np.minimum.at(self.length, self.owner[broken], step[broken])
            proven = step < self.length[self.owner]
            self.owner, self.at = self.owner[proven], self.at[proven]


def _chain(data: Bytes, batch: int, at: int, end: int, count: int, odd: Flags) -> tuple[Ints, Ints, Ints]:
    """Follow one batch message by message. Return the batch, offset and header size of each message."""
    buffer, places, sizes = data.data, [], []
    unpack = _U32.unpack_from
    try:
        for _ in range(count):
            (size,) = unpack(buffer, at)
            places.append(at)
            sizes.append(size)
            if buffer[at + 4] == 0x18 and buffer[at + 5] < 128:
                at += 4 + size + buffer[at + 5]
            else:
                at += 4 + size + _payload_size(buffer, at + 4, at + 4 + size)
            if at > end:
                raise ValueError
    except (StructError, IndexError, ValueError):
        odd[batch] = True
    return np.full(len(places), batch), np.array(places, np.int64), np.array(sizes, np.int64)


def _payload_size(buffer: bytes | bytearray | memoryview, at: int, end: int) -> int:
    """Return the payload size from a header that begins with properties or a key. Raises `ValueError`."""
    while at < end:
        tag, number, shift = buffer[at], 0, 0
        while True:
            at += 1
            byte = buffer[at]
            number |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 35:
                raise ValueError
        if tag == 0x18:
            return number
        at += 1
        if tag not in (0x0A, 0x12):
            raise ValueError
        at += number
    raise ValueError


def _prove_chain(singles: Singles, at: Ints, end: Ints) -> None:
    """Mark batches as odd unless each message ends where the next one begins, and the last ends within the batch."""
    same_batch = singles.batch[1:] == singles.batch[:-1]
    bound = end[singles.batch]
    wrong = singles.end > bound
    wrong[:-1] |= same_batch & (singles.end[:-1] != at[1:])
    singles.odd[singles.batch[wrong]] = True
