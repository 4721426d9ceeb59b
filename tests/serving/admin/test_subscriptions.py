"""Subscriptions over REST: created at a position, moved, skipped and deleted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pulsar
import pytest

from quire.runtime.errors import Unavailable
from quire.serving.admin import messages, route
from quire.serving.broker import Broker
from quire.serving.operations import matching
from quire.wire import commands, message, topic_name
from quire.wire import pulsar_pb2 as pb
from quire.wire.checksum import crc32c
from tests.serving.admin.conftest import TOPIC, Rest
from tests.serving.conftest import in_thread
from tests.serving.session.test_connection import Client, producer

NAME = "persistent://public/default/orders"
AUDIT = f"{TOPIC}/subscription/audit"
WAITING = AUDIT.replace("/admin/v2/", "/quire/v1/topics/") + "/messages"


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
    assert (await rest.put(f"{AUDIT}?replicated=true")).status == 501
    assert (await rest.put(f"{AUDIT}?replicated=false")).status == 204
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


async def test_skipping_counts_messages_that_are_not_acknowledged(rest: Rest, client: pulsar.Client) -> None:
    """Entries in between that are acknowledged already do not count."""

    def work() -> None:
        consumer = client.subscribe(NAME, "audit", pulsar.ConsumerType.Shared)
        producer = client.create_producer(NAME, batching_enabled=False)
        for number in range(10):
            producer.send(b"%d" % number)
        for one in [consumer.receive(5000) for _ in range(10)]:
            if one.data() in (b"1", b"2", b"3", b"4", b"5"):
                consumer.acknowledge(one)
        consumer.close()

    await in_thread(work)
    assert await backlog(rest) == 5
    assert (await rest.post(f"{AUDIT}/skip/0")).status == 204
    assert await backlog(rest) == 5
    assert (await rest.post(f"{AUDIT}/skip/3")).status == 204
    assert await backlog(rest) == 2
    assert (await rest.get(f"{AUDIT}/position/1")).body == 8
    assert (await rest.post(f"{AUDIT}/skip/3")).status == 204
    assert await backlog(rest) == 0


@pytest.mark.parametrize("connected", [False, True])
async def test_skipping_ends_within_a_batch(rest: Rest, client: pulsar.Client, connected: bool) -> None:
    await rest.put(AUDIT, "earliest")

    def publish() -> None:
        producer = client.create_producer(
            NAME, batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=5000
        )
        for number in range(30):
            producer.send_async(b"%d" % number, None)
            if number % 10 == 9:
                producer.flush()

    await in_thread(publish)
    consumer = None
    if connected:
        consumer = await in_thread(lambda: client.subscribe(NAME, "audit", pulsar.ConsumerType.Shared))
    left, rest_of_batches = 30, [(1, 29), (5, 24), (9, 15), (0, 15), (10, 5), (1, 4)]
    for count, left in rest_of_batches:
        assert (await rest.post(f"{AUDIT}/skip/{count}")).status == 204
        assert await backlog(rest) == left, count
        waiting = (await rest.get(f"{WAITING}?count=100")).body
        assert [one["text"] for one in waiting] == [str(number) for number in range(30 - left, 30)]
    _, _, headers = await peeked(rest, f"{AUDIT}/position/1")
    assert headers["x-quire-unacknowledged"] == "3c0", "the last four of ten"
    if consumer is not None:
        await in_thread(consumer.close)
    await rest.put(f"{TOPIC}/unload")
    assert await backlog(rest) == left, "it is kept"

    def work() -> list[bytes]:
        consumer = client.subscribe(NAME, "audit", pulsar.ConsumerType.Shared)
        return [consumer.receive(5000).data() for _ in range(4)]

    assert await in_thread(work) == [b"26", b"27", b"28", b"29"]


def publish_two_batches(client: pulsar.Client) -> pulsar.MessageId:
    """Publish 0 to 9 and 10 to 19, and return the id of the first."""
    producer = client.create_producer(
        NAME, batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=5000
    )
    for number in range(20):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    consumer = client.subscribe(NAME, "other", initial_position=pulsar.InitialPosition.Earliest)
    return consumer.receive(5000).message_id()


async def test_a_cursor_is_moved_into_a_batch(rest: Rest, client: pulsar.Client) -> None:
    await rest.put(AUDIT, "earliest")

    one = at(await in_thread(lambda: publish_two_batches(client)))
    for index, excluded, left in (
        (0, False, 20),
        (4, False, 16),
        (4, True, 15),
        (9, True, 10),
        (-1, True, 10),
    ):
        body = {**one, "batchIndex": index, "isExcluded": excluded}
        assert (await rest.post(f"{AUDIT}/resetcursor", body)).status == 204
        assert await backlog(rest) == left, body
    missing = {**one, "entryId": 99, "batchIndex": 4}
    assert (await rest.post(f"{AUDIT}/resetcursor", missing)).status == 404
    assert (await rest.post(f"{AUDIT}/resetcursor", {**one, "batchIndex": 4})).status == 204
    assert await first(client) == b"4"


async def test_messages_expire_up_to_one_within_a_batch(rest: Rest, client: pulsar.Client) -> None:
    await rest.put(AUDIT, "earliest")
    one = at(await in_thread(lambda: publish_two_batches(client)))
    for index, excluded, left in (
        (0, True, 20),
        (4, True, 16),
        (4, False, 15),
        (2, False, 15),
        (9, False, 10),
    ):
        body = {**one, "batchIndex": index, "isExcluded": excluded}
        assert (await rest.post(f"{AUDIT}/expireMessages", body)).status == 204
        assert await backlog(rest) == left, body
    after = {**one, "entryId": one["entryId"] + 1, "batchIndex": 6}
    assert (await rest.post(f"{AUDIT}/expireMessages", after)).status == 204
    await rest.put(f"{TOPIC}/unload")
    assert await backlog(rest) == 3, "it is kept"
    assert await first(client) == b"17"
    assert (await rest.post(f"{AUDIT}/expireMessages", {**one, "entryId": 99, "batchIndex": 4})).status == 404


async def test_skipping_more_than_a_segment(
    rest: Rest, client: pulsar.Client, sent: list[pulsar.MessageId]
) -> None:
    await rest.put(AUDIT, "earliest")
    await rest.put(f"{TOPIC}/unload")
    producer = await in_thread(lambda: client.create_producer(NAME))
    for number in range(5, 10):
        await in_thread(lambda number=number: producer.send(b"%d" % number))
    assert (await rest.post(f"{AUDIT}/skip/7")).status == 204
    assert await backlog(rest) == 3
    assert await first(client) == b"7"
    assert (await rest.post(f"{AUDIT}/skip/1000000")).status == 204
    assert await backlog(rest) == 0


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
        headers = {key.decode().lower(): one.decode("latin-1") for key, one in answer.raw_headers}
        return answer.status, await answer.read(), headers


async def test_a_message_is_looked_at_by_its_id(rest: Rest, sent: list[pulsar.MessageId]) -> None:
    ledger = sent[3].ledger_id()
    status, body, headers = await peeked(rest, f"{TOPIC}/ledger/{ledger}/entry/3")
    assert (status, body, headers["x-pulsar-message-id"]) == (200, b"3", f"{ledger}:3")
    for path in (f"{ledger}/entry/5", f"{ledger + 1}/entry/0", f"{ledger - 1}/entry/0"):
        assert (await rest.get(f"{TOPIC}/ledger/{path}")).status == 404
    assert (await rest.get(f"{TOPIC}/ledger/x/entry/0")).status == 400


async def test_an_entry_is_shown_only_when_there_is_room_for_it(
    rest: Rest, sent: list[pulsar.MessageId], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def no_room(request: Any, byte_count: int) -> None:
        asked.append(byte_count)
        raise Unavailable("many answers wait")

    monkeypatch.setattr(route, "reserve", no_room)
    await rest.put(AUDIT, "earliest")
    for path in (f"ledger/{sent[3].ledger_id()}/entry/3", "subscription/audit/position/1", "examinemessage"):
        assert (await rest.get(f"{TOPIC}/{path}")).status == 503, path
    assert asked == 3 * [messages.ENTRY_HOLDS]


async def test_an_entry_that_would_grow_too_large_is_shown_as_it_is_stored(
    rest: Rest, client: pulsar.Client
) -> None:
    def send(size: int) -> pulsar.MessageId:
        producer = client.create_producer(
            NAME, compression_type=pulsar.CompressionType.ZSTD, batching_enabled=False
        )
        return producer.send(bytes(size))

    too_large = await in_thread(lambda: send(matching.DECODED_BYTES_MAX + 1))
    looked = (await rest.get("/quire/v1/topics/persistent/public/default/orders/messages?count=1")).body
    assert looked[0]["position"] == f"{too_large.ledger_id()}:{too_large.entry_id()}"
    assert str(matching.DECODED_BYTES_MAX + 1) in looked[0]["problem"]
    for size, is_shown in ((messages.SHOWN_BYTES_MAX, True), (messages.SHOWN_BYTES_MAX + 1, False)):
        sent = await in_thread(lambda size=size: send(size))
        path = f"{TOPIC}/ledger/{sent.ledger_id()}/entry/{sent.entry_id()}"
        status, body, headers = await peeked(rest, path)
        assert status == 200 and (body == bytes(size)) is is_shown and len(body) <= messages.SHOWN_BYTES_MAX
        assert (str(size) in headers.get(messages.AS_STORED.lower(), "")) is not is_shown
        looked = (await rest.get("/quire/v1/topics/persistent/public/default/orders/messages?count=1")).body
        assert [one["size"] for one in looked] == [size], "a look shows the beginning"


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
    assert sum(len(name) + len(value) for name, value in headers.items()) < 1200
    assert "x-pulsar-property-left-out" in headers and "x-pulsar-partition-key-left-out" in headers


async def test_a_message_is_peeked_with_what_it_says_of_itself(rest: Rest, client: pulsar.Client) -> None:
    await rest.put(AUDIT, "earliest")

    def work() -> None:
        producer = client.create_producer(NAME, producer_name="pen", batching_enabled=False)
        producer.send(
            b"x",
            partition_key="a b/ü%",
            ordering_key="o",
            event_timestamp=1_700_000_000_000,
            properties={"colour": "red", "two words": "x"},
        )
        producer.send(None)

    await in_thread(work)
    _, body, headers = await peeked(rest, f"{AUDIT}/position/1")
    wanted = {
        "partition-key": "a b/ü%",
        "base64-ordering-key": "bw==",
        "event-time": "2023-11-14T22:13:20.000+00:00",
        "producer-name": "pen",
        "sequence-id": "0",
        "is-encrypted": "false",
    }
    assert body == b"x" and {name: headers.get(f"x-pulsar-{name}") for name in wanted} == wanted
    assert json.loads(headers["x-pulsar-property"]) == {"colour": "red", "two words": "x"}
    assert "x-pulsar-null-value" not in headers
    _, body, headers = await peeked(rest, f"{AUDIT}/position/2")
    assert (body, headers["x-pulsar-null-value"], headers["x-pulsar-sequence-id"]) == (b"", "true", "1")
    assert not {"x-pulsar-event-time", "x-pulsar-partition-key"} & headers.keys()


async def test_letters_of_a_key_are_those_that_pulsars_clients_decode(
    rest: Rest, client: pulsar.Client
) -> None:
    """As ISO 8859-1, like Pulsar's; other letters, which Pulsar drops, in UTF-8."""
    await rest.put(AUDIT, "earliest")
    keys = ["ü", "naïve café", "Ã¼", "ключ", "鍵-ü", "a\r\nX-Evil: ü"]

    def work() -> None:
        producer = client.create_producer(NAME, batching_enabled=False, producer_name="Bär")
        for key in keys:
            producer.send(b"x", partition_key=key)

    await in_thread(work)
    found = [(await peeked(rest, f"{AUDIT}/position/{at + 1}"))[2] for at in range(len(keys))]
    shown = [one["x-pulsar-partition-key"] for one in found]
    assert shown[:3] == keys[:3]
    assert [one.encode("latin-1").decode() for one in shown[3:5]] == keys[3:5]
    assert shown[5] == "a%0D%0AX-Evil: ü" and "x-evil" not in found[5]
    assert {one["x-pulsar-producer-name"] for one in found} == {"Bär"}


