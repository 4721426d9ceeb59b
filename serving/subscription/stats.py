"""A subscription in the words of Pulsar's `stats`, for people and tools that ask; nothing is kept up for it.

What Pulsar does not have: `blockedReason` of subscriptions and consumers (see `blocked`), `backlogSizeExact` (see
`lag`), `msgBacklogExact`, `drainingHashesCount` of subscriptions, and `lostMessages`: what was lost and given up, and
passed over. Where blocks that a number needs cannot be read, it is estimated, and `lastReadError` says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from quire.runtime.clock import Clock, iso_time
from quire.runtime.errors import QuireError
from quire.serving.model.ports import Position, SegmentView, TopicPort
from quire.serving.subscription import counting, lag
from quire.serving.subscription.byte_index import ByteIndex
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.dispatch import blocked
from quire.serving.subscription.dispatch.dispatcher import Dispatcher
from quire.serving.subscription.dispatch.key_shared import KeyShared
from quire.serving.subscription.pump import Pump


class Glance(NamedTuple):
    """What can be told of a subscription without reading anything: numbers of messages are about right."""

    consumers: int
    backlog: int
    msg_rate_out: float
    msg_throughput_out: float
    blocked_reason: str
    """"" also while a read is in progress, which ends by itself."""


class Sample(NamedTuple):
    """A subscription in numbers for metrics: what need not be read for is exact, the rest estimated."""

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
    """Why it is sent nothing though it has a backlog, of `blocked.REASONS`; else ""."""


class SubscriptionStats:
    """What a subscription can say of itself. `topic` is the topic itself, of which `pump` may read a compacted view."""

    def __init__(
        self, topic: TopicPort, pump: Pump, byte_index: ByteIndex, clock: Clock, *, is_durable: bool
    ) -> None:
        self._topic = topic
        self._pump = pump
        self._byte_index = byte_index
        self._clock = clock
        self._is_durable = is_durable
        self._oldest: tuple[Position, int] | None = None
        """The entry after mark-delete as it was last looked at, and when that was published."""

    async def backlog(self) -> int:
        """Messages that are confirmed and not acknowledged, exactly."""
        return await counting.backlog(self._pump.topic, self._pump.dispatcher.read)

    def sample(self, segments: Sequence[SegmentView], now_ms: int) -> Sample:
        """`segments` are the topic's. Reads nothing, so it is the same work however far behind the subscription is."""
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

    async def describe(self) -> dict[str, Any]:
        """As Pulsar's subscription stats."""
        messages, unreadable = await self._messages()
        size_and_age = await self._lag()
        # From here on nothing is awaited: what follows is of one moment.
        pump = self._pump
        dispatcher = pump.dispatcher
        active = getattr(dispatcher, "active", None)
        reason = self._blocked_reason()
        return {
            "type": dispatcher.kind.label,
            "msgBacklog": messages,
            "msgBacklogExact": not unreadable,
            **size_and_age,
            "unackedMessages": dispatcher.read.unacked,
            "msgDelayed": len(pump.delayed),
            "blockedReason": reason,
            "blockedSubscriptionOnUnackedMsgs": reason == blocked.UNACKED,
            "isDurable": self._is_durable,
            "activeConsumerName": active.name if active is not None else None,
            "consumers": [self.of_consumer(one) for one in dispatcher.consumers],
            "nonContiguousDeletedMessagesRanges": counting.holes(dispatcher.cursor),
            "subscriptionProperties": dispatcher.cursor.properties,
            "lastReadError": pump.source.last_error or unreadable,
            "lostMessages": pump.lost_messages,
            **_keys(dispatcher),
            **pump.stats(self._clock.monotonic()),
        }

    def glance(self) -> Glance:
        """At once, for tables of many."""
        dispatcher, rates = self._pump.dispatcher, self._pump.stats(self._clock.monotonic())
        reason = self._blocked_reason()
        return Glance(
            len(dispatcher.consumers),
            counting.estimate(self._pump.topic, dispatcher.read),
            rates["msgRateOut"],
            rates["msgThroughputOut"],
            "" if reason == blocked.READING else reason,
        )

    def _blocked_reason(self) -> str:
        pump, dispatcher = self._pump, self._pump.dispatcher
        return blocked.of_subscription(
            dispatcher,
            is_all_read=dispatcher.read.position > pump.topic.last_confirmed,
            read_error=pump.source.last_error,
            is_rate_limited=pump.is_rate_limited,
        )

    def of_consumer(self, consumer: Consumer) -> dict[str, Any]:
        """As Pulsar's consumer stats."""
        dispatcher = self._pump.dispatcher
        reason = blocked.of_consumer(dispatcher, consumer)
        found = {
            "consumerName": consumer.name,
            "availablePermits": consumer.permits,
            "unackedMessages": consumer.unacked,
            "blockedReason": reason,
            "blockedConsumerOnUnackedMsgs": reason == blocked.UNACKED,
            "priorityLevel": consumer.priority_level,
            "address": consumer.request.address,
            "clientVersion": getattr(consumer.port, "client_version", ""),
            "connectedSince": iso_time(consumer.connected_ms),
            "metadata": consumer.request.metadata,
            **consumer.meter.stats(self._clock.monotonic()),
        }
        if isinstance(dispatcher, KeyShared):
            ranges = dispatcher.owners.ranges(consumer)
            found["keyHashRanges"] = [f"[{first}, {last}]" for first, last in ranges]
        return found

    def of_cursor(self) -> dict[str, Any]:
        """As Pulsar's cursor stats, in `internalStats`."""
        dispatcher = self._pump.dispatcher
        return counting.cursor_stats(dispatcher.cursor, dispatcher.read.position)

    async def _messages(self) -> tuple[int, str]:
        """The backlog in messages; and why that is an estimate, if it is one."""
        try:
            return await self.backlog(), ""
        except QuireError as error:
            return counting.estimate(self._pump.topic, self._pump.dispatcher.read), str(error)

    async def _lag(self) -> dict[str, Any]:
        """The backlog in bytes and in time. An age of -1 says that there is none, None that it cannot be read now."""
        segments = self._pump.segments
        position = segments.clamp(segments.following(self._pump.dispatcher.cursor.mark_delete))
        size = await lag.bytes_from(self._topic, self._byte_index, position)
        try:
            published_ms = await self._published_ms(position)
            now_ms = self._clock.now_ms()
            age_s = -1 if published_ms is None else max(0, now_ms - published_ms) // 1000
        except QuireError:
            published_ms = age_s = None
        return {
            "backlogSize": size.size,
            "backlogSizeExact": size.is_exact,
            "earliestMsgPublishTimeInBacklog": published_ms or 0,
            "oldestBacklogMessageAgeSeconds": age_s,
        }

    async def _published_ms(self, position: Position) -> int | None:
        """When the oldest unacknowledged message was published, in ms since 1970; None when there is none."""
        if position > self._pump.topic.last_confirmed:
            return None
        if self._oldest is None or self._oldest[0] != position:
            self._oldest = position, await lag.published_ms(self._pump.topic, position)
        return self._oldest[1]


def _keys(dispatcher: Dispatcher) -> dict[str, Any]:
    if not isinstance(dispatcher, KeyShared):
        return {}
    return {
        "keySharedMode": "STICKY" if dispatcher.sharing.is_sticky else "AUTO_SPLIT",
        "allowOutOfOrderDelivery": dispatcher.sharing.out_of_order,
        "drainingHashesCount": sum(map(bool, dispatcher.queue.draining.values())),
    }
