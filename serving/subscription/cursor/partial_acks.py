"""Entries of which only some messages were acknowledged, and which of theirs are still to come: a core.

A subscription may have a million of them, so none is an object of its own. The bits of an entry (a set bit is a message
still to come) take a fixed number of bytes, its *width*: the least power of two that holds the bits it came with, for
they only become fewer. Entries of a ledger with one width are a *column*: a bitmap of their ids, and their bits one
after the other in the order of the ids, in chunks of about 32 KiB that each cover a fixed range of ids.

    column of width 2     entries  {7, 9, 12, …}               chunk 0   b0b1 | b0b1 | b0b1 | …
                                                                         of 7   of 9   of 12

So the rank of an id among those of its chunk says where its bits are; putting one in or taking one out moves at most a
chunk; dropping what mark-delete passed drops chunks; counting the messages of many counts bits of whole chunks. A
million batches of ten messages take 2 MiB. A chunk is also what a cursor's record is made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from pyroaring import BitMap

from quire.serving.model.ports import Position

CHUNK_BYTES: Final = 32 * 1024
"""What a chunk holds at most, unless a single entry is wider."""


class Chunk(NamedTuple):
    """Some entries of one ledger and width, and their bits: `width` bytes each, the lowest first, in their order."""

    ledger_id: int
    width: int
    entries: BitMap
    bits: bytes


def width_of(bits: int) -> int:
    """Bytes for `bits` and for whatever is left of them: a power of two."""
    least = (bits.bit_length() + 7) // 8
    return 1 << (max(least, 1) - 1).bit_length()


def chunks_of(ledger_id: int, bits_by_entry: Mapping[int, int]) -> Iterator[Chunk]:
    """Entries of one ledger, by width, in chunks that are no larger than others."""
    by_width: dict[int, list[int]] = {}
    for entry_id in sorted(bits_by_entry):
        by_width.setdefault(width_of(bits_by_entry[entry_id]), []).append(entry_id)
    for width, entry_ids in by_width.items():
        count = max(1, CHUNK_BYTES // width)
        for first in range(0, len(entry_ids), count):
            some = entry_ids[first : first + count]
            raw = b"".join([bits_by_entry[entry_id].to_bytes(width, "little") for entry_id in some])
            yield Chunk(ledger_id, width, BitMap(some), raw)


class _Column:
    """The entries of one ledger and width."""

    __slots__ = ("chunks", "entries", "shift", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self.shift = max(1, CHUNK_BYTES // width).bit_length() - 1
        """An id's chunk is the id without so many of its lowest bits."""
        self.entries = BitMap()
        self.chunks: dict[int, bytearray] = {}

    def _at(self, entry_id: int) -> int:
        """Where the entry's bits begin in its chunk, or would."""
        first = entry_id >> self.shift << self.shift
        before: int = self.entries.range_cardinality(first, entry_id)
        return before * self.width

    def get(self, entry_id: int) -> int:
        at = self._at(entry_id)
        return int.from_bytes(self.chunks[entry_id >> self.shift][at : at + self.width], "little")

    def put(self, entry_id: int, bits: int) -> None:
        at = self._at(entry_id)
        chunk = self.chunks.setdefault(entry_id >> self.shift, bytearray())
        replaced = self.width if entry_id in self.entries else 0
        chunk[at : at + replaced] = bits.to_bytes(self.width, "little")
        self.entries.add(entry_id)

    def by_chunk(self, entries: BitMap) -> Iterator[tuple[int, BitMap]]:
        """(number of a chunk, those of `entries` that are in it)."""
        rest = entries.copy()
        while rest:
            number = rest.min() >> self.shift
            first, stop = number << self.shift, (number + 1) << self.shift
            yield number, rest & BitMap(range(first, stop))
            rest.remove_range(first, stop)

    def of_chunk(self, number: int) -> BitMap:
        return self.entries & BitMap(range(number << self.shift, (number + 1) << self.shift))

    def left(self, entries: BitMap) -> int:
        """Messages still to come of `entries`, all of which are here."""
        total = 0
        for number, some in self.by_chunk(entries):
            chunk = self.chunks[number]
            if len(some) * self.width == len(chunk):
                total += int.from_bytes(chunk, "little").bit_count()
            else:
                total += sum(self.get(entry_id).bit_count() for entry_id in some)
        return total

    def remove(self, entries: BitMap) -> None:
        """All of them are here."""
        for number, some in self.by_chunk(entries):
            chunk, width = self.chunks[number], self.width
            if len(some) * width == len(chunk):
                del self.chunks[number]
                continue
            starts = [self._at(entry_id) for entry_id in some]
            kept_from = [0, *(start + width for start in starts)]
            kept = (chunk[a:b] for a, b in zip(kept_from, [*starts, len(chunk)], strict=True))
            self.chunks[number] = bytearray().join(kept)
        self.entries -= entries

    def remove_below(self, stop: int) -> None:
        """Forget all ids below `stop`: whole chunks, and the front of one."""
        while self.entries and self.entries.min() < stop:
            number = self.entries.min() >> self.shift
            end = (number + 1) << self.shift
            if end <= stop:
                del self.chunks[number]
            else:
                del self.chunks[number][: self._at(stop)]
                if not self.chunks[number]:
                    del self.chunks[number]
            self.entries.remove_range(number << self.shift, min(end, stop))


