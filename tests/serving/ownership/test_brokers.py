"""Stock clients and several brokers: lookups, a broker that stops, one that is killed, one that sleeps too long."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import ClassVar

import aiohttp
import pulsar
import pytest

from quire.runtime.errors import NotFound, Unavailable
from quire.serving.names import TopicName
from quire.serving.ownership import shedding
from quire.serving.ownership.handovers import Handovers
from quire.serving.registry.bundles import Bundles
from tests.serving.conftest import in_thread
from tests.serving.ownership.cluster import Brokers, Member, until

WAIT_MS = 10_000
EARLIEST = pulsar.InitialPosition.Earliest


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    made = Brokers()
    yield made
    for publisher in Publisher.started:
        publisher.is_stopping = True
    Publisher.started.clear()
    await made.close()


def name(index: int) -> str:
    return f"persistent://public/default/topic-{index}"


class Publisher:
    """Sends numbers to one topic, one after the other, in a thread of its own, and remembers how long each took."""

    started: ClassVar[list[Publisher]] = []

    def __init__(self, producer: pulsar.Producer) -> None:
        self.started.append(self)
        self.producer = producer
        self.took_s: list[float] = []
        self.is_stopping = False
        self._task = asyncio.create_task(asyncio.to_thread(self._work))

    @classmethod
    async def start(cls, client: pulsar.Client, topic: str) -> Publisher:
        return cls(await in_thread(lambda: client.create_producer(topic, send_timeout_millis=30_000)))

    def _work(self) -> None:
        while not self.is_stopping:
            began = time.monotonic()
            self.producer.send(b"%d" % len(self.took_s))
            self.took_s.append(time.monotonic() - began)

    async def more(self, count: int, seconds: float = 15.0) -> None:
        """Until so many more are acknowledged."""
        wanted = len(self.took_s) + count
        await until(lambda: self._task.done() or len(self.took_s) >= wanted, seconds)

    async def end(self) -> int:
        """Stop; the number of acknowledged messages."""
        self.is_stopping = True
        await self._task
        return len(self.took_s)


def read(client: pulsar.Client, topic: str) -> list[int]:
    """Everything that is there."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(int(reader.read_next(WAIT_MS).data()))
    reader.close()
    return found


def once(found: list[int]) -> list[int]:
    """Without what is there again: a message that a broker was killed with, or dropped, is sent once more."""
    return list(dict.fromkeys(found))


