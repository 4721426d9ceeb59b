"""Exclusive access to a real broker's topic: who was fenced stays fenced, and who waits gets its turn."""

from __future__ import annotations

import asyncio

import pytest

from quire.client import EARLIEST, Client, PublishFailed, PublishUnknown
from quire.runtime.errors import Fenced
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from tests.client.conftest import QUICK
from tests.serving.conftest import BrokerHouse


async def payloads(client: Client) -> list[bytes | None]:
    found = []
    async with client.reader("t", start=EARLIEST) as reader:
        while await reader.has_next():
            found.append((await reader.read(10)).payload)
    return found


async def test_a_fenced_producer_does_not_take_the_topic_back(real: Broker, ours: Client) -> None:
    async with Client(real.service_url, settings=QUICK) as another:
        first = ours.producer("t", name="a", access="exclusive-with-fencing")
        await first.start()
        await first.send(b"a leads")
        async with another.producer("t", name="b", access="exclusive-with-fencing") as second:
            await second.send(b"b leads")
            topic = real.registry.find(TopicName.parse("t"))
            assert topic is not None
            epoch = topic.log.segment_list.record.topic_epoch
            with pytest.raises((PublishFailed, PublishUnknown), match="exclusive access since"):
                await first.send(b"a was fenced")
            await second.send(b"b still leads")
            assert topic.log.segment_list.record.topic_epoch == epoch
        await first.close(flush=False)
    assert await payloads(ours) == [b"a leads", b"b leads", b"b still leads"]


async def test_a_holder_that_was_away_while_another_held_the_topic_is_fenced(
    house: BrokerHouse, real: Broker, ours: Client
) -> None:
    held = ours.producer("t", name="a", access="exclusive")
    await held.start()
    await held.send(b"a")
    (end,) = held._partitions
    assert end.attachment is not None
    await end.attachment.stop()  # it comes back only when we say so
    await house.kill(real)
    real = await house.start()
    async with (
        Client(real.service_url, settings=QUICK) as other,
        other.producer("t", name="b", access="exclusive") as between,
    ):
        await between.send(b"b")
    connection = await ours.lookup.broker_of(end.topic)
    with pytest.raises(Fenced, match="since this producer lost"):
        await end.attach(connection)
    await held.close(flush=False)


async def test_a_holder_keeps_its_access_over_a_reconnection(
    house: BrokerHouse, real: Broker, ours: Client
) -> None:
    async with ours.producer("t", name="a", access="exclusive") as producer:
        await producer.send(b"1")
        await house.kill(real)
        taken = producer.send_nowait(b"2")
        real = await house.start()
        await taken
        topic = real.registry.find(TopicName.parse("t"))
        assert topic is not None and topic.log.segment_list.record.topic_epoch == 0


async def test_who_waits_for_exclusive_access_gets_its_turn(real: Broker) -> None:
    hasty = QUICK.__class__(operation_timeout_ms=200, backoff_first_ms=1, backoff_max_ms=4)
    async with Client(real.service_url, settings=hasty) as client:
        first = client.producer("t", name="a", access="exclusive")
        await first.start()
        second = client.producer("t", name="b", access="wait-for-exclusive")
        waiting = asyncio.create_task(second.start())
        done, _ = await asyncio.wait([waiting], timeout=0.5)
        assert not done, "longer than a request may take"
        await first.send(b"a")
        await first.close()
        async with asyncio.timeout(60):
            await waiting
        await second.send(b"b")
        await second.close()
        assert await payloads(client) == [b"a", b"b"]
