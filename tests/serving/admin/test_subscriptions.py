"""Subscriptions over REST: created at a position, moved, skipped and deleted."""

from __future__ import annotations

import json

import pulsar
import pytest

from quire.serving.broker import Broker
from quire.wire import commands, message
from quire.wire import pulsar_pb2 as pb
from tests.serving.admin.conftest import TOPIC, Rest
from tests.serving.conftest import in_thread
from tests.serving.session.test_connection import Client, producer

NAME = "persistent://public/default/orders"
AUDIT = f"{TOPIC}/subscription/audit"


@pytest.fixture
async def sent(rest: Rest, client: pulsar.Client) -> list[pulsar.MessageId]:
    """Five messages, 0 to 4, each its own entry."""
    producer = await in_thread(lambda: client.create_producer(NAME))
    return [await in_thread(lambda i=i: producer.send(b"%d" % i)) for i in range(5)]


async def backlog(rest: Rest) -> int:
    return int((await rest.get(f"{TOPIC}/stats")).body["subscriptions"]["audit"]["msgBacklog"])


async def first(client: pulsar.Client) -> bytes:
    """What the subscription delivers next; nothing is acknowledged."""

    def work() -> bytes:
        consumer = client.subscribe(NAME, "audit")
        data: bytes = consumer.receive(5000).data()
        consumer.close()
        return data

    return await in_thread(work)


def at(message_id: pulsar.MessageId) -> dict[str, int]:
    return {"ledgerId": message_id.ledger_id(), "entryId": message_id.entry_id(), "partitionIndex": -1}


async def test_created_once_listed_and_deleted_once(rest: Rest, sent: list[pulsar.MessageId]) -> None:
    assert (await rest.put(AUDIT)).status == 204
    assert (await rest.put(AUDIT)).status == 409
    assert (await rest.get(f"{TOPIC}/subscriptions")).body == ["audit"]
    assert (await rest.delete(AUDIT)).status == 204
    assert (await rest.delete(AUDIT)).status == 404
    assert (await rest.get(f"{TOPIC}/subscriptions")).body == []


@pytest.mark.parametrize(("start", "left"), [(None, 0), ("latest", 0), ("earliest", 5)])
async def test_created_at_an_end(rest: Rest, sent: list[pulsar.MessageId], start: str, left: int) -> None:
    assert (await rest.put(AUDIT, start)).status == 204
    assert await backlog(rest) == left


async def test_created_at_pulsars_numbers_for_the_ends(rest: Rest, sent: list[pulsar.MessageId]) -> None:
    assert (await rest.put(AUDIT, {"ledgerId": -1, "entryId": -1, "partitionIndex": -1})).status == 204
    assert await backlog(rest) == 5


async def test_skipping_some_and_all(rest: Rest, client: pulsar.Client, sent: list[pulsar.MessageId]) -> None:
    await rest.put(AUDIT, "earliest")
    assert (await rest.post(f"{AUDIT}/skip/2")).status == 204
    assert await backlog(rest) == 3
    assert await first(client) == b"2"
    assert (await rest.post(f"{AUDIT}/skip_all")).status == 204
    assert await backlog(rest) == 0
    assert (await rest.post(f"{AUDIT}/skip/some")).status == 400


async def test_reset_to_a_position_and_to_a_time(
    rest: Rest, client: pulsar.Client, sent: list[pulsar.MessageId]
) -> None:
    await rest.put(AUDIT)
    assert (await rest.post(f"{AUDIT}/resetcursor", at(sent[3]))).status == 204
    assert await first(client) == b"3"
    assert (await rest.post(f"{AUDIT}/resetcursor/0")).status == 204
    assert await first(client) == b"0"
    assert await backlog(rest) == 5
    assert (await rest.post(f"{AUDIT}/resetcursor/99999999999999")).status == 204
    assert await backlog(rest) == 0


