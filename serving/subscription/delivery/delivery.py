"""From a block to MESSAGE frames: the block as a dispatcher sees it, and the bytes that a consumer gets.

A MESSAGE frame is a header (which entry, for which consumer) and the entry as it lies in the block. The headers
of a run of entries are made in one call (`entry_frames.message_headers`) and laid between the entries. What leaves
here is one buffer for small entries and the row of pieces for large ones: below `JOIN_ENTRY_BYTES` copying an
entry costs less than handing it to the transport by itself (bench/dispatch.py).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from copy import copy
from itertools import accumulate, groupby
from operator import itemgetter, sub
from typing import TYPE_CHECKING, Final, NamedTuple

from pyroaring import BitMap

from quire.serving.subscription.cursor.cursor_record import words_of
from quire.serving.subscription.cursor.entry_set import span
from quire.wire import block, commands, entry_frames
from quire.wire.block import BlockHeader, Buffer
from quire.wire.chunks import Chunk, chunks_of
from quire.wire.sticky_key import slots_of

if TYPE_CHECKING:
    from quire.serving.subscription.delivery.consumer import Consumer

JOIN_ENTRY_BYTES = 2 * 1024
_stop = itemgetter(0)
_NO_CHUNKS: Final[dict[int, Chunk]] = {}


class BlockView:
    """A block: which entries, how many messages each. Offsets count entries from the block's first one.

    `each` is the number of messages of every entry when all are equal, and `counts` is None then. It may be several
    blocks joined (`stretch`): `clocks` then says up to which offset which broker's time holds.
    """

    __slots__ = (
        "_all",
        "_chunks",
        "_clocks",
        "_slots",
        "_sums",
        "_whole",
        "buffer",
        "count",
        "counts",
        "each",
        "first_entry",
        "header",
        "ledger_id",
    )

    def __init__(
        self, buffer: Buffer, header: BlockHeader, clocks: Sequence[tuple[int, int]] | None = None
    ) -> None:
        self.buffer = buffer
        self._clocks = clocks
        self.header = header
        self.ledger_id = header.ledger_id
        self.first_entry = header.first_entry
        self.count = header.entry_count
        self._sums: list[int] | None = None
        self._whole: BlockView | None = None
        """The view of all of the block, which keeps what was found out, if this one is the head of it."""
        self._all: tuple[list[memoryview], list[int]] | None = None
        self._slots: list[int] | None = None
        self._chunks: dict[int, dict[int, Chunk]] = {}
        self.each, self.counts = block.equal_counts(buffer, header)

    @property
    def stop_entry(self) -> int:
        """The id after the last entry's."""
        return self.first_entry + self.count

    @property
    def bytes(self) -> int:
        return self.header.length

    def head(self, count: int) -> BlockView:
        """The same block as if it ended after its first `count` entries."""
        part = copy(self)
        part.count = count
        part.counts = None if self.counts is None else self.counts[:count]
        part._sums = None
        part._whole = self._whole or self
        return part

    def holds(self, ledger_id: int, entry_id: int) -> bool:
        return self.ledger_id == ledger_id and self.first_entry <= entry_id < self.first_entry + self.count

    def messages(self, start: int, stop: int) -> int:
        """Messages in the entries at offsets `start` .. `stop`-1."""
        if self.counts is None:
            return (stop - start) * self.each
        sums = self._sums or self._accumulate(self.counts)
        return sums[stop] - sums[start]

    def index_at(self, offset: int) -> int:
        """Topic-wide index of the first message of the entry at `offset`."""
        return self.header.first_index + self.messages(0, offset)

    def clock_at(self, offset: int) -> int:
        """When the broker took the entry at `offset`, in ms; 0 when nothing tells."""
        if self._clocks is None:
            return self.header.clock_ms
        return self._clocks[bisect_right(self._clocks, offset, key=_stop)][1]

    def cover(self, start: int, stop: int, limit: int) -> tuple[int, int]:
        """(stop, messages) of the shortest run from `start` with at least `limit` > 0 messages, or up to `stop`."""
        if self.counts is None:
            stop = min(stop, start - -limit // self.each)
            return stop, (stop - start) * self.each
        sums = self._sums or self._accumulate(self.counts)
        stop = min(stop, bisect_left(sums, sums[start] + limit, start + 1))
        return stop, sums[stop] - sums[start]

    def cover_some(self, offsets: Sequence[int], limit: int) -> tuple[int, int]:
        """(how many, messages) of the fewest first ones of `offsets` with at least `limit` messages, or of all."""
        if self.counts is None:
            taken = min(len(offsets), -(-limit // self.each))
            return taken, taken * self.each
        sums = list(accumulate(map(self.counts.__getitem__, offsets)))
        taken = min(len(offsets), bisect_left(sums, limit) + 1)
        return taken, sums[taken - 1]

    def messages_of(self, entries: BitMap) -> int:
        """Messages of `entries`, all of which are in the block."""
        if self.counts is None:
            return len(entries) * self.each
        first = self.first_entry
        return sum([self.counts[entry - first] for entry in entries])

    def all_entries(self) -> tuple[list[memoryview], list[int]]:
        """All entries of the block and their lengths in bytes; made once, for many consumers want some of them."""
        if self._whole is not None:
            return self._whole.all_entries()
        if self._all is None:
            header = self.header
            body = memoryview(self.buffer)[header.entries_offset : header.length]
            if header.entry_count == 1:
                self._all = [body], [len(body)]
            else:
                ends = block.ends(self.buffer, header)
                starts = array("I", (0,)) + ends[:-1]
                entries = [body[start:end] for start, end in zip(starts, ends, strict=True)]
                self._all = entries, list(map(sub, ends, starts))
        return self._all

    def slots(self) -> list[int]:
        """The Key_Shared slots of all entries of the block; found out once for all who are offered it."""
        if self._whole is not None:
            return self._whole.slots()
        if self._slots is None:
            self._slots = slots_of(self.buffer, self.header)
        return self._slots

    def chunks(self, bytes_min: int) -> dict[int, Chunk]:
        """By offset, those entries of the block of at least `bytes_min` that are chunks; found out once for all."""
        if self.header.length < bytes_min:
            return _NO_CHUNKS
        if self._whole is not None:
            return self._whole.chunks(bytes_min)
        found = self._chunks.get(bytes_min)
        if found is None:
            found = self._chunks[bytes_min] = self._chunks_from(bytes_min)
        return found

    def _chunks_from(self, bytes_min: int) -> dict[int, Chunk]:
        entries, lengths = self.all_entries()
        if max(lengths) < bytes_min:
            return _NO_CHUNKS
        large = [at for at, length in enumerate(lengths) if length >= bytes_min]
        return {large[at]: chunk for at, chunk in chunks_of([entries[at] for at in large]).items()}

    def _accumulate(self, counts: array[int]) -> list[int]:
        self._sums = list(accumulate(counts, initial=0))
        return self._sums


class Delivery(NamedTuple):
    """Entries at offsets `start` .. `stop`-1 of a block for one consumer.

    `remaining` is not 0 for one entry of which only these messages (set bits) are still to come. `offsets` is given
    when it is only these between `start` and `stop`, ascending: keys scatter a consumer's entries over a block.
    """

    consumer: Consumer
    view: BlockView
    start: int
    stop: int
    messages: int
    redelivery_count: int
    remaining: int
    offsets: Sequence[int] = ()

    def entries(self) -> BitMap:
        """The ids of its entries."""
        first = self.view.first_entry
        if self.offsets:
            return BitMap([first + offset for offset in self.offsets])
        return span(first + self.start, first + self.stop)


def frames(delivery: Delivery, partition: int) -> list[Buffer]:
    """The MESSAGE frames of a delivery, to be written in order; `partition` is -1 for a topic that has none."""
    consumer, view, start, _, _, redelivery_count, remaining, offsets = delivery
    entries, lengths = _entries(delivery)
    prefixes: list[bytes] = []
    if consumer.wants_index and view.header.clock_ms:
        prefixes = _entry_metadata(delivery)
        lengths = [len(prefix) + length for prefix, length in zip(prefixes, lengths, strict=True)]
    ledger_id, first = view.ledger_id, view.first_entry
    if remaining:
        ids = commands.message_id(ledger_id, first + start, partition)
        words = words_of(remaining)
        head = entry_frames.message_header(consumer.consumer_id, ids, lengths[0], redelivery_count, words)
        return [head, *prefixes, entries[0]]
    if offsets:
        headers = entry_frames.scattered_message_headers(
            consumer.consumer_id,
            ledger_id,
            partition,
            [first + offset for offset in offsets],
            lengths,
            redelivery_count,
        )
    else:
        headers = entry_frames.message_headers(
            consumer.consumer_id, ledger_id, partition, first + start, lengths, redelivery_count
        )
    stride = 3 if prefixes else 2
    parts: list[Buffer] = [b""] * (stride * len(headers))
    parts[0::stride] = headers
    if prefixes:
        parts[1::stride] = prefixes
    parts[stride - 1 :: stride] = entries
    if view.bytes < JOIN_ENTRY_BYTES * view.count:
        return [b"".join(parts)]
    return parts


def _entry_metadata(delivery: Delivery) -> list[bytes]:
    """When the broker took each entry, and the topic-wide index of its last message. Made blocks tell no time."""
    view = delivery.view
    offsets = delivery.offsets or range(delivery.start, delivery.stop)
    prefixes: list[bytes] = []
    for clock_ms, some in groupby(offsets, view.clock_at):
        prefixes += entry_frames.broker_entry_metadata(clock_ms, [view.index_at(at + 1) - 1 for at in some])
    return prefixes


def numbered_entries(delivery: Delivery) -> list[tuple[int, memoryview]]:
    """The entries of a delivery with their ids."""
    first = delivery.view.first_entry
    offsets = delivery.offsets or range(delivery.start, delivery.stop)
    return [(first + offset, entry) for offset, entry in zip(offsets, _entries(delivery)[0], strict=True)]


def _entries(delivery: Delivery) -> tuple[list[memoryview], list[int]]:
    """The entries of a delivery as views, and their lengths in bytes."""
    entries, lengths = delivery.view.all_entries()
    if delivery.offsets:
        return [entries[at] for at in delivery.offsets], [lengths[at] for at in delivery.offsets]
    start, stop = delivery.start, delivery.stop
    if stop - start == len(entries):
        return entries, lengths
    return entries[start:stop], lengths[start:stop]
