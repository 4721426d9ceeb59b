"""Runs of SENDs, and the blocks in flight that are cut from them.

A run of SENDs (consecutive SENDs of one producer) is one object from the socket until its receipts are written. Its
entries are plain `bytes`. A block in flight references its runs, so that they can be cut again for another ledger.
"""

from __future__ import annotations

import logging
from collections import deque

from quire.ledger.writer_core import Pending
from quire.serving.model.ports import Done, Position
from quire.serving.topic.producers import ProducerPort
from quire.wire import block as blocks
from quire.wire.block import Buffer
from quire.wire.frame import SendRun

_log = logging.getLogger(__name__)


class PublishRun(SendRun):
    """Run of SENDs of one producer, with the publisher's state until its receipts are written.

    The publisher owns the lists of a run that was passed to it. The callbacks in `after` are called after the last
    receipt was written.
    """

    __slots__ = ("_later", "_split_off", "after", "came_s", "entry_bytes", "producer", "receipts")

    producer: ProducerPort
    came_s: float
    """Monotonic arrival time, in seconds, of the first entry; after a split, of the first remaining entry."""
    entry_bytes: int
    """Size of all entries, in bytes; it does not change when they are cut into a block."""
    receipts: bytes
    """Receipts of all entries, as one byte string; set when the block is cut."""
    after: list[Done] | None

    @classmethod
    def of(
        cls, producer_id: int, heads: list[bytes], entries: list[bytes], counts: list[int] | None = None
    ) -> PublishRun:
        """Create a run from separate SENDs; `counts` is None if each SEND contains one message."""
        run = cls(producer_id)
        run.heads, run.entries, run.counts = heads, entries, counts
        return run

    def begin(self, producer: ProducerPort, entry_bytes: int, came_s: float) -> None:
        """Initialize the publisher's state when the run enters the queue."""
        self.producer, self.entry_bytes, self.came_s, self.after = producer, entry_bytes, came_s, None
        self._later: deque[tuple[int, float]] | None = None
        """Arrival times (monotonic, in seconds) of entries that were added in later turns.

        Each item is (number of entries before them, including those split off; arrival time).
        """
        self._split_off = 0

    def extend(self, more: SendRun, entry_bytes: int, came_s: float) -> None:
        """Append entries of the same producer that arrived in the same turn or a later one."""
        later = self._later
        if came_s != (later[-1][1] if later else self.came_s):
            if later is None:
                later = self._later = deque()
            later.append((self._split_off + len(self.heads), came_s))
        if more.counts is not None or self.counts is not None:
            self.counts = (self.counts or [1] * len(self.heads)) + (more.counts or [1] * len(more.heads))
        self.heads += more.heads
        self.entries += more.entries
        self.entry_bytes += entry_bytes

    def split(self, at: int, entry_bytes: int) -> PublishRun:
        """Split off the first `at` entries, which have `entry_bytes` bytes, and return them as a run."""
        counts = self.counts[:at] if self.counts else None
        front = PublishRun.of(self.producer_id, self.heads[:at], self.entries[:at], counts)
        front.begin(self.producer, entry_bytes, self.came_s)
        # Delete in place: the remaining list may be long, and a slice would copy it for every block.
        del self.heads[:at], self.entries[:at]
        if self.counts:
            del self.counts[:at]
        self.entry_bytes -= entry_bytes
        self._split_off += at
        later = self._later
        while later and later[0][0] <= self._split_off:
            self.came_s = later.popleft()[1]
        return front


class InFlightBlock(Pending):
    """Block that was passed to the ledger writer, with its runs, which are answered or cut again for another ledger."""

    __slots__ = (
        "byte_count",
        "came_s",
        "clock_ms",
        "entry_count",
        "first_entry",
        "first_index",
        "ledger_id",
        "message_count",
        "parts",
    )

    def __init__(
        self,
        first: tuple[int, int],
        first_index: int,
        clock_ms: int,
        block: Buffer,
        parts: list[PublishRun],
        entry_count: int,
        message_count: int,
        byte_count: int,
    ) -> None:
        self.came_s = parts[0].came_s if parts else 0.0
        """Monotonic arrival time, in seconds, of the block's oldest entry."""
        self.ledger_id, self.first_entry = first
        self.last_entry = self.first_entry + entry_count - 1
        self.acks = 0
        self.first_index = first_index
        self.clock_ms = clock_ms
        self.block = block
        self.parts = parts
        self.entry_count = entry_count
        self.message_count = message_count
        self.byte_count = byte_count

    @property
    def first(self) -> Position:
        return Position(self.ledger_id, self.first_entry)

    @property
    def header(self) -> blocks.BlockHeader:
        return blocks.peek(self.block)

    def call_back(self, waiting: list[Done]) -> None:
        """Call the callbacks that waited until the receipts of this block were written."""
        for done in waiting:
            try:
                done()
            except Exception:
                # The block is durable and its receipts were sent, so a failed callback must not stop the accounting.
                _log.exception(
                    "internal error in a callback after its block was confirmed: entry=%d ledger=%d",
                    self.last_entry,
                    self.ledger_id,
                )

    def undo(self) -> list[PublishRun]:
        """Undo the cut: return the block's runs, with their entries extracted from the block."""
        entries = [bytes(entry) for entry in blocks.entries(self.block, self.header)]
        parts, self.parts = self.parts, []
        start = 0
        for part in parts:
            part.entries = entries[start : start + len(part.heads)]
            start += len(part.heads)
        return parts
