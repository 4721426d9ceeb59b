"""Tenants, namespaces and policies over REST, and the cluster's own description."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from quire.runtime.log import malformed_in_a_line
from quire.serving.admin import absent
from quire.serving.broker import Broker
from quire.wire import commands
from tests.serving.admin.conftest import Rest
from tests.serving.session.test_connection import Client, entry, producer

ONE = "/admin/v2/namespaces/public/default"


async def test_a_tenant_lives_and_dies(rest: Rest) -> None:
    path = "/admin/v2/tenants/shop"
    body = {"adminRoles": [], "allowedClusters": ["standalone"]}
    assert (await rest.put(path, body)).status == 204
    assert (await rest.put(path, body)).status == 409
    assert (await rest.get("/admin/v2/tenants")).body == ["public", "shop"]
    assert (await rest.get(path)).body == body
    refused = await rest.post(path, {**body, "adminRoles": ["boss"]})
    assert refused.status == 501 and "roles" in refused.body["reason"], "nobody would heed them"
    assert (await rest.put(f"{path}2", {**body, "adminRoles": ["boss"]})).status == 501
    assert (await rest.put(path, {**body, "adminRoles": ["boss"]})).status == 409
    assert (await rest.post(path, body)).status == 204
    assert (await rest.get(path)).body == body
    assert (await rest.delete(path)).status == 204
    assert (await rest.get(path)).status == 404
    assert (await rest.delete(path)).status == 404


async def test_a_namespace_lives_and_dies(rest: Rest) -> None:
    path = "/admin/v2/namespaces/public/orders"
    assert (await rest.put(path)).status == 204
    assert (await rest.put(path)).status == 409
    assert (await rest.get("/admin/v2/namespaces/public")).body == ["public/default", "public/orders"]
    assert (await rest.get(path)).body["bundles"]["numBundles"] >= 1
    await rest.put("/admin/v2/persistent/public/orders/x")
    assert (await rest.delete(path)).status == 409, "it still has a topic"
    await rest.delete("/admin/v2/persistent/public/orders/x")
    assert (await rest.delete(path)).status == 204
    assert (await rest.get(path)).status == 404
    assert (await rest.put("/admin/v2/namespaces/nobody/orders")).status == 404
    assert (await rest.delete("/admin/v2/tenants/public")).status == 409, "it still has a namespace"


@pytest.mark.parametrize("path", ["/admin/v2/tenants/a%20b", "/admin/v2/namespaces/public/a%2Fb"])
async def test_a_name_that_is_none_is_refused(rest: Rest, path: str) -> None:
    assert (await rest.put(path)).status == 400


UNSET = {
    "maxTopicsPerNamespace": 0,
    "schemaCompatibilityStrategy": "UNDEFINED",
    "subscriptionTypesEnabled": [],
    "encryptionRequired": False,
}
"""What a GET of these says when nothing is prescribed, where others have no content."""


@pytest.mark.parametrize(
    ("word", "body", "shown"),
    [
        ("deduplication", True, True),
        ("messageTTL", 3600, 3600),
        (
            "retention",
            {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1},
            {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1},
        ),
        (
            "persistence",
            {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2},
            {
                "bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2,
                "managedLedgerMaxMarkDeleteRate": 0.0,
            },
        ),
        (
            "backlogQuota",
            {"limitSize": 1000, "limitTime": 60, "policy": "producer_exception"},
            {
                "destination_storage": {
                    "limit": 1000, "limitSize": 1000, "limitTime": 60, "policy": "producer_exception"
                }
            },
        ),
        ("schemaCompatibilityStrategy", "FULL", "FULL"),
        ("autoTopicCreation", {"allowAutoTopicCreation": False}, {"allowAutoTopicCreation": False}),
        (
            "autoTopicCreation",
            {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
            {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
        ),
        (
            "autoTopicCreation",
            {"allowAutoTopicCreation": True, "topicType": None, "defaultNumPartitions": None},
            {"allowAutoTopicCreation": True, "topicType": "non-partitioned"},
        ),
        ("maxTopicsPerNamespace", 100, 100),
        ("maxProducersPerTopic", 0, 0),
        ("maxConsumersPerTopic", 5, 5),
        ("maxConsumersPerSubscription", 5, 5),
        ("maxSubscriptionsPerTopic", 5, 5),
        ("maxUnackedMessagesPerConsumer", 5, 5),
        ("maxUnackedMessagesPerSubscription", 5, 5),
        ("subscriptionTypesEnabled", ["Failover", "Exclusive"], ["Exclusive", "Failover"]),
        (
            "autoSubscriptionCreation",
            {"allowAutoSubscriptionCreation": False},
            {"allowAutoSubscriptionCreation": False},
        ),
        (
            "subscribeRate",
            {"subscribeThrottlingRatePerConsumer": 5},
            {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 30},
        ),
        ("encryptionRequired", True, True),
        ("deduplicationSnapshotInterval", 120, 120),
        ("offloadDeletionLagMs", 60_000, 60_000),
    ],
)  # fmt: skip
async def test_a_policy_is_set_shown_and_removed(rest: Rest, word: str, body: Any, shown: Any) -> None:
    path, unset = f"{ONE}/{word}", UNSET.get(word)
    assert (await rest.get(path)).body == unset
    assert (await rest.post(path, body)).status == 204
    assert (await rest.get(path)).body == shown
    assert (await rest.get(ONE)).body[word] == shown
    assert (await rest.delete(path)).status == 204
    assert (await rest.get(path)).body == unset


@pytest.mark.parametrize(
    ("word", "body"),
    [
        ("deduplication", '"yes"'),
        ("messageTTL", "-1"),
        ("maxTopicsPerNamespace", "-1"),
        ("maxProducersPerTopic", "2147483648"),
        ("messageTTL", "true"),
        ("retention", "[]"),
        ("retention", '{"retentionTimeInMinutes": -2}'),
        ("persistence", '{"bookkeeperEnsemble": 5, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2}'),
        ("persistence", '{"bookkeeperEnsemble": 2, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 3}'),
        ("backlogQuota", '{"policy": "panic"}'),
        ("autoTopicCreation", "{}"),
        ("autoTopicCreation", '{"allowAutoTopicCreation": true, "topicType": "partitioned"}'),
        ("autoTopicCreation", '{"allowAutoTopicCreation": true, "defaultNumPartitions": 3}'),
        (
            "autoTopicCreation",
            '{"allowAutoTopicCreation": true, "topicType": "partitioned", "defaultNumPartitions": 10001}',
        ),
        ("retention", '{"retentionTimeInMinutes": 5, "retentionSizeInMB": 5, "retentionTimeInMinute": 6}'),
        (
            "persistence",
            '{"bookkeeperEnsemble": 2, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2, '
            '"managedLedgerMaxMarkDeleteRate": 1.5}',
        ),
        ("deduplication", "{broken"),
    ],
)
async def test_a_policy_that_is_none_is_refused(rest: Rest, word: str, body: str) -> None:
    before = (await rest.get(ONE)).body
    answer = await rest.post(f"{ONE}/{word}", data=body)
    assert answer.status == (412 if body.lstrip("-").isdigit() else 400) and answer.body["reason"]
    assert (await rest.get(ONE)).body == before


async def test_grants_are_kept_and_shown_also_where_authorization_is_off(rest: Rest) -> None:
    await rest.put("/admin/v2/persistent/public/default/orders")
    for parent in (ONE, "/admin/v2/persistent/public/default/orders"):
        path = f"{parent}/permissions"
        assert (await rest.get(path)).body == {}
        assert (await rest.post(f"{path}/app", ["produce", "consume"])).status == 204
        assert (await rest.get(path)).body == {"app": ["produce", "consume"]}
        assert (await rest.delete(f"{path}/app")).status == 204
        assert (await rest.get(path)).body == {}


async def test_restrictions_of_roles_are_refused_where_authorization_is_off(rest: Rest) -> None:
    refused = await rest.post(f"{ONE}/permissions/subscription/audit", ["boss"])
    assert refused.status == 501 and "enforced" in refused.body["reason"]
    assert (await rest.post(f"{ONE}/subscriptionAuthMode", "Prefix")).status == 501


async def test_a_namespace_is_made_with_the_grants_of_the_request(rest: Rest) -> None:
    """As the set-up scripts of several clients send it."""
    path = "/admin/v2/namespaces/public/orders"
    granted = {"anonymous": ["produce", "consume"]}
    body = {
        "auth_policies": {"namespace_auth": granted, "destination_auth": {}, "subscription_auth_roles": {}},
        "encryption_required": False,
        "replication_clusters": ["standalone"],
    }
    assert (await rest.put(path, body)).status == 204
    assert (await rest.get(f"{path}/permissions")).body == granted
    shown = (await rest.get(path)).body
    assert shown["auth_policies"]["namespace_auth"] == granted
    assert (await rest.put(f"{path}2", shown)).status == 204
    assert (await rest.get(f"{path}2")).body == shown


FROM_GO = {
    "bundles": {"boundaries": None, "numBundles": 2},
    "persistence": None,
    "retention_policies": {"retentionTimeInMinutes": 10, "retentionSizeInMB": "20"},
    "schema_validation_enforced": False,
    "deduplicationEnabled": True,
    "deleted": False,
    "encryption_required": False,
    "message_ttl_in_seconds": 60,
    "max_producers_per_topic": None,
    "compaction_threshold": None,
    "offload_threshold": -1,
    "antiAffinityGroup": "",
    "replication_clusters": ["standalone"],
    "latency_stats_sample_rate": {},
    "backlog_quota_map": {"destination_storage": {"limit": 10, "policy": "producer_exception"}},
    "topicDispatchRate": {"standalone": {"dispatchThrottlingRateInMsg": 7}},
    "publishMaxMessageRate": {},
    "inactive_topic_policies": {"inactiveTopicDeleteMode": None, "maxInactiveDurationSeconds": 0},
    "schema_auto_update_compatibility_strategy": "Full",
    "schema_compatibility_strategy": "UNDEFINED",
    "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
    "subscription_auth_mode": "None",
    "is_allow_auto_update_schema": None,
}
"""What a client's new namespace looks like, with some of it said."""


