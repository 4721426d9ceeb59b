"""The log of a topic that keeps nothing: what is published goes to the consumers that can take it now, or is lost.

    SEND ─▶ SEND_RECEIPT at once, no promise     ─▶ one block per run ─▶ each subscription: dispatch, or drop and count

There is no record of such a topic, no ledger and no cursor; it exists on its broker from the first use until nobody
uses it. So publishing waits for nothing, and nothing of a connection is ever outstanding: a flood costs its own
receipts, and a consumer whose socket or permits are full loses messages instead of holding anybody up.

What passes through is cut into blocks all the same, because blocks are what subscriptions dispatch. Their ledger is the
time of loading in ms, so that ids of one topic are distinct and grow, also from one incarnation to the next: message
ids that repeat would confuse what clients track by them.

Access modes are as everywhere, but the topic epoch lasts only as long as the topic is loaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final
from weakref import ref

from msgspec.structs import replace

from quire.metadata.records import DelayedDeliveryPolicy
from quire.runtime.clock import Clock
from quire.runtime.limits import BLOCK_ENTRIES_MAX
from quire.serving.model.ports import EARLIEST, Done, Position, SegmentView
from quire.serving.model.tracing import Tracing
from quire.serving.policy.applied import AppliedPolicies
from quire.serving.policy.rate_limiter import DispatchLimits
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.topic.producers import NO_EPOCH, ProducerPort
from quire.serving.topic.publish import Listener
from quire.serving.topic.runs import InFlightBlock, PublishRun
from quire.wire import block as blocks
from quire.wire.block import Buffer
from quire.wire.entry_frames import ledger_field, receipt_run

NO_DELAYS: Final = DelayedDeliveryPolicy(active=False)
ENTRIES_PER_LEDGER: Final = 1 << 30
"""Entry ids are kept in 32 bits by whoever dispatches; beyond this a new ledger number begins."""


class NullPublisher:
    """What `Publisher` is to a log with ledgers. It answers at once, so it is never full and has nothing pending."""

    is_full: Final = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.topic: Callable[[], Listener | None] = lambda: None
        """A weak reference."""
        self.next: Position = Position(clock.now_ms(), 0)
        self.next_index = 0

    def publish(self, producer: ProducerPort, run: PublishRun) -> None:
        heads, entries, counts = run.heads, run.entries, run.counts
        for start in range(0, len(heads), BLOCK_ENTRIES_MAX):
            stop = start + BLOCK_ENTRIES_MAX
            some = counts[start:stop] if counts else None
            self._pass_on(producer, heads[start:stop], entries[start:stop], some)

    def _pass_on(
        self, producer: ProducerPort, heads: list[bytes], entries: list[bytes], counts: list[int] | None
    ) -> None:
        first, first_index, count = self.next, self.next_index, len(entries)
        if first.entry_id + count > ENTRIES_PER_LEDGER:
            first = Position(first.ledger_id + 1, 0)
        messages = count if counts is None else sum(counts)
        self.next = Position(first.ledger_id, first.entry_id + count)
        self.next_index = first_index + messages
        producer.write(b"".join(receipt_run(ledger_field(first.ledger_id), first.entry_id, heads)))
        now_ms, came_s = self._clock.now_ms(), self._clock.monotonic()
        block = blocks.cut(*first, first.entry_id - 1, now_ms, first_index, entries, counts)
        byte_count = sum(map(len, entries))
        flight = InFlightBlock(first, first_index, now_ms, block, [], count, messages, byte_count)
        flight.came_s = came_s
        if (topic := self.topic()) is not None:
            topic.received.count(messages, byte_count, 0.0)
            topic.confirmed([flight])

    def when_answered(self, done: Done) -> None:
        """Everything is answered at once."""
        done()

    when_drained = when_settled = when_answered

    def flushed(self) -> asyncio.Future[bool]:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        future.set_result(True)
        return future


class NullLog:
    """What `LedgerLog` is to topics that keep their messages: always empty, and always at its end."""

    dedup: Final = None
    """What was sent before is not remembered, whatever the policies say."""

    topic_epoch: Final = NO_EPOCH
    is_terminated: Final = False
    last_confirmed: Final = EARLIEST

    def __init__(
        self, name: str, clock: Clock, applied: AppliedPolicies, tracing: Tracing | None = None
    ) -> None:
        self.name = name
        self.tracing: Final = tracing
        self.publisher = NullPublisher(clock)
        self._applied = applied

    def listen(self, listener: Listener, lost: Callable[[], None]) -> None:
        """It cannot be lost: no other broker can have it."""
        self.publisher.topic = ref(listener)

    # -- life: there is nothing to read, to write or to delete ---------------------------------------------

    async def begin(self) -> None: ...

    async def end(self) -> None: ...

    def abandon(self) -> None: ...

    async def mark_deleted(self) -> None: ...

    async def delete(self) -> None: ...

    async def write_epoch(self, epoch: int) -> None: ...

    def keep(self, flights: Sequence[InFlightBlock], *, at_hand: bool) -> None: ...

    def why_full(self) -> str:
        return ""

    # -- what subscriptions see: TopicPort -------------------------------------------------------------

    @property
    def policies(self) -> TopicPolicies:
        """Without delays: what is not dispatched now is not there later."""
        return replace(self._applied.policies, delayed_delivery=NO_DELAYS)

    @property
    def dispatch_limits(self) -> DispatchLimits | None:
        return self._applied.dispatch_limits

    @property
    def confirmed_index(self) -> int:
        return self.publisher.next_index

    def segments(self) -> Sequence[SegmentView]:
        """One, which only says where the next entry will be, and how many messages passed through."""
        ledger_id, entry_id = self.publisher.next
        return (SegmentView(ledger_id, entry_id - 1, 0, self.publisher.next_index, 0),)

    def first_position(self) -> Position:
        return self.publisher.next

    def next_position(self, position: Position) -> Position:
        return self.publisher.next

    def cached(self, position: Position) -> Sequence[Buffer]:
        return ()

    async def read(self, position: Position, bytes_max: int) -> Sequence[Buffer]:
        return ()

    async def index_of(self, position: Position) -> int:
        return self.publisher.next_index

    async def find_time(self, time_ms: int) -> Position:
        return self.publisher.next

    async def last_message(self) -> tuple[Position, int]:
        return EARLIEST, -1

    async def compacted_view(self) -> None: ...
