"""Topics over REST: created, listed, looked into, terminated and deleted, by Pulsar's paths, bodies and statuses."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import pulsar
import pytest

from quire.runtime.errors import ConfigurationError
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from tests.serving.admin.conftest import TOPIC, Rest
from tests.serving.conftest import in_thread

NAME = "persistent://public/default/orders"
STATS = {  # the fields of Pulsar's TopicStats that tools read
    "msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut", "bytesInCounter", "msgInCounter",
    "bytesOutCounter", "msgOutCounter", "averageMsgSize", "storageSize", "offloadedStorageSize", "publishers",
    "subscriptions", "replication", "deduplicationStatus",
}  # fmt: skip
PUBLISHER = {"producerId", "producerName", "address", "connectedSince"}
SUBSCRIPTION = {
    "type",
    "msgBacklog",
    "unackedMessages",
    "msgRateOut",
    "msgThroughputOut",
    "consumers",
    "isDurable",
}
CONSUMER = {"consumerName", "availablePermits", "unackedMessages", "address", "connectedSince", "msgRateOut"}
INTERNAL = {
    "entriesAddedCounter", "numberOfEntries", "totalSize", "currentLedgerEntries", "currentLedgerSize",
    "lastConfirmedEntry", "state", "ledgers", "cursors",
}  # fmt: skip
CURSOR = {"markDeletePosition", "readPosition", "individuallyDeletedMessages", "state", "properties"}


async def publish(client: pulsar.Client, topic: str, *contents: bytes) -> list[pulsar.MessageId]:
    def work() -> list[pulsar.MessageId]:
        producer = client.create_producer(topic)
        sent = [producer.send(content) for content in contents]
        producer.close()
        return sent

    return await in_thread(work)


async def test_a_topic_is_created_once_listed_and_deleted_once(rest: Rest) -> None:
    assert (await rest.put(TOPIC)).status == 204
    again = await rest.put(TOPIC)
    assert again.status == 409 and "exists" in again.body["reason"]
    assert (await rest.get("/admin/v2/persistent/public/default")).body == [NAME]
    assert (await rest.get("/admin/v2/namespaces/public/default/topics")).body == [NAME]
    assert (await rest.delete(TOPIC)).status == 204
    assert (await rest.get("/admin/v2/persistent/public/default")).body == []
    gone = await rest.delete(TOPIC)
    assert gone.status == 404 and NAME in gone.body["reason"]


async def test_partitions_are_created_counted_grown_and_deleted(rest: Rest) -> None:
    path = f"{TOPIC}/partitions"
    assert (await rest.put(path, 3)).status == 204
    assert (await rest.put(path, 3)).status == 409
    assert (await rest.get(path)).body == {"partitions": 3}
    assert (await rest.get("/admin/v2/persistent/public/default/partitioned")).body == [NAME]
    listed = (await rest.get("/admin/v2/persistent/public/default")).body
    assert listed == [f"{NAME}-partition-{i}" for i in range(3)]
    assert (await rest.post(path, 5)).status == 204
    assert (await rest.post(path, 4)).status == 400
    assert (await rest.get(path)).body == {"partitions": 5}
    assert (await rest.get(f"{TOPIC}-partition-4/partitions")).body == {"partitions": 0}
    assert (await rest.get(f"{TOPIC}-partition-5/partitions")).status == 404
    assert (await rest.delete(TOPIC)).status == 400, "a partitioned topic is deleted as one"
    assert (await rest.delete(path)).status == 204
    assert (await rest.get(path)).status == 404
    assert (await rest.delete(path)).status == 404


async def test_an_unknown_topic_has_no_partitions_unless_its_use_would_create_it(rest: Rest) -> None:
    path = f"{TOPIC}/partitions"
    assert (await rest.get(path)).status == 404
    assert (await rest.get(f"{path}?checkAllowAutoCreation=true")).body == {"partitions": 0}
    assert (await rest.get("/admin/v2/persistent/public/default")).body == [], "asking creates nothing"
    await rest.post(
        "/admin/v2/namespaces/public/default/autoTopicCreation", {"allowAutoTopicCreation": False}
    )
    assert (await rest.get(f"{path}?checkAllowAutoCreation=true")).status == 404


@pytest.mark.parametrize("body", ["0", "-1", "many", "1.5", "true", "{}", "", "[3]", "100000", "\x00\xff"])
async def test_a_number_of_partitions_that_is_none_is_refused(rest: Rest, body: str) -> None:
    answer = await rest.put(f"{TOPIC}/partitions", data=body)
    assert answer.status == 400 and answer.body["reason"]
    assert (await rest.get(f"{TOPIC}/partitions")).status == 404, "nothing was changed"


@pytest.mark.parametrize(
    "method", ["stats", "internalStats", "lastMessageId", "subscriptions", "partitioned-stats"]
)
async def test_what_is_asked_of_an_unknown_topic_is_not_found(rest: Rest, method: str) -> None:
    assert (await rest.get(f"{TOPIC}/{method}")).status == 404
    assert (await rest.get(f"/admin/v2/persistent/no/where/orders/{method}")).status == 404


async def test_unknown_namespaces_paths_and_methods_are_refused_as_json(rest: Rest) -> None:
    assert (await rest.put("/admin/v2/persistent/no/where/orders")).status == 404
    assert (await rest.get("/admin/v2/persistent/no/where")).status == 404
    assert (await rest.put("/admin/v2/eternal/public/default/orders")).status == 404
    for answer in (await rest.get("/admin/v2/nothing"), await rest.ask("PATCH", TOPIC)):
        assert answer.status in (404, 405) and answer.body["reason"]


async def test_a_name_with_slashes_and_letters_of_all_kinds(rest: Rest, client: pulsar.Client) -> None:
    name = "persistent://public/default/a/b c%d/ü?#"
    path = "/admin/v2/persistent/public/default/" + quote("a/b c%d/ü?#", safe="")
    assert (await rest.put(path)).status == 204
    assert (await rest.get("/admin/v2/persistent/public/default")).body == [name]
    assert (await rest.get(f"{path}/partitions")).body == {"partitions": 0}
    assert (await rest.get(f"{path}/stats")).body["msgInCounter"] == 0
    assert (await rest.get(f"/lookup/v2/topic{path.removeprefix('/admin/v2')}")).status == 200
    assert (await rest.get(f"/quire/v1/topics{path.removeprefix('/admin/v2')}/segments")).body[
        "topic"
    ] == name
    assert (await rest.delete(path)).status == 204


async def test_bodies_may_come_in_chunks(rest: Rest) -> None:
    async def number():  # type: ignore[no-untyped-def]
        yield b" "
        yield b"4"

    assert (await rest.put(f"{TOPIC}/partitions", data=number())).status == 204
    assert (await rest.get(f"{TOPIC}/partitions")).body == {"partitions": 4}


async def test_a_body_beyond_the_limit_is_refused(rest: Rest) -> None:
    assert (await rest.put(f"{TOPIC}/partitions", data=b"1" * (2 << 20))).status == 413


async def test_stats_have_pulsars_fields_and_the_right_numbers(rest: Rest, client: pulsar.Client) -> None:
    consumer = await in_thread(lambda: client.subscribe(NAME, "audit", consumer_name="me"))
    producer = await in_thread(lambda: client.create_producer(NAME, producer_name="till"))
    for content in (b"a" * 10, b"b" * 30):
        await in_thread(lambda content=content: producer.send(content))
    await in_thread(lambda: consumer.acknowledge(consumer.receive(5000)))
    await in_thread(lambda: consumer.receive(5000))
    await in_thread(consumer.close)
    stats = (await rest.get(f"{TOPIC}/stats")).body
    assert stats.keys() >= STATS
    assert stats["msgInCounter"] == 2 and stats["msgOutCounter"] == 2
    assert stats["bytesInCounter"] >= 40 and stats["storageSize"] >= stats["bytesInCounter"]
    (publisher,) = stats["publishers"]
    assert publisher.keys() >= PUBLISHER and publisher["producerName"] == "till"
    assert publisher["averageMsgSize"] >= 20 and publisher["msgRateIn"] >= 0 <= publisher["msgThroughputIn"]
    subscription = stats["subscriptions"]["audit"]
    assert subscription["consumersAfterMarkDeletePosition"] == {}
    assert subscription["lastConsumedFlowTimestamp"] > stats["topicCreationTimeStamp"]
    check_backlog(stats, subscription)
    assert subscription.keys() >= SUBSCRIPTION
    assert subscription["type"] == "Exclusive" and subscription["msgBacklog"] == 1
    assert subscription["consumers"] == []


def check_backlog(stats: dict[str, Any], subscription: dict[str, Any]) -> int:
    """The topic's backlog is that of its only subscription; returns when its oldest message was published."""
    assert stats["backlogSize"] == subscription["backlogSize"] > 0
    assert stats["oldestBacklogMessageSubscriptionName"] == "audit"
    oldest: int = stats["earliestMsgPublishTimeInBacklogs"]
    assert oldest == subscription["earliestMsgPublishTimeInBacklog"] > 0
    return oldest