async def test_a_property_that_is_not_utf_8_is_shown_with_replacements(rest: Rest, broker: Broker) -> None:
    await rest.put(AUDIT, "earliest")
    client = Client(broker)
    await client.connect()
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.properties.add(key="foo", value="?-\0?")
    sealed = message.seal(metadata, b"x").replace(b"?-\0?", b"\x01-\0\x97")
    sealed = sealed[:2] + crc32c(sealed[6:]).to_bytes(4, "big") + sealed[6:]
    client.send(producer(1, 1, NAME), b"".join(commands.send(1, 0, 1, sealed)))
    await client.answers(2)
    (shown,) = (await rest.get("/quire/v1/topics/persistent/public/default/orders/messages")).body
    assert shown["properties"] == {"foo": "\x01-\0\ufffd"} and not shown["problem"]
    ledger, _, entry = shown["position"].partition(":")
    for path in (
        f"{AUDIT}/position/1",
        f"{TOPIC}/examinemessage?initialPosition=earliest",
        f"{TOPIC}/ledger/{ledger}/entry/{entry}",
    ):
        status, body, headers = await peeked(rest, path)
        assert (status, body) == (200, b"x")
        assert json.loads(headers["x-pulsar-property"]) == {"foo": "\x01-\0\ufffd"}


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


