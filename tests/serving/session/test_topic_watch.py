"""Topic watchers over the protocol: what is there, what comes and goes, who is told, and what ends it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.metadata import followed, paths
from quire.metadata.records import TopicRecord, encode
from quire.runtime.limits import TOPIC_WATCHERS_PER_CONNECTION_MAX
from quire.serving.broker import Broker
from quire.serving.model.topics_pattern import topics_hash
from quire.serving.names import TopicName
from quire.serving.registry import topic_lists
from quire.serving.session import topic_watch
from quire.testing.metadata import MemoryStore
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from tests.serving.conftest import BrokerHouse
from tests.serving.ownership.cluster import Brokers
from tests.serving.session.test_connection import Client, kinds

pytest.importorskip("re2", reason="RE2 cannot be installed on this machine")
PREFIX = "persistent://public/default/"
ORDERS = f"{PREFIX}orders-.*"


def full(*names: str) -> list[str]:
    return [PREFIX + name for name in names]


class Watcher(Client):
    """A connection with a watcher, number 1."""

    def __init__(self, broker: Broker, pattern: str = ORDERS) -> None:
        super().__init__(broker)
        self.pattern = pattern
        self.known: set[str] = set()
        self.hash = ""

    async def open(self, known: str | None = None) -> pb.CommandWatchTopicListSuccess:
        await self.connect()
        return await self.watch(known)

    async def watch(self, known: str | None = None) -> pb.CommandWatchTopicListSuccess:
        self.send(commands.watch_topics(7, 1, "public/default", self.pattern, known))
        answer, *updates = await self.some()
        assert isinstance(answer.body, pb.CommandWatchTopicListSuccess), answer
        assert (answer.body.request_id, answer.body.watcher_id) == (7, 1)
        self.known, self.hash = set(answer.body.topic), answer.body.topics_hash
        for update in updates:
            self.take(update)
        return answer.body

    async def some(self) -> list[Any]:
        """What comes next, at least one command."""
        async with asyncio.timeout(60):
            while not (found := self.received()):  # noqa: ASYNC110  it is the loop that works
                await asyncio.sleep(0)
        return found

    async def knows(self, *names: str) -> None:
        """Hear updates until it knows exactly these; what it is told has the hash that we compute."""
        async with asyncio.timeout(60):
            while self.known != set(full(*names)):
                for update in await self.some():
                    self.take(update)
        assert self.hash == topics_hash(self.known)

    def take(self, update: Any) -> None:
        body = update.body
        assert isinstance(body, pb.CommandWatchTopicUpdate) and body.watcher_id == 1
        assert body.new_topics or body.deleted_topics
        assert not self.known & set(body.new_topics) and self.known >= set(body.deleted_topics)
        self.known = (self.known | set(body.new_topics)) - set(body.deleted_topics)
        self.hash = body.topics_hash


async def test_what_is_there_and_what_comes_and_goes(broker: Broker) -> None:
    await broker.registry.create(TopicName.parse("orders-a"))
    await broker.registry.create(TopicName.parse("other"))
    watcher = Watcher(broker)
    success = await watcher.open()
    assert list(success.topic) == full("orders-a") and success.topics_hash == topics_hash(full("orders-a"))
    await broker.registry.create(TopicName.parse("orders-b"))
    await watcher.knows("orders-a", "orders-b")
    await broker.admin.topics.delete(TopicName.parse("orders-a"))
    await watcher.knows("orders-b")
    await broker.registry.create(TopicName.parse("others"))
    await broker.registry.create(TopicName.parse("orders-c"))
    await watcher.knows("orders-b", "orders-c")


async def test_partitions_are_listed_one_by_one_and_growth_is_told(broker: Broker) -> None:
    watcher = Watcher(broker)
    await watcher.open()
    await broker.registry.create(TopicName.parse("orders-p"), 2)
    await watcher.knows("orders-p-partition-0", "orders-p-partition-1")
    await broker.partitioned.grow(TopicName.parse("orders-p"), 3)
    await watcher.knows(*[f"orders-p-partition-{number}" for number in range(3)])
    await broker.sessions.topics.open("orders-p-partition-1")  # now it has a record of its own
    await broker.registry.create(TopicName.parse("orders-q"))
    await watcher.knows("orders-q", *[f"orders-p-partition-{number}" for number in range(3)])
    await broker.deletion.delete_partitioned(TopicName.parse("orders-p"))
    await watcher.knows("orders-q")


async def test_who_knows_it_all_is_told_nothing_but_the_hash(broker: Broker) -> None:
    await broker.registry.create(TopicName.parse("orders-a"))
    success = await Watcher(broker).open(topics_hash(full("orders-a")))
    assert not success.topic and success.topics_hash == topics_hash(full("orders-a"))


async def test_a_list_is_followed_once_and_only_while_somebody_watches(broker: Broker) -> None:
    lists = broker.sessions.topics._lists
    watchers = [Watcher(broker), Watcher(broker, f"{PREFIX}o.*")]
    await asyncio.gather(*(one.open() for one in watchers))
    assert len(lists) == 1
    reads = broker.services.store.counts.reads
    await broker.registry.create(TopicName.parse("orders-a"))
    for one in watchers:
        await one.knows("orders-a")
    assert broker.services.store.counts.reads <= reads + 6, "a list and a read for all who watch"
    watchers[0].send(commands.watch_topics_no_more(8, 1))
    assert kinds(await watchers[0].answers(1)) == ["SUCCESS"]
    assert len(lists) == 1
    watchers[1].connection.connection_lost(None)
    assert len(lists) == 0
    await broker.registry.create(TopicName.parse("orders-b"))
    await asyncio.sleep(0)
    assert not watchers[0].received(), "nobody is told who has closed"


async def test_another_pattern_takes_the_place_of_the_first(broker: Broker) -> None:
    for name in ("orders-a", "other"):
        await broker.registry.create(TopicName.parse(name))
    watcher = Watcher(broker)
    await watcher.open()
    watcher.pattern = f"{PREFIX}oth.*"
    assert list((await watcher.watch()).topic) == full("other")
    await broker.registry.create(TopicName.parse("orders-b"))
    await broker.registry.create(TopicName.parse("oth"))
    await watcher.knows("other", "oth")


async def test_what_cannot_be_watched_is_refused_and_costs_nothing(broker: Broker) -> None:
    client = Client(broker)
    await client.connect()
    for number, (namespace, pattern, code) in enumerate(
        [
            ("public/default", "(", pb.NotAllowedError),
            ("public/default", "x" * 1000, pb.NotAllowedError),
            ("public", ORDERS, pb.NotAllowedError),
            ("public/nowhere", ORDERS, pb.TopicNotFound),
        ]
    ):
        client.send(commands.watch_topics(number, number, namespace, pattern))
        (answer,) = await client.answers(1)
        assert (answer.body.request_id, answer.body.error) == (number, code) and answer.body.message
    assert not client.connection.watchers and len(broker.sessions.topics._lists) == 0
    client.send(commands.watch_topics_no_more(9, 99))
    assert kinds(await client.answers(1)) == ["SUCCESS"]


async def test_a_connection_has_so_many_watchers_and_no_more(broker: Broker) -> None:
    client = Client(broker)
    await client.connect()
    for number in range(TOPIC_WATCHERS_PER_CONNECTION_MAX + 1):
        client.send(commands.watch_topics(number, number, "public/default", ORDERS))
    answers = await client.answers(TOPIC_WATCHERS_PER_CONNECTION_MAX + 1)
    refused = [one for one in answers if isinstance(one.body, pb.CommandError)]
    assert [one.body.request_id for one in refused] == [TOPIC_WATCHERS_PER_CONNECTION_MAX]


async def test_closing_one_that_is_being_opened_waits_for_its_answer(broker: Broker) -> None:
    client = Client(broker)
    await client.connect()
    client.send(commands.watch_topics(1, 1, "public/default", ORDERS), commands.watch_topics_no_more(2, 1))
    assert kinds(await client.answers(2)) == ["WATCH_TOPIC_LIST_SUCCESS", "SUCCESS"]
    assert not client.connection.watchers and len(broker.sessions.topics._lists) == 0


async def test_who_does_not_read_is_told_the_sum_of_it(broker: Broker) -> None:
    await broker.registry.create(TopicName.parse("orders-gone"))
    watcher = Watcher(broker)
    await watcher.open()
    bystander = Watcher(broker)
    await bystander.open()
    watcher.connection.pause_writing()
    for name in ("orders-a", "orders-b"):
        await broker.registry.create(TopicName.parse(name))
    await bystander.knows("orders-gone", "orders-a", "orders-b")
    await broker.admin.topics.delete(TopicName.parse("orders-a"))
    await broker.admin.topics.delete(TopicName.parse("orders-gone"))
    await bystander.knows("orders-b")
    assert not watcher.received()
    watcher.connection.resume_writing()
    await watcher.knows("orders-b")


async def test_a_long_list_is_sent_in_several_frames(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watch, "NAMES_BYTES_PER_FRAME", 100)
    names = [f"orders-{number}" for number in range(9)]
    for name in names:
        await broker.registry.create(TopicName.parse(name))
    watcher = Watcher(broker)
    success = await watcher.open()
    assert 0 < len(success.topic) < 9
    await watcher.knows(*names)


async def test_the_question_is_answered_by_pattern_and_by_hash(broker: Broker) -> None:
    for name in ("orders-a", "orders-b", "other"):
        await broker.registry.create(TopicName.parse(name))
    client = Client(broker)
    await client.connect()

    async def ask(*args: str | None) -> Any:
        client.send(commands.ask_topics(1, "public/default", *args))
        (answer,) = await client.answers(1)
        return answer.body

    plain = await ask()
    assert list(plain.topics) == full("orders-a", "orders-b", "other")
    assert not plain.filtered and plain.changed
    some = await ask(ORDERS)
    assert list(some.topics) == full("orders-a", "orders-b") and some.filtered and some.changed
    assert some.topics_hash == topics_hash(some.topics)
    same = await ask(ORDERS, some.topics_hash)
    assert not same.topics and not same.changed and same.topics_hash == some.topics_hash
    other = await ask("(?=x)")
    assert len(other.topics) == 3 and not other.filtered, "the client has another engine, and filters itself"


async def test_a_topic_with_partitions_that_takes_another_s_name_is_noticed_when_it_is_used(
    broker: Broker,
) -> None:
    """Between two lists nothing tells it from the former one."""
    await broker.registry.create(TopicName.parse("orders-x"))
    watcher = Watcher(broker)
    await watcher.open()
    followed = broker.sessions.topics._lists._lists["public", "default"].result()
    assert followed._task is not None
    followed._task.cancel()
    await broker.admin.topics.delete(TopicName.parse("orders-x"))
    await broker.registry.create(TopicName.parse("orders-x"), 2)
    await followed._refresh()
    assert followed.names == frozenset(full("orders-x"))
    await broker.sessions.topics.open("orders-x-partition-0")
    await followed._refresh()
    assert followed.names == frozenset(full("orders-x-partition-0", "orders-x-partition-1"))


async def test_topics_of_all_brokers_are_told_by_any() -> None:
    brokers = Brokers()
    try:
        one, two = await brokers.start(), await brokers.start()
        watcher = Watcher(two.broker)
        await watcher.open()
        await one.broker.registry.create(TopicName.parse("orders-a"))
        await one.broker.registry.create(TopicName.parse("orders-p"), 1)
        await watcher.knows("orders-a", "orders-p-partition-0")
        await one.broker.partitioned.grow(TopicName.parse("orders-p"), 2)
        await watcher.knows("orders-a", "orders-p-partition-0", "orders-p-partition-1")
    finally:
        await brokers.close()


async def test_what_changes_while_the_metadata_is_away_is_told_afterwards(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "RETRY_S", 0.01)
    broker = await house.start()
    watcher = Watcher(broker)
    await watcher.open()
    store = broker.services.store
    assert isinstance(store, MemoryStore)
    elsewhere = store.join()
    store.suspend()
    record = TopicRecord(name=f"{PREFIX}orders-a", created_ms=1)
    await elsewhere.create(paths.topic("public", "default", "orders-a"), encode(record))
    other = Client(broker)
    await other.connect()
    other.send(commands.watch_topics(1, 1, "public/other", ORDERS))
    (answer,) = await other.answers(1)
    assert answer.body.error == pb.ServiceNotReady, "an outage is not an absence"
    store.resume()
    await watcher.knows("orders-a")


async def test_who_asks_again_costs_a_list_and_no_read_for_each_topic(broker: Broker) -> None:
    for number in range(20):
        await broker.registry.create(TopicName.parse(f"orders-{number}"))
    await broker.registry.create(TopicName.parse("orders-p"), 2)
    client = Client(broker)
    await client.connect()

    async def ask() -> int:
        before = broker.services.store.counts.reads
        client.send(commands.ask_topics(1, "public/default"))
        (answer,) = await client.answers(1)
        assert list(answer.body.topics) == await broker.fan_out.topics("public", "default", "persistent")
        return broker.services.store.counts.reads - before - listing

    before = broker.services.store.counts.reads
    await broker.fan_out.topics("public", "default", "persistent")
    listing = broker.services.store.counts.reads - before
    assert await ask() > 20
    assert await ask() <= 3
    await broker.registry.create(TopicName.parse("orders-x"))
    await broker.partitioned.grow(TopicName.parse("orders-p"), 3)
    listing += 1
    await ask()


async def test_who_asked_is_not_followed_for_ever(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_lists, "LINGER_S", 0.02)
    client = Client(broker)
    await client.connect()
    lists = broker.sessions.topics._lists
    for _ in range(3):
        client.send(commands.ask_topics(1, "public/default"))
        await client.answers(1)
        assert len(lists) == 1 and list(lists._users.values()) == [1]
    async with asyncio.timeout(60):
        while len(lists):  # noqa: ASYNC110  its timer is the loop's
            await asyncio.sleep(0.005)
    assert not lists._users and not lists._requested