class PartialAcks:
    """True when anything is in it."""

    __slots__ = ("_by_ledger",)

    def __init__(self) -> None:
        self._by_ledger: dict[int, dict[int, _Column]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_ledger)

    def __len__(self) -> int:
        return sum(len(column.entries) for columns in self._by_ledger.values() for column in columns.values())

    def ledgers(self) -> set[int]:
        return set(self._by_ledger)

    def get(self, ledger_id: int, entry_id: int) -> int:
        """The entry's bits; 0 when it is not here."""
        for column in self._by_ledger.get(ledger_id, {}).values():
            if entry_id in column.entries:
                return column.get(entry_id)
        return 0

    def put(self, ledger_id: int, entry_id: int, bits: int) -> None:
        """The entry has `bits` (> 0) left; those that it had before, if it is here, are among its others no more."""
        columns = self._by_ledger.setdefault(ledger_id, {})
        for column in columns.values():
            if entry_id in column.entries:
                if bits.bit_length() <= 8 * column.width:
                    column.put(entry_id, bits)
                    return
                self.remove(ledger_id, BitMap((entry_id,)))
                columns = self._by_ledger.setdefault(ledger_id, {})
                break
        width = width_of(bits)
        if width not in columns:
            columns[width] = _Column(width)
        columns[width].put(entry_id, bits)

    def touches(self, ledger_id: int, first: int, stop: int) -> bool:
        """Whether any of `first` .. `stop`-1 is here."""
        columns = self._by_ledger.get(ledger_id)
        return columns is not None and any(
            column.entries.range_cardinality(first, stop) for column in columns.values()
        )

    def between(self, ledger_id: int, first: int, stop: int) -> BitMap:
        """A new bitmap: those of `first` .. `stop`-1 that are here."""
        columns = self._by_ledger.get(ledger_id)
        if columns is None or stop <= first:
            return BitMap()
        # A range up to the end of all ids would be 65,536 containers, built anew each time.
        last = max(column.entries.max() for column in columns.values())
        return self.within(ledger_id, BitMap(range(first, min(stop, last + 1))))

    def within(self, ledger_id: int, entries: BitMap) -> BitMap:
        """A new bitmap: those of `entries` that are here."""
        found = BitMap()
        for column in self._by_ledger.get(ledger_id, {}).values():
            found |= column.entries & entries
        return found

    def left(self, ledger_id: int, entries: BitMap) -> int:
        """Messages still to come of those of `entries` that are here."""
        columns = self._by_ledger.get(ledger_id, {})
        return sum(column.left(column.entries & entries) for column in columns.values())

    def remove(self, ledger_id: int, entries: BitMap) -> None:
        """Forget those of `entries` that are here."""
        columns = self._by_ledger.get(ledger_id)
        if columns is None:
            return
        for column in columns.values():
            some = column.entries & entries
            if some:
                column.remove(some)
        self._tidy(ledger_id)

    def remove_up_to(self, position: Position) -> None:
        """Forget everything up to and with `position`."""
        for ledger_id in [one for one in self._by_ledger if one < position.ledger_id]:
            del self._by_ledger[ledger_id]
        columns = self._by_ledger.get(position.ledger_id)
        if columns is not None:
            for column in columns.values():
                column.remove_below(position.entry_id + 1)
            self._tidy(position.ledger_id)

    def _tidy(self, ledger_id: int) -> None:
        columns = self._by_ledger[ledger_id]
        for width in [width for width, column in columns.items() if not column.entries]:
            del columns[width]
        if not columns:
            del self._by_ledger[ledger_id]

    def clear(self) -> None:
        self._by_ledger.clear()

    # -- to and from records ---------------------------------------------------------------------------

    def chunks(self) -> Iterator[Chunk]:
        """Everything, by ledger."""
        for ledger_id, columns in sorted(self._by_ledger.items()):
            for width, column in sorted(columns.items()):
                for number, bits in sorted(column.chunks.items()):
                    yield Chunk(ledger_id, width, column.of_chunk(number), bytes(bits))

    def merge(self, chunk: Chunk) -> None:
        """Take in what a record says: of entries that are here only what both have left."""
        if self._adopt(chunk):
            return
        for at, entry_id in enumerate(chunk.entries):
            start = at * chunk.width
            bits = int.from_bytes(chunk.bits[start : start + chunk.width], "little")
            self.put(chunk.ledger_id, entry_id, bits & (self.get(chunk.ledger_id, entry_id) or bits))

    def _adopt(self, chunk: Chunk) -> bool:
        """Take it in whole, if it lies in one chunk of ours that is not here yet, and none of its entries is."""
        columns = self._by_ledger.setdefault(chunk.ledger_id, {})
        column = columns.get(chunk.width) or _Column(chunk.width)
        number = chunk.entries.min() >> column.shift
        if number in column.chunks or chunk.entries.max() >> column.shift != number:
            return False
        if any(one.entries.intersect(chunk.entries) for one in columns.values()):
            return False
        columns[chunk.width] = column
        column.chunks[number] = bytearray(chunk.bits)
        column.entries |= chunk.entries
        return True
