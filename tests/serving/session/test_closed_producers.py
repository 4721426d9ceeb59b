"""What a producer sent before it was closed and what waits in its session then: nobody outside a topic publishes to it.

And a PRODUCER or SUBSCRIBE with an id that the connection has already, as clients send that gave the first one up.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.metadata.records import PublishRate
from quire.serving.broker import Broker
from quire.serving.model.ports import Position
from quire.serving.names import TopicName
from quire.serving.topic.producers import Admission
from quire.wire import block as blocks
from quire.wire import commands, message
from quire.wire import pulsar_pb2 as pb
from quire.wire.commands import Command
from tests.serving.conftest import BrokerHouse
from tests.serving.session.test_back_pressure import connected, limit, publishing, send
from tests.serving.session.test_connection import TOPIC, Client, entry, kinds, producer, subscribe

NAME = TopicName.parse(TOPIC)
NON_PERSISTENT = "non-persistent://public/default/closed"
EXCLUSIVE = pb.ProducerAccessMode.Exclusive
FENCING = pb.ProducerAccessMode.ExclusiveWithFencing


async def contents(broker: Broker) -> list[bytes]:
    """The payloads that are confirmed."""
    topic: Any = broker.registry.find(NAME)
    found: list[bytes] = []
    position = topic.log.first_position()
    while position <= topic.log.last_confirmed:
        for block in await topic.log.read(position, 1 << 20):
            header = blocks.peek(block)
            found += [bytes(message.read_metadata(one)[1]) for one in blocks.entries(block, header)]
            position = topic.log.next_position(Position(header.ledger_id, header.last_entry))
    return found


def publish(client: Client, *numbers: int, payload: str = "m{}", producer_id: int = 1) -> None:
    """One SEND per read of the socket."""
    for number in numbers:
        client.send(*commands.send(producer_id, number, 1, entry(payload.format(number).encode())))


async def throttled(broker: Broker, **more: Any) -> Client:
    """A producer that has sent 60 messages, of which all but the first wait in its session."""
    await limit(broker, TOPIC, publish_rate=PublishRate(messages_per_s=1))
    client = await connected(broker)
    client.send(producer(1, 1, **more))
    await client.answers(1)
    publish(client, *range(60), payload="old-{}")
    assert broker.sessions.context.held.held_bytes > 0
    return client


async def unthrottled(broker: Broker) -> None:
    """Everybody who waits for the topic's rate may go on now."""
    topic = broker.registry.find(NAME)
    assert topic is not None and topic.applied.publish_limiter is not None
    topic.applied.publish_limiter.open()
    for _ in range(20):
        await asyncio.sleep(0)
    await topic.log.publisher.flushed()  # type: ignore[union-attr]


async def test_a_fenced_producer_publishes_nothing_more(broker: Broker) -> None:
    old, new = await throttled(broker, producer_access_mode=EXCLUSIVE), await connected(broker)
    new.send(producer(2, 2, producer_access_mode=FENCING))
    (welcome,) = await new.answers(1)
    assert isinstance(welcome.body, pb.CommandProducerSuccess) and welcome.body.producer_ready
    seen = await contents(broker)
    assert broker.sessions.context.held.held_bytes == 0, "what waited is dropped"
    await unthrottled(broker)
    publish(old, 60, 61)
    await unthrottled(broker)
    assert await contents(broker) == seen, "the new leader was told that it is alone"
    said = kinds(old.received())
    assert said.count("SEND_RECEIPT") == len(seen) and said.count("CLOSE_PRODUCER") == 1


async def test_a_terminated_topic_ends_where_it_was_said_to_end(broker: Broker) -> None:
    old = await throttled(broker)
    last = await broker.admin.topics.terminate(NAME)
    await unthrottled(broker)
    topic = broker.registry.find(NAME)
    assert topic is not None and topic.log.last_confirmed == last
    assert kinds(old.received()).count("SEND_RECEIPT") == len(await contents(broker))
    assert broker.sessions.context.held.held_bytes == 0 and broker.services.budget.held_bytes == 0


async def test_a_producer_that_a_quota_closed_publishes_nothing_more(broker: Broker) -> None:
    old = await throttled(broker)
    topic: Any = broker.registry.find(NAME)
    topic.producers.close_all()
    await unthrottled(broker)
    before = await contents(broker)
    old.send(producer(3, 1, producer_name="again"))
    for _ in range(100):
        await asyncio.sleep(0)
    assert "PRODUCER_SUCCESS" in kinds(old.received())
    await unthrottled(broker)
    assert await contents(broker) == before, "what waited for the former one is not the new one's"