async def test_a_namespace_is_made_with_the_policies_of_the_request(rest: Rest) -> None:
    path = "/admin/v2/namespaces/public/orders"
    assert (await rest.put(path, FROM_GO)).status == 204
    shown = (await rest.get(path)).body
    assert shown["bundles"] == {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2}
    assert shown["retention_policies"] == {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20}
    assert (shown["deduplicationEnabled"], shown["message_ttl_in_seconds"]) == (True, 60)
    assert shown["topicDispatchRate"]["standalone"]["dispatchThrottlingRateInMsg"] == 7
    assert shown["backlog_quota_map"]["destination_storage"]["limit"] == 10
    for word in ("persistence", "inactiveTopicPolicies", "publishRate"):
        assert (await rest.get(f"{path}/{word}")) == (204, None)
    assert (await rest.get(f"{path}/schemaCompatibilityStrategy")) == (200, "UNDEFINED")
    assert (await rest.put(f"{path}2", shown)).status == 204, "what is shown makes another"
    assert (await rest.get(f"{path}2")).body == shown


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"offload_threshold": 5}, "offload_threshold"),
        ({"auth_policies": {"namespace_auth": {"app": ["fly"]}}}, "fly"),
        ({"auth_policies": {"namespace_auth": {"a/b": ["produce"]}}}, "role"),
        ({"auth_policies": {"destination_auth": {"t": {"app": ["produce"]}}}}, "destination_auth"),
        ({"auth_policies": {"subscription_auth_roles": {"s": ["app"]}}}, "not be enforced"),
        ({"auth_policies": {"guess": {"app": ["produce"]}}}, "guess"),
        ({"auth_policies": 5}, "JSON object"),
        ({"subscription_auth_mode": "Prefix"}, "not be enforced"),
        ({"subscription_types_enabled": ["Odd"]}, "Key_Shared"),
        ({"replication_clusters": ["far"]}, "replication_clusters"),
        ({"retention_policies": {"retentionTimeInMinutes": -5}}, "retention"),
        ({"topicDispatchRate": {"far": {"dispatchThrottlingRateInMsg": 7}}}, "dispatch"),
        ({"backlog_quota_map": {"guess": {}}}, "backlog"),
        ({"bundles": {"numBundles": 100_000}}, "numBundles"),
        ({"bundles": {"boundaries": ["0x00000000", "0xzzzzzzzz"]}}, "boundaries"),
        ({"bundles": {"boundaries": ["0x00000000", "0x9", 7]}}, "boundaries"),
        (["standalone"], "JSON object"),
    ],
)
async def test_a_namespace_that_cannot_be_as_asked_is_not_made(rest: Rest, body: Any, named: str) -> None:
    refused = await rest.put("/admin/v2/namespaces/public/orders", body)
    assert refused.status == 400 and named in refused.body["reason"]
    assert (await rest.get("/admin/v2/namespaces/public/orders")).status == 404


