"""The properties of a subscription are those of a partitioned topic's, on every partition that is added."""

from __future__ import annotations

from quire.serving.broker import Broker
from quire.serving.model.ports import LATEST
from quire.wire import pulsar_pb2 as pb
from tests.serving.broker.test_partitioned import NAME, TOPIC
from tests.serving.broker.test_partitioned import subscribe as to_partition
from tests.serving.conftest import BrokerHouse
from tests.serving.ownership.cluster import Brokers
from tests.serving.session.test_connection import Client, kinds


def subscribe(number: int, name: str, team: str) -> bytes:
    """To the first partition."""
    properties = [pb.KeyValue(key="team", value=team)]
    return to_partition(number, 0, consumer_id=number, name=name, subscription_properties=properties)


async def teams(broker: Broker, subscription: str) -> list[str | None]:
    """Of each partition that was used."""
    shown = (await broker.admin.statistics.stats(NAME)).partitions
    found = (one.subscriptions[subscription].subscription_properties for _, one in sorted(shown.items()))
    return [properties.get("team") for properties in found]


async def test_new_partitions_have_the_properties_of_subscriptions(house: BrokerHouse) -> None:
    broker = await house.start()
    await broker.registry.create(NAME, 1)
    client = Client(broker)
    await client.connect()
    client.send(subscribe(1, "late", "red"))
    assert kinds(await client.answers(1)) == ["SUCCESS"]
    await broker.admin.subscriptions.create(NAME, "by-rest", LATEST, {"team": "blue"})
    await broker.partitioned.grow(NAME, 3)
    assert await teams(broker, "late") == ["red"] * 3
    assert await teams(broker, "by-rest") == ["blue"] * 3
    client.send(subscribe(2, "after", "green"))
    assert kinds(await client.answers(1)) == ["SUCCESS"]
    assert await teams(broker, "after") == ["green"] * 3, "of a client that may know one partition"


async def test_properties_go_to_partitions_of_other_brokers() -> None:
    brokers = Brokers()
    try:
        one, two = await brokers.start(), await brokers.start()
        await one.broker.registry.create(NAME, 6)
        for index in range(12):
            await (one, two)[index % 2].broker.sessions.topics.look_up(
                f"{TOPIC}-partition-{index}", take=True
            )
        await one.broker.admin.subscriptions.create(NAME, "audit", LATEST, {"team": "red"})
        await two.broker.partitioned.grow(NAME, 12)
        assert one.topics() and two.topics()
        assert await teams(one.broker, "audit") == ["red"] * 12
    finally:
        await brokers.close()