@pytest.mark.parametrize(
    "body", ["[]", '{"ledgerId": 1}', '{"ledgerId": "x", "entryId": 0}', "{", '"middle"']
)
async def test_a_position_that_is_none_is_refused(
    rest: Rest, sent: list[pulsar.MessageId], body: str
) -> None:
    assert (await rest.put(AUDIT, data=body)).status == 400
    assert (await rest.get(f"{TOPIC}/subscriptions")).body == []


@pytest.mark.parametrize("what", ["skip_all", "skip/1", "resetcursor/0", "resetcursor"])
async def test_an_unknown_subscription_is_not_found(
    rest: Rest, sent: list[pulsar.MessageId], what: str
) -> None:
    assert (await rest.post(f"{AUDIT}/{what}")).status == 404


async def test_a_subscription_in_use_is_deleted_only_by_force(rest: Rest, client: pulsar.Client) -> None:
    await in_thread(lambda: client.subscribe(NAME, "audit"))
    refused = await rest.delete(AUDIT)
    assert refused.status == 412 and refused.body["reason"]
    assert (await rest.delete(f"{AUDIT}?force=true")).status == 204


async def test_messages_are_looked_at_and_stay(rest: Rest, client: pulsar.Client) -> None:
    def work() -> None:
        producer = client.create_producer("orders")
        for number in range(4):
            producer.send(b"%d" % number, properties={"färbe": "rot\n"}, partition_key="k\n")
        consumer = client.subscribe(
            "orders", "audit", pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest
        )
        for one in [consumer.receive(10_000) for _ in range(4)]:
            if one.data() in (b"0", b"2"):
                consumer.acknowledge(one)
        consumer.close()

    await in_thread(work)
    path = f"{rest.url}{TOPIC}/subscription/audit/position"
    found = []
    for number in (1, 2):
        async with rest.session.get(f"{path}/{number}") as answer:
            assert answer.status == 200
            found.append(await answer.read())
            headers = answer.headers
    assert found == [b"1", b"3"]
    assert json.loads(headers["X-Pulsar-PROPERTY"]) == {"färbe": "rot\n"}
    assert headers["X-Pulsar-partition-key"] == "k%0A" and headers["X-Pulsar-Message-ID"].endswith(":3")
    assert (await rest.get(f"{TOPIC}/subscription/audit/position/3")).status == 404
    assert (await rest.get(f"{TOPIC}/subscription/audit/position/0")).status == 400
    assert (await rest.get(f"{TOPIC}/subscription/none/position/1")).status == 404
    assert (await rest.get(f"{TOPIC}/stats")).body["subscriptions"]["audit"]["msgBacklog"] == 2


async def peeked(rest: Rest, path: str) -> tuple[int, bytes, dict[str, str]]:
    async with rest.session.get(f"{rest.url}{path}") as answer:
        return answer.status, await answer.read(), {key.lower(): one for key, one in answer.headers.items()}


async def test_a_message_is_looked_at_by_its_id(rest: Rest, sent: list[pulsar.MessageId]) -> None:
    ledger = sent[3].ledger_id()
    status, body, headers = await peeked(rest, f"{TOPIC}/ledger/{ledger}/entry/3")
    assert (status, body, headers["x-pulsar-message-id"]) == (200, b"3", f"{ledger}:3")
    for path in (f"{ledger}/entry/5", f"{ledger + 1}/entry/0", f"{ledger - 1}/entry/0"):
        assert (await rest.get(f"{TOPIC}/ledger/{path}")).status == 404
    assert (await rest.get(f"{TOPIC}/ledger/x/entry/0")).status == 400


