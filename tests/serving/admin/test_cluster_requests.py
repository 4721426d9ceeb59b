"""What Pulsar's tools ask of a cluster: a broker's statistics, bookies and racks, bundles, and schemas' metadata."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pulsar
import pytest
from msgspec.structs import replace

from quire import __version__
from quire.serving.broker import Broker
from tests.serving.admin.conftest import TOPIC, Rest
from tests.serving.conftest import BrokerHouse, in_thread

NAME = "persistent://public/default/orders"
NAMESPACE = "/admin/v2/namespaces/public/default"
STATS = "/admin/v2/broker-stats"
BOOKIES = "/admin/v2/bookies"
WHOLE = "0x00000000_0xffffffff"


async def published(client: pulsar.Client) -> pulsar.Producer:
    def work() -> pulsar.Producer:
        client.subscribe(NAME, "audit")
        producer = client.create_producer(NAME)
        for number in range(3):
            producer.send(b"%d" % number)
        return producer

    return await in_thread(work)


async def test_a_broker_reports_its_topics_load_and_metrics(
    rest: Rest, broker: Broker, client: pulsar.Client
) -> None:
    await published(client)
    await rest.put(TOPIC.replace("persistent", "non-persistent", 1))
    every = (await rest.get(f"{STATS}/topics")).body
    domains = every["public/default"][WHOLE]
    assert domains.keys() == {"persistent", "non-persistent"} and domains["persistent"].keys() == {NAME}
    found = domains["persistent"][NAME]
    assert found["producerCount"] == 1 and found["storageSize"] > 0
    assert found["subscriptions"]["audit"]["consumerCount"] == 1
    assert found["subscriptions"]["audit"]["msgBacklog"] == 3

    load = (await rest.get(f"{STATS}/load-report")).body
    assert load["webServiceUrl"] == rest.url and load["pulsarServiceUrl"] == broker.service_url
    assert (load["numTopics"], load["numProducers"], load["numConsumers"]) == (2, 1, 1)
    assert load["bundles"] == ["public/default/00000000_ffffffff"] and load["numBundles"] == 1
    assert load["brokerVersionString"] == __version__ and load["loadReportType"] == "LocalBrokerData"

    rows = (await rest.get(f"{STATS}/metrics")).body
    mine = {"cluster": "standalone", "broker": broker.addresses.name}
    by_place = {
        tuple(value for key, value in row["dimensions"].items() if key not in mine): row["metrics"]
        for row in rows
    }
    assert all(mine.items() <= row["dimensions"].items() for row in rows)
    assert by_place[()]["quire_serving_topics_loaded"] == 2
    assert by_place[()]["quire_serving_publish_latency_seconds_count"] == 3
    assert by_place["public/default",]["quire_namespace_messages_in_total"] == 3
    assert by_place["public/default", NAME]["quire_topic_producers"] == 1
    assert by_place["public/default", NAME, "audit"]["quire_subscription_backlog_messages"] == 3
    assert (await rest.get(f"{STATS}/mbeans")).body == []


async def test_bookies_and_their_racks(rest: Rest, house: BrokerHouse) -> None:
    racks = ("/a", "", "/b")
    for each, rack in zip(house.cluster.bookies, racks, strict=True):
        address = f"host-{each.bookie.uuid[-1]}:3181"
        house.cluster.directory.join(replace(each.record(), address=address, rack=rack), each)
    listed = (await rest.get(f"{BOOKIES}/all")).body
    assert listed == {"bookies": [{"bookieId": f"host-{number}:3181"} for number in range(3)]}
    first, last = {"rack": "/a", "hostname": "host-0"}, {"rack": "/b", "hostname": "host-2"}
    everywhere = (await rest.get(f"{BOOKIES}/racks-info")).body
    assert everywhere == {"default": {"host-0:3181": first, "host-2:3181": last}}
    refused = await rest.post(f"{BOOKIES}/racks-info/host-0:3181?group=default", first)
    assert refused.status == 501 and "restart the bookie" in refused.body["reason"]
    assert (await rest.delete(f"{BOOKIES}/racks-info/host-0:3181")).status == 501


# -- bundles ---------------------------------------------------------------------------------------------


@pytest.fixture
async def halves(house: BrokerHouse) -> Broker:
    """A broker whose namespaces have two bundles."""
    return await house.start(namespace_bundles=2)


def is_low(name: str) -> bool:
    return crc32(name.encode()) < 1 << 31


async def test_requests_about_a_bundle_reach_its_topics_only(halves: Broker) -> None:
    from tests.serving.admin.conftest import serving_rest

    low = f"{NAMESPACE}/0x00000000_0x80000000"
    names = [f"persistent://public/default/topic-{number}" for number in range(8)]
    mine = [name for name in names if is_low(name)]
    assert 0 < len(mine) < len(names)
    async with serving_rest(halves) as rest:
        client = pulsar.Client(halves.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

        def publish() -> None:
            for name in names:
                for subscription in ("a", "b"):
                    client.subscribe(name, subscription).close()
                producer = client.create_producer(name)
                producer.send(b"x")
                producer.close()

        await in_thread(publish)
        await in_thread(client.close)
        listed = await rest.get("/admin/v2/persistent/public/default/0x00000000_0x80000000")
        assert listed.body == sorted(mine)
        hashes = (await rest.get(f"{low}/topicHashPositions")).body
        assert hashes == {
            "namespace": "public/default",
            "bundle": "0x00000000_0x80000000",
            "topicHashPositions": {name: crc32(name.encode()) for name in sorted(mine)},
        }
        one = (await rest.get(f"{low}/topicHashPositions?topics={mine[0]}")).body["topicHashPositions"]
        assert list(one) == [mine[0]]

        async def backlogs() -> dict[str, dict[str, int]]:
            found = {}
            for name in names:
                stats: Any = (await rest.get(f"/admin/v2/{name.replace('://', '/')}/stats")).body
                found[name] = {key: one["msgBacklog"] for key, one in stats["subscriptions"].items()}
            return found

        assert await rest.post(f"{low}/clearBacklog/a") == (204, None)
        assert await backlogs() == {name: {"a": int(name not in mine), "b": 1} for name in names}
        assert (await rest.post(f"{low}/clearBacklog")).status == 204
        assert await backlogs() == {name: dict.fromkeys("ab", int(name not in mine)) for name in names}
        assert (await rest.post(f"{low}/unsubscribe/a")).status == 204
        assert {name: list(one) for name, one in (await backlogs()).items()} == {
            name: ["b"] if name in mine else ["a", "b"] for name in names
        }
        for method, path in (
            ("POST", "clearBacklog"),
            ("POST", "unsubscribe/b"),
            ("GET", "topicHashPositions"),
        ):
            assert (await rest.ask(method, f"{NAMESPACE}/0x00000000_0x40000000/{path}")).status == 404
        assert (await rest.delete(low)).status == 501


# -- schemas ---------------------------------------------------------------------------------------------


async def test_a_schemas_metadata_lists_its_versions(rest: Rest) -> None:
    schema = "/admin/v2/schemas/public/default/orders"
    assert (await rest.get(f"{schema}/metadata")).status == 404
    for kind in ("STRING", "INT64"):
        await rest.post(f"{schema}/schema", {"type": kind, "schema": ""})
    entries = [{"version": number, "ledgerId": -1, "entryId": -1} for number in range(2)]
    found = (await rest.get(f"{schema}/metadata")).body
    assert found == {"info": entries[len(found["index"]) - 1], "index": entries[: len(found["index"])]}
    assert found["index"]
    await rest.delete(f"{schema}/schema")
    assert (await rest.get(f"{schema}/metadata")).status == 404
