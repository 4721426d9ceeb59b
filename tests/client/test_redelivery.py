"""What comes again and when, and what has come too often: nacks, time-outs, dead letters, retries. A real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pulsar
import pytest

from quire.client import (
    EARLIEST,
    Client,
    Consumer,
    ConsumerSettings,
    DeadLetterPolicy,
    JsonSchema,
    Message,
    ProducerSettings,
)
from quire.client.dead_letter import DeadLetters
from quire.client.nack import delay_ms
from quire.runtime.errors import ConfigurationError, Unavailable
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from tests.client.test_schemas import Order
from tests.serving.conftest import in_thread

TOPIC = "persistent://public/default/t"
QUICK_NACKS = ConsumerSettings(nack_delay_ms=10)


async def publish(client: Client, *payloads: bytes, batch: bool = False) -> None:
    settings = ProducerSettings(batch_messages_max=len(payloads) if batch else 1, batch_delay_ms=5_000)
    async with client.producer("t", settings=settings) as producer:
        for payload in payloads:
            producer.send_nowait(payload)


@pytest.fixture
async def watcher(ours: Client) -> AsyncIterator[Consumer[bytes]]:
    """Of the dead letters."""
    async with ours.consumer("t-s-DLQ", "watch", start=EARLIEST) as consumer:
        yield consumer


# -- Negative acks -------------------------------------------------------------------------------------


def test_delays_grow_up_to_a_bound() -> None:
    settings = ConsumerSettings(nack_delay_ms=100, nack_multiplier=2.0, nack_delay_max_ms=1_000)
    assert [delay_ms(settings, count) for count in (0, 1, 2, 3, 4, 1_000_000)] == [
        100,
        200,
        400,
        800,
        1000,
        1000,
    ]
    constant = ConsumerSettings(nack_delay_ms=100)
    assert {delay_ms(constant, count) for count in range(5)} == {100}
    long = ConsumerSettings(nack_delay_ms=100_000)
    assert delay_ms(long, 0) == 100_000
    with pytest.raises(ConfigurationError, match="below 1"):
        ConsumerSettings(nack_multiplier=0.5).validate()


async def test_a_nack_waits_longer_each_time(ours: Client) -> None:
    await publish(ours, b"x")
    settings = ConsumerSettings(nack_delay_ms=20, nack_multiplier=2.0)
    loop = asyncio.get_running_loop()
    async with ours.consumer("t", "s", type="shared", start=EARLIEST, settings=settings) as consumer:
        message = await consumer.receive(10)
        for count in range(4):
            assert message.redelivery_count == count
            await consumer.nack(message)
            since = loop.time()
            message = await consumer.receive(10)
            assert loop.time() - since >= 0.02 * 2**count - 0.001
        await consumer.ack(message)


async def test_an_ack_takes_a_nack_back(ours: Client) -> None:
    await publish(ours, b"x", b"y")
    settings = ConsumerSettings(nack_delay_ms=100)
    async with ours.consumer("t", "s", type="shared", start=EARLIEST, settings=settings) as consumer:
        one, two = [await consumer.receive(10) for _ in range(2)]
        await consumer.nack(one)
        await consumer.ack(one)
        await consumer.nack(two)
        assert (await consumer.receive(10)).payload == b"y"
        assert consumer.receive_nowait() is None


# -- Time-outs -----------------------------------------------------------------------------------------


async def test_what_is_not_acknowledged_in_time_comes_again(ours: Client) -> None:
    await publish(ours, *(b"%d" % i for i in range(5)))
    settings = ConsumerSettings(ack_timeout_ms=200)
    async with ours.consumer("t", "s", type="shared", start=EARLIEST, settings=settings) as consumer:
        for _ in range(5):
            message = await consumer.receive(10)
            if message.payload != b"2":
                await consumer.ack(message)
        again = await consumer.receive(10)
        assert (again.payload, again.redelivery_count) == (b"2", 1)
        await consumer.ack(again)
        with pytest.raises(TimeoutError):
            await consumer.receive(0.5)


async def test_of_a_batch_only_what_is_left_comes_again(ours: Client) -> None:
    await publish(ours, *(b"%d" % i for i in range(5)), batch=True)
    settings = ConsumerSettings(ack_timeout_ms=100)
    async with ours.consumer("t", "s", type="shared", start=EARLIEST, settings=settings) as consumer:
        for _ in range(5):
            message = await consumer.receive(10)
            if message.payload not in (b"1", b"3"):
                await consumer.ack(message)
        again = [await consumer.receive(10) for _ in range(2)]
        assert [one.payload for one in again] == [b"1", b"3"]
        for one in again:
            await consumer.ack(one)
        await consumer.flush_acks()


async def test_an_exclusive_consumer_that_is_too_slow_goes_back(ours: Client) -> None:
    await publish(ours, b"0", b"1", b"2")
    settings = ConsumerSettings(ack_timeout_ms=100)
    async with ours.consumer("t", "s", start=EARLIEST, settings=settings) as consumer:
        await consumer.ack(await consumer.receive(10))
        assert (await consumer.receive(10)).payload == b"1"
        assert (await consumer.receive(10)).payload == b"2"
        again = [await consumer.receive(10) for _ in range(2)]
        assert [one.payload for one in again] == [b"1", b"2"]
        await consumer.ack_cumulative(again[1])
        with pytest.raises(TimeoutError):
            await consumer.receive(0.3)


# -- Dead letters --------------------------------------------------------------------------------------


async def nacked_to_death(consumer: Consumer[bytes], count: int) -> list[Message[bytes]]:
    """All that is delivered of a message that nobody wants."""
    found = []
    for _ in range(count):
        found.append(await consumer.receive(10))
        await consumer.nack(found[-1])
    return found


async def test_a_message_that_comes_too_often_is_a_dead_letter(
    real: Broker, ours: Client, watcher: Consumer[bytes]
) -> None:
    async with ours.producer("t") as producer:
        await producer.send(b"poison", key="k", ordering_key=b"o", properties={"a": "b"}, event_time_ms=7)
    policy = DeadLetterPolicy(2)
    async with ours.consumer(
        "t", "s", type="shared", start=EARLIEST, dead_letter=policy, settings=QUICK_NACKS
    ) as consumer:
        found = await nacked_to_death(consumer, 3)
        assert [one.redelivery_count for one in found] == [0, 1, 2]
        letter = await watcher.receive(10)
        origin = found[0].id
        assert (letter.payload, letter.key, letter.ordering_key) == (b"poison", "k", b"o")
        assert letter.event_time_ms == 7
        assert letter.properties == {
            "a": "b",
            "REAL_TOPIC": TOPIC,
            "ORIGIN_MESSAGE_ID": f"{origin.ledger_id}:{origin.entry_id}:-1",
        }
        await until_done(real)
        assert consumer.receive_nowait() is None


async def until_done(real: Broker, topic: str = TOPIC) -> None:
    """Until nothing is unacknowledged any more."""
    async with asyncio.timeout(60):
        while (await real.admin.statistics.stats(TopicName.parse(topic))).subscriptions["s"].msg_backlog:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_of_a_batch_one_message_may_be_dead(
    real: Broker, ours: Client, watcher: Consumer[bytes]
) -> None:
    await publish(ours, b"0", b"poison", b"2", batch=True)
    policy = DeadLetterPolicy(1)
    async with ours.consumer(
        "t", "s", type="shared", start=EARLIEST, dead_letter=policy, settings=QUICK_NACKS
    ) as consumer:
        seen = []
        for _ in range(4):
            message = await consumer.receive(10)
            seen.append(message.payload)
            if message.payload == b"poison":
                await consumer.nack(message)
            else:
                await consumer.ack(message)
        assert seen == [b"0", b"poison", b"2", b"poison"]
        assert (await watcher.receive(10)).payload == b"poison"
        await until_done(real)


async def test_what_times_out_too_often_is_a_dead_letter(ours: Client, watcher: Consumer[bytes]) -> None:
    await publish(ours, b"slow")
    settings = ConsumerSettings(ack_timeout_ms=50)
    async with ours.consumer(
        "t", "s", type="shared", start=EARLIEST, dead_letter=DeadLetterPolicy(1), settings=settings
    ) as consumer:
        for _ in range(2):
            await consumer.receive(10)
        assert (await watcher.receive(10)).payload == b"slow"


async def test_a_message_that_took_its_consumers_along_is_dead_on_arrival(
    ours: Client, watcher: Consumer[bytes]
) -> None:
    await publish(ours, b"poison", b"good")
    async with ours.consumer("t", "s", type="shared", start=EARLIEST, settings=QUICK_NACKS) as consumer:
        deliveries = 0
        while deliveries <= 3:
            message = await consumer.receive(10)
            if message.payload == b"poison":
                deliveries += 1
                await consumer.nack(message)
    async with ours.consumer("t", "s", type="shared", dead_letter=DeadLetterPolicy(1)) as consumer:
        assert (await consumer.receive(10)).payload == b"good"
        assert (await watcher.receive(10)).payload == b"poison"


async def test_a_dead_letter_topic_and_its_first_subscription_have_names(real: Broker, ours: Client) -> None:
    await publish(ours, b"poison")
    policy = DeadLetterPolicy(1, dead_letter_topic="graves", initial_subscription="visitors")
    async with ours.consumer(
        "t", "s", type="key-shared", start=EARLIEST, dead_letter=policy, settings=QUICK_NACKS
    ) as consumer:
        await nacked_to_death(consumer, 2)
        await until_done(real)
    async with ours.consumer("graves", "visitors") as consumer:
        assert (await consumer.receive(10)).payload == b"poison"


async def test_dead_letters_keep_their_schema(real: Broker, ours: Client) -> None:
    async with ours.producer("t", schema=JsonSchema(Order)) as producer:
        await producer.send(Order("poison"))
    async with ours.consumer(
        "t",
        "s",
        schema=JsonSchema(Order),
        type="shared",
        start=EARLIEST,
        dead_letter=DeadLetterPolicy(1),
        settings=QUICK_NACKS,
    ) as consumer:
        for _ in range(2):
            await consumer.nack(await consumer.receive(10))
        await until_done(real)
    async with ours.reader("t-s-DLQ", schema=JsonSchema(Order), start=EARLIEST) as reader:
        assert (await reader.read(10)).value == Order("poison")


async def test_dead_letters_of_partitions_go_to_one_topic(real: Broker, ours: Client) -> None:
    await real.registry.create(TopicName.parse(TOPIC), 2)
    async with ours.producer("t") as producer:
        for i in range(4):
            await producer.send(b"%d" % i, key=str(i))
    async with ours.consumer(
        "t", "s", type="shared", start=EARLIEST, dead_letter=DeadLetterPolicy(1), settings=QUICK_NACKS
    ) as consumer:
        await nacked_to_death(consumer, 8)
        async with ours.consumer("t-s-DLQ", "watch", start=EARLIEST) as watcher:
            letters = [await watcher.receive(10) for _ in range(4)]
        assert sorted(one.payload or b"" for one in letters) == [b"0", b"1", b"2", b"3"]
        assert all(one.properties["REAL_TOPIC"].startswith(f"{TOPIC}-partition-") for one in letters)


async def test_a_letter_that_cannot_be_sent_at_once_is_sent_later(
    ours: Client, watcher: Consumer[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    bury, refusals = DeadLetters.bury, [1, 1]

    async def try_to(letters: DeadLetters, message: Message[bytes]) -> None:
        if refusals:
            refusals.pop()
            raise Unavailable("not now")
        await bury(letters, message)

    monkeypatch.setattr(DeadLetters, "bury", try_to)
    await publish(ours, b"poison")
    async with ours.consumer(
        "t", "s", type="shared", start=EARLIEST, dead_letter=DeadLetterPolicy(1), settings=QUICK_NACKS
    ) as consumer:
        await nacked_to_death(consumer, 2)
        receiving = asyncio.create_task(consumer.receive())
        assert (await watcher.receive(10)).payload == b"poison"
        assert not refusals and not receiving.done()
        receiving.cancel()


async def test_who_may_have_dead_letters(ours: Client) -> None:
    with pytest.raises(ConfigurationError, match="needs a shared"):
        ours.consumer("t", "s", dead_letter=DeadLetterPolicy(1))
    with pytest.raises(ConfigurationError, match="at least 1"):
        ours.consumer("t", "s", type="shared", dead_letter=DeadLetterPolicy(0))


# -- Retry letters -------------------------------------------------------------------------------------


async def test_reconsume_later(real: Broker, ours: Client, watcher: Consumer[bytes]) -> None:
    async with ours.producer("t") as producer:
        sent = await producer.send(b"poison", key="k", properties={"a": "b"})
    policy = DeadLetterPolicy(2, retries=True)
    async with ours.consumer("t", "s", type="shared", start=EARLIEST, dead_letter=policy) as consumer:
        found = []
        for _ in range(3):
            found.append(await consumer.receive(10))
            await consumer.reconsume_later(found[-1], 20, {"why": "not today"})
        assert [one.topic for one in found] == [TOPIC, f"{TOPIC}-s-RETRY", f"{TOPIC}-s-RETRY"]
        assert [one.properties.get("RECONSUMETIMES") for one in found] == [None, "1", "2"]
        origin = sent.message_id
        letter = await watcher.receive(10)
        assert (letter.payload, letter.key) == (b"poison", "k")
        assert letter.properties == {
            "a": "b",
            "why": "not today",
            "RECONSUMETIMES": "3",
            "DELAY_TIME": "20",
            "REAL_TOPIC": TOPIC,
            "ORIGIN_MESSAGE_ID": f"{origin.ledger_id}:{origin.entry_id}:-1",
        }
        await consumer.flush_acks()
        await until_done(real)
        await until_done(real, f"{TOPIC}-s-RETRY")
    async with ours.consumer("t", "other", type="shared", dead_letter=DeadLetterPolicy(1)) as consumer:
        with pytest.raises(ConfigurationError, match="retries"):
            await consumer.reconsume_later(found[0])


async def test_the_stock_client_buries_where_we_do(
    ours: Client, stock: pulsar.Client, watcher: Consumer[bytes]
) -> None:
    await publish(ours, b"poison")

    def die() -> None:
        consumer = stock.subscribe(
            "t",
            "s",
            pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=100,
            dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1),
        )
        for _ in range(2):
            consumer.negative_acknowledge(consumer.receive(10_000))

    dying = asyncio.create_task(in_thread(die))
    letter = await watcher.receive(20)
    await dying
    assert letter.payload == b"poison"
    assert letter.properties["REAL_TOPIC"] == TOPIC
    assert "ORIGIN_MESSAGE_ID" in letter.properties
