"""Every name, count and size in a client's commands has a bound, and who is refused is told why."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from quire.runtime import log
from quire.runtime.limits import NAME_CHARS_MAX, PROPERTIES_BYTES_MAX
from quire.serving.broker import Broker
from quire.serving.session import consume, produce
from quire.serving.topic import producers
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from tests.serving.conftest import BrokerHouse
from tests.serving.session.test_back_pressure import connected
from tests.serving.session.test_connection import TOPIC, Client, entry, kinds, producer, subscribe

LONG = "x" * (NAME_CHARS_MAX + 1)
EVIL = "x\n2026-11-22 07:00:00 ERROR forged: all is lost"
MUCH = [pb.KeyValue(key="k", value="v" * PROPERTIES_BYTES_MAX)]
RANGES = pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=0, end=1)] * 1001)


def subscribing(**more: Any) -> bytes:
    asked: dict[str, Any] = {
        "topic": TOPIC,
        "subscription": "s",
        "subType": pb.CommandSubscribe.Key_Shared,
        "consumer_id": 1,
        "request_id": 1,
    }
    return commands.subscribe(pb.CommandSubscribe(**{**asked, **more}))


async def refused(client: Client, frame: bytes) -> str:
    client.send(frame)
    (answer,) = await client.answers(1)
    assert isinstance(answer.body, pb.CommandError), answer
    is_nameless = "Empty subscription name" in answer.body.message  # Pulsar's code for that
    assert answer.body.error == (pb.ProducerBusy if is_nameless else pb.NotAllowedError)
    assert answer.body.request_id == 1
    assert "\n" not in answer.body.message
    return answer.body.message


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"consumer_name": LONG}, "the consumer name of 513 characters"),
        ({"consumer_name": EVIL}, "control characters"),
        ({"subscription": LONG}, "the subscription name of 513 characters"),
        ({"subscription": "a\x1b[2J"}, "control characters"),
        ({"subscription": ""}, "Empty subscription name"),
        ({"subscription": " \t"}, "Empty subscription name"),
        ({"metadata": MUCH}, "a consumer's properties"),
        ({"subscription_properties": MUCH}, "a subscription's properties"),
        ({"keySharedMeta": RANGES}, "at most 1000 key ranges"),
        ({"topic": "persistent://public/default/" + EVIL}, "control characters"),
    ],
)
async def test_a_subscribe_beyond_a_bound_is_refused(broker: Broker, more: dict[str, Any], why: str) -> None:
    client = await connected(broker)
    assert why in await refused(client, subscribing(**more))
    client.send(subscribe(2))
    assert kinds(await client.answers(1)) == ["SUCCESS"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"producer_name": LONG}, "the producer name of 513 characters"),
        ({"producer_name": EVIL}, "control characters"),
        ({"initial_subscription_name": LONG}, "the subscription name of 513 characters"),
        ({"metadata": MUCH}, "a producer's properties"),
        ({"topic": "persistent://public/default/\x00\x1b[2J"}, "control characters"),
        ({"topic": EVIL}, "control characters"),
    ],
)
async def test_a_producer_beyond_a_bound_is_refused(broker: Broker, more: dict[str, Any], why: str) -> None:
    client = await connected(broker)
    assert why in await refused(client, producer(1, 1, **more))
    client.send(producer(2))
    assert kinds(await client.answers(1)) == ["PRODUCER_SUCCESS"]


async def test_a_connection_has_so_many_producers_and_consumers(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (produce, consume):
        monkeypatch.setattr(module, "ENDS_PER_CONNECTION_MAX", 2)
    client = await connected(broker)
    client.send(producer(2, 2), producer(3, 3), subscribe(4, 4, "a"), subscribe(5, 5, "b"))
    await client.answers(4)
    assert "2 producers" in await refused(client, producer(1, 1))
    assert "2 consumers" in await refused(client, subscribing())


async def test_a_generated_name_is_short_and_nobody_else_has_it(house: BrokerHouse) -> None:
    """Each entry repeats it."""
    names = []
    for _ in range(3):
        broker = await house.start()
        names += [broker.sessions.topics.new_producer_name() for _ in range(1000)]
        await house.stop(broker)
        await asyncio.sleep(0.002)
    assert len(set(names)) == 3000
    assert max(map(len, names)) <= len(f"{broker.services.settings.cluster}-") + len("abcd-1000")


async def test_compacted_reading_of_a_topic_that_keeps_nothing_is_not_allowed(broker: Broker) -> None:
    client = await connected(broker)
    topic = "non-persistent://public/default/compacted"
    assert "compacted" in await refused(client, subscribing(topic=topic, read_compacted=True))


async def test_a_listener_that_nobody_has_is_to_be_asked_for_again(broker: Broker) -> None:
    client = await connected(broker)
    body = pb.CommandLookupTopic(topic=TOPIC, request_id=5, advertised_listener_name="outside")
    client.send(commands.frame(pb.BaseCommand(type=pb.BaseCommand.LOOKUP, lookupTopic=body)))
    (answer,) = await client.answers(1)
    assert isinstance(answer.body, pb.CommandLookupTopicResponse)
    assert answer.body.error == pb.ServiceNotReady and "'outside'" in answer.body.message


@pytest.mark.parametrize("version", ["Pulsar-Java-v4.0.7", "Pulsar Go 0.15.0"])
async def test_bytes_are_no_schema_that_has_a_version(broker: Broker, version: str) -> None:
    client = Client(broker)
    await client.connect(client_version=version)
    for kind in (pb.Schema.Bytes, pb.Schema.String):
        schema = pb.Schema(name="s", schema_data=b"", type=kind)
        body = pb.CommandGetOrCreateSchema(request_id=6, topic=TOPIC, schema=schema)
        made = pb.BaseCommand(type=pb.BaseCommand.GET_OR_CREATE_SCHEMA, getOrCreateSchema=body)
        client.send(commands.frame(made))
        (answer,) = await client.answers(1)
        assert isinstance(answer.body, pb.CommandGetOrCreateSchemaResponse)
        is_there = "Java" in version or kind == pb.Schema.String
        assert answer.body.HasField("schema_version") == is_there, "the Java client reads it without asking"
        assert bool(answer.body.schema_version) == (kind == pb.Schema.String)


async def test_a_consumer_s_statistics_tell_its_backlog(broker: Broker) -> None:
    client = await connected(broker)
    client.send(subscribe(1), producer(2))
    await client.answers(2)
    client.send(*(part for n in range(3) for part in commands.send(1, n, 1, entry())))
    await client.answers(3)
    body = pb.CommandConsumerStats(request_id=7, consumer_id=1)
    client.send(commands.frame(pb.BaseCommand(type=pb.BaseCommand.CONSUMER_STATS, consumerStats=body)))
    (answer,) = await client.answers(1)
    assert isinstance(answer.body, pb.CommandConsumerStatsResponse)
    assert answer.body.msgBacklog == 3 and answer.body.type == "Exclusive"


async def test_so_many_wait_for_exclusive_access(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_WAITING_MAX", 2)
    client = await connected(broker)
    wait = pb.ProducerAccessMode.WaitForExclusive
    client.send(*(producer(n, n, producer_access_mode=wait) for n in range(1, 5)))
    answers = await client.answers(4)
    assert sorted(kinds(answers)) == ["ERROR"] + ["PRODUCER_SUCCESS"] * 3


async def test_the_log_has_no_lines_but_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        log.configure("info")
        logging.getLogger("quire.test").warning("%s: no such topic", "x\n2026 ERROR forged\x1b[2J\x9b\u2028")
    finally:
        root.handlers[:], _ = before
        root.setLevel(before[1])
    (line,) = capsys.readouterr().err.splitlines()
    assert r"x\n2026 ERROR forged\x1b[2J\x9b\u2028: no such topic" in line


async def test_each_refused_command_is_in_the_debug_log(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    client = await connected(broker)
    with caplog.at_level(logging.DEBUG, "quire.serving.session"):
        await refused(client, subscribing(consumer_name=LONG))
        client.send(commands.ask_lookup(5, "nobody/nowhere/nothing"))
        await client.answers(1)
    told = [record.getMessage() for record in caplog.records if "request rejected" in record.getMessage()]
    assert len(told) == 2
    assert "command=SUBSCRIBE code=NotAllowedError reason=the consumer name" in told[0]
    assert "command=LOOKUP code=TopicNotFound" in told[1]