async def test_a_topic_without_a_backlog_says_so(rest: Rest, client: pulsar.Client) -> None:
    for name in (NAME, NAME.replace("persistent", "non-persistent")):
        await in_thread(lambda name=name: client.subscribe(name, "audit").close())
        path = TOPIC.replace("/persistent", f"/{name.partition(':')[0]}")
        stats = (await rest.get(f"{path}/stats")).body
        assert stats["backlogSize"] == stats["earliestMsgPublishTimeInBacklogs"] == 0
        assert stats["oldestBacklogMessageAgeSeconds"] == -1
        assert stats["oldestBacklogMessageSubscriptionName"] is None


async def test_a_connected_consumer_is_in_the_stats(rest: Rest, client: pulsar.Client) -> None:
    await in_thread(lambda: client.subscribe(NAME, "audit", pulsar.ConsumerType.Shared, consumer_name="me"))
    subscription = (await rest.get(f"{TOPIC}/stats")).body["subscriptions"]["audit"]
    (consumer,) = subscription["consumers"]
    assert subscription["type"] == "Shared"
    assert consumer.keys() >= CONSUMER and consumer["consumerName"] == "me"
    assert consumer["availablePermits"] > 0


async def test_stats_of_a_partitioned_topic_are_the_sums_of_its_partitions(
    rest: Rest, client: pulsar.Client
) -> None:
    await rest.put(f"{TOPIC}/partitions", 3)
    await in_thread(lambda: client.subscribe(NAME, "audit"))
    producer = await in_thread(
        lambda: client.create_producer(
            NAME, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
        )
    )
    for _ in range(6):
        await in_thread(lambda: producer.send(b"x"))
    for path in ("stats", "partitioned-stats"):
        stats = (await rest.get(f"{TOPIC}/{path}")).body
        assert stats["msgInCounter"] == 6 and stats["metadata"]["partitions"] == 3
        assert [one["msgInCounter"] for one in stats["partitions"].values()] == [2, 2, 2]
        assert stats["subscriptions"]["audit"]["msgBacklog"] == 6
        assert len(stats["subscriptions"]["audit"]["consumers"]) == 3
        assert len(stats["publishers"]) == 3
        assert stats["subscriptions"]["audit"]["lastConsumedFlowTimestamp"] > 0
        oldest = min(one["earliestMsgPublishTimeInBacklogs"] for one in stats["partitions"].values())
        assert check_backlog(stats, stats["subscriptions"]["audit"]) == oldest
        assert 0 < stats["topicCreationTimeStamp"] <= oldest <= stats["lastPublishTimeStamp"]
    summed = (await rest.get(f"{TOPIC}/partitioned-stats?perPartition=false")).body
    assert summed["partitions"] == {} and summed["msgInCounter"] == 6
    assert (await rest.get(f"{TOPIC}-partition-0/partitioned-stats")).status == 404