async def test_policies_that_change_at_once_are_all_taken(rest: Rest) -> None:
    await rest.put("/admin/v2/persistent/public/default/orders")
    for parent, dedup in (
        (ONE, "deduplication"),
        ("/admin/v2/persistent/public/default/orders", "deduplicationEnabled"),
    ):
        bodies = {"messageTTL": "60", dedup: False, "maxMessageSize": 5, "compactionThreshold": "7"}
        asked = [rest.post(f"{parent}/{word}", body) for word, body in bodies.items()]
        assert [answer.status for answer in await asyncio.gather(*asked)] == [204] * 4
        for word, body in bodies.items():
            assert (await rest.get(f"{parent}/{word}")).body == (body if body is False else int(body))


async def test_a_policy_of_an_unknown_namespace_is_not_found(rest: Rest) -> None:
    assert (await rest.post("/admin/v2/namespaces/public/none/deduplication", True)).status == 404
    assert (await rest.get("/admin/v2/namespaces/public/none/deduplication")).status == 404


@pytest.mark.parametrize("parent", [ONE, "/admin/v2/persistent/public/default/orders"])
async def test_a_policy_that_is_not_here_is_never_set(rest: Rest, parent: str) -> None:
    await rest.put("/admin/v2/persistent/public/default/orders")
    words = absent.OF_NAMESPACES if parent == ONE else absent.OF_TOPICS
    for word in words:
        path = f"{parent}/{word.replace('{', '').replace('}', '')}"
        said = (absent.UNSET if parent == ONE else absent.UNSET_OF_TOPICS).get(word)
        assert (await rest.get(path)) == (204 if said is None else 200, said)
        assert (await rest.delete(path)).status == 204
        for ask in (rest.post, rest.put):
            refused = await ask(path, 5)
            assert refused.status == 501 and refused.body["reason"]
        assert (await rest.get(f"{parent}9/{word}")).status == 404