async def test_clients_are_sent_away_when_a_hand_over_fails_half_way(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their topics are closed and answer nothing: who is not told to go would wait for ever."""
    member = await brokers.start()
    client = brokers.client()
    producer = await in_thread(lambda: client.create_producer(name(0)))
    await in_thread(lambda: producer.send(b"0"))
    (topic,) = member.broker.registry.persistent()
    bundle = await member.broker.registry.ownership.bundle_of(topic.topic_name)

    async def fail(*_: object) -> None:
        raise RuntimeError("a mistake of ours")

    for where in ((Handovers, "_pass_on"), (Bundles, "close_one")):
        with monkeypatch.context() as patch:
            patch.setattr(*where, fail)
            with pytest.raises(RuntimeError):
                await member.ownership.release(bundle, "a test")
        await in_thread(lambda: producer.send(b"1"))


async def test_loads_are_looked_at_again_after_a_bundle_went_meanwhile(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shedding, "REPORT_S", 0.001)
    looks = 0

    async def look(_: shedding.LoadShedding) -> None:
        nonlocal looks
        looks += 1
        raise NotFound("no broker owns a bundle public/default/00000000_20000000")

    monkeypatch.setattr(shedding.LoadShedding, "shed", look)
    await brokers.start()
    await until(lambda: looks > 2)


async def test_topics_spread_over_brokers_and_clients_find_them(brokers: Brokers) -> None:
    one, two = await brokers.start(), await brokers.start()
    client = brokers.client(one)

    def work() -> None:
        producers = [client.create_producer(name(index)) for index in range(30)]
        for index, producer in enumerate(producers):
            producer.send(b"%d" % index)

    await in_thread(work)
    assert len(one.topics()) > 3 and len(two.topics()) > 3
    assert sorted(one.topics() + two.topics()) == sorted(map(name, range(30)))
    found = await in_thread(lambda: [read(client, name(index))[0] for index in range(30)])
    assert found == list(range(30))


async def test_a_client_that_comes_with_an_old_address_looks_up_again(brokers: Brokers) -> None:
    """The bundle moves while the producer is connected; then it moves again."""
    one, two = await brokers.start(), await brokers.start()
    client = brokers.client()
    publisher = await Publisher.start(client, name(1))
    await publisher.more(5)
    for _ in range(2):
        owner = brokers.owner(name(1))
        assert owner is not None
        other = two if owner is one else one
        for member in brokers.members:
            member.ownership.reports.sent.clear()
        await owned_by(brokers, other, publisher)
    count = await publisher.end()
    assert await in_thread(lambda: read(client, name(1))) == list(range(count))


async def move(brokers: Brokers, topic: str) -> None:
    """Give the topic's bundle away; for everybody its owner seems to have much load, so the other one gets it."""
    owner = brokers.owner(topic)
    assert owner is not None
    for member in brokers.members:
        member.ownership.reports.sent[owner.name] += 1_000_000
    bundle = await owner.broker.registry.ownership.bundle_of(TopicName.parse(topic))
    await owner.ownership.release(bundle, "a test moves it")


async def owned_by(brokers: Brokers, wanted: Member, publisher: Publisher) -> None:
    """See to it that `wanted` serves the publisher's topic."""
    if brokers.owner(name(1)) is not wanted:
        await move(brokers, name(1))
        await publisher.more(5)
    assert brokers.owner(name(1)) is wanted


async def test_a_stop_hands_everything_over(brokers: Brokers) -> None:
    one, two = await brokers.start(), await brokers.start()
    client = brokers.client(two)
    publisher = await Publisher.start(client, name(1))
    await publisher.more(5)
    await owned_by(brokers, one, publisher)
    await brokers.stop(one)
    await publisher.more(5)
    assert brokers.owner(name(1)) is two
    count = await publisher.end()
    assert max(publisher.took_s) < 2.0
    assert await in_thread(lambda: read(client, name(1))) == list(range(count))


async def test_publishing_goes_on_when_a_broker_is_killed(brokers: Brokers) -> None:
    one, two = await brokers.start(), await brokers.start()
    client = brokers.client(two)
    publisher = await Publisher.start(client, name(1))
    await publisher.more(5)
    await owned_by(brokers, one, publisher)
    await brokers.kill(one)
    await publisher.more(5)
    assert brokers.owner(name(1)) is two
    count = await publisher.end()
    assert max(publisher.took_s) < two.store.session_timeout_ms / 1000 + 2.0
    assert once(await in_thread(lambda: read(client, name(1)))) == list(range(count))


async def test_two_brokers_that_both_believe_to_own_a_topic(brokers: Brokers) -> None:
    """A broker sleeps through its session's end and wakes: it believes, it has clients; at most one confirms."""
    one, two = await brokers.start(), await brokers.start()
    first, second = brokers.client(one), brokers.client(two)
    publisher = await Publisher.start(first, name(1))
    await publisher.more(5)
    await owned_by(brokers, one, publisher)
    before = await publisher.end()

    one.fall_asleep()
    await until(
        lambda: one.name not in two.ownership.reports.registered()
    )  # else a lookup may still lead to it
    other = await Publisher.start(second, name(1))
    await other.more(5)
    assert name(1) in one.topics() and name(1) in two.topics()

    # Asleep, it heard of nothing. Its client sends on; what it sends is confirmed by nobody but the real owner.
    late = asyncio.create_task(in_thread(lambda: publisher.producer.send(b"-1")))
    await until(lambda: name(1) not in one.topics())
    bundle = await one.broker.registry.ownership.bundle_of(TopicName.parse(name(1)))
    await until(lambda: not one.ownership.holds(bundle))  # the conflict made it look, asleep as it is
    await late
    after = await other.end()
    assert name(1) in two.topics()
    one.wake()
    found = await in_thread(lambda: read(second, name(1)))
    assert sorted(found) == sorted([*range(before), *range(after), -1])
    assert [number for number in found[before:] if number >= 0] == list(range(after))


async def test_a_broker_in_doubt_serves_on_and_answers_no_lookups(brokers: Brokers) -> None:
    one, two = await brokers.start(), await brokers.start()
    client = brokers.client()
    publisher = await Publisher.start(client, name(1))
    await publisher.more(5)
    await owned_by(brokers, one, publisher)
    for member in (one, two):
        member.store.suspend()
    await publisher.more(20)
    assert max(publisher.took_s[-20:]) < 0.5
    with pytest.raises(Unavailable):
        await one.broker.sessions.topics.look_up(name(1), take=False)
    assert one.broker.why_not_ready()
    for member in (one, two):
        member.store.resume()
    await publisher.more(5)
    assert (await two.broker.sessions.topics.look_up(name(1), take=False)).broker_id == one.name
    count = await publisher.end()
    assert await in_thread(lambda: read(client, name(1))) == list(range(count))


async def test_beyond_the_time_out_a_broker_drops_what_it_owned_and_comes_back(brokers: Brokers) -> None:
    one = await brokers.start()
    client = brokers.client()
    publisher = await Publisher.start(client, name(1))
    await publisher.more(5)
    one.store.suspend()
    await until(lambda: not one.topics())
    one.store.expire()
    await publisher.more(5)
    assert one.topics() == [name(1)]
    count = await publisher.end()
    assert once(await in_thread(lambda: read(client, name(1)))) == list(range(count))


async def test_cursors_move_with_their_bundle(brokers: Brokers) -> None:
    one, two = await brokers.start(), await brokers.start()
    client = brokers.client()
    publisher = await Publisher.start(client, name(1))
    consumer = await in_thread(lambda: client.subscribe(name(1), "s", initial_position=EARLIEST))

    def take(count: int) -> list[int]:
        messages = [consumer.receive(WAIT_MS) for _ in range(count)]
        for message in messages:
            consumer.acknowledge(message)
        return [int(message.data()) for message in messages]

    found = await in_thread(lambda: take(10))
    for target in (one, two, one):
        await owned_by(brokers, target, publisher)
        for member in brokers.members:
            member.ownership.reports.sent.clear()
        found += await in_thread(lambda: take(10))
    assert list(dict.fromkeys(found)) == list(range(max(found) + 1))
    await publisher.end()


async def test_rest_requests_are_sent_to_the_owner(brokers: Brokers) -> None:
    one, two = await brokers.start(), await brokers.start()
    client = brokers.client()

    def publish() -> None:
        for index in range(12):
            client.create_producer(f"{name(0)}-partition-{index}").send(b"x")

    for member in (one, two):
        path = "/admin/v2/persistent/public/default"
        async with aiohttp.ClientSession(member.broker.addresses.http_url) as http:
            if member is one:
                await http.put(f"{path}/topic-0/partitions", json=12)
                await in_thread(publish)
            for index in range(12):
                partition = f"{path}/topic-0-partition-{index}"
                stats = await (await http.get(f"{partition}/stats")).json()
                assert stats["msgInCounter"] == 1
                answer = await http.get(f"{partition}/stats", allow_redirects=False)
                owner = brokers.owner(f"{name(0)}-partition-{index}")
                assert owner is not None
                assert answer.status == (200 if owner is member else 307)
                looked_up = await (
                    await http.get(f"/lookup/v2/topic{partition.removeprefix('/admin/v2')}")
                ).json()
                assert looked_up["brokerUrl"] == owner.url
            whole = await (await http.get(f"{path}/topic-0/partitioned-stats")).json()
            assert whole["msgInCounter"] == 12 and len(whole["partitions"]) == 12
    assert one.topics() and two.topics()
    async with aiohttp.ClientSession(one.broker.addresses.http_url) as http:
        answer = await http.delete(f"{path}/topic-0/partitions")
        assert answer.status == 412
        answer = await http.delete(f"{path}/topic-0/partitions?force=true")
        assert answer.status == 204, await answer.text()
    assert not one.topics() and not two.topics()


async def test_who_owns_what_and_a_bundle_moved_by_hand(brokers: Brokers) -> None:
    one, two = await brokers.start(), await brokers.start()
    publisher = await Publisher.start(brokers.client(), name(1))
    await publisher.more(5)
    await owned_by(brokers, one, publisher)
    for member in (one, two):
        await member.ownership.shedding.shed()
    await until(lambda: all("broker-0" in m.ownership.reports.reported() for m in (one, two)))
    async with aiohttp.ClientSession(two.broker.addresses.http_url) as http:
        rows = await (await http.get("/quire/v1/brokers")).json()
        assert [row["broker"] for row in rows] == ["broker-0", "broker-1"]
        bundles = [
            row
            for row in await (await http.get("/quire/v1/brokers/bundles")).json()
            if row["broker"] == "broker-0"
        ]
        assert [row["topics"] for row in bundles] == [1]
        assert bundles[0]["why"] and bundles[0]["sinceMs"] > 0
        for member in (one, two):
            member.ownership.reports.sent["broker-0"] += 1_000_000
        answer = await http.put(f"/quire/v1/brokers/bundles/{bundles[0]['bundle']}/unload")
        assert answer.status == 204, await answer.text()
        answer = await http.put("/quire/v1/brokers/bundles/public/default/none/unload")
        assert answer.status == 404
    await publisher.more(5)
    assert brokers.owner(name(1)) is two
    await publisher.end()


async def test_a_thousand_lookups_at_once_take_a_bundle_once(brokers: Brokers) -> None:
    one, two = await brokers.start(), await brokers.start()
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    for member in (one, two):
        member.answer_late(random.Random(seed))
    for round_ in range(3):
        asked = [
            member.broker.sessions.topics.look_up(name(1), take=False)
            for member in (one, two)
            for _ in range(500)
        ]
        answers = await asyncio.gather(*asked)
        owners = {owner.broker_id for owner in answers}
        taken = await asyncio.gather(
            *(one.broker.sessions.topics.look_up(name(1), take=True) for _ in range(100))
        )
        assert {owner.broker_id for owner in taken} <= owners
        owner = next(member for member in (one, two) if member.name == taken[0].broker_id)
        bundle = await one.broker.registry.ownership.bundle_of(TopicName.parse(name(1)))
        late = [one.broker.sessions.topics.look_up(name(1), take=True) for _ in range(100)]
        released, *found = await asyncio.gather(owner.ownership.release(bundle, f"round {round_}"), *late)
        assert released is None and {one.broker_id for one in found} <= {"broker-0", "broker-1"}
