"""Golden JSON of statistics: topics with subscriptions of each type, partitions on two brokers, brokers and bundles.

`QUIRE_REWRITE_GOLDEN=1 pytest tests/serving/admin/test_statistics.py` writes the files; read the diff: tools of Pulsar
and older brokers read these fields.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from typing import Any, Final

import aiohttp
import pulsar
import pytest

from quire.runtime.errors import Unavailable
from quire.serving.broker import Broker
from quire.serving.model.statistics import CompactionStatus, DamagedSegment
from quire.serving.names import TopicName
from quire.serving.ownership.peers import reader_of
from quire.serving.ownership.port import NotOwner
from tests.golden import DATA, REWRITE
from tests.serving.admin.conftest import TOPIC, Rest
from tests.serving.conftest import in_thread
from tests.serving.ownership.cluster import Brokers

NAME: Final = "persistent://public/default/orders"
KINDS: Final = {
    "exclusive": pulsar.ConsumerType.Exclusive,
    "failover": pulsar.ConsumerType.Failover,
    "shared": pulsar.ConsumerType.Shared,
    "keys": pulsar.ConsumerType.KeyShared,
}
EXACT: Final = re.compile(
    r"type|isDurable|state|deduplicationStatus|deleted|partitions|metadata|properties|subscriptionProperties"
    r"|archived|onBookies|offloaded|on_bookies|bundles|by|broker_.*|status|lastError|consumerName|accessMode"
    r"|msgInCounter|msgBacklog|msgBacklogExact|backlogSizeExact|msgDropCounter|entriesIn|entries|messages"
    r"|numberOfEntries|entriesAddedCounter|numberOfMessages|currentLedgerEntries|isLoaded|producers|consumers"
    r"|keySharedMode|allowOutOfOrderDelivery|priorityLevel|activeConsumerName|blockedReason|lostMessages|why"
)


def shape(value: Any, key: str = "") -> Any:
    """Return the value with the type in place of each field that differs between runs."""
    if isinstance(value, dict):
        return {_stable(name): shape(one, name) for name, one in value.items()}
    if isinstance(value, list):
        shapes = [shape(one, key) for one in value]
        return [one for i, one in enumerate(shapes) if one not in shapes[:i]]
    if value is None or EXACT.fullmatch(key):
        return value
    return "number" if type(value) in (int, float) else type(value).__name__


def _stable(name: str) -> str:
    """Return the name without the number of a partition: of partitions, which look alike, the last one is shown."""
    return re.sub(r"-partition-\d+$", "-partition-N", name)


def check(file: str, found: dict[str, Any]) -> None:
    path = DATA / file
    shown = {name: shape(answer) for name, answer in found.items()}
    if REWRITE:
        path.write_text(json.dumps(shown, indent=1, sort_keys=True) + "\n")
    assert shown == json.loads(path.read_text())


def test_answers_of_brokers_of_other_versions() -> None:
    """A later version may have more fields; what lacks a field that has no default is refused."""
    row = {"status": "SUCCESS", "lastError": "", "isNew": True}
    assert reader_of(CompactionStatus)(row) == CompactionStatus("SUCCESS")
    with pytest.raises(Unavailable, match="cannot be read: Object missing required field `ledgerId`"):
        reader_of(DamagedSegment)({"topic": NAME})


async def test_statistics_of_topics(rest: Rest, broker: Broker, client: pulsar.Client) -> None:
    def use(name: str) -> pulsar.Producer:
        for subscription, kind in KINDS.items():
            consumer = client.subscribe(
                name, subscription, kind, consumer_name=f"of {subscription}", properties={"room": "1"}
            )
            if name == NAME:
                consumers.append(consumer)
        producer = client.create_producer(
            name, producer_name="till", batching_enabled=False, properties={"room": "2"}
        )
        for number in range(4):
            producer.send(b"x", partition_key=str(number))
        return producer

    consumers: list[pulsar.Consumer] = []
    await rest.put(f"{TOPIC}/subscription/waiting", "earliest")
    await rest.put(f"{TOPIC}/subscription/waiting/properties", {"team": "a"})
    kept = [await in_thread(lambda: use(NAME))]
    for consumer in consumers:
        for _ in range(4):
            await in_thread(lambda consumer=consumer: consumer.receive(5000))
    await rest.put(f"/quire/v1/topics{TOPIC.removeprefix('/admin/v2')}/seal")
    reports = {
        work: (await rest.post(f"/quire/v1/archive/{work}")).body for work in ("run", "repair", "verify")
    }
    await in_thread(lambda: kept[0].send(b"y"))
    kept.append(await in_thread(lambda: use("non-persistent://public/default/orders")))
    found = {
        path: (await rest.get(path)).body
        for path in (
            f"{TOPIC}/stats",
            f"{TOPIC}/stats?excludePublishers=true&excludeConsumers=true",
            f"{TOPIC}/internalStats",
            f"{TOPIC}/compaction",
            "/admin/v2/non-persistent/public/default/orders/stats",
            "/quire/v1/topics/persistent/public/default/orders/segments",
            "/quire/v1/topics/persistent/public/default/orders/segments?end_ms=9999999999999",
            "/quire/v1/topics/persistent/public/default/orders/explain",
            "/quire/v1/namespaces/public/default/topics",
            "/quire/v1/brokers",
            "/quire/v1/brokers/bundles",
            "/quire/v1/overview",
            "/quire/v1/archive/status",
            "/quire/v1/archive/status?here=true",
            "/quire/v1/archive/progress",
        )
    }
    found |= reports
    await rest.put(f"{TOPIC}/compaction")
    topic = await broker.registry.open_persistent(TopicName.parse(NAME))
    while str(topic.log.compaction.status) == "RUNNING":  # noqa: ASYNC110  nothing tells a test
        await asyncio.sleep(0.01)
    found["compacted"] = (await rest.get(f"{TOPIC}/internalStats")).body["compactedLedger"]
    found["compaction"] = (await rest.get(f"{TOPIC}/compaction")).body
    check("statistics_topics.json", found)


async def test_statistics_of_partitions_on_two_brokers() -> None:
    brokers = Brokers()
    try:
        one, two = await brokers.start(), await brokers.start()
        await one.broker.registry.create(TopicName.parse(NAME), 12)
        client = await in_thread(brokers.client)
        kept: list[Any] = []

        def use() -> None:
            kept.append(client.create_producer(NAME, producer_name="till", batching_enabled=False))
            for subscription, kind in KINDS.items():
                kept.append(client.subscribe(NAME, subscription, kind, consumer_name=f"of {subscription}"))
            for number in range(48):
                kept[0].send(b"x", partition_key=str(number))

        for number in range(12):
            opener = (one, two)[number % 2]
            with suppress(NotOwner):
                await opener.broker.registry.open(TopicName.parse(f"{NAME}-partition-{number}"), create=True)
        await in_thread(use)
        assert one.topics() and two.topics()
        found: dict[str, Any] = {}
        async with aiohttp.ClientSession() as session:
            for path in (
                f"{TOPIC}/stats",
                f"{TOPIC}/partitioned-stats",
                f"{TOPIC}/partitioned-stats?perPartition=false&excludeConsumers=true&excludePublishers=true",
                f"{TOPIC}/partitioned-internalStats",
                f"{TOPIC}/compaction",
                "/quire/v1/topics/persistent/public/default/orders/segments",
                "/quire/v1/namespaces/public/default/topics",
                "/quire/v1/namespaces/public/default/topics?sort=in",
                "/quire/v1/overview",
            ):
                answers = []
                for member in (one, two):
                    async with session.get(member.broker.addresses.http_url + path) as answer:
                        assert answer.status == 200, await answer.text()
                        answers.append(await answer.json())
                found[path] = answers
        check("statistics_partitions.json", found)
    finally:
        await brokers.close()
