"""`/metrics` of a broker: what it tells of namespaces, topics and subscriptions, to whom, and what it costs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import NamedTuple

import pulsar
from prometheus_client.parser import text_string_to_metric_families

from quire.runtime.metric_table import BY_NAME
from quire.runtime.probes import Scrapes
from quire.runtime.slices import Slices
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.registry.topic_loader import subscriptions_of
from quire.serving.subscription.dispatch import blocked
from tests.serving.admin.conftest import Rest, serving_rest
from tests.serving.conftest import BrokerHouse, in_thread
from tests.serving.security import security, token

NAME = "persistent://public/default/orders"
OF_SUBSCRIPTION = {"namespace": "public/default", "topic": NAME, "subscription": "s"}


class Told(NamedTuple):
    """One scrape, read back."""

    text: str

    def value(self, name: str, **labels: str) -> float | None:
        """Of the one sample with just these labels; None when there is none."""
        for family in text_string_to_metric_families(self.text):
            for sample in family.samples:
                if (sample.name, sample.labels) == (name, labels):
                    return sample.value
        return None


async def scrape(rest: Rest, **options: object) -> Told:
    async with rest.session.get(f"{rest.url}/metrics", **options) as answer:  # type: ignore[arg-type]
        return Told(await answer.text())


async def test_a_topic_its_subscription_and_its_namespace(rest: Rest, client: pulsar.Client) -> None:
    def work() -> pulsar.Consumer:
        consumer = client.subscribe(NAME, "s", pulsar.ConsumerType.Shared, receiver_queue_size=5)
        producer = client.create_producer(NAME, batching_enabled=False)
        for _ in range(12):
            producer.send(b"x" * 100)
        for _ in range(2):
            consumer.acknowledge(consumer.receive(5000))
        return consumer

    await in_thread(work)
    told = await scrape(rest)
    async with asyncio.timeout(30):  # a client gathers acknowledgements for a tenth of a second
        while told.value("quire_subscription_messages_acknowledged_total", **OF_SUBSCRIPTION) != 2:
            told = await scrape(rest)
    topic = {"namespace": "public/default", "topic": NAME}
    assert told.value("quire_topic_messages_in_total", **topic) == 12
    assert told.value("quire_topic_producers", **topic) == 1
    assert (told.value("quire_topic_storage_bytes", **topic) or 0) > 1200
    assert told.value("quire_subscription_backlog_messages", **OF_SUBSCRIPTION) == 10
    assert 700 < (told.value("quire_subscription_backlog_bytes", **OF_SUBSCRIPTION) or 0) < 4000
    assert 0 < (told.value("quire_subscription_backlog_age_seconds", **OF_SUBSCRIPTION) or 0) < 60
    assert told.value("quire_subscription_messages_acknowledged_total", **OF_SUBSCRIPTION) == 2
    assert told.value("quire_subscription_blocked", **OF_SUBSCRIPTION, reason="no_permits") == 1
    namespace = {"namespace": "public/default"}
    assert told.value("quire_namespace_backlog_messages", **namespace) == 10
    assert told.value("quire_namespace_messages_in_total", **namespace) == 12
    assert told.value("quire_namespace_publish_latency_seconds_count", **namespace) == 12
    assert (told.value("quire_namespace_ack_latency_seconds_count", **namespace) or 0) >= 1
    out = told.value("quire_subscription_messages_out_total", **OF_SUBSCRIPTION)
    assert out == told.value("quire_namespace_dispatch_latency_seconds_count", **namespace)
    assert told.value("quire_namespace_subscriptions_blocked", **namespace, reason="no_permits") == 1


async def test_what_is_acknowledged_is_no_backlog(rest: Rest, client: pulsar.Client) -> None:
    def work() -> None:
        consumer = client.subscribe(NAME, "s")
        producer = client.create_producer(NAME)
        producer.send(b"x")
        consumer.acknowledge(consumer.receive(5000))
        consumer.close()

    await in_thread(work)
    told = await scrape(rest)
    for what in ("messages", "bytes", "age_seconds"):
        assert told.value(f"quire_subscription_backlog_{what}", **OF_SUBSCRIPTION) == 0
    assert "quire_subscription_blocked{" not in told.text


async def test_a_namespace_counts_on_when_topics_are_unloaded(
    rest: Rest, client: pulsar.Client, broker: Broker
) -> None:
    producer = await in_thread(lambda: client.create_producer(NAME))
    await in_thread(lambda: producer.send(b"x"))
    await in_thread(producer.close)
    await broker.registry.unload(TopicName.parse(NAME))
    told = await scrape(rest)
    assert told.value("quire_namespace_messages_in_total", namespace="public/default") == 1
    assert told.value("quire_namespace_topics", namespace="public/default") == 0
    assert "quire_topic_" not in told.text


async def test_beyond_so_many_topics_or_subscriptions_it_tells_of_namespaces_alone(
    house: BrokerHouse,
) -> None:
    broker = await house.start(metrics_topics_max=2)
    for number in range(2):
        topic = await broker.registry.open(TopicName.parse(f"t{number}"), create=True)
    assert "quire_topic_messages_in_total" in await broker.admin.metrics.collect()
    for name in ("a", "b", "c"):
        await subscriptions_of(topic).create(name)
    found = await broker.admin.metrics.collect()
    assert "quire_topic_messages_in_total" not in found
    assert found["quire_serving_left_out"] == {("topics",): 2, ("namespaces",): 0}
    assert found["quire_namespace_subscriptions"] == {("public/default",): 3}


def test_each_reason_for_being_blocked_has_one_word() -> None:
    sentences = [value for name, value in vars(blocked).items() if name.isupper() and isinstance(value, str)]
    words = {blocked.label_of(one) for one in sentences} | {blocked.label_of("a; b")}
    assert words == set(blocked.REASONS)
    assert blocked.label_of("") == ""


async def test_names_are_told_to_superusers_alone(house: BrokerHouse, tmp_path: Path) -> None:
    house.security = security(tmp_path)
    broker = await house.start()
    await broker.registry.open(TopicName.parse(NAME), create=True)
    async with serving_rest(broker) as rest:
        for role, seen in (("admin", True), ("app", False)):
            told = await scrape(rest, headers={"Authorization": f"Bearer {token(role)}"})
            assert ("orders" in told.text) == seen
        for headers in ({}, {"Authorization": "Bearer x.y.z"}):
            told = await scrape(rest, headers=headers)
            assert "orders" not in told.text and "quire_namespace" not in told.text
            assert told.value("quire_serving_topics_loaded") == 1


async def test_who_asks_while_one_is_written_gets_the_same(broker: Broker) -> None:
    asked = 0

    async def collect() -> dict[str, float]:
        nonlocal asked
        asked += 1
        return {"quire_serving_topics_loaded": asked}

    scrapes = Scrapes([], collect)
    first, second = await asyncio.gather(scrapes.text(open_metrics=False), scrapes.text(open_metrics=False))
    assert first is second and asked == 1
    assert await scrapes.text(open_metrics=False) != first, "nothing is kept"


TOPICS = 10_000
WORK_S_MAX = 1.0
"""Five times what we aim at, so that no slow machine fails a test; `bench.metrics` has the figure."""


class TimedSlices(Slices):
    """How long the longest turn was that a piece of the work took."""

    longest_s = 0.0

    def put(self, work: object) -> None:
        def timed() -> None:
            began = time.thread_time()
            work()  # type: ignore[operator]
            asyncio.get_running_loop().call_soon(ended, began)

        def ended(began: float) -> None:
            self.longest_s = max(self.longest_s, time.thread_time() - began)

        super().put(timed)


async def test_ten_thousand_topics_are_told_of_in_slices(house: BrokerHouse) -> None:
    broker = await house.start()
    for first in range(0, TOPICS, 500):
        names = [TopicName.parse(f"t{number}") for number in range(first, first + 500)]
        topics = await asyncio.gather(*(broker.registry.open(name, create=True) for name in names))
        await asyncio.gather(*(subscriptions_of(topic).create("s") for topic in topics))
    slices = broker.services.slices = TimedSlices()
    scrapes = Scrapes([broker.metrics], broker.admin.metrics.collect, slices=slices)
    began = time.process_time()
    text = await scrapes.text(open_metrics=True)
    took_s = time.process_time() - began
    assert len(text) <= 2 << 20 and f'quire_namespace_topics{{namespace="public/default"}} {TOPICS}' in text
    assert took_s <= WORK_S_MAX, f"{took_s:.3f} s of work"
    assert slices.longest_s < 0.1, f"a turn took {slices.longest_s:.3f} s"
    print(f"{len(text)} bytes, {took_s * 1000:.0f} ms of work, longest turn {slices.longest_s * 1000:.1f} ms")


async def test_everything_that_a_broker_says_is_in_the_table(broker: Broker) -> None:
    assert set(broker.metrics()) | set(await broker.admin.metrics.collect()) <= BY_NAME.keys()
