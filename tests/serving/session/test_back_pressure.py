"""What holds a connection back, for how long, and whom it leaves alone: rates, full topics, peers that do not read."""

from __future__ import annotations

import asyncio
from typing import Any

import pulsar
import pytest
from msgspec.structs import replace

from quire.metadata.records import DispatchRate, PublishRate
from quire.runtime.limits import (
    FRAME_SLACK_BYTES,
    HELD_BYTES_PER_CONNECTION_MAX,
    MIB,
    UNREAD_ANSWERS_BYTES_MAX,
)
from quire.runtime.settings import parse_address
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.session.session import Session
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from tests.serving.conftest import BrokerHouse, in_thread
from tests.serving.session.test_connection import TOPIC, Client, entry, kinds, producer

OTHER = f"{TOPIC}-other"


async def connected(broker: Broker) -> Client:
    client = Client(broker)
    await client.connect()
    return client


async def publishing(broker: Broker, *topics: str) -> Client:
    """Producers 1, 2, ... of one connection."""
    client = await connected(broker)
    for number, topic in enumerate(topics, 1):
        client.send(producer(number, number, topic))
        assert kinds(await client.answers(1)) == ["PRODUCER_SUCCESS"]
    return client


def send(client: Client, producer_id: int, *numbers: int, payload: bytes = b"payload") -> None:
    sealed = entry(payload)
    client.send(*[part for n in numbers for part in commands.send(producer_id, n, 1, sealed)])


async def limit(broker: Broker, topic: str, **policies: Any) -> None:
    await broker.registry.open(TopicName.parse(topic), create=True)
    await broker.admin.policies.change_topic(TopicName.parse(topic), lambda old: replace(old, **policies))
    loaded = broker.registry.find(TopicName.parse(topic))
    assert loaded is not None
    for _ in range(1000):
        if loaded.applied.publish_limiter is not None:
            return
        await asyncio.sleep(0)
    raise AssertionError("the policy never held")


async def test_too_fast_a_producer_waits_and_others_of_its_connection_do_not(broker: Broker) -> None:
    await limit(broker, TOPIC, publish_rate=PublishRate(messages_per_s=40))
    client = await publishing(broker, TOPIC, OTHER)
    send(client, 1, *range(50))
    assert len(await client.answers(50)) == 50, "what comes together is taken together"
    send(client, 1, 50)
    send(client, 2, *range(20))
    answers = await client.answers(20)
    assert {one.body.producer_id for one in answers} == {2}  # type: ignore[attr-defined]
    assert client.transport.reading
    client.send(commands.close_producer(1, 9))
    assert kinds(await client.answers(2)) == ["SEND_RECEIPT", "SUCCESS"], "closing waits behind what was sent"
    assert broker.services.budget.held_bytes == 0


async def test_a_broker_s_own_rate_holds_for_its_topics_together(house: BrokerHouse) -> None:
    broker = await house.start(broker_publish_messages_per_s=40)
    client = await publishing(broker, TOPIC, OTHER)
    send(client, 1, *range(50))
    assert len(await client.answers(50)) == 50, "what comes together is taken together"
    send(client, 2, 0)
    loaded = broker.registry.find(TopicName.parse(OTHER))
    assert (
        loaded is not None
        and loaded.applied.publish_limiter is not None
        and loaded.applied.publish_limiter.waits == 1
    )
    assert kinds(await client.answers(1)) == ["SEND_RECEIPT"], "and goes on when the rate allows"


async def test_a_dispatch_rate_holds_a_consumer_back_and_its_statistics_say_so(broker: Broker) -> None:
    client = await publishing(broker, TOPIC)
    send(client, 1, *range(60))
    await client.answers(60)
    await broker.admin.policies.change_topic(
        TopicName.parse(TOPIC), lambda old: replace(old, subscription_dispatch_rate=DispatchRate(messages=40))
    )
    client.send(
        commands.subscribe(
            pb.CommandSubscribe(
                topic=TOPIC,
                subscription="s",
                subType=pb.CommandSubscribe.Shared,
                consumer_id=1,
                request_id=2,
                initialPosition=pb.CommandSubscribe.Earliest,
            )
        ),
        commands.flow(1, 1000),
    )
    assert len(await client.answers(41)) == 41, "the answer, and a second's worth"
    stats = (await broker.admin.statistics.stats(TopicName.parse(TOPIC))).subscriptions["s"]
    assert stats.blocked_reason.startswith("rate limited")
    assert len(await client.answers(20)) == 20, "the others in half a second"


