"""A partitioned topic goes with all its partitions, and leaves nothing for the next one of its name."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pulsar
import pytest
from msgspec.structs import replace

from quire.metadata import topics
from quire.metadata.store import Delete
from quire.runtime.clock import ManualClock
from quire.runtime.errors import NotFound, QuireError, Unavailable
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.wire import commands
from tests.serving.broker.test_partitioned import (
    NAME,
    QUIET,
    TOPIC,
    Growing,
    publish,
    subscribe,
)
from tests.serving.conftest import BrokerHouse, in_thread
from tests.serving.session.test_connection import Client, entry, producer


async def test_producers_that_come_back_leave_nothing_for_the_next_topic_of_that_name(
    house: BrokerHouse,
) -> None:
    broker = await house.start()
    await broker.registry.create(NAME, 2)

    def begin() -> tuple[pulsar.Client, pulsar.Producer]:
        client = pulsar.Client(broker.service_url, logger=QUIET, operation_timeout_seconds=3)
        sender = client.create_producer(TOPIC, batching_enabled=False, send_timeout_millis=3000)
        for _ in range(4):
            sender.send(b"before")
        return client, sender

    client, sender = await in_thread(begin)
    await broker.deletion.delete_partitioned(NAME, force=True)

    def go_on() -> None:
        for _ in range(2):
            with pytest.raises(pulsar.PulsarException):
                sender.send(b"after")

    await in_thread(go_on)
    assert await broker.registry.records.names("public", "default") == []
    await in_thread(client.close)
    await broker.registry.create(NAME, 2)
    await publish(broker, range(2))
    assert (await broker.admin.statistics.stats(NAME)).msg_in_counter == 2
    shown = (await broker.admin.statistics.partitioned_internal(NAME)).partitions.values()
    assert [one.number_of_entries for one in shown] == [1, 1]


async def test_a_partition_used_while_its_topic_is_deleted_is_not_made(house: BrokerHouse) -> None:
    """It was allowed a moment before the topic was marked, and is to be made a moment later."""
    broker = await house.start()
    await broker.registry.create(NAME, 2)
    catalogue = broker.registry.catalogue
    permit, may_go = catalogue.permit, asyncio.Event()

    async def permits(*asked: Any) -> Any:
        allowed = await permit(*asked)
        await may_go.wait()
        return allowed

    catalogue.permit = permits  # type: ignore[method-assign]
    opening = asyncio.ensure_future(broker.sessions.topics.open(f"{TOPIC}-partition-1"))
    await asyncio.sleep(0)
    await broker.deletion.delete_partitioned(NAME)
    may_go.set()
    with pytest.raises(NotFound):
        await opening
    assert await broker.registry.records.names("public", "default") == []


async def test_a_deletion_that_was_interrupted_is_finished_by_who_meets_it(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await house.start()
    await broker.registry.create(NAME, 2)
    await publish(broker, range(2))

    async def dies(*_: object) -> None:
        raise Unavailable("the broker was killed")

    with monkeypatch.context() as patched:
        patched.setattr(broker.deletion, "_delete_parent", dies)
        with pytest.raises(Unavailable):
            await broker.deletion.delete_partitioned(NAME)
        await house.kill(broker)
    broker = await house.start()
    assert [str(name) for name in await broker.registry.records.names("public", "default")] == [TOPIC]
    with pytest.raises(Unavailable, match="being deleted"):
        await broker.registry.create(NAME, 3)
    async with asyncio.timeout(60):
        while await broker.registry.records.names("public", "default"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await broker.registry.create(NAME, 3)
    assert await broker.fan_out.partitions(NAME) == 3


async def test_who_finishes_a_deletion_late_spares_the_next_topic_of_that_name(house: BrokerHouse) -> None:
    """Each broker that meets the mark finishes the deletion; one of them is slower than all others."""
    broker = await house.start()
    await broker.registry.create(NAME, 1)
    schemas, store = broker.registry.schemas, broker.services.store
    read, waiting = schemas._read, [NAME]

    async def others_are_faster(name: TopicName) -> Any:
        if waiting:
            waiting.pop()
            await topics.delete(store, await broker.registry.records.load(NAME))
            await broker.registry.create(NAME, 3)
            await broker.admin.policies.change_topic(NAME, lambda old: replace(old, message_ttl_ms=7_000))
        return await read(name)

    schemas._read = others_are_faster  # type: ignore[method-assign]
    await broker.deletion.delete_partitioned(NAME)
    assert await broker.fan_out.partitions(NAME) == 3
    assert (await broker.admin.policies.own(NAME)).message_ttl_ms == 7_000
    await broker.deletion.delete_partitioned(NAME)


async def test_a_deletion_that_cannot_take_all_with_it_ends_and_says_so(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await house.start()
    await broker.registry.create(NAME, 1)

    async def of_nothing(_: TopicName) -> list[Delete]:
        return [Delete("/quire/not-there")]

    with monkeypatch.context() as patched:
        patched.setattr(broker.registry.schemas, "removal", of_nothing)
        with pytest.raises(Unavailable, match="delete it again"):
            await broker.deletion.delete_partitioned(NAME)
    await broker.deletion.delete_partitioned(NAME)
    assert await broker.registry.records.names("public", "default") == []


async def test_a_topic_that_is_made_again_at_the_same_moment_has_another_generation(
    house: BrokerHouse,
) -> None:
    house.clock = ManualClock()
    broker = await house.start()
    await broker.registry.create(NAME, 1)
    former = (await broker.registry.records.load(NAME)).record
    await broker.deletion.delete_partitioned(NAME)
    await broker.registry.create(NAME, 1)
    again = (await broker.registry.records.load(NAME)).record
    assert again.created_ms == former.created_ms and again.generation != former.generation


async def test_a_late_deletion_spares_the_next_topic_of_that_name(house: BrokerHouse) -> None:
    broker = await house.start()
    await broker.registry.create(NAME, 1)
    former = (await broker.registry.records.load(NAME)).record.generation
    await broker.deletion.delete_partitioned(NAME)
    await broker.registry.create(NAME, 1)
    await publish(broker, [0])
    await broker.admin.topics.delete(
        TopicName.parse(f"{TOPIC}-partition-0"), force=True, parent_generation=former
    )
    assert (await broker.admin.statistics.stats(NAME)).msg_in_counter == 1


async def intrude(broker: Broker, dice: random.Random, is_over: asyncio.Event) -> None:
    """A client that publishes to any partition and subscribes to any, whatever it is told."""
    client, number = Client(broker), 0
    await client.connect()
    while not is_over.is_set():
        number += 1
        partition = dice.randrange(4)
        client.send(producer(2 * number, number, f"{TOPIC}-partition-{partition}"))
        client.send(b"".join(commands.send(number, 0, 1, entry())))
        client.send(subscribe(2 * number + 1, partition, consumer_id=number, name=f"s{dice.randrange(3)}"))
        for _ in range(dice.randrange(20)):
            await asyncio.sleep(0)
        client.received()
    async with asyncio.timeout(60):
        while client.connection.requests.pending:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    client.connection.connection_lost(None)


@pytest.mark.parametrize("seed", range(12))
async def test_a_deletion_among_intruders_leaves_nothing(house: BrokerHouse, seed: int) -> None:
    broker = await house.start()
    dice, is_over = random.Random(seed), asyncio.Event()
    await broker.registry.create(NAME, 4)
    Growing(broker, seed)  # for the latency of its store
    intruders = [asyncio.ensure_future(intrude(broker, dice, is_over)) for _ in range(3)]
    for _ in range(dice.randrange(300)):
        await asyncio.sleep(0)
    deleting = asyncio.ensure_future(broker.deletion.delete_partitioned(NAME, force=True))
    if dice.random() < 0.5:
        for _ in range(dice.randrange(100)):
            await asyncio.sleep(0)
        deleting.cancel()
        await asyncio.wait([deleting])
    async with asyncio.timeout(60):
        while True:
            try:
                await broker.deletion.delete_partitioned(NAME, force=True)
            except NotFound:
                break
            except QuireError:
                await asyncio.sleep(0.01)
    assert await broker.registry.records.names("public", "default") == []
    for _ in range(dice.randrange(300)):
        await asyncio.sleep(0)
    assert await broker.registry.records.names("public", "default") == [], "nor does anybody make one"
    is_over.set()
    await asyncio.gather(*intruders)
    await broker.registry.create(NAME, 4)
    await publish(broker, range(4))
    shown = (await broker.admin.statistics.partitioned_internal(NAME)).partitions.values()
    assert [one.number_of_entries for one in shown] == [1] * 4
    assert await broker.admin.subscriptions.names(NAME) == []
