"""Objects of the archive that are damaged or missing: read from the bookies while these have them, and told of."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

from quire.runtime.errors import CorruptionError, Unavailable
from quire.runtime.limits import MIB
from quire.serving.broker import Broker
from quire.serving.model.ports import EARLIEST, Position
from quire.serving.topic.topic import Topic
from quire.testing.objects import MemoryObjectStore
from quire.wire.publish_time import PublishTimes
from tests.serving.conftest import NAME, QUIET, BrokerHouse, in_thread, publish, read_all

SEGMENTS = 3
EACH = 5


class Archived:
    """A topic of three archived segments of five messages, and a subscription that has read none."""

    def __init__(self, house: BrokerHouse, broker: Broker, topic: Topic) -> None:
        assert isinstance(house.archive.store, MemoryObjectStore)
        self.house = house
        self.broker = broker
        self.topic = topic
        self.faults = house.archive.store.faults

    @classmethod
    async def make(cls, house: BrokerHouse, **settings: Any) -> Archived:
        broker = await house.start(**settings)
        await broker.admin.subscriptions.create(NAME, "audit", EARLIEST)
        client = pulsar.Client(broker.service_url, logger=QUIET)
        for number in range(SEGMENTS):
            first = EACH * number
            await in_thread(lambda first=first: publish(client, range(first, first + EACH)))
            assert (await broker.admin.archive.run(seal=True, here=True)).archived == 1
        await in_thread(client.close)
        topic = broker.registry.find(NAME)
        assert isinstance(topic, Topic)
        topic.log.tail.clear()
        return cls(house, broker, topic)

    @property
    def ledgers(self) -> list[int]:
        return [one.ledger_id for one in self.topic.log.segment_list.sealed]

    def name(self, number: int) -> str:
        pointer = self.topic.log.segment_list.sealed[number].archive
        assert pointer is not None
        return pointer.name

    def damage(self, number: int, how: str = "flipped") -> str:
        """Of segment `number`; answers the object's name."""
        name = self.name(number)
        content, modified_ms = self.faults.objects[name]
        match how:
            case "flipped":
                self.faults.flip(name, 60)
            case "cut":
                self.faults.objects[name] = content[:-9], modified_ms
            case "missing":
                del self.faults.objects[name]
        return name

    async def lose_copy(self, number: int) -> None:
        """The bookies have the segment no more, as the list says."""
        ledger_id = self.ledgers[number]
        await self.topic.log.meta_store.off_bookies(ledger_id)
        await self.broker.services.ledgers.delete(ledger_id)


@pytest.mark.parametrize("how", ["flipped", "cut", "missing"])
async def test_a_damaged_object_is_read_from_the_bookies_as_long_as_they_have_it(
    house: BrokerHouse, how: str
) -> None:
    archived = await Archived.make(house)
    for number in range(SEGMENTS):  # recorded, and then the broker ended before the copies were deleted
        await archived.topic.log.meta_store.off_bookies(archived.ledgers[number])
    name = archived.damage(1, how)
    client = pulsar.Client(archived.broker.service_url, logger=QUIET)
    assert await in_thread(lambda: read_all(client)) == list(range(SEGMENTS * EACH))
    await in_thread(client.close)
    assert list(house.archive.damaged) == [name]
    assert archived.broker.metrics()["quire_tiering_objects_damaged"] == 1