async def test_what_waits_keeps_its_order(broker: Broker) -> None:
    await limit(broker, TOPIC, publish_rate=PublishRate(messages_per_s=100))
    client = await publishing(broker, TOPIC)
    for start in range(0, 200, 25):
        send(client, 1, *range(start, start + 25))
    answers = await client.answers(200)
    assert [one.body.sequence_id for one in answers] == list(range(200))  # type: ignore[attr-defined]
    entries = [one.body.message_id.entryId for one in answers]  # type: ignore[attr-defined]
    assert entries == list(range(200))


async def test_a_flood_for_a_limited_topic_stops_the_socket_and_no_other_connection(broker: Broker) -> None:
    await limit(broker, TOPIC, publish_rate=PublishRate(bytes_per_s=20_000))
    flood, other = await publishing(broker, TOPIC), await publishing(broker, OTHER)
    size = HELD_BYTES_PER_CONNECTION_MAX // 4
    for number in range(6):
        send(flood, 1, number, payload=bytes(size))
    assert not flood.transport.reading
    send(other, 1, *range(10))
    assert len(await other.answers(10)) == 10
    assert broker.sessions.context.held.held_bytes >= HELD_BYTES_PER_CONNECTION_MAX
    assert broker.services.budget.held_bytes == 0
    await broker.admin.policies.change_topic(
        TopicName.parse(TOPIC), lambda old: replace(old, publish_rate=None)
    )
    assert len(await flood.answers(6)) == 6, "without the limit nobody waits any more"
    assert (
        flood.transport.reading
        and broker.services.budget.held_bytes == broker.sessions.context.held.held_bytes == 0
    )


async def test_what_a_lost_connection_left_waiting_is_forgotten(broker: Broker) -> None:
    await limit(broker, TOPIC, publish_rate=PublishRate(messages_per_s=1))
    client = await publishing(broker, TOPIC)
    send(client, 1, *range(5))
    await client.answers(5)
    send(client, 1, 5)
    assert broker.sessions.context.held.held_bytes > 0
    client.connection.connection_lost(None)
    assert broker.sessions.context.held.held_bytes == 0
    await broker.admin.topics.unload(TopicName.parse(TOPIC))
    assert broker.sessions.context.held.held_bytes == 0
    assert (await broker.admin.statistics.internal(TopicName.parse(TOPIC))).number_of_entries == 5


async def test_a_full_topic_holds_its_producers_and_leaves_the_budget_to_others(house: BrokerHouse) -> None:
    """A topic whose ledger hangs may take its share; then only its own producers wait."""
    broker = await house.start(bytes_in_flight_max=16 * MIB)
    stuck, other = await publishing(broker, TOPIC), await publishing(broker, OTHER)
    topic = broker.registry.find(TopicName.parse(TOPIC))
    assert topic is not None
    publisher = topic.log.publisher  # type: ignore[union-attr]
    flights_max, publisher._flights_max = publisher._flights_max, 0
    for number in range(8):
        send(stuck, 1, number, payload=bytes(MIB))
    assert not stuck.transport.reading
    assert not broker.services.budget.is_spent
    send(other, 1, *range(10))
    assert len(await other.answers(10)) == 10
    publisher._flights_max = flights_max
    publisher._arm()
    answers = await stuck.answers(8)
    assert [one.body.sequence_id for one in answers] == list(range(8))  # type: ignore[attr-defined]
    assert (
        stuck.transport.reading
        and broker.services.budget.held_bytes == broker.sessions.context.held.held_bytes == 0
    )


async def stuck_topics(broker: Broker, tenant: str, count: int) -> list[tuple[Any, int, Client]]:
    """Topics of a tenant whose ledgers hang: publisher, how many blocks it may have on their way when they hang no
    more, and a client with a producer."""
    found = []
    for number in range(count):
        name = f"persistent://{tenant}/default/stuck-{number}"
        client = await publishing(broker, name)
        topic = broker.registry.find(TopicName.parse(name))
        assert topic is not None
        publisher = topic.log.publisher
        found.append((publisher, publisher._flights_max, client))  # type: ignore[union-attr]
        publisher._flights_max = 0  # type: ignore[union-attr]
    return found