async def test_internal_stats_of_a_subscription_with_properties_have_numbers_only(rest: Rest) -> None:
    """Pulsar's admin client reads `properties` there as numbers and waits for ever if it cannot."""
    await rest.put(TOPIC)
    await rest.put(f"{TOPIC}/subscription/audit", "earliest")
    await rest.put(f"{TOPIC}/subscription/audit/properties", {"team": "a"})
    cursor = (await rest.get(f"{TOPIC}/internalStats")).body["cursors"]["audit"]
    assert (cursor["properties"], cursor["subscriptionProperties"]) == ({}, {"team": "a"})
    assert (await rest.get(f"{TOPIC}/stats")).body["subscriptions"]["audit"]["subscriptionProperties"] == {
        "team": "a"
    }


async def test_internal_stats_have_pulsars_fields_and_segments_with_states(
    rest: Rest, client: pulsar.Client
) -> None:
    await in_thread(lambda: client.subscribe(NAME, "audit").close())
    sent = await publish(client, NAME, b"one", b"two", b"three")
    found = (await rest.get(f"{TOPIC}/internalStats")).body
    assert found.keys() >= INTERNAL
    assert found["lastConfirmedEntry"] == f"{sent[-1].ledger_id()}:{sent[-1].entry_id()}"
    assert found["numberOfEntries"] == 3 and found["state"] == "LedgerOpened"
    (ledger,) = found["ledgers"]
    assert ledger["ledgerId"] == sent[0].ledger_id() and ledger["entries"] == 3
    assert ledger["state"] == "active" and not ledger["offloaded"]
    assert found["cursors"]["audit"].keys() >= CURSOR
    last = (await rest.get(f"{TOPIC}/lastMessageId")).body
    assert (last["ledgerId"], last["entryId"]) == (sent[-1].ledger_id(), sent[-1].entry_id())


