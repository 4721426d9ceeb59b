"""`/admin/v2/persistent/…/subscription/…`: subscriptions of a topic."""

from __future__ import annotations

from json import dumps
from urllib.parse import quote

from aiohttp import web

from quire.runtime.clock import iso_time
from quire.runtime.errors import ConfigurationError
from quire.serving.admin.requests import flag, json_of, natural, no_content, position_of, topic_of
from quire.serving.admin.target import AdminTarget
from quire.serving.admin.topics import TOPIC
from quire.serving.ports import Position
from quire.wire.message import Undecodable, is_batch, plain_payload, read_metadata

ONE = f"{TOPIC}/subscription/{{subscription}}"


def routes(target: AdminTarget) -> list[web.RouteDef]:
    return _list_and_delete(target) + _move(target) + _look(target)


def _name(request: web.Request) -> str:
    return request.match_info["subscription"]


def _list_and_delete(target: AdminTarget) -> list[web.RouteDef]:
    async def names(request: web.Request) -> web.Response:
        return web.json_response(await target.subscriptions(topic_of(request)))

    async def create(request: web.Request) -> web.Response:
        start = position_of(await json_of(request))
        await target.create_subscription(topic_of(request), _name(request), start)
        return no_content()

    async def delete(request: web.Request) -> web.Response:
        await target.delete_subscription(topic_of(request), _name(request), force=flag(request, "force"))
        return no_content()

    return [web.get(f"{TOPIC}/subscriptions", names), web.put(ONE, create), web.delete(ONE, delete)]


def _move(target: AdminTarget) -> list[web.RouteDef]:
    async def skip_all(request: web.Request) -> web.Response:
        await target.skip_messages(topic_of(request), _name(request), None)
        return no_content()

    async def skip(request: web.Request) -> web.Response:
        await target.skip_messages(topic_of(request), _name(request), _number(request, "count"))
        return no_content()

    async def reset_to_time(request: web.Request) -> web.Response:
        await target.reset_cursor(topic_of(request), _name(request), _number(request, "time"))
        return no_content()

    async def reset_to_position(request: web.Request) -> web.Response:
        await target.reset_cursor(topic_of(request), _name(request), position_of(await json_of(request)))
        return no_content()

    async def expire(request: web.Request) -> web.Response:
        name = request.match_info.get("subscription")
        await target.expire_messages(topic_of(request), name, 1000 * _number(request, "seconds"))
        return no_content()

    return [
        web.post(f"{ONE}/expireMessages/{{seconds}}", expire),
        web.post(f"{TOPIC}/all_subscription/expireMessages/{{seconds}}", expire),
        web.post(f"{ONE}/skip_all", skip_all),
        web.post(f"{ONE}/skip/{{count}}", skip),
        web.post(f"{ONE}/resetcursor/{{time}}", reset_to_time),
        web.post(f"{ONE}/resetcursor", reset_to_position),
    ]


def _look(target: AdminTarget) -> list[web.RouteDef]:
    async def peek(request: web.Request) -> web.Response:
        number = _number(request, "position")
        if number == 0:
            raise ConfigurationError("positions in a backlog count from 1")
        return _entry(*await target.peek(topic_of(request), _name(request), number))

    return [web.get(f"{ONE}/position/{{position}}", peek)]


def _entry(position: Position, entry: bytes) -> web.Response:
    """An entry as Pulsar's tools read it: its decompressed payload, and the rest in headers.

    What cannot be decompressed here, for it is encrypted or a chunk, comes as it is.
    """
    metadata, payload = read_metadata(entry)
    headers = {
        "X-Pulsar-Message-ID": f"{position.ledger_id}:{position.entry_id}",
        "X-Pulsar-publish-time": iso_time(metadata.publish_time),
        "X-Pulsar-PROPERTY": dumps({item.key: item.value for item in metadata.properties}),
    }
    if metadata.HasField("partition_key"):
        headers["X-Pulsar-partition-key"] = quote(metadata.partition_key, safe="")
    try:
        body = bytes(plain_payload(metadata, payload))
    except Undecodable:
        return web.Response(body=bytes(payload), headers=headers)
    if is_batch(metadata):
        headers["X-Pulsar-num-batch-message"] = str(metadata.num_messages_in_batch)
    return web.Response(body=body, headers=headers)


def _number(request: web.Request, name: str) -> int:
    return natural(request.match_info[name], f"the {name} in the path")
