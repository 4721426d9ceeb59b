"""MESSAGE frames of a block's entries, and the view of a block that dispatchers use. Performs no I/O.

A MESSAGE frame is a header (consumer id, message id) and the entry, byte for byte as in the block. The headers of a
run of entries are encoded in one call (`entry_frames.message_headers`) and interleaved with the entries. Small entries
are joined into one buffer, and large ones are separate buffers. Below `JOIN_ENTRY_BYTES`, a copy of an entry takes less
time than a separate write to the transport (bench/dispatch.py).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from copy import copy
from itertools import accumulate, groupby
from operator import itemgetter, sub
from typing import Final, NamedTuple

from pyroaring import BitMap

from quire.serving.subscription.cursor.cursor_record import words_of
from quire.serving.subscription.cursor.entry_set import span
from quire.serving.subscription.delivery.consumer import Consumer
from quire.wire import block, commands, entry_frames
from quire.wire.block import BlockHeader, Buffer
from quire.wire.chunks import Chunk, chunks_of
from quire.wire.sticky_key import slots_of

JOIN_ENTRY_BYTES = 2 * 1024
_stop = itemgetter(0)
_NO_CHUNKS: Final[dict[int, Chunk]] = {}


class BlockView:
    """View of a block: its entries and their message counts. Offsets are relative to the block's first entry.

    If all entries have the same number of messages, `each` is that number, and `counts` is None. A view may comprise
    several joined blocks (`coalescing`): then `clocks` lists (stop offset, broker's clock) of each of these blocks.
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
        """View of the whole block, which caches entries, slots and chunks; None unless this view is a `head` of it."""
        self._all: tuple[list[memoryview], list[int]] | None = None
        self._slots: list[int] | None = None
        self._chunks: dict[int, dict[int, Chunk]] = {}
        self.each, self.counts = block.equal_counts(buffer, header)

    @property
    def stop_entry(self) -> int:
        """Entry id after the last one of the view."""
        return self.first_entry + self.count

    def head(self, count: int) -> BlockView:
        """Return a view of the block's first `count` entries."""
        part = copy(self)
        part.count = count
        part.counts = None if self.counts is None else self.counts[:count]
        part._sums = None
        part._whole = self._whole or self
        return part

    def holds(self, ledger_id: int, entry_id: int) -> bool:
        return self.ledger_id == ledger_id and self.first_entry <= entry_id < self.first_entry + self.count

    def messages(self, start: int, stop: int) -> int:
        """Count the messages of the entries at offsets `start` .. `stop`-1."""
        if self.counts is None:
            return (stop - start) * self.each
        sums = self._sums or self._accumulate(self.counts)
        return sums[stop] - sums[start]

    def index_at(self, offset: int) -> int:
        """Return the topic-wide index of the first message of the entry at `offset`."""
        return self.header.first_index + self.messages(0, offset)

    def clock_at(self, offset: int) -> int:
        """Return the time (broker's clock, in ms) at which the entry at `offset` was received; 0 if unknown."""
        if self._clocks is None:
            return self.header.clock_ms
        return self._clocks[bisect_right(self._clocks, offset, key=_stop)][1]

    def cover(self, start: int, stop: int, limit: int) -> tuple[int, int]:
        """Return (stop, messages) of the shortest run of entries from offset `start` with at least `limit` messages.

        The run ends at `stop` at the latest. Precondition: `limit` > 0.
        """
        if self.counts is None:
            stop = min(stop, start - -limit // self.each)
            return stop, (stop - start) * self.each
        sums = self._sums or self._accumulate(self.counts)
        stop = min(stop, bisect_left(sums, sums[start] + limit, start + 1))
        return stop, sums[stop] - sums[start]

    def cover_some(self, offsets: Sequence[int], limit: int) -> tuple[int, int]:
        """Return (length, messages) of the shortest prefix of `offsets` with at least `limit` messages.

        If all offsets have fewer messages, the prefix is all of them.
        """
        if self.counts is None:
            taken = min(len(offsets), -(-limit // self.each))
            return taken, taken * self.each
        sums = list(accumulate(map(self.counts.__getitem__, offsets)))
        taken = min(len(offsets), bisect_left(sums, limit) + 1)
        return taken, sums[taken - 1]

    def messages_of(self, entries: BitMap) -> int:
        """Count the messages of `entries`, which are all in the block."""
        if self.counts is None:
            return len(entries) * self.each
        first = self.first_entry
        return sum([self.counts[entry - first] for entry in entries])

    def all_entries(self) -> tuple[list[memoryview], list[int]]:
        """Return all entries of the block and their lengths in bytes; cached for all deliveries from the view."""
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
        """Return the Key_Shared slots of all entries of the block; cached for all dispatchers that use the view."""
        if self._whole is not None:
            return self._whole.slots()
        if self._slots is None:
            self._slots = slots_of(self.buffer, self.header)
        return self._slots

    def chunks(self, bytes_min: int) -> dict[int, Chunk]:
        """Return the chunks among the entries of at least `bytes_min` bytes, by offset. The result is cached."""
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

    `remaining`, if not 0, has a bit set for each remaining message of a single, partly acknowledged entry. If `offsets`
    is not empty, the delivery contains only the entries at these offsets, ascending. Key_Shared dispatchers use it,
    because the entries of a consumer's keys are scattered over a block.
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
        """Return the entry ids of the delivery."""
        first = self.view.first_entry
        if self.offsets:
            return BitMap([first + offset for offset in self.offsets])
        return span(first + self.start, first + self.stop)


def frames(delivery: Delivery, partition: int) -> list[Buffer]:
    """Encode the MESSAGE frames of a delivery, as buffers in order; `partition` is -1 for an unpartitioned topic."""
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
    if view.header.length < JOIN_ENTRY_BYTES * view.count:
        return [b"".join(parts)]
    return parts


def _entry_metadata(delivery: Delivery) -> list[bytes]:
    """Encode the broker entry metadata of each entry: the broker's clock, and the index of the entry's last message."""
    view = delivery.view
    offsets = delivery.offsets or range(delivery.start, delivery.stop)
    prefixes: list[bytes] = []
    for clock_ms, some in groupby(offsets, view.clock_at):
        prefixes += entry_frames.broker_entry_metadata(clock_ms, [view.index_at(at + 1) - 1 for at in some])
    return prefixes


def numbered_entries(delivery: Delivery) -> list[tuple[int, memoryview]]:
    """Return the entries of a delivery with their ids."""
    first = delivery.view.first_entry
    offsets = delivery.offsets or range(delivery.start, delivery.stop)
    return [(first + offset, entry) for offset, entry in zip(offsets, _entries(delivery)[0], strict=True)]


def _entries(delivery: Delivery) -> tuple[list[memoryview], list[int]]:
    """Return the entries of a delivery as views, and their lengths in bytes."""
    entries, lengths = delivery.view.all_entries()
    if delivery.offsets:
        return [entries[at] for at in delivery.offsets], [lengths[at] for at in delivery.offsets]
    start, stop = delivery.start, delivery.stop
    if stop - start == len(entries):
        return entries, lengths
    return entries[start:stop], lengths[start:stop]