async def test_a_tenant_whose_topics_are_stuck_leaves_the_budget_to_others(house: BrokerHouse) -> None:
    """Six topics with a quarter each would take it all; two of them have what their tenant may."""
    broker = await house.start(bytes_in_flight_max=16 * MIB)
    for tenant in ("greedy", "other"):
        await broker.namespaces.create_tenant(tenant)
        await broker.namespaces.create(tenant, "default")
    other = await publishing(broker, "persistent://other/default/t")
    topics = await stuck_topics(broker, "greedy", 6)
    for number in range(2):
        for _, _, client in topics:
            send(client, 1, number, payload=bytes(MIB))
            await asyncio.sleep(0)
    share = broker.services.shares.of("greedy")
    assert share.is_full and share.held_bytes < 8 * MIB + 2 * MIB
    assert not broker.services.budget.is_spent
    assert sum(not client.transport.reading for _, _, client in topics) == 4, "eight of twelve were taken"
    send(other, 1, *range(10))
    assert len(await other.answers(10)) == 10
    assert other.transport.reading and broker.metrics()["quire_serving_tenant_share_waits_total"] == 4
    for publisher, flights_max, _ in topics:
        publisher._flights_max = flights_max
        publisher._arm()
    async with asyncio.timeout(60):
        while share.held_bytes or broker.sessions.context.held.held_bytes:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    for _, _, client in topics:
        assert [one.body.sequence_id for one in client.received()] == [0, 1]
        assert client.transport.reading
    assert broker.services.budget.held_bytes == 0


async def test_a_tenant_that_is_alone_has_the_whole_budget(house: BrokerHouse) -> None:
    broker = await house.start(bytes_in_flight_max=16 * MIB)
    for tenant in ("greedy", "other"):
        await broker.namespaces.create_tenant(tenant)
        await broker.namespaces.create(tenant, "default")
    topics = await stuck_topics(broker, "greedy", 6)
    for number in range(4):
        for _, _, client in topics:
            send(client, 1, number, payload=bytes(MIB))
    assert broker.services.shares.of("greedy").held_bytes >= 15 * MIB
    assert len(broker.services.shares) == 1
    await publishing(broker, "persistent://other/default/t")
    assert len(broker.services.shares) == 2 and broker.services.shares.of("greedy").is_full
    await broker.admin.topics.unload(TopicName.parse("persistent://other/default/t"))
    assert len(broker.services.shares) == 1, "it went with its last topic"


async def test_a_peer_that_does_not_read_its_answers_is_not_read(broker: Broker) -> None:
    client = await connected(broker)
    client.connection.pause_writing()
    sent = 0
    while client.transport.reading:
        client.send(commands.PING * 40)
        sent += 40
    assert sent * len(commands.PONG) < UNREAD_ANSWERS_BYTES_MAX + 10_000
    client.connection.resume_writing()
    assert client.transport.reading
    assert kinds(await client.answers(sent)) == ["PONG"] * sent