async def test_a_topic_in_use_is_deleted_only_by_force(rest: Rest, client: pulsar.Client) -> None:
    await in_thread(lambda: client.subscribe(NAME, "audit"))
    refused = await rest.delete(TOPIC)
    assert refused.status == 412 and "force" in refused.body["reason"]
    assert (await rest.delete(f"{TOPIC}?force=true")).status == 204


async def test_what_is_not_there_is_not_unloaded(rest: Rest) -> None:
    answer = await rest.put(f"{TOPIC}-missing/unload")
    assert answer.status == 404 and "does not exist" in answer.body["reason"]


async def test_unloading_seals_and_the_clients_come_back(rest: Rest, client: pulsar.Client) -> None:
    producer = await in_thread(lambda: client.create_producer(NAME))
    await in_thread(lambda: producer.send(b"before"))
    assert (await rest.put(f"{TOPIC}/unload")).status == 204
    await in_thread(lambda: producer.send(b"after"))
    assert len((await rest.get(f"{TOPIC}/internalStats")).body["ledgers"]) == 2


async def test_a_terminated_topic_takes_no_more_and_gives_what_it_has(
    rest: Rest, client: pulsar.Client
) -> None:
    sent = await publish(client, NAME, b"first", b"last")
    ended = await rest.post(f"{TOPIC}/terminate")
    assert ended.status == 200
    assert (ended.body["ledgerId"], ended.body["entryId"]) == (sent[-1].ledger_id(), sent[-1].entry_id())
    with pytest.raises(pulsar.PulsarException):
        await publish(client, NAME, b"too late")
    assert (await rest.get(f"{TOPIC}/internalStats")).body["state"] == "Terminated"
    reader = await in_thread(lambda: client.create_reader(NAME, pulsar.MessageId.earliest))
    assert [await in_thread(lambda: reader.read_next(5000).data()) for _ in range(2)] == [b"first", b"last"]
    assert (await rest.post(f"{TOPIC}/terminate")).body == ended.body, "once terminated, always terminated"


async def test_a_lookup_names_this_broker(rest: Rest, broker: Broker) -> None:
    found = await rest.get("/lookup/v2/topic/persistent/public/default/orders")
    assert (
        found.body["brokerUrl"] == broker.service_url and found.body["httpUrl"] == broker.addresses.http_url
    )
    assert (await rest.get("/lookup/v2/topic/persistent/no/where/orders")).status == 404


