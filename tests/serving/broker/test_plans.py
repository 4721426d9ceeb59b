"""A plan for Spark is whole, whatever the topic does while the plan is made: it rolls, is archived, is trimmed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from msgspec import to_builtins

from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.operations.statistics import ReadPlan
from quire.serving.topic.lifecycle import upkeep
from quire.spark_source.plan import find_gap
from quire.wire import commands
from tests.serving.conftest import BrokerHouse
from tests.serving.ownership.cluster import until
from tests.serving.session.test_connection import Client, entry, producer

TOPIC = "persistent://public/default/rolling"
NAME = TopicName.parse(TOPIC)
PLANS = 300
SEGMENT_BYTES = 64 * 1024


class Publisher:
    """Publishes as fast as it is answered, by hand: a producer of a stock client would need a thread."""

    def __init__(self, broker: Broker) -> None:
        self._client = Client(broker)
        self._sent = 0

    async def begin(self) -> None:
        await self._client.connect()
        self._client.send(producer(1, 1, TOPIC))
        await self._client.answers(1)

    def publish(self, count: int) -> None:
        sends = [commands.send(1, self._sent + i, 1, entry(b"x" * 1000)) for i in range(count)]
        self._client.send(b"".join(b"".join(parts) for parts in sends))
        self._sent += count
        self._client.received()

    async def go_on(self) -> None:
        while True:
            self.publish(5)
            await asyncio.sleep(0.002)


@pytest.fixture
async def publisher(house: BrokerHouse) -> AsyncIterator[Publisher]:
    broker = await house.start(
        segment_bytes_max=SEGMENT_BYTES,
        archive_delay_ms=3_600_000,
        retention_ms=-1,
        retention_bytes=4 * SEGMENT_BYTES,
    )
    publisher = Publisher(broker)
    await publisher.begin()
    publishing = asyncio.create_task(publisher.go_on())
    yield publisher
    publishing.cancel()


async def several_segments(broker: Broker, count: int) -> None:
    topic = await broker.registry.open_persistent(NAME)
    await until(lambda: len(topic.log.segments()) >= count)


def rows(plan: ReadPlan) -> list[tuple[int, int]]:
    return [(one.ledger_id, one.first_index) for one in plan.segments]


async def test_plans_are_whole_while_a_topic_rolls_is_archived_and_trimmed(
    house: BrokerHouse, publisher: Publisher
) -> None:
    [broker] = house.running
    await several_segments(broker, 3)
    topic = await broker.registry.open_persistent(NAME)
    trimmed = 0
    seen: set[tuple[int, int]] = set()
    lacking = []
    deadline = time.monotonic() + 60
    for number in range(PLANS):
        plan = await broker.admin.statistics.segments(NAME)
        seen.update(rows(plan))
        lacking += filter(None, [find_gap(to_builtins(plan))])
        if number % 60 == 30:
            await broker.admin.archive.run(seal=False, here=True)
            trimmed += await upkeep.trim(topic)
        assert time.monotonic() < deadline, f"{number} plans in a minute"
        await asyncio.sleep(0.001)
    assert not lacking
    assert len(seen) > 10 and trimmed, "the topic rolled and was trimmed meanwhile"


async def test_a_segment_that_rolls_while_the_bookies_are_asked_is_in_the_plan(
    house: BrokerHouse, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    [broker] = house.running
    await several_segments(broker, 3)
    topic = await broker.registry.open_persistent(NAME)

    async def is_flushed(ledger_id: int) -> bool:
        before = topic.log.last_confirmed.ledger_id
        await until(lambda: topic.log.last_confirmed.ledger_id != before)
        return True

    monkeypatch.setattr(broker.services.ledgers, "is_flushed", is_flushed)
    plan = await broker.admin.statistics.segments(NAME)
    assert not find_gap(to_builtins(plan))
    assert plan.end.ledger == plan.segments[-1].ledger_id
    ledgers = [one.ledger_id for one in (await broker.admin.statistics.internal(NAME)).ledgers]
    assert ledgers == sorted(ledgers)
    views = [view.ledger_id for view in topic.log.segments()]
    assert ledgers == views[: len(ledgers)], "none is left out"