async def test_what_tools_ask_of_a_cluster_has_an_answer(rest: Rest, broker: Broker) -> None:
    leader = (await rest.get("/admin/v2/brokers/leaderBroker")).body
    assert leader["serviceUrl"] == broker.addresses.http_url
    for value in ("1", "a%2Fb", "http%3A%2F%2Fx", "a+b"):
        refused = await rest.post(f"/admin/v2/brokers/configuration/keep_alive_ms/{value}")
        assert refused.status == 412 and "keep_alive_ms" in refused.body["reason"]
    assert "'a/b'" in (await rest.post("/admin/v2/brokers/configuration/a%2Fb/1")).body["reason"]
    assert "'a/b'" in (await rest.delete("/admin/v2/brokers/configuration/a%2Fb")).body["reason"]
    assert (await rest.put("/admin/v2/clusters/standalone", {"serviceUrl": "http://x"})).status == 409
    assert (await rest.get("/admin/v2/clusters/standalone/peers")).body == []
    assert (await rest.get("/admin/v2/clusters/far/failureDomains")).status == 404
    assert (await rest.put("/admin/v2/clusters/far", {"serviceUrl": "http://far"})).status == 501
    await rest.put("/admin/v2/persistent/public/default/orders")
    await rest.get("/admin/v2/persistent/public/default/orders/stats")
    owned = (
        f"/admin/v2/brokers/standalone/{broker.addresses.http_url.removeprefix('http://')}/ownedNamespaces"
    )
    assert list((await rest.get(owned)).body) == ["public/default/00000000_ffffffff"]
    assert (await rest.get(f"{ONE}/replication")).body == ["standalone"]
    assert (await rest.post(f"{ONE}/replication", ["standalone"])).status == 204
    assert (await rest.post(f"{ONE}/replication", ["standalone", "far"])).status == 501


