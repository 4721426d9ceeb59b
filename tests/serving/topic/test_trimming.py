"""What a topic trims, when, and who asks about it meanwhile; over bookies in memory."""

from __future__ import annotations

import pulsar
import pytest
from msgspec.structs import replace

from quire.metadata import paths
from quire.metadata.records import (
    ArchivePointer,
    LedgerState,
    RetentionPolicy,
    SegmentRecord,
    encode,
)
from quire.runtime.errors import NotFound
from quire.serving.broker import Broker
from quire.serving.model.ports import EARLIEST, Position
from quire.serving.topic.lifecycle import upkeep
from quire.serving.topic.topic import Topic
from quire.wire.block import Buffer
from tests.serving.conftest import NAME, QUIET, BrokerHouse, in_thread, publish, read_all


async def one_sealed(broker: Broker, client: pulsar.Client) -> tuple[Topic, SegmentRecord]:
    """A topic with five messages, all in one segment that is sealed."""
    await in_thread(lambda: publish(client, range(5)))
    topic = broker.registry.find(NAME)
    assert isinstance(topic, Topic)
    await topic.log.writing.roll()  # type: ignore[misc]
    (sealed,) = topic.log.segment_list.sealed
    return topic, sealed


async def test_trimming_follows_the_slowest_subscription(house: BrokerHouse) -> None:
    broker = await house.start(retention_ms=0, retention_bytes=0)
    client = pulsar.Client(broker.service_url, logger=QUIET)
    slow = await in_thread(lambda: client.subscribe(str(NAME), "slow"))
    for start in (0, 5):
        await in_thread(lambda start=start: publish(client, range(start, start + 5)))
        topic = broker.registry.find(NAME)
        assert topic is not None
        await topic.log.writing.roll()  # type: ignore[misc]
    ledgers = [segment.ledger_id for segment in topic.log.segment_list.sealed]
    assert await upkeep.trim(topic) == 0

    def acknowledge(count: int) -> None:
        for _ in range(count):
            slow.acknowledge(slow.receive(10_000))

    await in_thread(lambda: acknowledge(5))
    await in_thread(slow.close)
    assert await upkeep.trim(topic) == 1
    assert topic.log.first_position() == Position(ledgers[1], 0)
    assert await in_thread(lambda: read_all(client)) == list(range(5, 10))
    with pytest.raises(NotFound):
        await broker.services.ledgers.open(ledgers[0])
    with pytest.raises(NotFound):
        await (await broker.registry.open_persistent(NAME)).log.read(Position(ledgers[0], 0), 1000)
    await in_thread(client.close)


async def test_what_is_trimmed_while_it_is_asked_about_is_answered_by_what_is_left(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stock readers ask for the last message before they look whether there is one to come."""
    broker = await house.start(retention_ms=0, retention_bytes=0)
    client = pulsar.Client(broker.service_url, logger=QUIET)
    topic, sealed = await one_sealed(broker, client)
    position = topic.log.last_confirmed
    assert position.ledger_id == sealed.ledger_id and await topic.log.last_message() == (position, -1)
    read = topic.log.reader.read

    async def trimmed_meanwhile(position: Position, bytes_max: int) -> list[Buffer]:
        await upkeep.trim(topic)
        return await read(position, bytes_max)

    monkeypatch.setattr(topic.log.reader, "read", trimmed_meanwhile)
    monkeypatch.setattr(topic.log, "cached", lambda position: ())
    assert await topic.log.last_message() == (EARLIEST, -1)
    assert not topic.log.segment_list.sealed
    reader = await in_thread(lambda: client.create_reader(str(NAME), pulsar.MessageId.earliest))
    assert not await in_thread(reader.has_message_available)
    with pytest.raises(NotFound):
        await topic.log.read(position, 1)
    await in_thread(client.close)


async def test_a_bookie_that_is_away_keeps_no_trimmed_object_in_the_archive(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await house.start(retention_ms=0, retention_bytes=0)
    client = pulsar.Client(broker.service_url, logger=QUIET)
    topic, sealed = await one_sealed(broker, client)
    await in_thread(client.close)
    pointer = ArchivePointer(store="memory://", name="object", bytes=1, crc=0, archived_ms=1)
    await topic.log.meta_store.archived(replace(sealed, archive=pointer))
    deleted: list[ArchivePointer] = []

    async def delete(pointer: ArchivePointer) -> None:
        deleted.append(pointer)

    monkeypatch.setattr(house.archive, "delete", delete)
    for each in house.cluster.bookies:
        await broker.services.store.create(paths.bookie(each.bookie.uuid), encode(each.record()))
        each.unreachable = True
    assert await upkeep.trim(topic) == 1
    assert deleted == [[pointer]]
    assert (await broker.services.ledgers.info(sealed.ledger_id)).state is LedgerState.DELETING
    for each in house.cluster.bookies:
        each.unreachable = False


async def test_retention_by_policy_keeps_what_is_young(broker: Broker, client: pulsar.Client) -> None:
    await broker.namespaces.change(
        "public", "default", lambda old: replace(old, retention=RetentionPolicy(3_600_000, -1))
    )
    topic, _ = await one_sealed(broker, client)
    assert await upkeep.trim(topic) == 0


async def test_a_topic_that_is_closed_while_it_is_looked_after_keeps_what_nobody_has_acknowledged(
    house: BrokerHouse,
) -> None:
    """It has let go of its subscriptions by then: nobody needs anything, as it seems."""
    broker = await house.start(retention_ms=0, retention_bytes=0)
    await broker.registry.create(NAME)
    await broker.admin.subscriptions.create(NAME, "slow", EARLIEST)
    await broker.admin.policies.change_topic(NAME, lambda old: replace(old, message_ttl_ms=3_600_000))
    client = pulsar.Client(broker.service_url, logger=QUIET)
    topic, sealed = await one_sealed(broker, client)
    find_clock = topic.log.find_clock

    async def dropped_meanwhile(wanted_ms: int) -> Position:
        found = await find_clock(wanted_ms)
        topic.drop()
        return found

    topic.log.find_clock = dropped_meanwhile  # type: ignore[method-assign]
    await upkeep.look(topic)
    kept = await broker.registry.records.load(NAME)
    assert kept.segments[0].ledger_id == sealed.ledger_id
    await in_thread(client.close)
