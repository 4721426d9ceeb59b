"""Reasons why messages are not dispatched: `blockedReason` in `stats`. Performs no I/O.

of a consumer       the first of these that is missing: permits, a writable connection, acknowledgements
of a subscription   "" if everything was dispatched, or `DELAYED` if the rest is delayed; `UNACKED` if all consumers
                    together have too many unacknowledged messages; its consumers' reasons if none of them is ready;
                    otherwise the resource that messages wait for: a rate, a read, or other consumers
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
NO_PERMITS = "no permits: the client has not requested more messages"
NOT_WRITABLE = "the connection's send buffer is full: the client does not read from it"
UNACKED = "too many unacknowledged messages"
RATE_LIMITED = "rate limited: the dispatch rate of the subscription, its topic or the broker is exhausted"
DELAYED = "delayed: the remaining messages have delivery times in the future"
READING = "a read is in progress"
DRAINING = "keys wait until their former consumer acknowledges its messages"
NO_OWNER = "keys wait for a consumer whose ranges include their slots"
CHUNKS = "chunks wait for the consumer that received the first chunk of their message"
LOOK_AHEAD = "too many messages wait for consumers that are not ready"

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
"""All values of the label `reason` in metrics."""


def label_of(reason: str) -> str:
    """Return the metric label of a reason; an empty string if nothing is blocked."""
    if reason.startswith(FAILING):
        return "read_error"
    return LABELS.get(reason, "several")


def of_consumer(dispatcher: Dispatcher, consumer: Consumer) -> str:
    """Return the reason why `consumer` gets no messages; an empty string if it is ready."""
    if consumer.permits <= 0:
        return NO_PERMITS
    if not consumer.port.writable():
        return NOT_WRITABLE
    if isinstance(dispatcher, MultiConsumer) and not has_room(consumer):
        return UNACKED
    return ""


def is_full(dispatcher: Dispatcher) -> bool:
    """Return whether the consumers together have too many unacknowledged messages."""
    return isinstance(dispatcher, MultiConsumer) and dispatcher.pending.is_blocked


def of_subscription(
    dispatcher: Dispatcher, *, is_all_read: bool, read_error: str, is_rate_limited: bool = False
) -> str:
    """Return the reason why a backlog is not dispatched. `is_all_read` is True if every confirmed entry was read."""
    many = dispatcher if isinstance(dispatcher, MultiConsumer) else None
    if is_all_read and not (many and many.queue):
        return DELAYED if many and many.delayed.delays else ""
    if is_full(dispatcher):
        return UNACKED
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
    """Return the reason why waiting entries are not dispatched, although a consumer is ready."""
    if dispatcher.wanted() is None:
        return LOOK_AHEAD
    if any(dispatcher.queue.draining.values()):
        return DRAINING
    if dispatcher.queue.waiting.get(None):
        return NO_OWNER
    lacks = (of_consumer(dispatcher, one) for one, some in dispatcher.queue.waiting.items() if one and some)
    return "; ".join(dict.fromkeys(lack for lack in lacks if lack))