async def test_a_topics_own_clusters_are_shown_until_they_are_removed(rest: Rest) -> None:
    topic = "/admin/v2/persistent/public/default/orders"
    path = f"{topic}/replication"
    assert (await rest.post(path, ["standalone"])).status == 404
    await rest.put(topic)
    assert await rest.get(path) == (204, None)
    assert (await rest.get(f"{path}?applied=true")).body == ["standalone"]
    assert (await rest.post(path, ["standalone", "far"])).status == 501
    assert (await rest.post(path, ["standalone"])).status == 204
    assert (await rest.get(path)).body == ["standalone"]
    assert (await rest.delete(path)).status == 204
    assert await rest.get(path) == (204, None)


@pytest.mark.parametrize(
    ("ask", "status", "words"),
    [
        (("GET", "/admin/v2/namespaces/public/none"), 404, "Namespace does not exist"),
        (("GET", "/admin/v2/persistent/public/none"), 404, "Namespace does not exist"),
        (("GET", "/admin/v2/namespaces/none"), 404, "Tenant does not exist"),
        (
            ("POST", f"{ONE}/subscriptionExpirationTime", -1),
            412,
            "Invalid value for subscription expiration time",
        ),
        (("POST", f"{ONE}/messageTTL", -1), 412, "Invalid value for message TTL"),
        (("POST", f"{ONE}/messageTTL", "soon"), 400, "Invalid value for message TTL"),
    ],
)
async def test_refusals_begin_with_the_words_that_clients_look_for(
    rest: Rest, ask: tuple[Any, ...], status: int, words: str
) -> None:
    refused = await rest.ask(*ask)
    assert refused.status == status and refused.body["reason"].startswith(words)