async def test_a_peer_that_never_reads_is_dropped(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await connected(broker)
    unsent = [500]
    monkeypatch.setattr(client.transport, "get_write_buffer_size", lambda: unsent[0])
    client.connection.pause_writing()
    while client.transport.reading:
        client.send(commands.PING * 40)
    client.connection.keep_alive()
    unsent[0] = 400
    for _ in range(2):
        client.connection.keep_alive()
    assert not client.transport.closed, "it read something meanwhile"
    client.connection.keep_alive()
    assert client.transport.closed


async def test_who_waits_for_the_broker_is_not_taken_for_dead(broker: Broker) -> None:
    await limit(broker, TOPIC, publish_rate=PublishRate(bytes_per_s=100))
    client = await publishing(broker, TOPIC)
    for number in range(6):
        send(client, 1, number, payload=bytes(HELD_BYTES_PER_CONNECTION_MAX // 4))
    assert not client.transport.reading
    for _ in range(5):
        client.connection.keep_alive()
    assert not client.transport.closed
    client.connection.connection_lost(None)


async def test_a_peer_that_is_gone_is_noticed_though_it_is_not_read(broker: Broker) -> None:
    """A socket that nobody reads says nothing, and what came from it would be kept until all of it is done."""
    _, writer = await asyncio.open_connection(*parse_address(broker.service_url.partition("://")[2]))
    writer.write(commands.connect("c"))
    async with asyncio.timeout(60):
        while not any(one.peer.is_connected for one in broker.sessions.connections):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        session = next(iter(broker.sessions.connections))
        session.held.hold(HELD_BYTES_PER_CONNECTION_MAX)
        writer.transport.abort()
        while broker.sessions.connections:
            session.keep_alive()
            await asyncio.sleep(0.01)
    assert session.is_closed and broker.sessions.context.held.held_bytes == 0


async def test_many_who_wait_stop_each_other_and_not_everybody(house: BrokerHouse) -> None:
    broker = await house.start(bytes_in_flight_max=12 * MIB)
    await limit(broker, TOPIC, publish_rate=PublishRate(bytes_per_s=1000))
    floods = [await publishing(broker, TOPIC) for _ in range(20)]
    other = await publishing(broker, OTHER)
    for flood in floods:
        send(flood, 1, 0, payload=bytes(HELD_BYTES_PER_CONNECTION_MAX * 3 // 4))
    assert not floods[-1].transport.reading and floods[1].transport.reading
    assert not broker.services.budget.is_spent
    send(other, 1, *range(10))
    assert len(await other.answers(10)) == 10
    for flood in floods:
        flood.connection.connection_lost(None)
    assert broker.sessions.context.held.held_bytes == 0


async def test_a_broker_s_setting_holds_where_no_policy_says(house: BrokerHouse) -> None:
    broker = await house.start(publish_messages_per_s=50)
    client = await publishing(broker, TOPIC)
    send(client, 1, *range(60))
    assert len(await client.answers(60)) == 60
    send(client, 1, 60)
    assert broker.sessions.context.held.held_bytes > 0
    assert (await broker.admin.statistics.stats(TopicName.parse(TOPIC))).publish_rate_limited_times == 1
    assert kinds(await client.answers(1)) == ["SEND_RECEIPT"]


# -- sizes -----------------------------------------------------------------------------------------------


async def test_a_message_that_the_topic_s_policy_forbids_is_refused_in_order(broker: Broker) -> None:
    await limit(broker, TOPIC, message_bytes_max=1000)
    client = await publishing(broker, TOPIC)
    small, large = entry(b"x"), entry(bytes(2000))
    client.send(
        *[part for n in range(7) for part in commands.send(1, n, 1, large if n in (0, 3, 4) else small)]
    )
    answers = await client.answers(7)
    assert [one.body.sequence_id for one in answers] == list(range(7))  # type: ignore[attr-defined]
    refused = [one for one in answers if one.kind == pb.BaseCommand.SEND_ERROR]
    assert [one.body.sequence_id for one in refused] == [0, 3, 4]  # type: ignore[attr-defined]
    assert {one.body.error for one in refused} == {pb.NotAllowedError}  # type: ignore[attr-defined]
    assert "the limit of topic persistent://public/default/session is 1000 bytes" in refused[0].body.message  # type: ignore[attr-defined]
    assert not client.transport.closed
    assert (await broker.admin.statistics.internal(TopicName.parse(TOPIC))).number_of_entries == 4


async def test_the_largest_message_is_a_setting(house: BrokerHouse) -> None:
    broker = await house.start(message_bytes_max=100_000)
    client = Client(broker)
    client.send(commands.connect("test"))
    (answer,) = await client.answers(1)
    assert answer.body.max_message_size == 100_000  # type: ignore[attr-defined]
    client.send(producer(1))
    await client.answers(1)
    send(client, 1, 0, payload=bytes(100_000))
    assert kinds(await client.answers(1)) == ["SEND_RECEIPT"]
    send(client, 1, 1, payload=bytes(100_000 + FRAME_SLACK_BYTES))
    (error,) = await client.answers(1)
    assert kinds([error]) == ["ERROR"] and "a frame of" in error.body.message  # type: ignore[attr-defined]
    assert client.transport.closed

    def stock() -> None:
        made = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        with pytest.raises(pulsar.MessageTooBig):
            made.create_producer(OTHER).send(bytes(200_000))
        chunking = made.create_producer(OTHER, chunking_enabled=True)
        reader = made.create_reader(OTHER, pulsar.MessageId.earliest)
        chunking.send(bytes(1_000_000))
        assert reader.read_next(5000).data() == bytes(1_000_000)
        made.close()

    await in_thread(stock)


async def test_sends_behind_a_producer_that_is_being_opened_are_counted(broker: Broker) -> None:
    """A client need not wait for its success, but what it sends meanwhile is bounded like everything else."""
    client = await connected(broker)
    client.send(producer(1))
    assert isinstance(client.connection, Session)
    for number in range(5):
        send(client, 1, number, payload=bytes(HELD_BYTES_PER_CONNECTION_MAX // 4))
    assert not client.transport.reading
    assert kinds(await client.answers(6)) == ["PRODUCER_SUCCESS", *["SEND_RECEIPT"] * 5]
    assert (
        client.transport.reading
        and broker.services.budget.held_bytes == broker.sessions.context.held.held_bytes == 0
    )


@pytest.mark.parametrize("over", ["messages", "bytes"])
async def test_a_stock_producer_is_slowed_down_and_loses_nothing(broker: Broker, over: str) -> None:
    rate = PublishRate(messages_per_s=400) if over == "messages" else PublishRate(bytes_per_s=40_000)
    await limit(broker, TOPIC, publish_rate=rate)

    def run() -> list[int]:
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        made = client.create_producer(TOPIC, batching_max_messages=20, block_if_queue_full=True)
        for number in range(600):
            made.send_async(b"%04d" % number + bytes(96), None)
        made.flush()
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        found = [int(reader.read_next(5000).data()[:4]) for _ in range(600)]
        client.close()
        return found

    assert await in_thread(run) == list(range(600))
