"""What the stock admin client asks for beside the rest: `tests/clients/test_java_admin.py` has that client itself."""

from __future__ import annotations

import pulsar
import pytest

from quire.serving.names import TopicName
from tests.serving.admin.conftest import TOPIC, Rest
from tests.serving.conftest import BrokerHouse, in_thread

NAME = "persistent://public/default/orders"
NAMESPACE = "/admin/v2/namespaces/public/default"
PARTS = "/admin/v2/persistent/public/default/parts"
PROPERTIES = "subscription/s/properties"


@pytest.mark.parametrize("partitions", [0, 2])
async def test_a_subscriptions_properties_are_replaced(rest: Rest, partitions: int) -> None:
    topic = PARTS if partitions else TOPIC
    await rest.put(f"{topic}/partitions" if partitions else topic, partitions or None)
    await rest.put(f"{topic}/subscription/s", {"ledgerId": -1, "entryId": -1, "properties": {"a": "1"}})
    assert (await rest.get(f"{topic}/{PROPERTIES}")).body == {"a": "1"}
    assert (await rest.put(f"{topic}/{PROPERTIES}", {"b": "2"})).status == 204
    assert (await rest.get(f"{topic}/{PROPERTIES}")).body == {"b": "2"}
    assert (await rest.put(f"{topic}/{PROPERTIES}", {"b": 2})).status == 400
    assert (await rest.put(f"{topic}/{PROPERTIES}", {})).status == 204
    assert (await rest.get(f"{topic}/{PROPERTIES}")).body == {}
    for asked in (rest.get, rest.put):
        assert (await asked(f"{topic}/subscription/none/properties")).status == 404


async def test_a_subscriptions_properties_are_kept(rest: Rest, house: BrokerHouse) -> None:
    await rest.put(TOPIC)
    await rest.put(f"{TOPIC}/subscription/s")
    await rest.put(f"{TOPIC}/{PROPERTIES}", {"b": "2"})
    await house.kill(house.running[0])
    other = await house.start()
    assert await other.admin.subscriptions.properties(TopicName.parse(NAME), "s") == {"b": "2"}


async def sent(client: pulsar.Client, count: int) -> list[pulsar.MessageId]:
    producer = await in_thread(lambda: client.create_producer(NAME))
    return [await in_thread(lambda i=i: producer.send(b"%d" % i)) for i in range(count)]


async def test_entries_are_examined_from_both_ends(rest: Rest, client: pulsar.Client) -> None:
    await sent(client, 3)
    await rest.put(f"{TOPIC}/unload")
    await sent(client, 2)  # in another segment
    asked = f"{TOPIC}/examinemessage?initialPosition="
    for end, order in (("earliest", "01201"), ("latest", "10210")):
        for number, data in enumerate(order, 1):
            answer = await rest.get(f"{asked}{end}&messagePosition={number}")
            assert (answer.status, answer.body) == (200, int(data)), (end, number)
        assert (await rest.get(f"{asked}{end}&messagePosition=6")).status == 404
    assert (await rest.get(f"{asked}latest&messagePosition=0")).status == 400
    assert (await rest.get(f"{asked}middle&messagePosition=1")).status == 400
    await rest.put(f"{PARTS}/partitions", 2)
    assert (await rest.get(f"{PARTS}/examinemessage")).status == 405


async def test_the_bytes_after_a_message_are_told(rest: Rest, client: pulsar.Client) -> None:
    ids = await sent(client, 4)

    async def after(ledger: int, entry: int) -> int:
        answer = await rest.put(f"{TOPIC}/backlogSize", {"ledgerId": ledger, "entryId": entry})
        assert answer.status == 200
        return int(answer.body)

    sizes = [await after(one.ledger_id(), one.entry_id()) for one in ids]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] == 0 < sizes[-2]
    assert await after(-1, -1) > sizes[0]
    assert await after(ids[0].ledger_id(), 10_000) == 0


async def test_a_topics_bundle_is_told(rest: Rest) -> None:
    bundle = (await rest.get("/lookup/v2/topic/persistent/public/default/orders/bundle")).body
    low, high = bundle.split("_")
    edges = (await rest.get(f"{NAMESPACE}/bundles")).body["boundaries"]
    assert edges.index(high) == edges.index(low) + 1


async def test_all_policies_of_a_topic_are_forgotten_at_once(rest: Rest) -> None:
    await rest.put(TOPIC)
    await rest.post(f"{TOPIC}/messageTTL", 10)
    await rest.post(f"{TOPIC}/maxMessageSize", 1000)
    assert (await rest.delete(f"{TOPIC}/policies")).status == 204
    assert (await rest.get(f"{TOPIC}/messageTTL")).status == 204
    assert (await rest.get(f"{TOPIC}/maxMessageSize")).status == 204


