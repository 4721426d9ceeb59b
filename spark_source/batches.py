"""Where the messages of many batches lie, found without a loop over messages when they are alike.

A batch is a chain: each message tells how long it is, and so where the next begins. Messages of one
producer mostly have one size, and then the chain is an arithmetic series. So the first message of each batch is
read, the series is drawn up for all batches at once, all its headers are read by columns, and the prefix in
which each header has the sizes that were presumed is proven. The rest of a batch begins anew at the first that
differs (its sequence id got longer, say); when series turn out to be short, the chain is followed message by
message.
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
"""Messages per series (mean over batches) below which following the chain is cheaper."""

_U32: Final = Struct(">I")


class Singles:
    """The messages of n batches in order: for each its batch, its header's columns, and where its payload lies.

    `odd` has a flag for each *batch* that must go to the plain decoder.
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
    """Find `count` messages in each batch `[start, end)`; shapes (n,), offsets in bytes."""
    found: list[tuple[Ints, Ints, Ints]] = []  # batch, where its message begins, size of its header
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
    """For each batch the longest proven series of equal messages from `at` on, up to `left` of them.

    `length` 0: not even the first message is whole. `owner`, `at`: (m,) for the messages of all series; the
    others: (n,) for the batches.
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
    """Follow one batch message by message."""
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
    """Skip properties and key, which stand before it, to the payload's size. Raises ValueError."""
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
    """Each message must end where the next of its batch begins, and the last within the batch."""
    same_batch = singles.batch[1:] == singles.batch[:-1]
    bound = end[singles.batch]
    wrong = singles.end > bound
    wrong[:-1] |= same_batch & (singles.end[:-1] != at[1:])
    singles.odd[singles.batch[wrong]] = True
