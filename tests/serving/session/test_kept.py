"""Memory for properties and for names that watchers were told: who may have how much, and that all is given back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.runtime.budget import OwnerBudget
from quire.runtime.limits import PROPERTIES_BYTES_MAX, PROPERTIES_FREE_BYTES
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb

from .test_connection import TOPIC, Client, producer

LARGE = PROPERTIES_BYTES_MAX - 100


def properties(byte_count: int) -> list[pb.KeyValue]:
    return [pb.KeyValue(key="k", value="v" * byte_count)]


def subscribe(number: int, byte_count: int, **more: Any) -> bytes:
    return commands.subscribe(
        pb.CommandSubscribe(
            topic=TOPIC,
            subscription=f"s{number}",
            subType=pb.CommandSubscribe.Shared,
            consumer_id=number,
            request_id=number,
            metadata=properties(byte_count),
            **more,
        )
    )


def test_an_owner_has_a_fifth_at_most_and_leaves_room() -> None:
    kept = OwnerBudget(1_000)
    assert kept.has_room("a", 200) and not kept.has_room("a", 201)
    kept.take("a", 200)
    assert not kept.has_room("a", 1) and kept.has_room("a", 0)
    assert kept.has_room("b", 160) and not kept.has_room("b", 161)
    for number in range(200):
        room = next((n for n in range(200, 0, -1) if kept.has_room(str(number), n)), 0)
        kept.take(str(number), room)
    assert kept.used_bytes < 1_000
    kept.take("a", -200)
    assert kept.has_room("a", 1)


@pytest.fixture
async def client(broker: Broker) -> Client:
    broker.services.kept._limit_bytes = 1 << 20
    made = Client(broker)
    await made.connect()
    return made


async def test_large_properties_are_refused_when_many_are_kept_and_small_ones_never(
    client: Client, broker: Broker
) -> None:
    for number in range(20):
        client.send(producer(number, number, metadata=properties(LARGE)), subscribe(100 + number, LARGE))
    answers = await client.answers(40)
    refused = [one for one in answers if one.kind == pb.BaseCommand.ERROR]
    assert len(refused) == 37 and broker.services.kept.used_bytes <= (1 << 20) // 5
    assert all(str(PROPERTIES_FREE_BYTES) in one.body.message for one in refused)  # type: ignore[union-attr]
    client.send(producer(50, 50, metadata=properties(500)), subscribe(51, 500))
    assert pb.BaseCommand.ERROR not in [one.kind for one in await client.answers(2)]
    stats = broker.sessions.metrics()["quire_serving_bytes_kept"]
    assert stats == broker.services.kept.used_bytes > 0


@pytest.mark.parametrize("is_lost", [True, False])
async def test_what_was_kept_is_given_back(client: Client, broker: Broker, is_lost: bool) -> None:
    client.send(producer(1, 1, metadata=properties(LARGE)), subscribe(2, LARGE))
    client.send(subscribe(3, LARGE, force_topic_creation=False).replace(b"/session", b"/missing"))
    answers = await client.answers(3)
    assert sorted(one.kind == pb.BaseCommand.ERROR for one in answers) == [False, False, True]
    assert 2 * (LARGE - PROPERTIES_FREE_BYTES) <= broker.services.kept.used_bytes < 2 * LARGE
    if is_lost:
        client.connection.connection_lost(None)
    else:
        client.send(commands.close_producer(1, 4), commands.close_consumer(2, 5))
        await client.answers(2)
    assert broker.services.kept.used_bytes == 0


async def test_names_of_watchers_are_counted(client: Client, broker: Broker) -> None:
    await broker.registry.create(TopicName.parse("persistent://public/default/many"), 100)

    def watch(number: int) -> bytes:
        body = pb.CommandWatchTopicList(
            request_id=number, watcher_id=number, namespace="public/default", topics_pattern=".*many.*"
        )
        return commands.frame(pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_LIST, watchTopicList=body))

    for number in range(40):
        client.send(watch(number))
        await client.answers(1)
    kept = broker.services.kept.used_bytes
    assert 0 < kept <= (1 << 20) // 5 and 0 < len(client.connection.watchers) < 40
    await broker.registry.create(TopicName.parse("persistent://public/default/many-more"))
    async with asyncio.timeout(30):
        while broker.services.kept.used_bytes <= kept:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    client.connection.connection_lost(None)
    assert broker.services.kept.used_bytes == 0