async def test_what_neither_has_is_damage_and_what_bookies_may_have_again_is_not(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived = await Archived.make(house)
    name = archived.damage(1, "missing")

    async def away(*_: object, **__: object) -> None:
        raise Unavailable("no bookie answers")

    with monkeypatch.context() as patched:
        patched.setattr(archived.broker.services.ledgers, "open", away)
        with pytest.raises(Unavailable, match=f"{name} is missing in .*no bookie answers"):
            await (await archived.broker.registry.open_persistent(NAME)).log.read(
                Position(archived.ledgers[1], 0), 1000
            )
    await archived.lose_copy(1)
    with pytest.raises(CorruptionError, match=f"segment {archived.ledgers[1]} of {NAME} .*{name} is missing"):
        await (await archived.broker.registry.open_persistent(NAME)).log.read(
            Position(archived.ledgers[1], 0), 1000
        )


async def test_damage_blinds_nobody_who_asks_about_the_topic(house: BrokerHouse) -> None:
    archived = await Archived.make(house)
    broker, topic = archived.broker, archived.topic
    for number in range(SEGMENTS):
        await archived.lose_copy(number)
    name = archived.damage(0)
    await broker.admin.topics.unload(NAME)  # nobody knows how many messages lie where any more
    stats = await broker.admin.statistics.stats(NAME)
    audit = stats.subscriptions["audit"]
    assert audit.msg_backlog == SEGMENTS * EACH
    assert name in audit.last_read_error and not audit.msg_backlog_exact
    [damaged] = stats.damaged_segments
    assert damaged.ledger_id == archived.ledgers[0] and damaged.archive.name == name
    rows = (await broker.admin.statistics.internal(NAME)).ledgers
    assert [name in row.damage for row in rows] == [True, False, False, False]
    segments = (await broker.admin.statistics.explain(NAME)).segments
    assert [name in row.damage for row in segments] == [True, False, False, False]
    with pytest.raises(CorruptionError, match=name):
        await broker.admin.subscriptions.peek(NAME, "audit", 1)
    position, *_ = await broker.admin.subscriptions.peek(NAME, "audit", EACH + 1)
    assert position.ledger_id == topic.log.segment_list.sealed[1].ledger_id


async def test_a_repair_uploads_again_what_bookies_have_and_tells_of_the_rest(house: BrokerHouse) -> None:
    archived = await Archived.make(house)
    broker = archived.broker
    await archived.lose_copy(2)
    gone, damaged = archived.damage(0, "missing"), archived.damage(1)
    lost = archived.damage(2)
    await broker.admin.topics.unload(NAME)
    report = await broker.admin.archive.repair(here=False)
    assert (report.segments, report.repaired, report.errors) == (SEGMENTS, 2, [])
    [line] = report.damaged
    assert lost in line and str(archived.ledgers[2]) in line and str(NAME) in line
    assert list(house.archive.damaged) == [lost]
    assert damaged not in archived.faults.objects and gone not in archived.faults.objects
    verified = await broker.admin.archive.verify(delete_orphans=False)
    assert len(verified.damaged) == 1 and lost in verified.damaged[0]
    loaded = broker.registry.find(NAME)
    assert isinstance(loaded, Topic)
    for number in (0, 1):
        await loaded.log.meta_store.off_bookies(archived.ledgers[number])
        await broker.services.ledgers.delete(archived.ledgers[number])
        assert await loaded.log.read(Position(archived.ledgers[number], 0), 1000)
    assert (await broker.admin.statistics.stats(NAME)).damaged_segments[0].ledger_id == archived.ledgers[2]


@pytest.mark.parametrize("first_on_bookies", [True, False])
async def test_a_repair_puts_together_what_is_damaged_in_different_places(
    house: BrokerHouse, first_on_bookies: bool
) -> None:
    """The object lacks one block, the bookies another one: readers get all of it, and so does a repair."""
    broker = await house.start()
    client = pulsar.Client(broker.service_url, logger=QUIET)

    def publish_large() -> None:
        producer = client.create_producer(str(NAME))
        for number in range(3):  # more than is fetched of the object at once
            producer.send(b"%d" % number + b" " * (4 * MIB))
        producer.close()

    await in_thread(publish_large)
    assert (await broker.admin.archive.run(seal=True, here=True)).archived == 1
    topic = broker.registry.find(NAME)
    assert isinstance(topic, Topic) and isinstance(house.archive.store, MemoryObjectStore)
    topic.log.tail.clear()
    [segment] = topic.log.segment_list.sealed
    assert segment.archive is not None
    house.archive.store.faults.flip(
        segment.archive.name, segment.archive.bytes - 1000 if first_on_bookies else 60
    )
    for bookie in house.cluster.bookies:
        if segment.ledger_id in bookie.ledgers:
            bookie.flip(segment.ledger_id, 0 if first_on_bookies else 2)
    report = await broker.admin.archive.repair(here=False)
    assert (report.repaired, report.errors, report.damaged) == (1, [], [])
    assert not house.archive.damaged
    await topic.log.meta_store.off_bookies(segment.ledger_id)
    await broker.services.ledgers.delete(segment.ledger_id)
    assert await in_thread(lambda: read_all(client)) == [0, 1, 2]
    await in_thread(client.close)


async def test_an_explanation_says_why_archiving_fails(house: BrokerHouse) -> None:
    broker = await house.start()
    client = pulsar.Client(broker.service_url, logger=QUIET)
    await in_thread(lambda: publish(client, range(EACH)))
    assert isinstance(house.archive.store, MemoryObjectStore)
    house.archive.store.faults.fail_next("write", Unavailable("the bucket is away"))
    await broker.admin.archive.run(seal=True, here=True)
    [sealed, _] = (await broker.admin.statistics.explain(NAME)).segments
    assert "will be retried" in sealed.bookies.why and "the bucket is away" in sealed.bookies.why
    assert (await broker.admin.archive.run(seal=False, here=True)).archived == 1
    [sealed, _] = (await broker.admin.statistics.explain(NAME)).segments
    assert sealed.bookies.by == "lag"
    await in_thread(client.close)


async def test_verifying_measures_the_publish_times_of_segments_of_older_versions(house: BrokerHouse) -> None:
    archived = await Archived.make(house)
    topic, broker = archived.topic, archived.broker
    measured = list(topic.log.segment_list.sealed)
    assert all(one.publish_max_ms for one in measured)
    names = [one.ledger_id for one in measured[:2]]
    for ledger_id in names:  # as before publish times were recorded
        await topic.log.meta_store.measured(ledger_id, Unmeasured())
    assert not any(one.publish_max_ms for one in topic.log.segment_list.sealed[:2])
    archived.damage(1)
    await broker.admin.topics.unload(NAME)
    assert len((await broker.admin.archive.verify(delete_orphans=False)).damaged) == 1
    loaded = broker.registry.find(NAME)
    assert isinstance(loaded, Topic)
    found = list(loaded.log.segment_list.sealed)
    assert found[0] == measured[0] and found[2] == measured[2]
    assert found[1].publish_max_ms == 0, "a damaged object measures nothing"


class Unmeasured(PublishTimes):
    """Publish times in the record of a segment that an older version archived: none."""

    def __init__(self) -> None:
        self.min_ms = self.max_ms = 0
        self.ahead_ms = None  # type: ignore[assignment]
