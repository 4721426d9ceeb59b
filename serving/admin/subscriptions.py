"""`/admin/v2/persistent/…/subscription/…`: subscriptions of a topic."""

from __future__ import annotations

from aiohttp import web

from quire.runtime.errors import ConfigurationError
from quire.serving.admin.requests import (
    flag,
    json_of,
    natural,
    no_content,
    position_of,
    properties_of,
    topic_of,
)
from quire.serving.admin.topics import TOPIC
from quire.serving.broker import Broker
from quire.serving.model.ports import EARLIEST, LATEST, Position

ONE = f"{TOPIC}/subscription/{{subscription}}"


def routes(broker: Broker) -> list[web.RouteDef]:
    return _list_and_delete(broker) + _move(broker)


def _name(request: web.Request) -> str:
    return request.match_info["subscription"]


def _list_and_delete(broker: Broker) -> list[web.RouteDef]:
    async def names(request: web.Request) -> web.Response:
        return web.json_response(await broker.admin.subscriptions.names(topic_of(request)))

    async def create(request: web.Request) -> web.Response:
        body = await json_of(request)
        properties = properties_of(body.get("properties") if isinstance(body, dict) else None)
        await broker.admin.subscriptions.create(
            topic_of(request), _name(request), position_of(body), properties
        )
        return no_content()

    async def delete(request: web.Request) -> web.Response:
        await broker.admin.subscriptions.delete(
            topic_of(request), _name(request), force=flag(request, "force")
        )
        return no_content()

    return [web.get(f"{TOPIC}/subscriptions", names), web.put(ONE, create), web.delete(ONE, delete)]


def _move(broker: Broker) -> list[web.RouteDef]:
    async def skip_all(request: web.Request) -> web.Response:
        await broker.admin.subscriptions.skip(topic_of(request), _name(request), None)
        return no_content()

    async def skip(request: web.Request) -> web.Response:
        await broker.admin.subscriptions.skip(topic_of(request), _name(request), _number(request, "count"))
        return no_content()

    async def reset_to_time(request: web.Request) -> web.Response:
        await broker.admin.subscriptions.reset_cursor(
            topic_of(request), _name(request), _number(request, "time")
        )
        return no_content()

    async def reset_to_position(request: web.Request) -> web.Response:
        body = await json_of(request)
        to = position_of(body)
        if _is_excluded(body) and to not in (EARLIEST, LATEST):
            to = Position(to.ledger_id, to.entry_id + 1)
        await broker.admin.subscriptions.reset_cursor(topic_of(request), _name(request), to)
        return no_content()

    async def expire(request: web.Request) -> web.Response:
        name = request.match_info.get("subscription")
        await broker.admin.subscriptions.expire(topic_of(request), name, 1000 * _number(request, "seconds"))
        return no_content()

    async def expire_up_to(request: web.Request) -> web.Response:
        body = await json_of(request)
        to = position_of(body)
        if to in (EARLIEST, LATEST):
            raise ConfigurationError("messages expire up to an entry: name its ledgerId and entryId")
        if _is_excluded(body):
            to = Position(to.ledger_id, to.entry_id - 1)
        await broker.admin.subscriptions.expire_up_to(topic_of(request), _name(request), to)
        return no_content()

    return [
        web.post(f"{ONE}/expireMessages", expire_up_to),
        web.post(f"{ONE}/expireMessages/{{seconds}}", expire),
        web.post(f"{TOPIC}/all_subscription/expireMessages/{{seconds}}", expire),
        web.post(f"{ONE}/skip_all", skip_all),
        web.post(f"{ONE}/skip/{{count}}", skip),
        web.post(f"{ONE}/resetcursor/{{time}}", reset_to_time),
        web.post(f"{ONE}/resetcursor", reset_to_position),
    ]


def _number(request: web.Request, name: str) -> int:
    return natural(request.match_info[name], f"the {name} in the path")


def _is_excluded(body: object) -> bool:
    """The entry that a position names is not meant itself, but the one beside it."""
    return isinstance(body, dict) and body.get("isExcluded") is True
