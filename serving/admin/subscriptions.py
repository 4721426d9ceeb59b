"""`/admin/v2/persistent/…/subscription/…`: subscriptions of a topic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from quire.runtime.errors import ConfigurationError
from quire.security.authorization import Action
from quire.serving.admin.requests import MessageId, Properties, Where, position_of, properties_of
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

    async def create(value: Any, topic: TopicName, name: str) -> None:
        properties = properties_of(value.get("properties") if isinstance(value, dict) else None)
        await subscriptions.create(topic, name, position_of(value), properties)

    async def expire(topic: TopicName, seconds: int, name: str | None = None) -> None:
        await subscriptions.expire(topic, name, 1000 * seconds)

    one, may = (TOPIC_NAME, SUBSCRIPTION_NAME), Action.CONSUME
    seconds, time = path_number("seconds"), path_number("time")
    skip_all, reset = partial(subscriptions.skip, count=None), subscriptions.reset_cursor
    of_one = TOPIC_NAME, seconds, SUBSCRIPTION_NAME
    every = f"{TOPIC}/all_subscription/expireMessages/{{seconds}}"
    up_to = subscriptions.expire_up_to
    its = f"{SUBSCRIPTION}/properties"
    set_properties = subscriptions.set_properties
    return (
        Route("GET", its, subscriptions.properties, *one, may=may),
        Route("PUT", its, set_properties, *one, body(properties_of, Properties), may=may),
        Route("GET", f"{TOPIC}/subscriptions", subscriptions.names, TOPIC_NAME, may=may),
        Route("PUT", SUBSCRIPTION, create, body(as_it_is, Where), *one, may=may),
        Route("DELETE", SUBSCRIPTION, subscriptions.delete, *one, flag("force"), may=may),
        Route("POST", f"{SUBSCRIPTION}/expireMessages", up_to, *one, body(_last, MessageId), may=may),
        Route("POST", f"{SUBSCRIPTION}/expireMessages/{{seconds}}", expire, *of_one, may=may),
        Route("POST", every, expire, TOPIC_NAME, seconds, may=Action.ADMINISTER),
        Route("POST", f"{SUBSCRIPTION}/skip_all", skip_all, *one, may=may),
        Route(
            "POST", f"{SUBSCRIPTION}/skip/{{count}}", subscriptions.skip, *one, path_number("count"), may=may
        ),
        Route("POST", f"{SUBSCRIPTION}/resetcursor/{{time}}", reset, *one, time, may=may),
        Route("POST", f"{SUBSCRIPTION}/resetcursor", reset, *one, body(_next, Where), may=may),
    )


def _next(value: Any) -> Position:
    """What is to be delivered next."""
    to = position_of(value)
    excluded = _is_excluded(value) and to not in (EARLIEST, LATEST)
    return Position(to.ledger_id, to.entry_id + 1) if excluded else to


def _last(value: Any) -> Position:
    """Up to what messages expire."""
    to = position_of(value)
    if to in (EARLIEST, LATEST):
        raise ConfigurationError("messages expire up to an entry: name its ledgerId and entryId")
    return Position(to.ledger_id, to.entry_id - 1) if _is_excluded(value) else to


def _is_excluded(value: object) -> bool:
    """The entry that a position names is not meant itself, but the one beside it."""
    return isinstance(value, dict) and True in (value.get("isExcluded"), value.get("excluded"))
