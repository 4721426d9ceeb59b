"""Access modes through the stock client and through raw frames; the topic epoch over unloading and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from pulsar import ProducerAccessMode as Mode

from quire.runtime.errors import OutcomeUnknown, Unavailable
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from tests.serving.conftest import BrokerHouse, in_thread
from tests.serving.session.test_connection import Client, entry, kinds, producer

TOPIC = "persistent://public/default/access"
NAME = TopicName.parse(TOPIC)
Wire = pb.ProducerAccessMode


async def connected(broker: Broker) -> Client:
    client = Client(broker)
    await client.connect()
    return client


async def ask(client: Client, request_id: int, mode: str, **more: Any) -> Any:
    """The first answer to a PRODUCER; its id is that of the request."""
    wanted = Wire.Value(mode)
    client.send(producer(request_id, request_id, TOPIC, producer_access_mode=wanted, **more))
    (answer,) = await client.answers(1)
    assert answer.body.request_id == request_id  # type: ignore[attr-defined]
    return answer.body


def epoch_in_record(broker: Broker) -> int:
    topic = broker.registry.find(NAME)
    assert topic is not None
    return topic.log.segment_list.record.topic_epoch


async def test_who_waits_is_told_twice(broker: Broker) -> None:
    first, second = await connected(broker), await connected(broker)
    held = await ask(first, 1, "Exclusive")
    assert (held.producer_ready, held.topic_epoch) == (True, 0)
    told = await ask(second, 2, "WaitForExclusive", producer_name="standby", user_provided_producer_name=True)
    assert not told.producer_ready
    first.send(commands.close_producer(1, 9))
    (again,) = await second.answers(1)
    assert (again.body.request_id, again.body.producer_ready, again.body.topic_epoch) == (2, True, 1)  # type: ignore[attr-defined]
    second.send(*commands.send(2, 0, 1, entry()))
    assert kinds(await second.answers(1)) == ["SEND_RECEIPT"]


async def test_who_waits_may_not_send(broker: Broker) -> None:
    first, second = await connected(broker), await connected(broker)
    await ask(first, 1, "Exclusive")
    await ask(second, 2, "WaitForExclusive")
    second.send(*commands.send(2, 0, 1, entry()))
    assert kinds(await second.answers(1)) == ["ERROR"]
    assert second.transport.closed and not first.transport.closed
    assert broker.services.budget.held_bytes == 0


async def test_refusals_have_their_codes(broker: Broker) -> None:
    first, second = await connected(broker), await connected(broker)
    await ask(first, 1, "Exclusive")
    assert (await ask(second, 2, "Shared")).error == pb.ProducerBusy
    assert (await ask(second, 3, "Exclusive")).error == pb.ProducerFenced
    assert not (await ask(second, 4, "WaitForExclusive")).producer_ready
    third = await connected(broker)
    assert (await ask(third, 5, "ExclusiveWithFencing")).topic_epoch == 1
    (fenced,) = await second.answers(1)
    assert (fenced.body.request_id, fenced.body.error) == (4, pb.ProducerFenced)  # type: ignore[attr-defined]
    assert kinds(await first.answers(1)) == ["CLOSE_PRODUCER"]
    assert (await ask(first, 6, "Exclusive", topic_epoch=0)).error == pb.ProducerFenced


@pytest.mark.parametrize("how", ["unload", "stop", "kill"])
async def test_the_epoch_outlives_the_broker(house: BrokerHouse, how: str) -> None:
    broker = await house.start()
    client = await connected(broker)
    await ask(client, 1, "Exclusive")
    client.connection.connection_lost(None)
    client = await connected(broker)
    assert (await ask(client, 2, "Exclusive")).topic_epoch == 1
    if how == "unload":
        await broker.admin.topics.unload(NAME)
    else:
        await (house.stop(broker) if how == "stop" else house.kill(broker))
        broker = await house.start()
    client = await connected(broker)
    assert (await ask(client, 3, "Exclusive", topic_epoch=0)).error == pb.ProducerFenced
    assert (await ask(client, 4, "Exclusive", topic_epoch=1)).topic_epoch == 1
    assert epoch_in_record(broker) == 1


async def test_shared_producers_write_nothing_down(broker: Broker) -> None:
    client = await connected(broker)
    answer = await ask(client, 1, "Shared")
    assert answer.producer_ready and not answer.HasField("topic_epoch")
    assert epoch_in_record(broker) == -1


async def test_an_epoch_that_cannot_be_written_gives_no_access(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker tries on for the client, who hears of it only when it works."""
    client = await connected(broker)
    topic = await broker.sessions.topics.open(TOPIC)
    update, failures = topic.log.meta_store.update, [Unavailable("no store"), Unavailable("no store")]

    async def failing(change: Callable[[Any], Any]) -> None:
        if failures:
            raise failures.pop()
        await update(change)

    monkeypatch.setattr(topic.log.meta_store, "update", failing)
    assert (await ask(client, 1, "Exclusive")).topic_epoch == 0
    assert failures == [] and epoch_in_record(broker) == 0


