"""Log of a [non-persistent topic]: messages are dispatched to the consumers that can receive them now, or are lost.

    SEND ─▶ SEND_RECEIPT without durability      ─▶ one block per run ─▶ each subscription: dispatch or drop

Such a topic has no record, no ledger and no cursor. It exists on its broker from its first use until it is idle. So
every SEND is answered immediately, and no message is ever pending. A consumer without permits, or with a full
socket buffer, loses messages instead of delaying other consumers.

Messages are nevertheless cut into blocks, because subscriptions dispatch blocks. Their ledger id is the time of the
load, in ms since 1970. So message ids increase even across reloads of the topic; clients track messages by
their ids, so ids must not repeat.

Access modes are those of persistent topics, but the topic epoch lasts only as long as the topic is loaded.

[non-persistent topic]: https://pulsar.apache.org/docs/next/concepts-messaging/#non-persistent-topics
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
"""Maximum number of entries with the same ledger id, because dispatchers store entry ids in 32 bits."""


class NullPublisher:
    """Counterpart of `Publisher` that answers every SEND immediately, so no message is ever pending."""

    is_full: Final = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.topic: Callable[[], Listener | None] = lambda: None
        """Weak reference to the topic."""
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
        """Call `done` immediately, because no message waits for a receipt."""
        done()

    when_drained = when_settled = when_answered

    def flushed(self) -> asyncio.Future[bool]:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        future.set_result(True)
        return future


class NullLog:
    """Counterpart of `LedgerLog` for non-persistent topics: always empty."""

    dedup: Final = None
    """Deduplication is not supported, even if the policies enable it."""

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
        """Set the listener.

        `lost` is never called, because a non-persistent topic has no record that another broker could change.
        """
        self.publisher.topic = ref(listener)

    # -- life cycle: nothing to read, write or delete ------------------------------------------------------

    async def begin(self) -> None: ...

    async def end(self) -> None: ...

    def abandon(self) -> None: ...

    async def mark_deleted(self) -> None: ...

    async def delete(self) -> None: ...

    async def write_epoch(self, epoch: int) -> None: ...

    def keep(self, flights: Sequence[InFlightBlock], *, at_hand: bool) -> None: ...

    def why_full(self) -> str:
        return ""

    # -- TopicPort, for subscriptions ------------------------------------------------------------------

    @property
    def policies(self) -> TopicPolicies:
        """Policies without those that concern stored messages: a message that is not dispatched now is lost.

        A consumer may always create its subscription, as in Pulsar, because it cannot be created before.
        """
        return replace(
            self._applied.policies,
            delayed_delivery=NO_DELAYS,
            subscription_unacked_max=0,
            auto_subscription_creation=True,
        )

    @property
    def dispatch_limits(self) -> DispatchLimits | None:
        return self._applied.dispatch_limits

    @property
    def confirmed_index(self) -> int:
        return self.publisher.next_index

    def segments(self) -> Sequence[SegmentView]:
        """Return one segment that ends before the next entry.

        Its message count is the number of messages dispatched so far.
        """
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
