"""`/admin/v2/persistent/…/subscription/…`: subscriptions of a topic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from quire.runtime.errors import ConfigurationError
from quire.security.authorization import Action
from quire.serving.admin.policies import subscription_rate_routes
from quire.serving.admin.requests import (
    Absent,
    MessageId,
    Properties,
    Where,
    fields_of,
    position_of,
    properties_of,
)
from quire.serving.admin.route import (
    SUBSCRIPTION,
    SUBSCRIPTION_NAME,
    TOPIC,
    TOPIC_NAME,
    Route,
    as_it_is,
    body,
    flag,
    path_number,
)
from quire.serving.broker import Broker
from quire.serving.model.ports import EARLIEST, LATEST, Position
from quire.serving.names import TopicName


def routes(broker: Broker) -> Sequence[Route]:
    subscriptions = broker.admin.subscriptions

    async def create(value: Any, topic: TopicName, name: str, *, replicated: bool) -> None:
        if replicated:
            raise Absent("replicated subscriptions are not supported, because geo-replication is not")
        properties = properties_of(value.get("properties") if isinstance(value, dict) else None)
        await subscriptions.create(topic, name, position_of(value), properties)

    async def expire(topic: TopicName, seconds: int, name: str | None = None) -> None:
        await subscriptions.expire(topic, name, 1000 * seconds)

    one, may = (TOPIC_NAME, SUBSCRIPTION_NAME), Action.CONSUME
    seconds, time = path_number("seconds"), path_number("time")

    async def reset_to(topic: TopicName, name: str, start: _Start) -> None:
        await subscriptions.reset_cursor(topic, name, *start)

    skip_all, reset = partial(subscriptions.skip, count=None), subscriptions.reset_cursor
    of_one = TOPIC_NAME, seconds, SUBSCRIPTION_NAME
    every = f"{TOPIC}/all_subscription/expireMessages/{{seconds}}"

    async def expire_before(topic: TopicName, name: str, end: _Start) -> None:
        await subscriptions.expire_before(topic, name, *end)

    start = body(_first, Where)
    its = f"{SUBSCRIPTION}/properties"
    set_properties = subscriptions.set_properties
    return (
        Route("GET", its, subscriptions.properties, *one, may=may),
        Route("PUT", its, set_properties, *one, body(properties_of, Properties), may=may),
        Route("GET", f"{TOPIC}/subscriptions", subscriptions.names, TOPIC_NAME, may=may),
        Route("PUT", SUBSCRIPTION, create, body(as_it_is, Where), *one, flag("replicated"), may=may),
        Route("DELETE", SUBSCRIPTION, subscriptions.delete, *one, flag("force"), may=may),
        Route("POST", f"{SUBSCRIPTION}/expireMessages", expire_before, *one, body(_end, MessageId), may=may),
        Route("POST", f"{SUBSCRIPTION}/expireMessages/{{seconds}}", expire, *of_one, may=may),
        Route("POST", every, expire, TOPIC_NAME, seconds, may=Action.ADMINISTER),
        Route("POST", f"{SUBSCRIPTION}/skip_all", skip_all, *one, may=may),
        Route(
            "POST", f"{SUBSCRIPTION}/skip/{{count}}", subscriptions.skip, *one, path_number("count"), may=may
        ),
        Route(
            "POST",
            f"{SUBSCRIPTION}/analyzeBacklog",
            broker.admin.topics.storage.analyze,
            *one,
            start,
            may=may,
        ),
        Route("POST", f"{SUBSCRIPTION}/resetcursor/{{time}}", reset, *one, time, may=may),
        Route("POST", f"{SUBSCRIPTION}/resetcursor", reset_to, *one, body(_next, Where), may=may),
        *subscription_rate_routes(broker),  # last, because a subscription may be named dispatchRate
    )


class _Start(NamedTuple):
    position: Position
    first: int = 0
    """Index of the first message in the batch at `position`."""


def _next(value: Any) -> _Start:
    """Return the new position of a cursor: the message that is delivered next."""
    to = position_of(value)
    if to in (EARLIEST, LATEST):
        return _Start(to)
    index: int = fields_of(value, batchIndex=int).get("batchIndex", -1)
    if index >= 0:
        return _Start(to, index + _is_excluded(value))
    return _Start(Position(to.ledger_id, to.entry_id + _is_excluded(value)))


def _first(value: Any) -> Position | None:
    """Return the first entry to analyze; None for the whole backlog."""
    return None if value is None else _next(value).position


def _end(value: Any) -> _Start:
    """Return the first message that does not expire."""
    if position_of(value) in (EARLIEST, LATEST):
        raise ConfigurationError("messages expire up to an entry: specify its ledgerId and entryId")
    index: int = fields_of(value, batchIndex=int).get("batchIndex", -1)
    to, is_expired = position_of(value), not _is_excluded(value)
    if index >= 0:
        return _Start(to, index + is_expired)
    return _Start(Position(to.ledger_id, to.entry_id + is_expired))


def _is_excluded(value: object) -> bool:
    """Return whether a position excludes its message."""
    return isinstance(value, dict) and True in (value.get("isExcluded"), value.get("excluded"))
