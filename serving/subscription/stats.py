"""A subscription in the words of Pulsar's `stats`, for people and tools that ask; nothing is kept up for it.

What Pulsar does not have: `blockedReason` of subscriptions and consumers (see `blocked`), `backlogSizeExact` (see
`lag`), `msgBacklogExact`, `drainingHashesCount` of subscriptions, and `lostMessages`: what was lost and given up, and
passed over. Where blocks that a number needs cannot be read, it is estimated, and `lastReadError` says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quire.runtime.clock import iso_time
from quire.runtime.errors import QuireError
from quire.serving.subscription import counting, lag
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.dispatch import blocked
from quire.serving.subscription.dispatch.dispatcher import Dispatcher
from quire.serving.subscription.dispatch.key_shared import KeyShared

if TYPE_CHECKING:
    from quire.serving.subscription.subscription import Subscription


async def describe(subscription: Subscription, now_ms: int) -> dict[str, Any]:
    """As Pulsar's subscription stats."""
    messages, unreadable = await _backlog(subscription)
    behind = await _lag(subscription, now_ms)
    # From here on nothing is awaited: what follows is of one moment.
    dispatcher = subscription.dispatcher
    active = getattr(dispatcher, "active", None)
    reason = blocked.of_subscription(
        dispatcher,
        is_all_read=dispatcher.read > subscription.topic.last_confirmed,
        read_error=subscription.last_read_error,
        is_rate_limited=subscription.is_rate_limited,
    )
    return {
        "type": subscription.kind.label,
        "msgBacklog": messages,
        "msgBacklogExact": not unreadable,
        **behind,
        "unackedMessages": dispatcher.unacked,
        "msgDelayed": subscription.delayed_entries,
        "blockedReason": reason,
        "blockedSubscriptionOnUnackedMsgs": reason == blocked.UNACKED,
        "isDurable": subscription.is_durable,
        "activeConsumerName": active.name if active is not None else None,
        "consumers": [describe_consumer(dispatcher, one, subscription) for one in dispatcher.consumers],
        "nonContiguousDeletedMessagesRanges": counting.holes(dispatcher.cursor),
        "subscriptionProperties": subscription.cursor.properties,
        "lastReadError": subscription.last_read_error or unreadable,
        "lostMessages": subscription.lost_messages,
        **_keys(dispatcher),
        **subscription.meter.stats(subscription.monotonic()),
    }


async def _backlog(subscription: Subscription) -> tuple[int, str]:
    """In messages; and why that is an estimate, if it is one."""
    try:
        return await subscription.backlog(), ""
    except QuireError as error:
        return counting.estimate(subscription.topic, subscription.dispatcher), str(error)


async def _lag(subscription: Subscription, now_ms: int) -> dict[str, Any]:
    """The backlog in bytes and in time. An age of -1 says that there is none, None that it cannot be read now."""
    position = subscription.oldest_unacknowledged()
    size = await lag.bytes_from(subscription.plain, subscription.byte_index, position)
    try:
        published_ms = await subscription.oldest_published_ms()
        age_s = -1 if published_ms is None else max(0, now_ms - published_ms) // 1000
    except QuireError:
        published_ms = age_s = None
    return {
        "backlogSize": size.size,
        "backlogSizeExact": size.is_exact,
        "earliestMsgPublishTimeInBacklog": published_ms or 0,
        "oldestBacklogMessageAgeSeconds": age_s,
    }


def _keys(dispatcher: Dispatcher) -> dict[str, Any]:
    if not isinstance(dispatcher, KeyShared):
        return {}
    return {
        "keySharedMode": "STICKY" if dispatcher.sharing.is_sticky else "AUTO_SPLIT",
        "allowOutOfOrderDelivery": dispatcher.sharing.out_of_order,
        "drainingHashesCount": sum(map(bool, dispatcher.draining.values())),
    }


def describe_consumer(
    dispatcher: Dispatcher, consumer: Consumer, subscription: Subscription
) -> dict[str, Any]:
    """As Pulsar's consumer stats."""
    reason = blocked.of_consumer(dispatcher, consumer)
    found = {
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked,
        "blockedReason": reason,
        "blockedConsumerOnUnackedMsgs": reason == blocked.UNACKED,
        "priorityLevel": consumer.priority_level,
        "address": consumer.address,
        "clientVersion": getattr(consumer.port, "client_version", ""),
        "connectedSince": iso_time(consumer.connected_ms),
        "metadata": consumer.metadata,
        **consumer.meter.stats(subscription.monotonic()),
    }
    if isinstance(dispatcher, KeyShared):
        ranges = dispatcher.owners.ranges(consumer)
        found["keyHashRanges"] = [f"[{first}, {last}]" for first, last in ranges]
    return found
