"""How many subscriptions, consumers and producers one topic takes: who is one too many is told so, the others stay."""

from __future__ import annotations

import pytest

from quire.serving.model.ports import EARLIEST, NotAllowed
from quire.serving.names import TopicName
from quire.serving.subscription import subscription, subscriptions
from quire.serving.topic import producers
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from tests.serving.conftest import BrokerHouse
from tests.serving.session.test_connection import TOPIC, Client, producer


def shared(number: int) -> bytes:
    return commands.subscribe(
        pb.CommandSubscribe(
            topic=TOPIC,
            subscription="s0",
            subType=pb.CommandSubscribe.Shared,
            consumer_id=number,
            request_id=number,
        )
    )


async def test_one_too_many_is_refused(house: BrokerHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "SUBSCRIPTIONS_PER_TOPIC_MAX", 2)
    monkeypatch.setattr(subscription, "CONSUMERS_PER_SUBSCRIPTION_MAX", 2)
    monkeypatch.setattr(producers, "PRODUCERS_PER_TOPIC_MAX", 2)
    broker = await house.start()
    for name in ("s0", "s1"):
        await broker.admin.subscriptions.create(TopicName.parse(TOPIC), name, EARLIEST)
    with pytest.raises(NotAllowed, match="has 2 subscriptions"):
        await broker.admin.subscriptions.create(TopicName.parse(TOPIC), "s2", EARLIEST)
    client = Client(broker)
    await client.connect()
    for number in (1, 2):
        client.send(shared(number), producer(number, producer_id=number))
        await client.answers(2)
    for frame, code in ((shared(3), pb.ConsumerBusy), (producer(4, producer_id=4), pb.ProducerBusy)):
        client.send(frame)
        (answer,) = await client.answers(1)
        assert isinstance(answer.body, pb.CommandError)
        assert answer.body.error == code and "takes no more" in answer.body.message
    await broker.admin.subscriptions.delete(TopicName.parse(TOPIC), "s1")
    await broker.admin.subscriptions.create(TopicName.parse(TOPIC), "s2", EARLIEST)