async def test_what_clients_cannot_read_as_nothing_is_said(rest: Rest) -> None:
    for word, said in (
        ("isAllowAutoUpdateSchema", True),
        ("schemaValidationEnforced", False),
        ("maxTopicsPerNamespace", 0),
        ("offloadThreshold", -1),
        ("offloadThresholdInSeconds", -1),
        ("dispatcherPauseOnAckStatePersistent", False),
    ):
        answer = await rest.get(f"{NAMESPACE}/{word}")
        assert (answer.status, answer.body) == (200, said), word
    await rest.post(f"{NAMESPACE}/isAllowAutoUpdateSchema", False)
    assert (await rest.get(f"{NAMESPACE}/isAllowAutoUpdateSchema")).body is False


async def test_what_of_a_topic_clients_cannot_read_as_nothing_is_said(rest: Rest) -> None:
    await rest.put(TOPIC)
    for word, said in (("schemaValidationEnforced", False), ("shadowTopics", [])):
        assert await rest.get(f"{TOPIC}/{word}") == (200, said), word


async def test_the_older_schema_strategy_is_the_other_one(rest: Rest) -> None:
    older, newer = f"{NAMESPACE}/schemaAutoUpdateCompatibilityStrategy", "schemaCompatibilityStrategy"
    assert await rest.get(older) == (200, "Full")
    assert (await rest.put(older, "AutoUpdateDisabled")).status == 204
    assert (await rest.get(f"{NAMESPACE}/{newer}")).body == "ALWAYS_INCOMPATIBLE"
    assert (await rest.post(f"{NAMESPACE}/{newer}", "BACKWARD_TRANSITIVE")).status == 204
    assert await rest.get(older) == (200, "BackwardTransitive")
    assert (await rest.put(older, "FULL")).status == 400
    assert (await rest.delete(older)).status == 204
    assert (await rest.get(f"{NAMESPACE}/{newer}")).body == "UNDEFINED"


async def test_a_snapshot_interval_is_unset_by_null(rest: Rest) -> None:
    """As the stock client does it."""
    await rest.put(TOPIC)
    for parent in (NAMESPACE, TOPIC):
        path = f"{parent}/deduplicationSnapshotInterval"
        assert (await rest.post(path, 120)).status == 204
        assert (await rest.get(path)).body == 120
        assert (await rest.post(path, data="null")).status == 204
        assert await rest.get(path) == (204, None)


async def test_a_namespaces_properties(rest: Rest) -> None:
    """Values are plain text; those that are put are added to the others."""
    every, one = f"{NAMESPACE}/properties", f"{NAMESPACE}/property"
    assert await rest.get(every) == (200, {})
    assert (await rest.put(every, {"team": "billing", "tier": "1"})).status == 204
    assert (await rest.put(f"{one}/tier/gold%20plus")).status == 204
    assert (await rest.get(every)).body == {"team": "billing", "tier": "gold plus"}
    assert (await rest.get(NAMESPACE)).body["properties"] == {"team": "billing", "tier": "gold plus"}
    assert await rest.get(f"{one}/tier") == (200, "gold plus")
    assert await rest.get(f"{one}/none") == (204, None)
    assert await rest.delete(f"{one}/tier") == (200, "gold plus")
    assert await rest.delete(f"{one}/tier") == (204, None)
    for sent in ("a+b/c++", "a%2Bb/c%2B%2B"):
        assert (await rest.put(f"{one}/{sent}")).status == 204
        assert (await rest.get(every)).body == {"team": "billing", "a+b": "c++"}, sent
        assert await rest.get(f"{one}/a+b") == (200, "c++")
        assert await rest.delete(f"{one}/a+b") == (200, "c++")
    assert (await rest.get(every)).body == {"team": "billing"}
    assert (await rest.put(every, {"team": 5})).status == 400
    assert (await rest.put(every, {"a": "x" * 70_000})).status == 400
    assert (await rest.delete(every)).status == 204
    assert await rest.get(every) == (200, {})
    for ask in (rest.get, rest.delete):
        assert (await ask(f"{NAMESPACE}9/property/tier")).status == 404
    assert (await rest.put(f"{NAMESPACE}9/property/tier/1")).status == 404


async def test_resource_quotas_are_pulsars_default(rest: Rest) -> None:
    quota = {
        "msgRateIn": 40.0, "msgRateOut": 120.0, "bandwidthIn": 100_000.0, "bandwidthOut": 300_000.0,
        "memory": 80.0, "dynamic": True,
    }  # fmt: skip
    quotas = "/admin/v2/resource-quotas"
    bundle = f"{quotas}/public/default/0x00000000_0xffffffff"
    for path in (quotas, bundle):
        assert await rest.get(path) == (200, quota)
        refused = await rest.post(path, quota)
        assert refused.status == 501 and "publishRate" in refused.body["reason"]
        assert (await rest.delete(path)).status == 204
    for path in ("public/default/0x00000000_0x80000000", "public/none/0x00000000_0xffffffff"):
        for ask in (rest.get, rest.post, rest.delete):
            assert (await ask(f"{quotas}/{path}")).status == 404


async def test_a_broker_that_is_not_ready_says_why(rest: Rest, house: BrokerHouse) -> None:
    house.running[0].why_not_ready = lambda: ["no bookies"]  # type: ignore[method-assign]
    answer = await rest.get("/admin/v2/brokers/health")
    assert (answer.status, answer.body) == (503, {"reason": "no bookies"})
