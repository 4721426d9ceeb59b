"""Publishing: builds blocks from runs of SENDs, and sends their receipts when the blocks are confirmed.

    run of SENDs ─▶ waiting ──cut──▶ in flight ──confirmed──▶ receipts, then the topic (cache, subscriptions)
                       ▲                 │
                       └── take_back ────┘   after a failed write: the unconfirmed runs are cut again for the next
                       ledger

A *run* is a sequence of consecutive SENDs of one producer. The runs that were read for a topic in one iteration
(*turn*) of the event loop wait until the turn ends; then `Turn` calls `cut` of each topic. A block contains up to 256
KiB or 1,000 entries; a larger entry is a block of its own. At most BLOCKS_IN_FLIGHT_PER_LEDGER_MAX blocks are
unconfirmed; full blocks to object storage may exceed that number. So the batch size adapts to the load: under load,
waiting entries make the next block larger; without load, each entry immediately becomes a block. No timer is involved.

The receipts of a block are built when it is cut, as one byte string per producer, and sent in order when it is
confirmed. They are built before the block is written to the disk: if they were built later, the disk's thread would
wait for the interpreter lock.

`runs` contains the classes of a run and of a block in flight, `turn` the end of a turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Sized
from itertools import islice
from typing import Final, Protocol
from weakref import ref

from quire.ledger.writer import LedgerWriter
from quire.runtime.limits import (
    BLOCK_BYTES_MAX,
    BLOCK_ENTRIES_MAX,
    BLOCKS_IN_FLIGHT_PER_LEDGER_MAX,
    ENTRY_OVERHEAD_BYTES,
)
from quire.serving.model.ports import Done
from quire.serving.model.rates import Received
from quire.serving.topic.producers import ProducerPort
from quire.serving.topic.runs import InFlightBlock, PublishRun
from quire.serving.topic.segments import Active
from quire.serving.topic.tenant_shares import TenantShare
from quire.serving.topic.turn import Turn
from quire.wire import block as blocks
from quire.wire.entry_frames import ledger_field, receipt, receipts

_NONE: Final[list[PublishRun]] = []
"""Value of `parts` of a block whose receipts were written."""

_CUT: Final[list[bytes]] = []
"""Value of `entries` of a run that was cut into a block: the run no longer keeps the entries in memory."""


class Listener(Protocol):
    """Port from a publisher to its topic.

    The publisher holds it by a weak reference, because the topic owns the publisher.
    """

    received: Received
    """Counters of published messages; `Reports` and `NullPublisher` increase them."""

    @property
    def readers(self) -> Sized:
        """Return a collection whose length is the current number of subscriptions; always the same object."""
        ...

    def confirmed(self, flights: Sequence[InFlightBlock]) -> None:
        """Handle durable blocks, in order. They were counted, and their receipts were sent, before this call."""
        ...


class Reports:
    """Reporter of durable blocks to one topic. It updates counters, and calls the topic only if the topic must act.

    For a topic without subscriptions, it usually updates only counters. With thousands of topics, accesses to memory
    are the main cost of a block.
    """

    __slots__ = ("_is_heard", "_readers", "_received", "_topic", "_turn", "segment_bytes_max")

    def __init__(self, turn: Turn, segment_bytes_max: int, *, is_heard: bool) -> None:
        self._turn = turn
        self.segment_bytes_max = segment_bytes_max
        self._is_heard = is_heard
        """True if every block is reported to the topic.

        Otherwise, blocks are reported if the topic has subscriptions, if they are slow, or if the segment is full.
        """

    def listen(self, topic: Listener) -> None:
        self._topic, self._received, self._readers = ref(topic), topic.received, topic.readers

    def confirmed(self, flights: Sequence[InFlightBlock], active: Active) -> None:
        """Count durable blocks of the `active` segment, in order, and report them to the topic if it must act."""
        turn, received = self._turn, self._received
        first, last = flights[0], flights[-1]
        assert active.ledger_id == first.ledger_id
        now_s = turn.time_s
        if now_s < 0:
            now_s = turn.now_s()
        if active.last_entry < 0:
            active.first_clock_ms = first.clock_ms
        active.last_entry = last.last_entry
        active.last_clock_ms = last.clock_ms
        active.messages = last.first_index + last.message_count - active.first_index
        for flight in flights:
            active.bytes += len(flight.block)
            received.count(flight.message_count, flight.byte_count, now_s - flight.came_s)
        if (
            self._readers
            or self._is_heard
            or active.bytes >= self.segment_bytes_max
            or first.came_s < turn.slow_before_s
        ) and (topic := self._topic()) is not None:
            topic.confirmed(flights)


class _Ledger:
    """Ledger to which a publisher writes."""

    __slots__ = ("active", "ids", "ledger_id", "write")

    def __init__(self, writer: LedgerWriter, active: Active) -> None:
        self.ledger_id = writer.ledger_id
        self.write: Callable[[InFlightBlock], None] = writer.write
        self.ids = ledger_field(writer.ledger_id)
        """Encoded ledger id with which the message ids in receipts begin."""
        self.active = active


class Publisher:
    """Publishing queue of one topic, from runs to receipts. Without a ledger writer, it only queues runs."""

    __slots__ = (
        "_armed",
        "_clock_ms",
        "_confirmed_entry",
        "_drained",
        "_flights",
        "_flights_max",
        "_flushes",
        "_ledger",
        "_next_entry",
        "_turn",
        "_waiting",
        "held_bytes",
        "next_index",
        "reports",
        "share",
    )

    def __init__(self, turn: Turn, share: TenantShare, reports: Reports) -> None:
        self._turn = turn
        self.share = share
        self.reports = reports
        self._ledger: _Ledger | None = None
        """Ledger to which blocks are written; after `detach`, the ledger to which they were written last."""
        self._waiting: list[PublishRun] = []
        self._flights: list[InFlightBlock] = []
        """Blocks in flight.

        This and `_waiting` are lists and not deques, because an empty deque takes 760 bytes per topic.
        """
        self._flights_max = 0
        """Maximum number of blocks in flight, including the extra allowance for full blocks; 0 without a writer."""
        self._armed = False
        """True while `cut` is scheduled for the end of this turn."""
        self._next_entry = 0
        self._confirmed_entry = -1
        self._clock_ms = 0
        self._drained: list[Done] = []
        self._flushes: dict[asyncio.Future[bool], None] = {}
        self.held_bytes = 0
        self.next_index = 0

    @property
    def is_full(self) -> bool:
        """True while the unanswered bytes of the topic or of its tenant exceed their share of the byte budget.

        `when_drained` calls the caller back.
        """
        share = self.share
        return self.held_bytes >= share.topic_bytes_max or (
            share.held_bytes >= share.limit_bytes and share.is_full
        )

    def when_drained(self, done: Done) -> None:
        """Call `done` once, when the unanswered bytes have fallen to half of the share that they exceed."""
        if self.held_bytes >= self.share.topic_bytes_max:
            self._drained.append(done)
        else:
            self.share.when_free(done)

    def attach(self, writer: LedgerWriter, active: Active, clock_ms: int) -> None:
        """Write to a new, empty ledger, the `active` segment. The clock in its blocks is at least `clock_ms`."""
        assert not self._flights and not self._flights_max, "detach from the former ledger first"
        assert active.ledger_id == writer.ledger_id and active.last_entry < 0
        self._ledger = _Ledger(writer, active)
        self._flights_max = BLOCKS_IN_FLIGHT_PER_LEDGER_MAX + writer.more_full_blocks_max
        self._next_entry = 0
        self._confirmed_entry = -1
        self.next_index = active.first_index
        self._clock_ms = max(self._clock_ms, clock_ms)
        if self._waiting:
            self._arm()

    def detach(self) -> None:
        """Stop cutting blocks until `attach`."""
        self._flights_max = 0

    def publish(self, producer: ProducerPort, run: PublishRun) -> int:
        """Queue a run after everything published before, and return its bytes.

        The publisher owns the run from now on.
        """
        entries = run.entries
        count = len(entries)
        entry_bytes = len(entries[0]) if count == 1 else sum(map(len, entries))
        weight = entry_bytes + ENTRY_OVERHEAD_BYTES * count
        share = self.share
        share.held_bytes += weight
        share.budget.held_bytes += weight
        self.held_bytes += weight
        turn, waiting = self._turn, self._waiting
        if turn.time_s < 0:
            turn.now_s()
        if waiting and (last := waiting[-1]).producer is producer and last.after is None:
            last.extend(run, entry_bytes, turn.time_s)
        else:
            run.begin(producer, entry_bytes, turn.time_s)
            waiting.append(run)
        if not self._armed and len(self._flights) < self._flights_max:
            self._armed = True  # `_arm`, inlined to save a call per run
            turn.due.append(self)
        return entry_bytes

    def when_answered(self, done: Done) -> None:
        """Call `done` when everything published so far has its receipt; immediately if nothing is pending."""
        if self._waiting:
            part = self._waiting[-1]
        elif self._flights:
            part = self._flights[-1].parts[-1]
        else:
            done()
            return
        if part.after is None:
            part.after = []
        part.after.append(done)

    def flushed(self) -> asyncio.Future[bool]:
        """Return a future: True once everything published so far is confirmed, False if it is dropped."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._flushes[future] = None
        future.add_done_callback(self._flushes.pop)
        self.when_answered(lambda: None if future.done() else future.set_result(True))
        return future

    def when_settled(self, done: Done) -> None:
        """Call `done` when everything published so far has its receipt or was dropped."""
        self.flushed().add_done_callback(lambda _: done())

    def _arm(self) -> None:
        if not self._armed and len(self._flights) < self._flights_max:
            self._armed = True
            self._turn.now_s()
            self._turn.due.append(self)

    # -- cutting --

    def cut(self, now_ms: int) -> None:
        """Cut waiting runs into blocks and write them, up to the maximum number of blocks in flight."""
        self._armed = False
        ledger, flights = self._ledger, self._flights
        if ledger is None or not self._flights_max:
            return
        if now_ms > self._clock_ms:
            self._clock_ms = now_ms
        while self._waiting and (
            len(flights) < BLOCKS_IN_FLIGHT_PER_LEDGER_MAX or self._is_full_block_next()
        ):
            flight = self._cut_one(ledger)
            flights.append(flight)
            ledger.write(flight)

    def _is_full_block_next(self) -> bool:
        """Return whether the next block would be full, and the ledger's writer allows one more full block in flight."""
        return len(self._flights) < self._flights_max and (
            sum(part.entry_bytes for part in self._waiting) >= BLOCK_BYTES_MAX
            or sum(len(part.heads) for part in self._waiting) >= BLOCK_ENTRIES_MAX
        )

    def _cut_one(self, ledger: _Ledger) -> InFlightBlock:
        waiting, ledger_id = self._waiting, ledger.ledger_id
        part = waiting[0]
        if len(waiting) == 1 and part.entry_bytes <= BLOCK_BYTES_MAX and len(part.heads) <= BLOCK_ENTRIES_MAX:
            self._waiting = []
            parts, entries, counts, byte_count = waiting, part.entries, part.counts, part.entry_bytes
            part.entries = _CUT
        else:
            parts, entries, counts, byte_count = self._gather()
        entry_count = len(entries)
        message_count = entry_count if counts is None else sum(counts)
        first_entry, first_index, clock_ms = self._next_entry, self.next_index, self._clock_ms
        block = blocks.cut(
            ledger_id, first_entry, self._confirmed_entry, clock_ms, first_index, entries, counts
        )
        self._next_entry = first_entry + entry_count
        self.next_index = first_index + message_count
        if entry_count == 1:
            parts[0].receipts = receipt(ledger.ids, first_entry, parts[0].heads[0])
        else:
            _build_receipts(parts, ledger.ids, first_entry)
        return InFlightBlock(
            (ledger_id, first_entry),
            first_index,
            clock_ms,
            block,
            parts,
            entry_count,
            message_count,
            byte_count,
        )

    def _gather(self) -> tuple[list[PublishRun], list[bytes], list[int] | None, int]:
        """Remove the runs of the next block from the queue.

        Return (parts, entries, message counts, bytes of the entries).
        """
        part = self._next_part(BLOCK_BYTES_MAX, BLOCK_ENTRIES_MAX)
        parts: list[PublishRun] = []
        entries: list[bytes] = []
        byte_count = 0
        while part is not None:
            parts.append(part)
            entries += part.entries
            byte_count += part.entry_bytes
            part = self._next_part(BLOCK_BYTES_MAX - byte_count, BLOCK_ENTRIES_MAX - len(entries))
        for part in parts:
            part.entries = _CUT
        return parts, entries, _join_counts(parts), byte_count

    def _next_part(self, bytes_left: int, entries_left: int) -> PublishRun | None:
        """Remove the first run from the queue, or the part of it that fits into the block, and return it.

        Return None if no entry fits. An empty block takes at least one entry, even if it exceeds `BLOCK_BYTES_MAX`.
        """
        waiting = self._waiting
        if not waiting or entries_left <= 0:
            return None
        front = waiting[0]
        if front.entry_bytes <= bytes_left and len(front.heads) <= entries_left:
            return waiting.pop(0)
        at, byte_count = _fitting(front.entries, bytes_left, entries_left)
        if at == 0:
            if bytes_left < BLOCK_BYTES_MAX:
                return None
            at, byte_count = 1, len(front.entries[0])
        return waiting.pop(0) if at == len(front.heads) else front.split(at, byte_count)

    # -- answering --

    def confirmed(self, last_entry: int) -> None:
        """Send the receipts of every block up to the one that ends with `last_entry`, because they are durable."""
        flights = self._flights
        weight = answered = 0
        if last_entry > self._confirmed_entry:
            self._confirmed_entry = last_entry
        try:
            for flight in flights:
                if flight.last_entry > last_entry:
                    break
                answered += 1
                weight += flight.byte_count + ENTRY_OVERHEAD_BYTES * flight.entry_count
                for part in flight.parts:
                    part.producer.write(part.receipts)
                    if part.after:
                        flight.call_back(part.after)
                flight.parts = _NONE
        finally:
            if answered:
                done = flights[:answered]
                del flights[:answered]
                self.held_bytes -= weight
                self.share.give_back(weight)
                assert self._ledger is not None
                self.reports.confirmed(done, self._ledger.active)
        if self._waiting and not self._armed:
            self._arm()
        if self._drained and 2 * self.held_bytes <= self.share.topic_bytes_max:
            self._call_drained()

    def _call_drained(self) -> None:
        drained, self._drained = self._drained, []
        for done in drained:
            done()

    def take_back(self, last_entry: int) -> None:
        """Send the receipts of the blocks up to `last_entry`, the ledger's last entry, and queue the other runs again.

        The runs keep their order.
        """
        self.detach()
        self.confirmed(last_entry)
        while self._flights:
            flight = self._flights.pop()
            self.next_index = flight.first_index
            self._waiting[:0] = flight.undo()
        assert self._waiting or self.held_bytes == 0

    def drop(self) -> None:
        """Drop all unconfirmed runs without receipts; the clients send the messages again."""
        self.detach()
        self._waiting.clear()
        self._flights.clear()
        held, self.held_bytes = self.held_bytes, 0
        assert held >= 0
        self.share.give_back(held)
        self._call_drained()
        for flush in self._flushes:
            if not flush.done():
                flush.set_result(False)


def _build_receipts(parts: Sequence[PublishRun], ledger: bytes, entry: int) -> None:
    """Build the receipts of each part of a block whose first entry is `entry`."""
    for part in parts:
        part.receipts = receipts(ledger, entry, part.heads)
        entry += len(part.heads)


def _fitting(entries: list[bytes], bytes_max: int, count_max: int) -> tuple[int, int]:
    """Count the leading entries that fit within both limits; return (number of entries, their bytes)."""
    fitting = byte_count = 0
    for size in map(len, islice(entries, count_max)):
        if byte_count + size > bytes_max:
            break
        byte_count += size
        fitting += 1
    return fitting, byte_count


def _join_counts(parts: Sequence[PublishRun]) -> list[int] | None:
    if all(part.counts is None for part in parts):
        return None
    counts: list[int] = []
    for part in parts:
        counts += part.counts or [1] * len(part.heads)
    return counts