async def test_what_a_full_topic_keeps_waiting_is_dropped_with_its_producer(broker: Broker) -> None:
    client = await publishing(broker, TOPIC)
    topic: Any = broker.registry.find(NAME)
    topic.log.publisher.share.topic_bytes_max = 1
    send(client, 1, 0)
    send(client, 1, 1)
    assert broker.sessions.context.held.held_bytes > 0
    topic.producers.close_all()
    await topic.log.publisher.flushed()
    assert broker.sessions.context.held.held_bytes == 0 and await contents(broker) == [b"payload"]


@pytest.mark.parametrize("topic", [TOPIC, NON_PERSISTENT])
async def test_an_old_connection_publishes_nothing_behind_the_new_one(broker: Broker, topic: str) -> None:
    old, new = await connected(broker), await connected(broker)
    shared = {"producer_name": "gen-1", "user_provided_producer_name": False}
    old.send(producer(1, 1, topic, epoch=0, **shared))
    await old.answers(1)
    publish(old, 0)
    await old.answers(1)
    new.send(producer(2, 1, topic, epoch=1, **shared))
    assert kinds(await new.answers(1)) == ["PRODUCER_SUCCESS"]
    publish(new, 1, 2, 3)
    await new.answers(3)
    publish(old, 1, 2)
    loaded = broker.registry.find(TopicName.parse(topic))
    assert loaded is not None
    if topic == TOPIC:
        await loaded.log.publisher.flushed()  # type: ignore[union-attr]
        assert await contents(broker) == [b"m0", b"m1", b"m2", b"m3"]
    assert loaded.received.messages == 4
    assert old.received() == [], "its client is elsewhere: a CLOSE_PRODUCER would make it come back again"
    old.send(commands.close_producer(1, 9))
    assert kinds(await old.answers(1)) == ["SUCCESS"]
    assert len(loaded.producers.all()) == 1, "which is none of the new one's business"


async def test_nor_when_it_waited_or_has_exclusive_access(broker: Broker) -> None:
    generated: dict[str, Any] = {
        "producer_name": "gen-1",
        "user_provided_producer_name": False,
        "producer_access_mode": EXCLUSIVE,
    }
    old, new = await throttled(broker, **generated), await connected(broker)
    new.send(producer(2, 1, epoch=1, topic_epoch=0, **generated))
    assert kinds(await new.answers(1)) == ["PRODUCER_SUCCESS"]
    seen = await contents(broker)
    await unthrottled(broker)
    publish(old, 99)
    await unthrottled(broker)
    assert await contents(broker) == seen
    assert broker.sessions.context.held.held_bytes == 0


async def test_publishing_from_outside_is_a_mistake_of_ours(broker: Broker) -> None:
    client = await publishing(broker, TOPIC)
    topic: Any = broker.registry.find(NAME)
    outside = client.connection.producers[1]
    outside.admission = Admission()
    with pytest.raises(AssertionError, match="outside publishes"):
        topic.publish(outside, None)
    with pytest.raises(AssertionError, match="outside publishes"):
        topic.publish_chunk(outside, None)


async def test_who_is_told_that_it_is_alone_finds_what_was_published_before(house: BrokerHouse) -> None:
    broker = await house.start()
    old, new = await publishing(broker, TOPIC), await connected(broker)
    for number in range(20):
        new.send(producer(10 + number, 10 + number, producer_access_mode=FENCING))
        publish(old, number)
        await new.answers(1)
        assert await contents(broker) == [b"m%d" % one for one in range(number + 1)]
        new.send(commands.close_producer(10 + number, 100 + number))
        await new.answers(1)
        old.send(producer(50 + number, 1))
        assert sorted(kinds(await old.answers(3))) == ["CLOSE_PRODUCER", "PRODUCER_SUCCESS", "SEND_RECEIPT"]


# -- ids that are there already --------------------------------------------------------------------------


async def one(client: Client) -> Command:
    (answer,) = await client.answers(1)
    return answer


async def test_a_producer_that_is_there_already_is_the_answer(broker: Broker) -> None:
    client = await connected(broker)
    client.send(producer(1, 1, producer_name="mine"))
    first = await one(client)
    client.send(producer(2, 1, producer_name="mine", epoch=1))
    second = await one(client)
    assert isinstance(first.body, pb.CommandProducerSuccess) and isinstance(
        second.body, pb.CommandProducerSuccess
    )
    assert (second.body.request_id, second.body.producer_name) == (2, "mine")
    publish(client, 0)
    assert kinds(await client.answers(1)) == ["SEND_RECEIPT"]
    client.send(producer(3, 1, f"{TOPIC}-other"))
    other = await one(client)
    assert isinstance(other.body, pb.CommandError) and other.body.error == pb.ProducerBusy


