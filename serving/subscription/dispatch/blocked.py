"""Why nothing is dispatched: the words of `blockedReason` in `stats`. A core.

of a consumer       what it lacks to get something, the first of: permits, room in its connection, acknowledgements
of a subscription   "" when all is dispatched; that the rest waits for its time; what its consumers lack when none of
                    them is ready; else what the messages wait for: a rate, a read, or other consumers
"""

from __future__ import annotations

from typing import Final

from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.dispatch.dispatcher import Dispatcher
from quire.serving.subscription.dispatch.key_shared import KeyShared
from quire.serving.subscription.dispatch.multi_consumer import MultiConsumer
from quire.serving.subscription.dispatch.pending_acks import has_room
from quire.serving.subscription.dispatch.shared import Shared
from quire.serving.subscription.dispatch.single_active import SingleActive

NO_CONSUMER = "no consumer is connected"
NO_PERMITS = "no permits: the client asks for no more messages"
NOT_WRITABLE = "the connection takes no more bytes: the client does not read them"
UNACKED = "too many unacknowledged messages"
RATE_LIMITED = "rate limited: a dispatch rate of the subscription, its topic or the broker is spent"
DELAYED = "delayed: what is left waits for its time of delivery"
READING = "a read is in progress"
DRAINING = "keys wait until the consumer that had them before acknowledges"
NO_OWNER = "keys wait for a consumer that names their slots"
CHUNKS = "chunks wait for the consumer that has the first of their message"
LOOK_AHEAD = "too many messages wait for consumers that take none"

LABELS: Final = {
    "": "",
    NO_CONSUMER: "no_consumer",
    NO_PERMITS: "no_permits",
    NOT_WRITABLE: "not_writable",
    UNACKED: "unacked",
    RATE_LIMITED: "rate_limited",
    DELAYED: "delayed",
    READING: "reading",
    DRAINING: "draining",
    NO_OWNER: "no_owner",
    CHUNKS: "chunks",
    LOOK_AHEAD: "look_ahead",
}
FAILING: Final = "reading fails: "
REASONS: Final = (*filter(None, LABELS.values()), "read_error", "several")
"""Every value of the label `reason` of metrics."""


def label_of(reason: str) -> str:
    """One word for a metric's label; "" when nothing is blocked."""
    if reason.startswith(FAILING):
        return "read_error"
    return LABELS.get(reason, "several")


def of_consumer(dispatcher: Dispatcher, consumer: Consumer) -> str:
    """What `consumer` lacks; "" when it is ready."""
    if consumer.permits <= 0:
        return NO_PERMITS
    if not consumer.port.writable():
        return NOT_WRITABLE
    if isinstance(dispatcher, MultiConsumer) and not has_room(consumer):
        return UNACKED
    return ""


def of_subscription(
    dispatcher: Dispatcher, *, is_all_read: bool, read_error: str, is_rate_limited: bool = False
) -> str:
    """`is_all_read`: the read position is after the last confirmed entry."""
    many = dispatcher if isinstance(dispatcher, MultiConsumer) else None
    if is_all_read and not (many and many.queue):
        return DELAYED if many and many.delayed.delays else ""
    candidates = dispatcher.consumers
    if isinstance(dispatcher, SingleActive):
        candidates = [dispatcher.active] if dispatcher.active is not None else []
    if not candidates:
        return NO_CONSUMER
    lacks = dict.fromkeys(of_consumer(dispatcher, one) for one in candidates)
    if "" not in lacks:
        return "; ".join(lacks)
    if is_rate_limited:
        return RATE_LIMITED
    if dispatcher.wanted() is not None and not (
        is_all_read and dispatcher.wanted() == dispatcher.read.position
    ):
        return f"{FAILING}{read_error}" if read_error else READING
    if isinstance(dispatcher, KeyShared):
        return _of_keys(dispatcher)
    return CHUNKS if isinstance(dispatcher, Shared) and dispatcher.queue.aside else ""


def _of_keys(dispatcher: KeyShared) -> str:
    """Somebody is ready, and nothing that waits is for them."""
    if dispatcher.wanted() is None:
        return LOOK_AHEAD
    if any(dispatcher.queue.draining.values()):
        return DRAINING
    if dispatcher.queue.waiting.get(None):
        return NO_OWNER
    lacks = (of_consumer(dispatcher, one) for one, some in dispatcher.queue.waiting.items() if one and some)
    return "; ".join(dict.fromkeys(lack for lack in lacks if lack))