async def test_a_namespace_is_unloaded_and_its_backlogs_are_cleared(rest: Rest, broker: Broker) -> None:
    topics = [f"/admin/v2/persistent/public/default/orders{number}" for number in range(2)]
    await rest.put(topics[0])
    await rest.put(f"{topics[1]}/partitions", 2)

    async def backlogs() -> list[int]:
        shown = [(await rest.get(f"{topic}/stats")).body["subscriptions"] for topic in topics]
        return [one["msgBacklog"] for subscriptions in shown for one in subscriptions.values()]

    for topic in topics:
        assert (await rest.put(f"{topic}/subscription/a", "earliest")).status == 204
        assert (await rest.put(f"{topic}/subscription/b", "earliest")).status == 204
    for index, name in enumerate(("orders0", "orders1-partition-0", "orders1-partition-1")):
        client = Client(broker)
        await client.connect()
        client.send(producer(index, 1, f"persistent://public/default/{name}"))
        client.send(b"".join(commands.send(1, 0, 1, entry())))
        await client.answers(2)
    assert await backlogs() == [1, 1, 2, 2]
    assert (await rest.post(f"{ONE}/clearBacklog/a")).status == 204
    assert await backlogs() == [0, 1, 0, 2]
    assert (await rest.post(f"{ONE}/clearBacklog")).status == 204
    assert await backlogs() == [0, 0, 0, 0]
    assert (await rest.post(f"{ONE}/unsubscribe/a")).status == 204
    assert (await rest.get(f"{topics[1]}/subscriptions")).body == ["b"]
    assert (await rest.get(f"{ONE}/bundles")).body["numBundles"] == 1
    assert broker.registry.persistent()
    assert (await rest.put(f"{ONE}/0x00000000_0x80000000/unload")).status == 404
    for path in ("unload", "0x00000000_0xffffffff/unload"):
        assert (await rest.put(f"{ONE}/{path}")).status == 204
        assert not broker.registry.persistent()
        await rest.get(f"{topics[0]}/stats")
    for path in ("bundles", "clearBacklog", "unload"):
        ask = {"bundles": rest.get, "clearBacklog": rest.post, "unload": rest.put}[path]
        assert (await ask(f"{ONE}9/{path}")).status == 404


async def test_partitions_that_nobody_used_are_made_by_request(rest: Rest, broker: Broker) -> None:
    topic = "/admin/v2/persistent/public/default/orders"
    assert (await rest.post(f"{topic}/createMissedPartitions")).status == 404
    await rest.put(f"{topic}/partitions", 3)
    assert (await rest.post(f"{topic}/createMissedPartitions")).status == 204
    assert len(await broker.registry.records.names("public", "default")) == 4
    assert (await rest.get(f"{topic}/offload")).body["status"] == "NOT_RUN"
    assert (await rest.put(f"{topic}/offload", {"ledgerId": 1})).status == 400


async def test_what_is_no_http_is_a_line_and_no_traceback(
    rest: Rest, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("aiohttp.server")
    log.addFilter(malformed_in_a_line)
    caplog.set_level(logging.INFO)
    try:
        host, _, port = broker.addresses.http_url.removeprefix("http://").partition(":")
        for request in (b"GET / HTTP/1.1\r\nHost: a\r\nno header\r\n\r\n", b"\x16\x03\x01\x02\r\n\r\n"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request)
            assert b"400" in await reader.read()
            writer.close()
    finally:
        log.removeFilter(malformed_in_a_line)
    told = [record for record in caplog.records if record.name == "aiohttp.server"]
    assert told and all(record.levelno <= logging.INFO and not record.exc_info for record in told)
    assert all("\n" not in record.getMessage() for record in told)
    assert "sent malformed HTTP" in told[0].getMessage()


async def test_the_cluster_describes_itself(rest: Rest, broker: Broker) -> None:
    assert (await rest.get("/admin/v2/clusters")).body == ["standalone"]
    one = (await rest.get("/admin/v2/clusters/standalone")).body
    assert one == {
        "serviceUrl": broker.addresses.http_url,
        "serviceUrlTls": "",
        "brokerServiceUrl": broker.service_url,
        "brokerServiceUrlTls": "",
    }
    assert (await rest.get("/admin/v2/clusters/other")).status == 404
    address = broker.addresses.http_url.removeprefix("http://")
    assert (await rest.get("/admin/v2/brokers")).body == [address]
    assert (await rest.get("/admin/v2/brokers/standalone")).body == [address]
    assert (await rest.get("/admin/v2/brokers/health")).body == "ok"
