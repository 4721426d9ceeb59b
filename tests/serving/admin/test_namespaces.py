"""Tenants, namespaces and policies over REST, and the cluster's own description."""

from __future__ import annotations

from typing import Any

import pytest

from quire.serving.broker import Broker
from tests.serving.admin.conftest import Rest

ONE = "/admin/v2/namespaces/public/default"


async def test_a_tenant_lives_and_dies(rest: Rest) -> None:
    path = "/admin/v2/tenants/shop"
    body = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
    assert (await rest.put(path, body)).status == 204
    assert (await rest.put(path, body)).status == 409
    assert (await rest.get("/admin/v2/tenants")).body == ["public", "shop"]
    assert (await rest.get(path)).body == body
    assert (await rest.post(path, {**body, "adminRoles": []})).status == 204
    assert (await rest.get(path)).body["adminRoles"] == []
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
            {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2},
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
    ],
)  # fmt: skip
async def test_a_policy_is_set_shown_and_removed(rest: Rest, word: str, body: Any, shown: Any) -> None:
    path = f"{ONE}/{word}"
    assert (await rest.get(path)).body is None
    assert (await rest.post(path, body)).status == 204
    assert (await rest.get(path)).body == shown
    assert (await rest.get(ONE)).body[word] == shown
    assert (await rest.delete(path)).status == 204
    assert (await rest.get(path)).body is None


@pytest.mark.parametrize(
    ("word", "body"),
    [
        ("deduplication", '"yes"'),
        ("messageTTL", "-1"),
        ("messageTTL", "true"),
        ("retention", "[]"),
        ("retention", '{"retentionTimeInMinutes": -2}'),
        ("persistence", '{"bookkeeperEnsemble": 5, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2}'),
        ("persistence", '{"bookkeeperEnsemble": 2, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 3}'),
        ("backlogQuota", '{"policy": "panic"}'),
        ("autoTopicCreation", "{}"),
        ("permissions/role", '{"not": "a list"}'),
        ("deduplication", "{broken"),
    ],
)
async def test_a_policy_that_is_none_is_refused(rest: Rest, word: str, body: str) -> None:
    before = (await rest.get(ONE)).body
    answer = await rest.post(f"{ONE}/{word}", data=body)
    assert answer.status == 400 and answer.body["reason"]
    assert (await rest.get(ONE)).body == before


async def test_permissions_are_granted_and_revoked(rest: Rest) -> None:
    path = f"{ONE}/permissions"
    assert (await rest.post(f"{path}/app", ["produce", "consume"])).status == 204
    assert (await rest.get(path)).body == {"app": ["produce", "consume"]}
    assert (await rest.delete(f"{path}/app")).status == 204
    assert (await rest.get(path)).body == {}


async def test_a_policy_of_an_unknown_namespace_is_not_found(rest: Rest) -> None:
    assert (await rest.post("/admin/v2/namespaces/public/none/deduplication", True)).status == 404
    assert (await rest.get("/admin/v2/namespaces/public/none/deduplication")).status == 404


async def test_the_cluster_describes_itself(rest: Rest, broker: Broker) -> None:
    assert (await rest.get("/admin/v2/clusters")).body == ["standalone"]
    one = (await rest.get("/admin/v2/clusters/standalone")).body
    assert one == {"serviceUrl": broker.http_url, "brokerServiceUrl": broker.service_url}
    assert (await rest.get("/admin/v2/clusters/other")).status == 404
    address = broker.http_url.removeprefix("http://")
    assert (await rest.get("/admin/v2/brokers")).body == [address]
    assert (await rest.get("/admin/v2/brokers/standalone")).body == [address]
    assert (await rest.get("/admin/v2/brokers/health")).body == "ok"
