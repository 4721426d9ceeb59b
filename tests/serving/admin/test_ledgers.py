"""One copy, and some of it lost for good: every place says so, a person ends it, and everybody goes on after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pulsar
import pytest

from quire.metadata.records import SegmentRecord
from quire.runtime.errors import LostForGood
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.topic.topic import Topic
from quire.testing.cluster import MemoryCluster
from quire.testing.objects import MemoryObjectStore
from quire.wire import block
from tests.cli.running import Ran, quire
from tests.serving.admin.conftest import TOPIC, Rest
from tests.serving.admin.test_quire import NAME, publish
from tests.serving.conftest import BrokerHouse, in_thread

ORDERS = TopicName.parse(NAME)
LOST = range(3, 6)
LEFT = [number for number in range(10) if number not in LOST]


@pytest.fixture
async def house() -> AsyncIterator[BrokerHouse]:
    made = BrokerHouse()
    made.cluster = MemoryCluster(1)
    made.cluster.settings = replace(made.cluster.settings, write_quorum=1, ack_quorum=1)
    yield made
    await made.close()


@pytest.fixture
async def ledger(broker: Broker, house: BrokerHouse, client: pulsar.Client) -> int:
    """A sealed segment of ten messages, of which some were lost in the journal of the only bookie."""
    await publish(client, 10)
    await broker.admin.topics.unload(ORDERS)
    [segment] = [one for one in (await broker.admin.statistics.segments(ORDERS)).segments if one.messages]
    ledger_id: int = segment.ledger_id
    lose(house, ledger_id)
    return ledger_id


def lose(house: BrokerHouse, ledger_id: int) -> None:
    [bookie] = house.cluster.bookies
    bookie.limbo = True
    kept = bookie.ledgers[ledger_id]
    for first in LOST:
        del kept.blocks[first]
        kept.firsts.remove(first)


async def received(client: pulsar.Client, kind: pulsar.ConsumerType, count: int) -> list[int]:
    def work() -> list[int]:
        consumer = client.subscribe(
            NAME, kind.name, consumer_type=kind, initial_position=pulsar.InitialPosition.Earliest
        )
        found = []
        for _ in range(count):
            message = consumer.receive(20_000)
            found.append(int(message.data()))
            consumer.acknowledge(message)
        with pytest.raises(pulsar.Timeout):
            consumer.receive(200)
        consumer.close()
        return found

    return await in_thread(work)


async def give_up(rest: Rest, ledger: int) -> Ran:
    words = ("ledgers", "recover", str(ledger), "--accept-loss", "--yes", "--admin-url", rest.url)
    return await in_thread(lambda: quire(*words))


async def test_what_is_lost_for_good_is_told_everywhere_with_what_to_do(
    rest: Rest, ledger: int, client: pulsar.Client
) -> None:
    assert await received(client, pulsar.ConsumerType.Exclusive, 3) == [0, 1, 2]
    step = f"`quire ledgers recover {ledger} --accept-loss`"
    stats = (await rest.get(f"{TOPIC}/stats")).body
    assert len(stats["lostForGood"]) == 1 and step in stats["lostForGood"][0]
    [row] = [one for one in (await rest.get(f"{TOPIC}/internalStats")).body["ledgers"] if one["entries"]]
    assert step in row["lostForGood"] and row["lostMessages"] == 0
    health = await rest.get("/health/ready")
    assert health.status == 200 and step in health.body["warnings"][0]
    assert "quire_ledger_lost_ledgers 1\n" in (await rest.get("/metrics")).body
    listed = await in_thread(lambda: quire("ledgers", "lost", "--admin-url", rest.url))
    assert step in listed.out and NAME in listed.out
    listed = await in_thread(lambda: quire("bookies", "list", "--admin-url", rest.url))
    assert step in listed.err
    blocks = await rest.get(
        f"/quire/v1/topics/persistent/public/default/orders/blocks?ledger={ledger}&entry=4"
    )
    assert (
        blocks.status == 500
        and "lost for good" in blocks.body["reason"]
        and "try again" not in blocks.body["reason"]
    )


async def test_looking_changes_nothing_and_giving_up_is_asked_for(rest: Rest, ledger: int) -> None:
    words = ("ledgers", "recover", str(ledger), "--accept-loss", "--admin-url", rest.url)
    looked = await in_thread(lambda: quire(*words))
    assert looked.code == 2 and "entries 3 to 5 (3 messages)" in looked.out
    assert "nothing was changed" in looked.err and f"recover {ledger} --accept-loss --yes" in looked.err
    assert (await rest.get(f"/quire/v1/ledgers/{ledger}/loss")).body["holes"] == []
    done = await give_up(rest, ledger)
    assert done.code == 0 and "discarded: entries 3 to 5 (3 messages)" in done.out
    found = (await rest.get(f"/quire/v1/ledgers/{ledger}/loss")).body
    assert found["found"] == [] and found["lostMessages"] == 3
    missing = await in_thread(
        lambda: quire("ledgers", "recover", "99999", "--accept-loss", "--admin-url", rest.url)
    )
    assert missing.code == 3 and "ledger 99999 does not exist" in missing.err


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "KeyShared"])
async def test_subscriptions_go_on_behind_it_and_say_what_they_left_out(
    rest: Rest, ledger: int, client: pulsar.Client, kind: str
) -> None:
    await give_up(rest, ledger)
    found = await received(client, getattr(pulsar.ConsumerType, kind), len(LEFT))
    assert sorted(found) == LEFT
    stats = (await rest.get(f"{TOPIC}/stats")).body["subscriptions"][kind]
    assert stats["msgBacklog"] == 0 and stats["lostMessages"] == len(LOST)


async def test_a_consumer_that_waited_goes_on_by_itself(
    rest: Rest, ledger: int, client: pulsar.Client
) -> None:
    waiting = asyncio.create_task(received(client, pulsar.ConsumerType.Shared, len(LEFT)))
    async with asyncio.timeout(60):
        while not (await rest.get(f"{TOPIC}/stats")).body["lostForGood"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await give_up(rest, ledger)
    assert await waiting == LEFT


async def test_the_archive_keeps_what_is_there_and_names_the_hole(
    rest: Rest, ledger: int, client: pulsar.Client, house: BrokerHouse, broker: Broker
) -> None:
    await give_up(rest, ledger)
    report = (await rest.post("/quire/v1/archive/run?seal=true")).body
    assert report["errors"] == [] and report["archived"] == 1
    assert (await rest.post("/quire/v1/archive/verify")).body["damaged"] == []
    [row] = [one for one in (await rest.get(f"{TOPIC}/internalStats")).body["ledgers"] if one["entries"]]
    assert row["offloaded"] and row["lostMessages"] == len(LOST)
    [segment] = [
        one
        for one in (await broker.registry.open_persistent(ORDERS)).log.segment_list.sealed
        if one.last_entry >= 0
    ]
    assert segment.archive is not None and segment.archive.lost_messages == len(LOST)
    reader = house.archive.open(segment.archive)
    headers = []
    while found := await reader.read(headers[-1].last_entry + 1 if headers else 0, 1):
        headers += map(block.verify, found)
    assert [one.first_entry for one in headers if block.is_blank(one)] == [3]
    assert await received(client, pulsar.ConsumerType.Exclusive, len(LEFT)) == LEFT


async def archived(rest: Rest, client: pulsar.Client, house: BrokerHouse, broker: Broker) -> SegmentRecord:
    """A segment of ten messages that the archive has whole, and the only bookie not any more."""
    await publish(client, 10)
    assert (await rest.post("/quire/v1/archive/run?seal=true")).body["archived"] == 1
    topic = await broker.registry.open_persistent(ORDERS)
    assert isinstance(topic, Topic)
    [segment] = [one for one in topic.log.segment_list.sealed if one.last_entry >= 0]
    lose(house, segment.ledger_id)
    topic.log.tail.clear()
    return segment


async def test_what_the_archive_has_is_not_lost(
    rest: Rest, client: pulsar.Client, house: BrokerHouse, broker: Broker
) -> None:
    ledger = (await archived(rest, client, house, broker)).ledger_id
    assert await received(client, pulsar.ConsumerType.Exclusive, 10) == list(range(10))
    assert (await rest.get(f"{TOPIC}/stats")).body["lostForGood"] == []
    assert (await rest.get("/health/ready")).body.get("warnings", []) == []
    words = ("ledgers", "recover", str(ledger), "--accept-loss", "--admin-url", rest.url)
    looked = await in_thread(lambda: quire(*words))
    assert looked.code == 0 and "all entries are readable" in looked.out, "there is nothing to ask for"
    done = await give_up(rest, ledger)
    assert done.code == 0 and "no entries were discarded" in done.out
    assert await received(client, pulsar.ConsumerType.Shared, 10) == list(range(10))


async def test_only_what_the_archive_lost_too_is_given_up(
    rest: Rest, client: pulsar.Client, house: BrokerHouse, broker: Broker
) -> None:
    segment = await archived(rest, client, house, broker)
    assert segment.archive is not None and isinstance(house.archive.store, MemoryObjectStore)
    house.archive.store.faults.flip(segment.archive.name, 60)
    await house.archive.close()
    looked = (await rest.get(f"/quire/v1/ledgers/{segment.ledger_id}/loss")).body
    [hole] = looked["found"]
    assert hole["firstEntry"] == LOST[0] and "; archive: " in hole["why"]
    assert (await give_up(rest, segment.ledger_id)).code == 0
    assert await received(client, pulsar.ConsumerType.Exclusive, len(LEFT)) == LEFT


async def test_a_topic_whose_own_ledger_cannot_be_recovered_says_so_and_loads_after_it(
    broker: Broker, house: BrokerHouse, client: pulsar.Client
) -> None:
    """One rotten bit of the only bookie's journal: the open ledger's end is nobody's to tell."""
    await publish(client, 10)
    active = (await broker.registry.open_persistent(ORDERS)).log.segment_list.active
    assert active is not None
    await house.kill(broker)
    [bookie] = house.cluster.bookies
    bookie.limbo = True
    other = await house.start()

    async def loaded() -> Topic:
        while True:
            try:
                return await other.registry.open_persistent(ORDERS)
            except LostForGood as error:  # the bundle's state log, then the topic's own
                assert list(other.services.ledgers.lost()) == [error.ledger_id]
                await other.admin.losses.give_up(error.ledger_id)

    with pytest.raises(LostForGood, match="--accept-loss"):
        await other.registry.open_persistent(ORDERS)
    topic = await loaded()
    record = await other.services.ledgers.info(active.ledger_id)
    assert (record.last_entry, record.holes) == (9, ()) and topic.log.last_confirmed == (active.ledger_id, 9)