async def test_a_consumer_that_is_there_already_is_the_answer(broker: Broker) -> None:
    client = await connected(broker)
    client.send(subscribe(1), subscribe(2))
    early, first = await client.answers(2)
    assert isinstance(early.body, pb.CommandError) and early.body.error == pb.ServiceNotReady
    assert early.body.request_id == 2 and kinds([first]) == ["SUCCESS"]
    client.send(subscribe(3))
    assert kinds([await one(client)]) == ["SUCCESS"]
    client.send(subscribe(4, subscription="another"))
    other = await one(client)
    assert isinstance(other.body, pb.CommandError) and other.body.error == pb.ConsumerBusy


async def test_while_a_producer_is_being_created_its_client_is_to_try_again(broker: Broker) -> None:
    client = await connected(broker)
    client.send(producer(1, 1), producer(2, 1))
    early, first = await client.answers(2)
    assert isinstance(early.body, pb.CommandError) and early.body.error == pb.ServiceNotReady
    assert early.body.request_id == 2 and kinds([first]) == ["PRODUCER_SUCCESS"]


async def test_a_producer_that_is_closed_and_made_again_in_one_breath(broker: Broker) -> None:
    client = await throttled(broker)
    before = broker.sessions.context.held.held_bytes
    client.send(commands.close_producer(1, 8), producer(9, 1))
    assert broker.sessions.context.held.held_bytes > before, "both wait behind what was sent"
    topic: Any = broker.registry.find(NAME)
    while broker.sessions.context.held.held_bytes:
        topic.applied.publish_limiter.open()
        await asyncio.sleep(0.001)
    said: list[str] = []
    async with asyncio.timeout(60):
        while not {"SUCCESS", "PRODUCER_SUCCESS"} <= set(
            said
        ):  # the new one need not wait for what was sent before
            await asyncio.sleep(0)
            said += kinds(client.received())
    assert said.count("SEND_RECEIPT") == 60 and said.index("SUCCESS") > max(
        at for at, kind in enumerate(said) if kind == "SEND_RECEIPT"
    )


# -- requests that are answered whatever becomes of the topic ----------------------------------------------


async def test_who_closes_its_producer_hears_of_it_though_the_topic_goes_before_what_was_sent_is_confirmed(
    broker: Broker,
) -> None:
    client = await publishing(broker, TOPIC)
    topic: Any = broker.registry.find(NAME)
    topic.log.publisher.detach()
    publish(client, 0)
    client.send(commands.close_producer(1, 9))
    assert client.received() == [], "it waits for the receipt"
    topic.drop()
    assert kinds([await one(client)]) == ["SUCCESS"]


async def test_who_subscribes_while_the_topic_goes_is_answered(broker: Broker) -> None:
    """A consumer that is let in already, while others of its subscription are still being made."""
    client = await connected(broker)
    reached, may_go = asyncio.Event(), asyncio.Event()

    async def slow(*_: object, **__: object) -> None:
        reached.set()
        await may_go.wait()

    broker.partitioned.extend_subscription = slow  # type: ignore[method-assign]
    await broker.registry.create(TopicName.parse("closing"), 1)
    name = TopicName.parse("closing-partition-0")
    client.send(
        commands.subscribe(
            pb.CommandSubscribe(
                topic=str(name),
                subscription="s",
                subType=pb.CommandSubscribe.Shared,
                consumer_id=1,
                request_id=7,
            )
        )
    )
    await reached.wait()
    await broker.registry.unload(name)
    may_go.set()
    answer = await one(client)
    assert kinds([answer]) == ["SUCCESS"], "it was let in by the topic that was loaded next"
    loaded: Any = broker.registry.find(name)
    assert [len(each.consumers) for each in loaded.subscriptions] == [1]


async def test_who_subscribes_to_a_topic_that_is_loaded_again_meanwhile_is_let_in(broker: Broker) -> None:
    """What the former incarnation made, the present one would not know, and could not make either."""
    client = await connected(broker)
    await broker.registry.create(NAME)
    admit, waiting = broker.sessions.topics.admit_consumer_schema, [TOPIC]

    async def reloaded_meanwhile(topic: Any, schema: pb.Schema, *, may_add: bool) -> None:
        await admit(topic, schema, may_add=may_add)
        if waiting:
            waiting.pop()
            await broker.registry.unload(NAME)
            await broker.registry.open(NAME)

    broker.sessions.topics.admit_consumer_schema = reloaded_meanwhile  # type: ignore[method-assign]
    schema = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")
    client.send(
        commands.subscribe(
            pb.CommandSubscribe(
                topic=TOPIC,
                subscription="s",
                subType=pb.CommandSubscribe.Shared,
                consumer_id=1,
                request_id=7,
                schema=schema,
            )
        )
    )
    assert kinds([await one(client)]) == ["SUCCESS"]
