"""Statistics of a subscription, computed on request; `model/statistics` defines their fields.

If the blocks from which a number is computed cannot be read, the number is an estimate, and `lastReadError` contains
the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import asdict

from quire.runtime.clock import Clock, iso_time
from quire.runtime.errors import QuireError
from quire.serving.model.ports import Position, SegmentView, TopicPort
from quire.serving.model.statistics import ConsumerStats, CursorStats, SubscriptionStats
from quire.serving.subscription import counting, lag
from quire.serving.subscription.byte_index import ByteIndex
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.dispatch import blocked
from quire.serving.subscription.dispatch.key_shared import KeyShared
from quire.serving.subscription.pump import Pump


class SubscriptionSummary(NamedTuple):
    """Summary of a subscription, computed without reads; numbers of messages are estimates."""

    consumers: int
    backlog: int
    msg_rate_out: float
    msg_throughput_out: float
    blocked_reason: str
    """Reason why no messages are dispatched; empty while a read is in progress, because that is temporary."""


class Sample(NamedTuple):
    """Metrics of a subscription, computed without reads; backlogs are estimates."""

    consumers: int
    messages_out: int
    bytes_out: int
    redelivered: int
    acked: int
    backlog_messages: int
    backlog_bytes: int
    backlog_age_s: float
    unacked: int
    delayed: int
    blocked: str
    """Reason why the backlog is not dispatched, one of `blocked.REASONS`; an empty string if there is no reason."""


class SubscriptionReporter:
    """Statistics of one subscription. `topic` is the topic itself; `pump` may read a compacted view of it."""

    def __init__(
        self, topic: TopicPort, pump: Pump, byte_index: ByteIndex, clock: Clock, *, is_durable: bool
    ) -> None:
        self._topic = topic
        self._pump = pump
        self._byte_index = byte_index
        self._clock = clock
        self._is_durable = is_durable
        self._oldest: tuple[Position, int] | None = None
        """Entry after mark-delete at the last request, and its publish time in ms since 1970."""

    async def backlog(self) -> int:
        """Return the exact number of confirmed, unacknowledged messages."""
        return await counting.backlog(self._pump.topic, self._pump.dispatcher.read)

    def sample(self, segments: Sequence[SegmentView], now_ms: int) -> Sample:
        """Return metrics without a read, so that the cost does not depend on the backlog.

        `segments` are the topic's.
        """
        pump, read = self._pump, self._pump.dispatcher.read
        meter, mark_delete = pump.meter, pump.dispatcher.cursor.mark_delete
        backlog = size = 0
        age_s = 0.0
        if segments and mark_delete < (segments[-1].ledger_id, segments[-1].last_entry):
            backlog = counting.estimate(pump.topic, read)
            position = pump.segments.clamp(pump.segments.following(mark_delete))
            size = lag.estimated_bytes_from(segments, self._byte_index, position)
            clock_ms = lag.estimated_clock_ms(segments, position)
            age_s = max(0, now_ms - clock_ms) / 1000 if clock_ms else 0.0
        reason = self._blocked_reason() if backlog else ""
        return Sample(
            len(pump.dispatcher.consumers),
            meter.messages_out,
            meter.bytes_out,
            meter.redelivered,
            meter.acked,
            backlog,
            size,
            age_s,
            read.unacked,
            len(pump.delayed),
            blocked.label_of(reason),
        )

    async def describe(self) -> SubscriptionStats:
        """Return the statistics of the subscription; computing its backlog may require reads of some blocks."""
        messages, unreadable = await self._messages()
        segments = self._pump.segments
        position = segments.clamp(segments.following(self._pump.dispatcher.cursor.mark_delete))
        size = await lag.bytes_from(self._topic, self._byte_index, position)
        published_ms, age_s = await self._age(position)
        # Nothing is awaited from here on, so that the following values are consistent with each other.
        pump, now_s = self._pump, self._clock.monotonic()
        dispatcher, drops = pump.dispatcher, pump.drops
        active = getattr(dispatcher, "active", None)
        reason = self._blocked_reason()
        found = SubscriptionStats(
            **asdict(pump.meter.stats(now_s)),
            type=dispatcher.kind.label,
            msg_backlog=messages,
            msg_backlog_exact=not unreadable,
            backlog_size=size.size,
            backlog_size_exact=size.is_exact,
            earliest_msg_publish_time_in_backlog=published_ms,
            oldest_backlog_message_age_seconds=age_s,
            unacked_messages=dispatcher.read.unacked,
            msg_delayed=len(pump.delayed),
            blocked_reason=reason,
            blocked_subscription_on_unacked_msgs=reason == blocked.UNACKED or blocked.is_full(dispatcher),
            is_durable=self._is_durable,
            active_consumer_name=active.name if active is not None else None,
            consumers=[self.of_consumer(one) for one in dispatcher.consumers],
            non_contiguous_deleted_messages_ranges=counting.holes(dispatcher.cursor),
            subscription_properties=dispatcher.cursor.properties,
            last_read_error=pump.source.last_error or unreadable,
            lost_messages=pump.lost_messages,
        )
        if isinstance(dispatcher, KeyShared):
            found.key_shared_mode = "STICKY" if dispatcher.sharing.is_sticky else "AUTO_SPLIT"
            found.allow_out_of_order_delivery = dispatcher.sharing.out_of_order
            found.draining_hashes_count = sum(map(bool, dispatcher.queue.draining.values()))
        if drops is not None:
            found.msg_drop_rate = drops.stats(now_s).msg_rate_out
            found.msg_drop_counter = drops.messages_out
        return found

    def summary(self) -> SubscriptionSummary:
        """Return a summary without a read, for tables of many subscriptions."""
        dispatcher, rates = self._pump.dispatcher, self._pump.meter.stats(self._clock.monotonic())
        reason = self._blocked_reason()
        return SubscriptionSummary(
            len(dispatcher.consumers),
            counting.estimate(self._pump.topic, dispatcher.read),
            rates.msg_rate_out,
            rates.msg_throughput_out,
            "" if reason == blocked.READING else reason,
        )

    def _blocked_reason(self) -> str:
        pump, dispatcher = self._pump, self._pump.dispatcher
        return blocked.of_subscription(
            dispatcher,
            is_all_read=dispatcher.read.position > pump.topic.last_confirmed,
            read_error=pump.source.last_error,
            is_rate_limited=pump.limiter is not None and pump.limiter.is_waiting,
        )

    def of_consumer(self, consumer: Consumer) -> ConsumerStats:
        dispatcher = self._pump.dispatcher
        reason = blocked.of_consumer(dispatcher, consumer)
        found = ConsumerStats(
            **asdict(consumer.meter.stats(self._clock.monotonic())),
            consumer_name=consumer.name,
            available_permits=consumer.permits,
            unacked_messages=consumer.unacked,
            blocked_reason=reason,
            blocked_consumer_on_unacked_msgs=reason == blocked.UNACKED,
            priority_level=consumer.priority_level,
            address=consumer.request.address,
            client_version=getattr(consumer.port, "client_version", ""),
            connected_since=iso_time(consumer.connected_ms),
            metadata=consumer.request.metadata,
        )
        if isinstance(dispatcher, KeyShared):
            ranges = dispatcher.owners.ranges(consumer)
            found.key_hash_ranges = [f"[{first}, {last}]" for first, last in ranges]
        return found

    def of_cursor(self) -> CursorStats:
        dispatcher = self._pump.dispatcher
        return counting.cursor_stats(dispatcher.cursor, dispatcher.read.position)

    async def _messages(self) -> tuple[int, str]:
        """Return the backlog in messages, and the read error if it is an estimate (otherwise an empty string)."""
        try:
            return await self.backlog(), ""
        except QuireError as error:
            return counting.estimate(self._pump.topic, self._pump.dispatcher.read), str(error)

    async def _age(self, position: Position) -> tuple[int, int | None]:
        """Return the publish time of the oldest unacknowledged message (0: none) and its age in seconds.

        An age of -1 means no backlog, None that the message cannot be read now.
        """
        try:
            published_ms = await self._published_ms(position)
        except QuireError:
            return 0, None
        if published_ms is None:
            return 0, -1
        return published_ms, max(0, self._clock.now_ms() - published_ms) // 1000

    async def _published_ms(self, position: Position) -> int | None:
        """Return the publish time of the oldest unacknowledged message, in ms since 1970; None without a backlog."""
        if position > self._pump.topic.last_confirmed:
            return None
        if self._oldest is None or self._oldest[0] != position:
            self._oldest = position, await lag.published_ms(self._pump.topic, position)
        return self._oldest[1]
