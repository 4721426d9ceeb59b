"""Messages as people read them: the last, from a place or a time, what a subscription waits for; nothing is taken."""

from __future__ import annotations

import json

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record, String

from quire.serving.admin.looks import TEXT_CHARS_MAX
from tests.serving.admin.conftest import TOPIC, Rest
from tests.serving.conftest import in_thread

LOOK = "/quire/v1/topics/persistent/public/default/orders/messages"
OF_ONE = "/quire/v1/topics/persistent/public/default/orders/subscription/s/messages"


class Order(Record):  # type: ignore[misc]
    number = Integer()
    what = String()


def publish(client: pulsar.Client, count: int, **options: object) -> list[pulsar.MessageId]:
    producer = client.create_producer("orders", **options)
    return [producer.send(b"%d" % number, {"n": str(number)}, partition_key="k") for number in range(count)]


def texts(looks: list[dict[str, str]]) -> list[str]:
    return [one["text"] for one in looks]


async def test_the_last_the_first_and_those_from_a_place(rest: Rest, client: pulsar.Client) -> None:
    sent = await in_thread(lambda: publish(client, 5))
    assert texts((await rest.get(f"{LOOK}?count=2")).body) == ["3", "4"]
    first = (await rest.get(f"{LOOK}?from=earliest&count=1")).body[0]
    assert first["text"] == "0" and first["key"] == "k" and first["properties"] == {"n": "0"}
    assert first["position"] == f"{sent[0].ledger_id()}:0" and first["size"] == 1
    assert texts((await rest.get(f"{LOOK}?from={sent[0].ledger_id()}:3")).body) == ["3", "4"]
    assert texts((await rest.get(f"{LOOK}?time={first['publishTimeMs']}")).body)[0] == "0"
    assert (await rest.get(f"{LOOK}?from={sent[0].ledger_id()}:9")).body == []


async def test_what_a_subscription_waits_for_is_seen_and_stays(rest: Rest, client: pulsar.Client) -> None:
    def work() -> None:
        consumer = client.subscribe("orders", "s", pulsar.ConsumerType.Shared)
        publish(client, 4)
        messages = [consumer.receive(5000) for _ in range(4)]
        consumer.acknowledge(messages[0])
        consumer.acknowledge(messages[2])
        consumer.close()

    await in_thread(work)
    for _ in range(2):
        assert texts((await rest.get(OF_ONE)).body) == ["1", "3"]
    assert (await rest.get(OF_ONE.replace("/s/", "/none/"))).status == 404


async def test_each_message_is_decoded_by_the_schema_it_was_written_with(
    rest: Rest, client: pulsar.Client
) -> None:
    def work() -> None:
        producer = client.create_producer("orders", schema=AvroSchema(Order), batching_enabled=True)
        for number in range(3):
            producer.send_async(Order(number=number, what="<b>"), lambda *_: None)
        producer.flush()

    await in_thread(work)
    looks = (await rest.get(LOOK)).body
    assert [json.loads(one["text"]) for one in looks] == [{"number": n, "what": "<b>"} for n in range(3)]
    assert {one["form"] for one in looks} == {"json"} and {one["schemaVersion"] for one in looks} == {0}
    assert looks[2]["position"].endswith(":0:2"), "of a batch"


async def test_what_is_large_is_cut(rest: Rest, client: pulsar.Client) -> None:
    def work() -> None:
        producer = client.create_producer("orders", compression_type=pulsar.CompressionType.LZ4)
        producer.send(b"x" * 3_000_000, {f"p{n}": "v" * 10_000 for n in range(60)})

    await in_thread(work)
    (look,) = (await rest.get(LOOK)).body
    assert look["isCut"] and len(look["text"]) == TEXT_CHARS_MAX and look["size"] == 3_000_000
    assert len(look["properties"]) == 50 and max(map(len, look["properties"].values())) == 500


@pytest.mark.parametrize("query", ["count=0", "count=101", "from=x", "from=1:x", "time=-1"])
async def test_what_makes_no_sense_is_refused(rest: Rest, query: str) -> None:
    await rest.put(TOPIC, {})
    assert (await rest.get(f"{LOOK}?{query}")).status == 400


async def test_of_a_topic_with_partitions_one_is_asked(rest: Rest) -> None:
    await rest.put(f"{TOPIC}/partitions", 2)
    assert (await rest.get(LOOK)).status == 405


async def test_a_segment_is_sealed_by_hand(rest: Rest, client: pulsar.Client) -> None:
    await in_thread(lambda: publish(client, 2))
    seal = "/quire/v1/topics/persistent/public/default/orders/seal"
    assert (await rest.put(seal)).status == 204
    ledgers = (await rest.get(f"{TOPIC}/internalStats")).body["ledgers"]
    assert [one["messages"] for one in ledgers] == [2, 0] and ledgers[0]["state"] != "active"
    assert (await rest.put(seal)).status == 204, "nothing to seal"
    assert len((await rest.get(f"{TOPIC}/internalStats")).body["ledgers"]) == 2


async def test_policies_that_are_prescribed_and_that_hold(rest: Rest) -> None:
    await rest.put(TOPIC, {})
    await rest.post("/admin/v2/namespaces/public/default/messageTTL", 60)
    await rest.post(f"{TOPIC}/maxProducers", 3)
    found = (await rest.get("/quire/v1/topics/persistent/public/default/orders/policies")).body
    assert found["prescribed"]["maxProducers"] == 3 and found["prescribed"]["messageTTL"] is None
    assert found["applied"]["messageTTL"] == 60 and found["applied"]["maxProducers"] == 3
    assert found["sources"].keys() == found["prescribed"].keys() == found["applied"].keys()
    levels = [found["sources"][word] for word in ("maxProducers", "messageTTL", "maxConsumers")]
    assert levels == ["topic", "namespace", "broker"]


async def test_policies_of_a_namespace_and_what_holds_in_it(rest: Rest) -> None:
    await rest.post("/admin/v2/namespaces/public/default/messageTTL", 60)
    await rest.post("/admin/v2/namespaces/public/default/maxTopicsPerNamespace", 9)
    found = (await rest.get("/quire/v1/namespaces/public/default/policies")).body
    assert found["prescribed"]["messageTTL"] == 60 and found["prescribed"]["maxConsumersPerTopic"] is None
    assert found["applied"]["messageTTL"] == 60 and found["applied"]["maxTopicsPerNamespace"] == 9
    assert found["applied"]["maxConsumersPerTopic"] == 0
    assert found["applied"]["autoTopicCreation"]["allowAutoTopicCreation"] is True
    levels = [found["sources"][word] for word in ("messageTTL", "maxConsumersPerTopic")]
    assert levels == ["namespace", "broker"]


async def test_each_backlog_quota_has_its_own_source(rest: Rest) -> None:
    await rest.put(TOPIC, {})
    namespace = "/admin/v2/namespaces/public/default"
    await rest.post(f"{namespace}/backlogQuota?backlogQuotaType=message_age", {"limitTime": 60})
    path = "/quire/v1/topics/persistent/public/default/orders/policies"
    above = {"destination_storage": "broker", "message_age": "namespace"}
    assert (await rest.get(path)).body["sources"]["backlogQuota"] == above
    await rest.post(f"{TOPIC}/backlogQuota", {"limitSize": 10})
    own = {"destination_storage": "topic", "message_age": "namespace"}
    assert (await rest.get(path)).body["sources"]["backlogQuota"] == own
    assert (await rest.get("/quire/v1/namespaces/public/nowhere/policies")).status == 404