ODD_NAMES = ["app:worker", "my/sub", "with blank", "a+b", "100%", "%41", "ü", "a%2Fb", "plain"]


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_a_subscription_is_the_one_that_pulsars_admin_client_names(
    rest: Rest, client: pulsar.Client, sent: list[pulsar.MessageId], name: str
) -> None:
    """It encodes the name as in a form, and then as a part of the path."""
    one = f"{TOPIC}/subscription/{quote_plus(quote_plus(name))}"
    assert (await rest.put(one, "earliest")).status == 204
    assert (await rest.get(f"{TOPIC}/subscriptions")).body == [name]
    consumer = await in_thread(lambda: client.subscribe(NAME, name))
    assert (await in_thread(lambda: consumer.receive(5000))).data() == b"0"
    await in_thread(consumer.close)
    assert (await rest.post(f"{one}/skip/2")).status == 204
    assert (await rest.get(f"{one}/position/1")).body == 2
    assert (await rest.post(f"{one}/resetcursor/0")).status == 204
    assert (await rest.get(f"{TOPIC}/stats")).body["subscriptions"][name]["msgBacklog"] == 5
    assert (await rest.delete(one)).status == 204
    assert (await rest.get(f"{TOPIC}/subscriptions")).body == []


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_a_subscription_is_the_one_that_our_own_tools_name(rest: Rest, name: str) -> None:
    assert (await rest.put(f"{TOPIC}/partitions", 2)).status == 204
    one = f"{TOPIC}/subscription/{topic_name.escaped_subscription(name)}"
    assert (await rest.put(one, "earliest")).status == 204
    assert (await rest.get(f"{TOPIC}-partition-1/subscriptions")).body == [name]
    namespace = "/admin/v2/namespaces/public/default"
    assert (await rest.post(f"{namespace}/clearBacklog/{quote_plus(name)}")).status == 204
    assert (await rest.post(f"{namespace}/unsubscribe/{quote_plus(name)}")).status == 204
    assert (await rest.get(f"{TOPIC}-partition-1/subscriptions")).body == []


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("encode", [quote_plus, lambda name: quote(name, safe="")])
async def test_a_topic_is_the_one_that_admin_clients_name(
    rest: Rest, client: pulsar.Client, encode: Callable[[str], str], name: str
) -> None:
    """Pulsar's as in a form, others as in a path."""
    topic, one = NAME.replace("orders", name), TOPIC.replace("orders", encode(name))
    await in_thread(lambda: client.create_producer(topic).close())
    assert (await rest.get("/admin/v2/persistent/public/default")).body == [topic]
    assert (await rest.get(f"{one}/stats")).status == 200
    assert (await rest.get(one.replace("/admin/v2", "/lookup/v2/topic"))).status == 200
    assert (await rest.delete(one)).status == 204
    assert (await rest.get("/admin/v2/persistent/public/default")).body == []


async def test_a_name_that_is_not_utf_8_is_refused(rest: Rest) -> None:
    for path in (f"{TOPIC}%FF/stats", f"{TOPIC}/subscription/%25FF/properties"):
        answer = await rest.get(path)
        assert answer.status == 400 and "UTF-8" in answer.body["reason"]
