"""Byte format of a segment of a delayed snapshot: the body of a cursor record of kind 4.

    offset size  field                                            then
         0    8  ledger                                           n times: 4 messages of an entry
         8    8  first entry                                      roaring bitmap of delayed entries
        16    8  stop: the entry after the last one               s times: 4 length, roaring bitmap of slice k
        24    8  topic-wide index of the first message            w times: 2 slot
        32    4  each: messages per entry, or 0
        36    4  n, number of entries with individual counts: 0 or all
        40    4  tick in ms
        44    8  base: the tick relative to which the times are stored
        52    4  length of the bitmap of delayed entries
        56    4  s, number of slices
        60    4  w, number of slots: 0 or all
        64    1  1 if the segment begins a new snapshot

All integers are big-endian. `cursor_record` defines the header before this body, and when a record is valid.
"""

from __future__ import annotations

from array import array
from struct import Struct, pack, unpack
from typing import Final, Protocol

from pyroaring import BitMap

from quire.serving.subscription.delayed.delayed_snapshot import SnapshotSegment, Times

_SEGMENT: Final = Struct(">QQQqIIIQIIIB")
_U32: Final = Struct(">I")
SLICES_MAX: Final = 64


class Reader(Protocol):
    """Sequential reader of a record."""

    def unpack(self, layout: Struct) -> tuple[int, ...]: ...

    def take(self, count: int) -> bytes: ...

    def bitmap(self, count: int) -> BitMap: ...


def encode(segment: SnapshotSegment) -> bytes:
    counts, slots, times = segment.counts or (), segment.slots or (), segment.times
    delayed = times.entries.serialize()
    head = _SEGMENT.pack(
        *segment[:5],
        len(counts),
        times.tick_ms,
        times.base,
        len(delayed),
        len(times.slices),
        len(slots),
        segment.is_first,
    )
    slices = [one.serialize() for one in times.slices]
    bitmaps = [part for raw in slices for part in (_U32.pack(len(raw)), raw)]
    return b"".join(
        [head, pack(f">{len(counts)}I", *counts), delayed, *bitmaps, pack(f">{len(slots)}H", *slots)]
    )


def read(reader: Reader) -> SnapshotSegment:
    """Return the segment in a record. Raises `ValueError` and `struct.error` if it is invalid."""
    head = reader.unpack(_SEGMENT)
    (
        ledger_id,
        first,
        stop,
        first_index,
        each,
        count,
        tick_ms,
        base,
        length,
        slice_count,
        slot_count,
        is_first,
    ) = head
    size = stop - first
    if size <= 0 or count not in (0, size) or slot_count not in (0, size) or slice_count > SLICES_MAX:
        raise ValueError(
            "invalid segment of a delayed snapshot: its counts or slots do not match its entries"
        )
    if (each == 0) != (count == size) or tick_ms == 0:
        raise ValueError("invalid segment of a delayed snapshot: it has no message counts, or a tick of 0 ms")
    counts = array("I", unpack(f">{count}I", reader.take(4 * count))) if count else None
    delayed = reader.bitmap(length)
    slices = [reader.bitmap(reader.unpack(_U32)[0]) for _ in range(slice_count)]
    slots = array("H", unpack(f">{slot_count}H", reader.take(2 * slot_count))) if slot_count else None
    times = Times(tick_ms, base, delayed, slices)
    return SnapshotSegment(ledger_id, first, stop, first_index, each, counts, times, slots, bool(is_first))