async def test_who_cannot_be_let_in_behind_another_is_sent_away(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = [await connected(broker) for _ in range(3)]
    await ask(first, 1, "Exclusive")
    await ask(second, 2, "WaitForExclusive")
    await ask(third, 3, "WaitForExclusive")
    topic = await broker.sessions.topics.open(TOPIC)
    update, failures = topic.log.meta_store.update, [OutcomeUnknown("no store")]

    async def failing(change: Callable[[Any], Any]) -> None:
        if failures:
            raise failures.pop()
        await update(change)

    monkeypatch.setattr(topic.log.meta_store, "update", failing)
    first.connection.connection_lost(None)
    assert kinds(await second.answers(1)) == ["CLOSE_PRODUCER"]
    (ready,) = await third.answers(1)
    assert ready.body.producer_ready and ready.body.topic_epoch == 1  # type: ignore[attr-defined]


async def test_unloading_sends_away_who_has_access_and_who_waits(broker: Broker) -> None:
    first, second = await connected(broker), await connected(broker)
    await ask(first, 1, "Exclusive")
    await ask(second, 2, "WaitForExclusive")
    await broker.admin.topics.unload(NAME)
    for client in (first, second):
        assert kinds(await client.answers(1)) == ["CLOSE_PRODUCER"]


async def test_nobody_comes_in_while_a_topic_is_terminated(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connected(broker)
    topic = await broker.sessions.topics.open(TOPIC)
    update, go_on = topic.log.meta_store.update, asyncio.Event()

    async def slow(change: Callable[[Any], Any]) -> None:
        await go_on.wait()
        await update(change)

    monkeypatch.setattr(topic.log.meta_store, "update", slow)
    terminating = asyncio.ensure_future(broker.admin.topics.terminate(NAME))
    await asyncio.sleep(0)
    assert (await ask(client, 1, "Shared")).error == pb.TopicTerminatedError
    go_on.set()
    last = await terminating
    assert (await ask(client, 2, "Exclusive")).error == pb.TopicTerminatedError
    assert await broker.admin.topics.terminate(NAME) == last


async def test_stock_clients_relieve_each_other(clients: Callable[[], pulsar.Client]) -> None:
    first, second = clients(), clients()
    held = await in_thread(lambda: first.create_producer(TOPIC, "a", access_mode=Mode.Exclusive))
    with pytest.raises(pulsar.ProducerFenced):
        await in_thread(lambda: second.create_producer(TOPIC, "b", access_mode=Mode.Exclusive))
    with pytest.raises(pulsar.ProducerBusy):
        await in_thread(lambda: second.create_producer(TOPIC, "b"))
    waiting = asyncio.ensure_future(
        in_thread(lambda: second.create_producer(TOPIC, "b", access_mode=Mode.WaitForExclusive))
    )
    await in_thread(lambda: held.send(b"first"))
    assert not waiting.done()
    await in_thread(held.close)
    relief = await waiting
    await in_thread(lambda: relief.send(b"second"))
    await in_thread(first.close)
    await in_thread(second.close)


async def test_a_fenced_stock_producer_stays_fenced(clients: Callable[[], pulsar.Client]) -> None:
    first, second = clients(), clients()
    old = await in_thread(lambda: first.create_producer(TOPIC, "a", access_mode=Mode.Exclusive))
    await in_thread(lambda: old.send(b"before"))
    new = await in_thread(lambda: second.create_producer(TOPIC, "b", access_mode=Mode.ExclusiveWithFencing))
    with pytest.raises(pulsar.PulsarException):
        await in_thread(lambda: old.send(b"after"))
    await in_thread(lambda: new.send(b"mine"))
    reader = await in_thread(lambda: second.create_reader(TOPIC, pulsar.MessageId.earliest))
    found = [await in_thread(lambda: reader.read_next(5_000).data()) for _ in range(2)]
    assert found == [b"before", b"mine"]
    await in_thread(first.close)
    await in_thread(second.close)
