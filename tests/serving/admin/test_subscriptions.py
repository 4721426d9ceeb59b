"""Subscriptions over REST: created at a position, moved, skipped and deleted."""

from __future__ import annotations

import json

import pulsar
import pytest

from tests.serving.admin.conftest import TOPIC, Rest
from tests.serving.conftest import in_thread

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
        for message in [consumer.receive(10_000) for _ in range(4)]:
            if message.data() in (b"0", b"2"):
                consumer.acknowledge(message)
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
