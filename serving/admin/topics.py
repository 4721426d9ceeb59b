"""`/admin/v2/persistent/…` (and `non-persistent`): topics and partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from aiohttp import web
from msgspec import Meta, Struct
from msgspec.structs import replace

from quire.runtime.csrf import CREATES
from quire.runtime.errors import ConfigurationError
from quire.security.authorization import Action
from quire.serving.admin import stored_topics
from quire.serving.admin.policies import require_to_lift
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
    REQUEST,
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
from quire.serving.admin.values import PARTITIONS_MAX
from quire.serving.broker import Broker
from quire.serving.model.ports import Position
from quire.serving.model.statistics import PartitionedTopicStats, TopicStats
from quire.serving.names import TopicName
from quire.serving.policy.resolved import limits_of


def routes(broker: Broker) -> Sequence[Route]:
    return (
        *_lists(broker),
        *_partitions(broker),
        *_one(broker),
        *_properties(broker),
        *_statistics(broker),
        *stored_topics.routes(broker),
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
        """Return the number of partitions, for lookups over HTTP.

        0 for a topic that would be created on its first use.
        """
        if create:
            return {"partitions": await broker.sessions.topics.partitions(str(topic), create=True)}
        return {"partitions": await broker.fan_out.partitions(topic)}

    async def create(wanted: tuple[int, dict[str, str]], topic: TopicName) -> None:
        await registry.create(topic, *wanted)

    async def grow(wanted: tuple[int, dict[str, str]], topic: TopicName) -> None:
        await partitioned.grow(topic, wanted[0])

    async def delete(topic: TopicName, request: web.Request, *, force: bool) -> None:
        """Delete a topic with all its partitions. Only a superuser may delete one that has limits."""
        await _require_to_delete(broker, topic, request)
        await broker.deletion.delete_partitioned(topic, force=force)

    path, wanted = f"{TOPIC}/partitions", body(_partitioned, _Count | PartitionedJson)
    return (
        Route("GET", path, count, TOPIC_NAME, flag(CREATES, "create"), may=Action.LOOKUP),
        Route("PUT", path, create, wanted, TOPIC_NAME, may=Action.ADMINISTER),
        Route("POST", path, grow, wanted, TOPIC_NAME, may=Action.ADMINISTER),
        Route(
            "DELETE",
            path,
            delete,
            TOPIC_NAME,
            REQUEST,
            flag("force"),
            may=Action.ADMINISTER,
        ),
        Route(
            "POST",
            f"{TOPIC}/createMissedPartitions",
            partitioned.make_missing,
            TOPIC_NAME,
            may=Action.ADMINISTER,
        ),
    )


async def _require_to_delete(broker: Broker, topic: TopicName, request: web.Request) -> None:
    """Check that the client may delete the topic. Raises `NotAuthorized`.

    A partition has its parent topic's policies, which are deleted only with the parent.
    """
    if topic.is_persistent and topic.parent is None:
        await require_to_lift(request, limits_of(await broker.registry.policies.own(topic)))


_Count = Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]


class PartitionedJson(Struct):
    """A number of partitions, with properties."""

    partitions: _Count
    properties: dict[str, str] = {}


def _partitioned(value: Any) -> tuple[int, dict[str, str]]:
    """Parse a number of partitions, alone or with `properties`."""
    properties: dict[str, str] = {}
    if isinstance(value, dict):
        properties = properties_of(value.get("properties"))
        value = value.get("partitions")
    count = whole(value, "number of partitions", least=1)
    if count > PARTITIONS_MAX:
        raise ConfigurationError(f"{count} partitions exceed the limit of {PARTITIONS_MAX} per topic")
    return count, properties


def _one(broker: Broker) -> Sequence[Route]:
    topics = broker.admin.topics

    async def create(topic: TopicName, properties: dict[str, str]) -> None:
        await broker.registry.create(topic, properties=properties)

    async def delete(
        topic: TopicName, request: web.Request, *, force: bool, parent_generation: int | None
    ) -> None:
        """Delete a topic. Only a superuser may delete one that has limits."""
        await _require_to_delete(broker, topic, request)
        await topics.delete(topic, force=force, parent_generation=parent_generation)

    async def terminate_partitions(topic: TopicName) -> dict[int, PositionJson]:
        last = await topics.terminate_partitions(topic)
        return {number: position_json(at, number) for number, at in last.items()}

    parent = query("parentGeneration", _generation, kind=Natural, keyword="parent_generation")
    return (
        Route("PUT", TOPIC, create, TOPIC_NAME, body(properties_of, Properties), may=Action.ADMINISTER),
        Route("DELETE", TOPIC, delete, TOPIC_NAME, REQUEST, flag("force"), parent, may=Action.ADMINISTER),
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
    """Return a function that returns the position found by `find` as Pulsar's JSON."""

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

    async def stats(topic: TopicName, **left_out: bool) -> TopicStats | PartitionedTopicStats:
        return (await statistics.stats(topic)).without(**left_out)

    async def partitioned(topic: TopicName, *, each: bool, **left_out: bool) -> PartitionedTopicStats:
        shown = (await statistics.partitioned(topic)).without(**left_out)
        return shown if each else replace(shown, partitions={})

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