async def test_who_reads_compacted_data_goes_on_behind_what_was_lost_after_the_compaction(
    rest: Rest, broker: Broker, house: BrokerHouse, client: pulsar.Client
) -> None:
    await publish(client, 1)
    topic = await broker.registry.open_persistent(ORDERS)
    rolling = topic.log.writing.roll()
    assert rolling is not None
    await rolling
    async with asyncio.timeout(60):
        await topic.log.compaction.start(topic.subscriptions)
    assert str(topic.log.compaction.status) == "SUCCESS"
    await publish(client, 10)
    await broker.admin.topics.unload(ORDERS)
    [segment] = [
        one for one in (await broker.admin.statistics.segments(ORDERS)).segments if one.messages == 10
    ]
    ledger_id: int = segment.ledger_id
    [bookie] = house.cluster.bookies
    bookie.limbo = True
    kept = bookie.ledgers[ledger_id]
    for first in LOST:
        del kept.blocks[first]
        kept.firsts.remove(first)
    await give_up(rest, ledger_id)

    def read() -> list[int]:
        consumer = client.subscribe(
            NAME, "compacted", is_read_compacted=True, initial_position=pulsar.InitialPosition.Earliest
        )
        found = [int(consumer.receive(10_000).data()) for _ in range(1 + len(LEFT))]
        with pytest.raises(pulsar.Timeout):
            consumer.receive(200)
        consumer.close()
        return found

    assert await in_thread(read) == [0, *LEFT]