async def test_the_stock_client_looks_up_over_http(rest: Rest, broker: Broker) -> None:
    def work() -> bytes:
        client = pulsar.Client(
            broker.addresses.http_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        consumer = client.subscribe(NAME, "audit")
        client.create_producer(NAME).send(b"by http")
        data: bytes = consumer.receive(5000).data()
        client.close()
        return data

    assert await in_thread(work) == b"by http"


async def test_a_topic_that_keeps_nothing(rest: Rest) -> None:
    topic = "/admin/v2/non-persistent/public/default/now"
    assert (await rest.get(f"{topic}/stats")).status == 404
    assert (await rest.put(topic)).status == 204
    assert (await rest.put(topic)).status == 409
    assert (await rest.get("/admin/v2/non-persistent/public/default")).body == [
        "non-persistent://public/default/now"
    ]
    assert (await rest.get("/admin/v2/persistent/public/default")).body == []
    stats = (await rest.get(f"{topic}/stats")).body
    assert (stats["msgDropRate"], stats["storageSize"]) == (0, 0)
    assert (await rest.get(f"{topic}/internalStats")).status == 400
    assert (await rest.delete(topic)).status == 204
    assert (await rest.delete(topic)).status == 404


async def test_messages_are_found_by_index_and_by_time(rest: Rest, client: pulsar.Client) -> None:
    sent = await publish(client, NAME, b"a", b"b", b"c")
    for index, id in enumerate(sent):
        found = (await rest.get(f"{TOPIC}/getMessageIdByIndex?index={index}")).body
        assert (found["ledgerId"], found["entryId"]) == (id.ledger_id(), id.entry_id())
    assert (await rest.get(f"{TOPIC}/getMessageIdByIndex?index=3")).status == 404
    assert (await rest.get(f"{TOPIC}/getMessageIdByIndex?index=x")).status == 400
    first = (await rest.get(f"{TOPIC}/messageid/0")).body
    assert (first["ledgerId"], first["entryId"]) == (sent[0].ledger_id(), sent[0].entry_id())
    behind = (await rest.get(f"{TOPIC}/messageid/{10**17}")).body
    assert behind["entryId"] == sent[2].entry_id() + 1


async def test_a_topic_is_compacted_by_request(rest: Rest, client: pulsar.Client, broker: Broker) -> None:
    path = f"{TOPIC}/compaction"
    await rest.put(TOPIC)
    assert (await rest.get(path)).body == {"status": "NOT_RUN", "lastError": ""}
    await publish(client, NAME, b"a", b"b")
    assert (await rest.put(path)).status == 204
    topic = await broker.registry.open(TopicName.parse(NAME))
    running = topic.log.compaction._running
    if running is not None:
        await asyncio.wait([running])
        await asyncio.sleep(0)
    assert (await rest.get(path)).body == {"status": "SUCCESS", "lastError": ""}
    assert (await rest.put(f"{TOPIC}x/compaction")).status == 404


async def test_all_partitions_are_compacted_and_terminated_by_one_request(
    rest: Rest, client: pulsar.Client, broker: Broker
) -> None:
    await rest.put(f"{TOPIC}/partitions", 3)
    sent = [(await publish(client, f"{NAME}-partition-{number}", b"a"))[0] for number in (0, 2)]
    assert (await rest.put(f"{TOPIC}/compaction")).status == 204
    for number in (0, 2):
        topic = await broker.registry.open(TopicName.parse(f"{NAME}-partition-{number}"))
        running = topic.log.compaction._running
        if running is not None:
            await asyncio.wait([running])
            await asyncio.sleep(0)  # its end is noted in the turn behind it
        assert topic.log.compaction.status == "SUCCESS"
    assert await broker.registry.records.find(TopicName.parse(f"{NAME}-partition-1")) is None, (
        "nobody used it"
    )
    last = (await rest.post(f"{TOPIC}/terminate/partitions")).body
    assert [(last[n]["ledgerId"], last[n]["partitionIndex"]) for n in ("0", "2")] == [
        (sent[0].ledger_id(), 0), (sent[1].ledger_id(), 2)
    ]  # fmt: skip
    assert last["1"]["entryId"] == -1
    with pytest.raises(pulsar.TopicTerminated):
        await publish(client, NAME, b"b")


async def test_why_segments_are_kept_is_told_over_rest(rest: Rest, client: pulsar.Client) -> None:
    await publish(client, NAME, b"a")
    shown = (await rest.get("/quire/v1/topics/persistent/public/default/orders/explain")).body
    assert [one["by"] for one in shown["segments"][0]["keptBy"]] == ["active"]
    assert shown["retentionMs"] == -1


async def test_messages_expire_by_request(rest: Rest, client: pulsar.Client) -> None:
    await rest.put(f"{TOPIC}/subscription/s", "earliest")
    await publish(client, NAME, b"a")
    assert (await rest.post(f"{TOPIC}/subscription/s/expireMessages/3600")).status == 204
    assert (await rest.get(f"{TOPIC}/stats")).body["subscriptions"]["s"]["msgBacklog"] == 1
    assert (await rest.post(f"{TOPIC}/subscription/nobody/expireMessages/0")).status == 404
    assert (await rest.post(f"{TOPIC}/subscription/s/expireMessages/soon")).status == 400
    assert (await rest.post(f"{TOPIC}/all_subscription/expireMessages/0")).status == 204


async def test_partitions_come_as_a_number_or_with_properties(rest: Rest) -> None:
    body = {"properties": {"team": "a"}, "partitions": 2}
    assert (await rest.put(f"{TOPIC}/partitions?createLocalTopicOnly=false", body)).status == 204
    assert (await rest.put(f"{TOPIC}/partitions", 2)).status == 409
    assert (await rest.get(f"{TOPIC}/partitions")).body["partitions"] == 2
    assert (await rest.get(f"{TOPIC}/partitioned-stats")).body["metadata"]["properties"] == {"team": "a"}
    more = f"{TOPIC}/partitions?updateLocalTopicOnly=false&authoritative=false&force=true"
    assert (await rest.post(more, 4)).status == 204
    assert (await rest.post(more, {"partitions": 4})).status == 204
    assert (await rest.post(more, 3)).status == 400
    for wrong in ({}, {"partitions": "many"}, {"partitions": 2, "properties": {"a": 1}}, {"partitions": 0}):
        assert (await rest.put(f"{TOPIC}2/partitions", wrong)).status == 400


@pytest.mark.parametrize("partitions", [0, 2])
async def test_a_topics_properties_are_kept_and_shown(rest: Rest, partitions: int) -> None:
    path = f"{TOPIC}/properties"
    if partitions:
        await rest.put(f"{TOPIC}/partitions", partitions)
    else:
        assert (await rest.put(TOPIC, {"team": "a"})).status == 204
        assert (await rest.get(path)).body == {"team": "a"}
    assert (await rest.put(path, {"team": "b", "since": "now"})).status == 204
    assert (await rest.delete(f"{path}?key=since")).status == 204
    assert (await rest.get(path)).body == {"team": "b"}
    if partitions:
        assert (await rest.get(f"{TOPIC}-partition-1/properties")).body == {"team": "b"}
    assert (await rest.put(path, {"big": "x" * 100_000})).status == 400
    assert (await rest.get(f"{TOPIC}-other/properties")).status == 404


async def test_a_partitioned_topic_is_unloaded_and_looked_into_as_one(
    rest: Rest, client: pulsar.Client, broker: Broker
) -> None:
    await rest.put(f"{TOPIC}/partitions", 2)
    assert (await rest.get(f"{TOPIC}/compaction")).body["status"] == "NOT_RUN"
    await publish(client, f"{NAME}-partition-1", b"a")
    shown = (await rest.get(f"{TOPIC}/partitioned-internalStats")).body
    assert shown["metadata"]["partitions"] == 2
    assert [one["numberOfEntries"] for one in shown["partitions"].values()] == [1]
    assert (await rest.put(f"{TOPIC}/unload")).status == 204
    assert not broker.registry.persistent()
    assert (await rest.put(f"{TOPIC}/compaction")).status == 204
    async with asyncio.timeout(60):
        while (await rest.get(f"{TOPIC}/compaction")).body["status"] != "SUCCESS":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (await rest.get(f"{TOPIC}-partition-1/lastMessageId")).body["partitionIndex"] == 1
    refused = await rest.post(f"{TOPIC}/terminate")
    assert refused.status == 405 and "partition" in refused.body["reason"]
    assert (await rest.get(f"{TOPIC}9/partitioned-internalStats")).status == 404


async def test_stats_leave_out_who_is_not_asked_for(rest: Rest, client: pulsar.Client) -> None:
    await rest.put(f"{TOPIC}/partitions", 1)
    await in_thread(lambda: client.subscribe(NAME, "audit"))
    producer = await in_thread(lambda: client.create_producer(NAME))
    await in_thread(lambda: producer.send(b"x"))
    partition = f"{TOPIC}-partition-0/stats"
    stats = (await rest.get(partition)).body
    (publisher,), (consumer,) = stats["publishers"], stats["subscriptions"]["audit"]["consumers"]
    assert "Pulsar" in publisher["clientVersion"] and consumer["clientVersion"] == publisher["clientVersion"]
    assert 0 < stats["topicCreationTimeStamp"] <= stats["lastPublishTimeStamp"]
    for path in (partition, f"{TOPIC}/partitioned-stats"):
        stats = (await rest.get(f"{path}?excludePublishers=true&excludeConsumers=true")).body
        for one in (stats, *stats.get("partitions", {}).values()):
            assert one["publishers"] == one["subscriptions"]["audit"]["consumers"] == []


async def test_topics_of_a_namespace_by_their_kind(rest: Rest) -> None:
    await rest.put(TOPIC)
    await rest.put("/admin/v2/non-persistent/public/default/now")
    path, now = "/admin/v2/namespaces/public/default/topics", "non-persistent://public/default/now"
    for mode, found in {"PERSISTENT": [NAME], "NON_PERSISTENT": [now], "ALL": [now, NAME]}.items():
        assert (await rest.get(f"{path}?mode={mode}")).body == found
    assert (await rest.get(path)).body == [NAME]
    assert (await rest.get(f"{path}?mode=SOME")).status == 400


PARTITIONED = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
CREATION = "/admin/v2/namespaces/public/default/autoTopicCreation"


@pytest.mark.parametrize("use", ["produce", "subscribe", "lookup over HTTP", "subscription over HTTP"])
async def test_a_topic_that_its_use_creates_has_the_partitions_of_its_namespace(
    rest: Rest, client: pulsar.Client, use: str
) -> None:
    await rest.put(f"{TOPIC}-before")
    assert (await rest.post(CREATION, PARTITIONED)).status == 204
    if use == "produce":
        await publish(client, NAME, b"x")
    elif use == "subscribe":
        await in_thread(lambda: client.subscribe(NAME, "s").close())
    elif use == "lookup over HTTP":
        answer = await rest.get(f"{TOPIC}/partitions?checkAllowAutoCreation=true")
        assert answer.body == {"partitions": 3}
    else:
        assert (await rest.put(f"{TOPIC}/subscription/s")).status == 204
    assert (await rest.get(f"{TOPIC}/partitions")).body == {"partitions": 3}
    assert (await rest.get(f"{TOPIC}-before/partitions?checkAllowAutoCreation=true")).body == {
        "partitions": 0
    }
    await in_thread(lambda: client.subscribe(f"{NAME}-before", "s").close())


async def test_use_creates_no_partitions_where_that_is_not_allowed(rest: Rest, client: pulsar.Client) -> None:
    assert (await rest.post(CREATION, {**PARTITIONED, "allowAutoTopicCreation": False})).status == 204
    assert (await rest.get(f"{TOPIC}/partitions?checkAllowAutoCreation=true")).status == 404
    assert (await rest.get(f"{TOPIC}/partitions")).status == 404
    other = TOPIC.replace("/persistent", "/non-persistent")
    assert (await rest.post(CREATION, PARTITIONED)).status == 204
    assert (await rest.get(f"{other}/partitions?checkAllowAutoCreation=true")).body == {"partitions": 0}


async def test_a_page_of_another_site_creates_no_topic_by_a_get(rest: Rest) -> None:
    assert (await rest.post(CREATION, PARTITIONED)).status == 204
    headers = {"Sec-Fetch-Site": "cross-site"}
    for query in ("checkAllowAutoCreation=true", "check%41llowAutoCreation=true"):
        refused = await rest.get(f"{TOPIC}/partitions?{query}", headers=headers)
        assert refused.status == 403
    assert (await rest.get(f"{TOPIC}/partitions")).status == 404
    assert (await rest.get(f"{TOPIC}/partitions", headers=headers)).status == 404, "it only looks"


async def test_clients_that_use_a_new_topic_at_once_get_the_same_partitions(
    rest: Rest, broker: Broker
) -> None:
    assert (await rest.post(CREATION, PARTITIONED)).status == 204
    topics = broker.sessions.topics
    asked = [topics.partitions(NAME, create=True) for _ in range(20)]
    assert set(await asyncio.gather(*asked)) == {3}


async def test_a_client_that_does_not_ask_for_partitions_creates_no_topic_without_them(
    rest: Rest, broker: Broker
) -> None:
    assert (await rest.post(CREATION, PARTITIONED)).status == 204
    with pytest.raises(ConfigurationError, match="3 partitions"):
        await broker.registry.open(TopicName.parse(NAME), create=True)
    assert (await rest.put(TOPIC)).status == 204, "on request it has none"
    assert (await rest.get(f"{TOPIC}/partitions?checkAllowAutoCreation=true")).body == {"partitions": 0}
