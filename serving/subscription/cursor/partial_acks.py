"""Partly acknowledged batches and their remaining messages. Performs no I/O.

Clients acknowledge single messages of a batch as in
[PIP-54](https://github.com/apache/pulsar/blob/master/pip/pip-54.md). A subscription may have a million such entries, so
there is no object for each. The bits of an entry (a set bit is a remaining message) take a fixed number of bytes, its
*width*: the smallest power of two that fits its first bits; later bits are a subset of these. Entries of a ledger with
equal width form a *column*: a bitmap of their ids, and their bits in the order of the ids. The bits are stored in
chunks of about 32 KiB, each of which covers a fixed range of ids.

    column of width 2     entries  {7, 9, 12, …}               chunk 0   b0b1 | b0b1 | b0b1 | …
                                                                         of 7   of 9   of 12

So the rank of an id within its chunk is the index of its bits. An insertion or removal moves at most the bytes of a
chunk; when mark-delete advances, whole chunks are dropped; messages are counted by the set bits of whole chunks. A
million batches of ten messages take 2 MiB. Cursor records contain the same chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from pyroaring import BitMap

from quire.serving.model.ports import Position

CHUNK_BYTES: Final = 32 * 1024
"""Maximum bytes of a chunk's bits, unless a single entry is wider; an insertion moves at most this many bytes."""


class Chunk(NamedTuple):
    """Entries of one ledger and width, and their bits in the same order: `width` bytes each, little-endian."""

    ledger_id: int
    width: int
    entries: BitMap
    bits: bytes


def width_of(bits: int) -> int:
    """Return the width, in bytes, of `bits` and any subset of them: a power of two."""
    least = (bits.bit_length() + 7) // 8
    return 1 << (max(least, 1) - 1).bit_length()


def chunks_of(ledger_id: int, bits_by_entry: Mapping[int, int]) -> Iterator[Chunk]:
    """Yield the entries of one ledger as chunks of at most `CHUNK_BYTES`, by width."""
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
    """Entries of one ledger that have the same width."""

    __slots__ = ("chunks", "entries", "shift", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self.shift = max(1, CHUNK_BYTES // width).bit_length() - 1
        """Number of low bits of an entry id that are not part of its chunk number."""
        self.entries = BitMap()
        self.chunks: dict[int, bytearray] = {}

    def _at(self, entry_id: int) -> int:
        """Return the offset of the entry's bits in its chunk or, if it has none, the offset at which to insert them."""
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
        """Group `entries` by chunk: (chunk number, entries)."""
        rest = entries.copy()
        while rest:
            number = rest.min() >> self.shift
            first, stop = number << self.shift, (number + 1) << self.shift
            yield number, rest & BitMap(range(first, stop))
            rest.remove_range(first, stop)

    def of_chunk(self, number: int) -> BitMap:
        return self.entries & BitMap(range(number << self.shift, (number + 1) << self.shift))

    def left(self, entries: BitMap) -> int:
        """Count the remaining messages of `entries`, which are all in the column."""
        total = 0
        for number, some in self.by_chunk(entries):
            chunk = self.chunks[number]
            if len(some) * self.width == len(chunk):
                total += int.from_bytes(chunk, "little").bit_count()
            else:
                total += sum(self.get(entry_id).bit_count() for entry_id in some)
        return total

    def remove(self, entries: BitMap) -> None:
        """Remove `entries`, which are all in the column."""
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
        """Remove all ids below `stop`: drop whole chunks, and shorten the chunk that contains `stop`."""
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
    """Partly acknowledged entries of all ledgers, with the bits of their remaining messages."""

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
        """Return the entry's bits; 0 if it is not partly acknowledged."""
        for column in self._by_ledger.get(ledger_id, {}).values():
            if entry_id in column.entries:
                return column.get(entry_id)
        return 0

    def put(self, ledger_id: int, entry_id: int, bits: int) -> None:
        """Replace the entry's bits by `bits` (> 0)."""
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
        """Return whether any of the entries `first` .. `stop`-1 is partly acknowledged."""
        columns = self._by_ledger.get(ledger_id)
        return columns is not None and any(
            column.entries.range_cardinality(first, stop) for column in columns.values()
        )

    def between(self, ledger_id: int, first: int, stop: int) -> BitMap:
        """Return a new bitmap of the partly acknowledged entries among `first` .. `stop`-1."""
        columns = self._by_ledger.get(ledger_id)
        if columns is None or stop <= first:
            return BitMap()
        # `BitMap(range(...))` up to the greatest possible id would build 65,536 containers on each call.
        last = max(column.entries.max() for column in columns.values())
        return self.within(ledger_id, BitMap(range(first, min(stop, last + 1))))

    def within(self, ledger_id: int, entries: BitMap) -> BitMap:
        """Return a new bitmap of the partly acknowledged entries among `entries`."""
        found = BitMap()
        for column in self._by_ledger.get(ledger_id, {}).values():
            found |= column.entries & entries
        return found

    def left(self, ledger_id: int, entries: BitMap) -> int:
        """Count the remaining messages of the partly acknowledged entries among `entries`."""
        columns = self._by_ledger.get(ledger_id, {})
        return sum(column.left(column.entries & entries) for column in columns.values())

    def remove(self, ledger_id: int, entries: BitMap) -> None:
        """Remove the partly acknowledged entries among `entries`."""
        columns = self._by_ledger.get(ledger_id)
        if columns is None:
            return
        for column in columns.values():
            some = column.entries & entries
            if some:
                column.remove(some)
        self._tidy(ledger_id)

    def remove_up_to(self, position: Position) -> None:
        """Remove all entries up to and including `position`."""
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
        """Yield all chunks, ordered by ledger and width."""
        for ledger_id, columns in sorted(self._by_ledger.items()):
            for width, column in sorted(columns.items()):
                for number, bits in sorted(column.chunks.items()):
                    yield Chunk(ledger_id, width, column.of_chunk(number), bytes(bits))

    def merge(self, chunk: Chunk) -> None:
        """Merge a chunk of a record; an entry that is already present keeps only the bits that are set in both."""
        if self._adopt(chunk):
            return
        for at, entry_id in enumerate(chunk.entries):
            start = at * chunk.width
            bits = int.from_bytes(chunk.bits[start : start + chunk.width], "little")
            self.put(chunk.ledger_id, entry_id, bits & (self.get(chunk.ledger_id, entry_id) or bits))

    def _adopt(self, chunk: Chunk) -> bool:
        """Insert a chunk without copying its entries one by one.

        Returns False, and changes nothing, if it spans several chunks or overlaps a present chunk or entry.
        """
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
