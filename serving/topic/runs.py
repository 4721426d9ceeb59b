"""What was sent to a topic, from the socket to its receipts: runs of SENDs, and the blocks that they become.

There is no object per entry beyond its bytes: a run of SENDs is one object from the socket to its receipts, a block in
flight remembers which runs it was made of. Cutting again needs no more than that, since the block itself holds the
entries.
"""

from __future__ import annotations

import logging

from quire.ledger.writer_core import Pending
from quire.serving.model.ports import Done, Position
from quire.serving.topic.producers import ProducerPort
from quire.wire import block as blocks
from quire.wire.block import Buffer
from quire.wire.frame import SendRun

_log = logging.getLogger(__name__)


class PublishRun(SendRun):
    """A run of SENDs, as a session cuts it, and what a publisher adds while it waits for its receipts.

    The publisher owns the lists of what it was given. `after` is called behind the last receipt.
    """

    __slots__ = ("after", "came_s", "entry_bytes", "producer", "receipts")

    producer: ProducerPort
    came_s: float
    """When the first of them came."""
    entry_bytes: int
    """Of all entries, as long as they wait and when they have become a block."""
    receipts: bytes
    """Those of all, as one piece, once they are cut."""
    after: list[Done] | None

    @classmethod
    def of(
        cls, producer_id: int, heads: list[bytes], entries: list[bytes], counts: list[int] | None = None
    ) -> PublishRun:
        """SENDs that did not come as a run; `counts` is None when each holds one message."""
        run = cls(producer_id)
        run.heads, run.entries, run.counts = heads, entries, counts
        return run

    def extend(self, more: SendRun, entry_bytes: int) -> None:
        """Add more entries of the same producer."""
        if more.counts is not None or self.counts is not None:
            self.counts = (self.counts or [1] * len(self.heads)) + (more.counts or [1] * len(more.heads))
        self.heads += more.heads
        self.entries += more.entries
        self.entry_bytes += entry_bytes

    def split(self, at: int, entry_bytes: int) -> PublishRun:
        """Cut off the first `at` entries, which have so many bytes, and return them."""
        counts = self.counts[:at] if self.counts else None
        front = PublishRun.of(self.producer_id, self.heads[:at], self.entries[:at], counts)
        front.producer, front.entry_bytes = self.producer, entry_bytes
        front.came_s, front.after = self.came_s, None
        # In place: what stays may be long, and is not to be walked once per block.
        del self.heads[:at], self.entries[:at]
        if self.counts:
            del self.counts[:at]
        self.entry_bytes -= entry_bytes
        return front


class InFlightBlock(Pending):
    """A block that was handed to the writer: what it was made of, to answer it or to cut it again."""

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
        """When the oldest of its entries came."""
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

    def tell(self, waiting: list[Done]) -> None:
        """The receipts are written: call what waited behind them."""
        for done in waiting:
            try:
                done()
            except Exception:
                # The block is durable and has its receipts: it counts, whoever failed behind it.
                _log.exception(
                    "what waited for entry %d of ledger %d failed", self.last_entry, self.ledger_id
                )

    def undo(self) -> list[PublishRun]:
        """The parts as they waited before, their entries taken out of the block again."""
        entries = [bytes(entry) for entry in blocks.entries(self.block, self.header)]
        parts, self.parts = self.parts, []
        start = 0
        for part in parts:
            part.entries = entries[start : start + len(part.heads)]
            start += len(part.heads)
        return parts