@pytest.mark.parametrize("published_ms", [0, 10**15, (1 << 64) - 1])
async def test_what_producers_write_is_shown_whatever_it_is(
    rest: Rest, broker: Broker, published_ms: int
) -> None:
    await rest.put(AUDIT, "earliest")
    client = Client(broker)
    await client.connect()
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=published_ms, partition_key="k" * 100_000
    )
    metadata.properties.add(key="k", value="v" * 100_000)
    client.send(producer(1, 1, NAME), b"".join(commands.send(1, 0, 1, message.seal(metadata, b"x"))))
    await client.answers(2)
    status, body, headers = await peeked(rest, f"{AUDIT}/position/1")
    assert (status, body) == (200, b"x")
    assert sum(len(name) + len(value) for name, value in headers.items()) < 1000
    assert "x-pulsar-property-left-out" in headers and "x-pulsar-partition-key-left-out" in headers


async def test_a_position_may_be_excluded(rest: Rest, sent: list[pulsar.MessageId]) -> None:
    await rest.put(AUDIT, "earliest")
    assert (await rest.post(f"{AUDIT}/resetcursor", {**at(sent[2]), "isExcluded": True})).status == 204
    assert await backlog(rest) == 2
    assert (await rest.post(f"{AUDIT}/resetcursor", {**at(sent[2]), "excluded": True})).status == 204
    assert await backlog(rest) == 2, "as the Java client says it"
    assert (await rest.post(f"{AUDIT}/expireMessages", at(sent[3]))).status == 204
    assert await backlog(rest) == 1
    assert (await rest.post(f"{AUDIT}/expireMessages", "latest")).status == 400


async def test_a_subscription_of_a_partitioned_topic_is_one_thing(
    rest: Rest, client: pulsar.Client, broker: Broker
) -> None:
    await rest.put(f"{TOPIC}/partitions", 3)
    assert (await rest.get(f"{TOPIC}/subscriptions")).body == []
    assert (await rest.put(AUDIT)).status == 204
    assert (await rest.put(AUDIT)).status == 409
    assert (await rest.get(f"{TOPIC}/subscriptions")).body == ["audit"]
    for number in range(3):
        partition = f"{NAME}-partition-{number}"
        await in_thread(lambda partition=partition: client.create_producer(partition).send(b"x"))
    assert await backlog(rest) == 3, "also where nobody had been"
    assert (await rest.post(f"{AUDIT}/skip_all")).status == 204
    assert await backlog(rest) == 0
    for what, body in (("resetcursor/0", None), ("resetcursor", "earliest")):
        await rest.post(f"{AUDIT}/skip_all")
        assert (await rest.post(f"{AUDIT}/{what}", body)).status == 204
        assert await backlog(rest) == 3
    assert (await rest.post(f"{AUDIT}/expireMessages/3600")).status == 204
    assert (await rest.post(f"{TOPIC}/all_subscription/expireMessages/3600")).status == 204
    assert await backlog(rest) == 3
    for what in ("resetcursor", "expireMessages", "skip/1"):
        answer = await rest.post(f"{AUDIT}/{what}", {"ledgerId": 1, "entryId": 1})
        assert answer.status == 405 and "partition" in answer.body["reason"]
    assert (await rest.get(f"{AUDIT}/position/1")).status == 405
    assert (await rest.delete(f"{TOPIC}-partition-1/subscription/audit")).status == 204
    assert (await rest.delete(AUDIT)).status == 204, "those that have it"
    assert (await rest.delete(AUDIT)).status == 404
    for what in ("skip_all", "resetcursor/0", "resetcursor", "expireMessages/1"):
        assert (await rest.post(f"{AUDIT}/{what}")).status == 404


async def test_a_subscription_is_made_with_properties(rest: Rest) -> None:
    body = {"ledgerId": -1, "entryId": -1, "properties": {"team": "red"}}
    assert (await rest.put(AUDIT, body)).status == 204
    shown = (await rest.get(f"{TOPIC}/stats")).body["subscriptions"]["audit"]
    assert shown["subscriptionProperties"] == {"team": "red"}
    assert (await rest.put(f"{AUDIT}2", {**body, "properties": {"team": 1}})).status == 400
