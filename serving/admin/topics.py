"""`/admin/v2/persistent/…` (and `non-persistent`): topics and partitions."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from quire.runtime.errors import ConfigurationError, NotFound
from quire.serving.admin.requests import (
    flag,
    json_of,
    natural,
    no_content,
    position_json,
    properties_of,
    topic_of,
    whole,
)
from quire.serving.broker import Broker
from quire.serving.model.ports import Position

DOMAIN = "/admin/v2/{domain:persistent|non-persistent}"
NAMESPACE = f"{DOMAIN}/{{tenant}}/{{namespace}}"
TOPIC = f"{NAMESPACE}/{{topic}}"
PARTITIONS_MAX = 10_000


def routes(broker: Broker) -> list[web.RouteDef]:
    return _lists(broker) + _partitions(broker) + _one(broker) + _properties(broker) + _statistics(broker)


def _lists(broker: Broker) -> list[web.RouteDef]:
    async def names(request: web.Request) -> web.Response:
        tenant, namespace, domain = _of_namespace(request)
        if flag(request, "here"):
            found, _ = await broker.registry.catalogue.names(tenant, namespace, domain)
        else:
            found = await broker.fan_out.topics(tenant, namespace, domain)
        return web.json_response(found)

    async def partitioned(request: web.Request) -> web.Response:
        _, found = await broker.registry.catalogue.names(*_of_namespace(request))
        return web.json_response(found)

    return [web.get(NAMESPACE, names), web.get(f"{NAMESPACE}/partitioned", partitioned)]


def _of_namespace(request: web.Request) -> tuple[str, str, str]:
    part = request.match_info
    return part["tenant"], part["namespace"], part["domain"]


async def _partitioned(request: web.Request) -> tuple[int, dict[str, str]]:
    """The body: a number of partitions, alone or with `properties`."""
    body = await json_of(request)
    properties: dict[str, str] = {}
    if isinstance(body, dict):
        properties = properties_of(body.get("properties"))
        body = body.get("partitions")
    count = whole(body, "number of partitions", least=1)
    if count > PARTITIONS_MAX:
        raise ConfigurationError(f"{count} partitions are more than a topic may have ({PARTITIONS_MAX})")
    return count, properties


def _partitions(broker: Broker) -> list[web.RouteDef]:
    async def get(request: web.Request) -> web.Response:
        # As clients ask that look topics up over HTTP: 0 when it does not exist and would be created on use.
        topic = topic_of(request)
        if flag(request, "checkAllowAutoCreation"):
            count = await broker.sessions.topics.partitions(str(topic), create=True)
            return web.json_response({"partitions": count})
        return web.json_response({"partitions": await broker.fan_out.partitions(topic)})

    async def put(request: web.Request) -> web.Response:
        count, properties = await _partitioned(request)
        await broker.registry.create(topic_of(request), count, properties)
        return no_content()

    async def post(request: web.Request) -> web.Response:
        count, _ = await _partitioned(request)
        await broker.partitioned.grow(topic_of(request), count)
        return no_content()

    async def delete(request: web.Request) -> web.Response:
        await broker.partitioned.delete(topic_of(request), force=flag(request, "force"))
        return no_content()

    async def missed(request: web.Request) -> web.Response:
        await broker.partitioned.make_missed(topic_of(request))
        return no_content()

    path = f"{TOPIC}/partitions"
    return [
        web.get(path, get),
        web.put(path, put),
        web.post(path, post),
        web.delete(path, delete),
        web.post(f"{TOPIC}/createMissedPartitions", missed),
    ]


def _one(broker: Broker) -> list[web.RouteDef]:
    async def create(request: web.Request) -> web.Response:
        await broker.registry.create(topic_of(request), properties=properties_of(await json_of(request)))
        return no_content()

    async def delete(request: web.Request) -> web.Response:
        generation = request.query.get("parentGeneration")
        await broker.admin.topics.delete(
            topic_of(request),
            force=flag(request, "force"),
            parent_generation=None if generation is None else natural(generation, "parentGeneration"),
        )
        return no_content()

    async def unload(request: web.Request) -> web.Response:
        await broker.admin.topics.unload(topic_of(request))
        return no_content()

    async def compact(request: web.Request) -> web.Response:
        await broker.admin.topics.compact(topic_of(request))
        return no_content()

    async def compaction(request: web.Request) -> web.Response:
        return web.json_response(await broker.admin.topics.compaction_status(topic_of(request)))

    async def terminate(request: web.Request) -> web.Response:
        return _where(request, await broker.admin.topics.terminate(topic_of(request)))

    async def terminate_partitions(request: web.Request) -> web.Response:
        last = await broker.admin.topics.terminate_partitions(topic_of(request))
        return web.json_response({number: position_json(at, number) for number, at in last.items()})

    return [
        web.put(TOPIC, create),
        web.delete(TOPIC, delete),
        web.put(f"{TOPIC}/unload", unload),
        web.post(f"{TOPIC}/terminate", terminate),
        web.post(f"{TOPIC}/terminate/partitions", terminate_partitions),
        web.put(f"{TOPIC}/compaction", compact),
        web.get(f"{TOPIC}/compaction", compaction),
    ]


def _properties(broker: Broker) -> list[web.RouteDef]:
    async def get(request: web.Request) -> web.Response:
        return web.json_response(await broker.admin.topics.properties(topic_of(request)))

    async def put(request: web.Request) -> web.Response:
        more = properties_of(await json_of(request))

        def change(known: dict[str, str]) -> dict[str, str]:
            return properties_of({**known, **more})

        await broker.admin.topics.change_properties(topic_of(request), change)
        return no_content()

    async def delete(request: web.Request) -> web.Response:
        gone = request.query.get("key", "")

        def change(known: dict[str, str]) -> dict[str, str]:
            return {key: value for key, value in known.items() if key != gone}

        await broker.admin.topics.change_properties(topic_of(request), change)
        return no_content()

    path = f"{TOPIC}/properties"
    return [web.get(path, get), web.put(path, put), web.delete(path, delete)]


def _statistics(broker: Broker) -> list[web.RouteDef]:
    async def stats(request: web.Request) -> web.Response:
        return web.json_response(_as_asked(request, await broker.admin.statistics.stats(topic_of(request))))

    async def partitioned(request: web.Request) -> web.Response:
        topic = topic_of(request)
        if not await broker.fan_out.partitions(topic):
            raise NotFound(f"{topic} has no partitions")
        shown = _as_asked(request, await broker.admin.statistics.stats(topic))
        return web.json_response(
            shown if flag(request, "perPartition", True) else {**shown, "partitions": {}}
        )

    async def internal(request: web.Request) -> web.Response:
        return web.json_response(await broker.admin.statistics.internal(topic_of(request)))

    async def partitioned_internal(request: web.Request) -> web.Response:
        return web.json_response(await broker.admin.statistics.partitioned_internal(topic_of(request)))

    async def last(request: web.Request) -> web.Response:
        return _where(request, (await broker.registry.open_persistent(topic_of(request))).last_confirmed)

    async def by_index(request: web.Request) -> web.Response:
        index = natural(request.query.get("index", ""), "index in the query")
        return _where(request, await broker.admin.topics.position_of_index(topic_of(request), index))

    async def by_time(request: web.Request) -> web.Response:
        time_ms = natural(request.match_info["time"], "the time in the path")
        return _where(request, await broker.admin.topics.position_at_time(topic_of(request), time_ms))

    return [
        web.get(f"{TOPIC}/getMessageIdByIndex", by_index),
        web.get(f"{TOPIC}/messageid/{{time}}", by_time),
        web.get(f"{TOPIC}/stats", stats),
        web.get(f"{TOPIC}/partitioned-stats", partitioned),
        web.get(f"{TOPIC}/internalStats", internal),
        web.get(f"{TOPIC}/partitioned-internalStats", partitioned_internal),
        web.get(f"{TOPIC}/lastMessageId", last),
    ]


def _where(request: web.Request, position: Position) -> web.Response:
    return web.json_response(position_json(position, topic_of(request).partition))


def _as_asked(request: web.Request, stats: dict[str, Any]) -> dict[str, Any]:
    """Without publishers and consumers, which may be many, for who does not want them."""
    shown = dict(stats)
    if flag(request, "excludePublishers"):
        shown["publishers"] = []
    if flag(request, "excludeConsumers"):
        every = stats["subscriptions"].items()
        shown["subscriptions"] = {name: {**one, "consumers": []} for name, one in every}
    if "partitions" in stats:
        shown["partitions"] = {name: _as_asked(request, one) for name, one in stats["partitions"].items()}
    return shown
