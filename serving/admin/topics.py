"""`/admin/v2/persistent/…` (and `non-persistent`): topics and partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from quire.runtime.errors import ConfigurationError, NotFound
from quire.security.authorization import Action
from quire.serving.admin.requests import (
    PositionJson,
    Properties,
    Where,
    natural,
    position_json,
    position_of,
    properties_of,
    whole,
)
from quire.serving.admin.route import (
    DOMAIN,
    OF_NAMESPACE,
    TOPIC,
    TOPIC_NAME,
    TOPICS,
    Natural,
    Route,
    body,
    flag,
    path_number,
    query,
    query_number,
)
from quire.serving.broker import Broker
from quire.serving.model.ports import Position
from quire.serving.names import TopicName

PARTITIONS_MAX = 10_000


def routes(broker: Broker) -> Sequence[Route]:
    return (
        *_lists(broker),
        *_partitions(broker),
        *_one(broker),
        *_properties(broker),
        *_statistics(broker),
    )


def _lists(broker: Broker) -> Sequence[Route]:
    catalogue = broker.registry.catalogue

    async def names(tenant: str, namespace: str, domain: str, *, here: bool) -> list[str]:
        if here:
            return (await catalogue.names(tenant, namespace, domain))[0]
        return await broker.fan_out.topics(tenant, namespace, domain)

    async def partitioned(tenant: str, namespace: str, domain: str) -> list[str]:
        return (await catalogue.names(tenant, namespace, domain))[1]

    return (
        Route("GET", TOPICS, names, *OF_NAMESPACE, DOMAIN, flag("here"), may=Action.LIST_TOPICS),
        Route("GET", f"{TOPICS}/partitioned", partitioned, *OF_NAMESPACE, DOMAIN, may=Action.LIST_TOPICS),
    )


def _partitions(broker: Broker) -> Sequence[Route]:
    registry, partitioned = broker.registry, broker.partitioned

    async def count(topic: TopicName, *, create: bool) -> dict[str, int]:
        """As clients ask that look topics up over HTTP: 0 when it does not exist and would be created on use."""
        if create:
            return {"partitions": await broker.sessions.topics.partitions(str(topic), create=True)}
        return {"partitions": await broker.fan_out.partitions(topic)}

    async def create(wanted: tuple[int, dict[str, str]], topic: TopicName) -> None:
        await registry.create(topic, *wanted)

    async def grow(wanted: tuple[int, dict[str, str]], topic: TopicName) -> None:
        await partitioned.grow(topic, wanted[0])

    path, wanted = f"{TOPIC}/partitions", body(_partitioned, _Count | PartitionedJson)
    return (
        Route("GET", path, count, TOPIC_NAME, flag("checkAllowAutoCreation", "create"), may=Action.LOOKUP),
        Route("PUT", path, create, wanted, TOPIC_NAME, may=Action.ADMINISTER),
        Route("POST", path, grow, wanted, TOPIC_NAME, may=Action.ADMINISTER),
        Route(
            "DELETE",
            path,
            broker.deletion.delete_partitioned,
            TOPIC_NAME,
            flag("force"),
            may=Action.ADMINISTER,
        ),
        Route(
            "POST",
            f"{TOPIC}/createMissedPartitions",
            partitioned.make_missed,
            TOPIC_NAME,
            may=Action.ADMINISTER,
        ),
    )


_Count = Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]


class PartitionedJson(Struct):
    """A number of partitions, with properties."""

    partitions: _Count
    properties: dict[str, str] = {}


def _partitioned(value: Any) -> tuple[int, dict[str, str]]:
    """A number of partitions, alone or with `properties`."""
    properties: dict[str, str] = {}
    if isinstance(value, dict):
        properties = properties_of(value.get("properties"))
        value = value.get("partitions")
    count = whole(value, "number of partitions", least=1)
    if count > PARTITIONS_MAX:
        raise ConfigurationError(f"{count} partitions are more than a topic may have ({PARTITIONS_MAX})")
    return count, properties


def _one(broker: Broker) -> Sequence[Route]:
    topics = broker.admin.topics

    async def create(topic: TopicName, properties: dict[str, str]) -> None:
        await broker.registry.create(topic, properties=properties)

    async def terminate_partitions(topic: TopicName) -> dict[int, PositionJson]:
        last = await topics.terminate_partitions(topic)
        return {number: position_json(at, number) for number, at in last.items()}

    parent = query("parentGeneration", _generation, kind=Natural, keyword="parent_generation")
    return (
        Route("PUT", TOPIC, create, TOPIC_NAME, body(properties_of, Properties), may=Action.ADMINISTER),
        Route("DELETE", TOPIC, topics.delete, TOPIC_NAME, flag("force"), parent, may=Action.ADMINISTER),
        Route("PUT", f"{TOPIC}/unload", topics.unload, TOPIC_NAME, may=Action.ADMINISTER),
        Route("POST", f"{TOPIC}/terminate", _position(topics.terminate), TOPIC_NAME, may=Action.ADMINISTER),
        Route(
            "POST", f"{TOPIC}/terminate/partitions", terminate_partitions, TOPIC_NAME, may=Action.ADMINISTER
        ),
        Route("PUT", f"{TOPIC}/compaction", topics.compact, TOPIC_NAME, may=Action.ADMINISTER),
        Route("GET", f"{TOPIC}/compaction", topics.compaction_status, TOPIC_NAME, may=Action.LOOKUP),
    )


def _generation(text: str | None) -> int | None:
    return None if text is None else natural(text, "parentGeneration")


def _position(find: Callable[..., Awaitable[Position]]) -> Callable[..., Awaitable[PositionJson]]:
    """As Pulsar shows what `find` finds in a topic."""

    async def found(topic: TopicName, *others: int) -> PositionJson:
        return position_json(await find(topic, *others), topic.partition)

    return found


def _properties(broker: Broker) -> Sequence[Route]:
    topics = broker.admin.topics

    async def add(more: dict[str, str], topic: TopicName) -> None:
        await topics.change_properties(topic, lambda known: properties_of({**known, **more}))

    async def remove(topic: TopicName, gone: str) -> None:
        await topics.change_properties(
            topic, lambda known: {key: value for key, value in known.items() if key != gone}
        )

    path = f"{TOPIC}/properties"
    return (
        Route("GET", path, topics.properties, TOPIC_NAME, may=Action.LOOKUP),
        Route("PUT", path, add, body(properties_of, Properties), TOPIC_NAME, may=Action.ADMINISTER),
        Route("DELETE", path, remove, TOPIC_NAME, query("key", str, ""), may=Action.ADMINISTER),
    )


def _statistics(broker: Broker) -> Sequence[Route]:
    topics, statistics = broker.admin.topics, broker.admin.statistics

    async def stats(topic: TopicName, **left_out: bool) -> dict[str, Any]:
        return _without(await statistics.stats(topic), **left_out)

    async def partitioned(topic: TopicName, *, each: bool, **left_out: bool) -> dict[str, Any]:
        if not await broker.fan_out.partitions(topic):
            raise NotFound(f"{topic} has no partitions")
        shown = await stats(topic, **left_out)
        return shown if each else {**shown, "partitions": {}}

    async def last(topic: TopicName) -> Position:
        return (await broker.registry.open_persistent(topic)).log.last_confirmed

    asked = TOPIC_NAME, flag("excludePublishers", "publishers"), flag("excludeConsumers", "consumers")
    each = flag("perPartition", "each", default=True)
    index, time = query_number("index"), path_number("time")
    return (
        Route(
            "GET",
            f"{TOPIC}/getMessageIdByIndex",
            _position(topics.position_of_index),
            TOPIC_NAME,
            index,
            may=Action.CONSUME,
        ),
        Route(
            "GET",
            f"{TOPIC}/messageid/{{time}}",
            _position(topics.position_at_time),
            TOPIC_NAME,
            time,
            may=Action.CONSUME,
        ),
        Route(
            "PUT",
            f"{TOPIC}/backlogSize",
            topics.backlog_size,
            TOPIC_NAME,
            body(position_of, Where),
            may=Action.LOOKUP,
        ),
        Route("GET", f"{TOPIC}/stats", stats, *asked, may=Action.LOOKUP),
        Route("GET", f"{TOPIC}/partitioned-stats", partitioned, *asked, each, may=Action.LOOKUP),
        Route("GET", f"{TOPIC}/internalStats", statistics.internal, TOPIC_NAME, may=Action.LOOKUP),
        Route(
            "GET",
            f"{TOPIC}/partitioned-internalStats",
            statistics.partitioned_internal,
            TOPIC_NAME,
            may=Action.LOOKUP,
        ),
        Route("GET", f"{TOPIC}/lastMessageId", _position(last), TOPIC_NAME, may=Action.CONSUME),
    )


def _without(stats: dict[str, Any], *, publishers: bool, consumers: bool) -> dict[str, Any]:
    """Without publishers and consumers, which may be many, for who does not want them."""
    shown = dict(stats)
    if publishers:
        shown["publishers"] = []
    if consumers:
        every = stats["subscriptions"].items()
        shown["subscriptions"] = {name: {**one, "consumers": []} for name, one in every}
    if "partitions" in stats:
        shown["partitions"] = {
            name: _without(one, publishers=publishers, consumers=consumers)
            for name, one in stats["partitions"].items()
        }
    return shown
