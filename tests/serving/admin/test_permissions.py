"""Permissions over REST: granted, shown, revoked and explained as Pulsar's tools do; by whom they may be."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from quire.serving.broker import Broker

from ..conftest import BrokerHouse
from ..security import PASSWORD, audit, configuration, security, token
from .conftest import TOPIC, Answer, Rest, serving_rest

NAMESPACE = "/admin/v2/namespaces/public/default"
TENANT = "/admin/v2/tenants/public"
EXPLAIN = "/quire/v1/topics/persistent/public/default/orders/permissions"


@pytest.fixture
async def broker(house: BrokerHouse, tmp_path: Path) -> Broker:
    house.security = security(tmp_path)
    return await house.start()


class As:
    """Requests of one role."""

    def __init__(self, rest: Rest, role: str, **headers: str) -> None:
        self._rest = rest
        self._headers = {"Authorization": f"Bearer {token(role)}", **headers} if role else headers

    async def __call__(self, method: str, path: str, body: Any = None) -> Answer:
        return await self._rest.ask(method, path, body, headers=self._headers)


@pytest.fixture
async def admin(rest: Rest) -> AsyncIterator[As]:
    admin = As(rest, "admin")
    assert (await admin("PUT", TOPIC)).status == 204
    yield admin


async def test_who_sends_nothing_or_what_is_wrong_is_unauthorized(rest: Rest, tmp_path: Path) -> None:
    tried = [
        {},
        {"Authorization": "Bearer x.y.z"},
        {"Authorization": "Basic !"},
        {"Authorization": "Digest a"},
    ]
    tried += [{"Authorization": f"Bearer {token('admin', seconds=-1)}"}]
    for headers in tried:
        answer = await rest.get("/admin/v2/tenants", headers=headers)
        assert answer.status == 401 and answer.body["reason"]
        assert "token('" not in answer.body["reason"]
    assert [line["event"] for line in audit(tmp_path)] == ["login-failed"] * len(tried)
    assert (await rest.get("/nothing/there")).status == 401, "what there is, is not told either"
    for path in ("/health", "/health/live", "/metrics"):
        assert (await rest.get(path)).status == 200


async def test_what_is_forbidden_anonymously_is_unauthorized(house: BrokerHouse, tmp_path: Path) -> None:
    changed = configuration(tmp_path).authentication
    assert changed is not None
    house.security = security(tmp_path, authentication=replace(changed, anonymous_role="guest"))
    async with serving_rest(await house.start()) as rest:
        for headers in ({}, {"Authorization": "Digest x"}):
            answer = await rest.get("/admin/v2/tenants", headers=headers)
            assert answer.status == 401 and "guest" in answer.body["reason"]
            assert (await rest.get("/quire/v1/whoami", headers=headers)).body["role"] == "guest"
        assert (await As(rest, "app")("GET", "/admin/v2/tenants")).status == 403


async def test_passwords(rest: Rest) -> None:
    for password, status in ((PASSWORD, 200), ("wrong", 401)):
        text = base64.b64encode(f"admin:{password}".encode()).decode()
        assert (
            await rest.get("/admin/v2/tenants", headers={"Authorization": f"Basic {text}"})
        ).status == status


async def test_permissions_of_a_namespace(admin: As, rest: Rest) -> None:
    path = f"{NAMESPACE}/permissions"
    assert await admin("GET", path) == (200, {})
    assert (await admin("POST", f"{path}/app", ["produce", "consume", "produce"])).status == 204
    assert (await admin("POST", f"{path}/team-*", ["consume"])).status == 204
    assert (await admin("GET", path)).body == {"app": ["produce", "consume"], "team-*": ["consume"]}
    shown = (await admin("GET", NAMESPACE)).body
    assert shown["auth_policies"]["namespace_auth"] == {"app": ["produce", "consume"], "team-*": ["consume"]}
    assert shown["subscription_auth_mode"] == "None"
    assert (await As(rest, "app")("GET", f"{TOPIC}/stats")).status == 200
    assert (await As(rest, "team-1")("GET", f"{TOPIC}/stats")).status == 200
    assert (await admin("DELETE", f"{path}/app")).status == 204
    assert (await As(rest, "app")("GET", f"{TOPIC}/stats")).status == 403


async def test_permissions_of_a_topic_are_shown_with_its_namespaces(admin: As, rest: Rest) -> None:
    await admin("POST", f"{NAMESPACE}/permissions/app", ["consume"])
    assert (await admin("POST", f"{TOPIC}/permissions/app", ["produce"])).status == 204
    assert (await admin("GET", f"{TOPIC}/permissions")).body == {"app": ["consume", "produce"]}
    assert (await admin("DELETE", f"{TOPIC}/permissions/app")).status == 204
    assert (await admin("GET", f"{TOPIC}/permissions")).body == {"app": ["consume"]}
    assert (await admin("DELETE", f"{TOPIC}/permissions/app")).status == 412
    other = TOPIC.replace("orders", "not-there")
    assert (await admin("POST", f"{other}/permissions/app", ["produce"])).status == 404
    kept_nowhere = TOPIC.replace("persistent", "non-persistent", 1)
    assert (await admin("POST", f"{kept_nowhere}/permissions/app", ["produce"])).status == 400


async def test_roles_of_subscriptions(admin: As, rest: Rest) -> None:
    path = f"{NAMESPACE}/permissions/subscription"
    await admin("POST", f"{NAMESPACE}/permissions/*", ["consume"])
    assert (await admin("POST", f"{path}/s", ["mine", "ours"])).status == 204
    assert (await admin("GET", path)).body == {"s": ["mine", "ours"]}
    one = f"{TOPIC}/subscription/s"
    assert (await As(rest, "mine")("PUT", one)).status == 204
    assert (await As(rest, "theirs")("DELETE", one)).status == 403
    assert (await admin("DELETE", f"{NAMESPACE}/permissions/s/mine")).status == 204
    assert (await As(rest, "mine")("DELETE", one)).status == 403
    assert (await admin("DELETE", f"{NAMESPACE}/permissions/s/ours")).status == 412, "it would open it"
    assert (await admin("POST", f"{path}/s", [])).status == 204
    assert (await As(rest, "mine")("DELETE", one)).status == 204


async def test_the_mode_prefix(admin: As, rest: Rest) -> None:
    path = f"{NAMESPACE}/subscriptionAuthMode"
    await admin("POST", f"{NAMESPACE}/permissions/*", ["consume"])
    assert (await admin("GET", path)).body == "None"
    assert (await admin("POST", path, "Prefix")).status == 204
    assert (await admin("GET", path)).body == "Prefix"
    app = As(rest, "app")
    assert (await app("PUT", f"{TOPIC}/subscription/app-1")).status == 204
    assert (await app("PUT", f"{TOPIC}/subscription/other")).status == 403
    assert (await admin("POST", path, "Suffix")).status == 400


async def test_admin_roles_of_tenants(admin: As, rest: Rest) -> None:
    body = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
    assert (await admin("POST", TENANT, body)).status == 204
    assert (await admin("GET", TENANT)).body == body
    boss = As(rest, "boss")
    assert (await boss("POST", f"{NAMESPACE}/permissions/app", ["produce"])).status == 204
    assert (await boss("PUT", "/admin/v2/namespaces/public/more")).status == 204
    assert (await boss("GET", TENANT)).status == 200
    for method, path in (("POST", TENANT), ("DELETE", TENANT), ("PUT", "/admin/v2/tenants/other")):
        assert (await boss(method, path, body)).status == 403
    assert (await boss("PUT", "/admin/v2/namespaces/other/more")).status == 403, "there or not"
    assert (await admin("POST", TENANT, {**body, "adminRoles": ["a/b"]})).status == 400


async def test_a_tenants_admin_lifts_no_limit(admin: As, rest: Rest) -> None:
    await admin("POST", TENANT, {"adminRoles": ["boss"], "allowedClusters": ["standalone"]})
    boss, other = As(rest, "boss"), "/admin/v2/namespaces/public/other"
    parts = f"{other.replace('namespaces', 'persistent')}/parts"
    single = f"{other.replace('namespaces', 'persistent')}/single"
    assert (await boss("PUT", other)).status == 204
    assert (await boss("PUT", f"{parts}/partitions", 2)).status == 204
    assert (await boss("PUT", single)).status == 204
    deletions = [(f"{parts}/partitions", f"{parts}/maxProducers"), (single, f"{single}/maxConsumers")]
    for path, limit in ((f"{single}/policies", f"{single}/maxProducers"), *deletions):
        assert (await admin("POST", limit, 1)).status == 204
        refused = await boss("DELETE", path)
        assert refused.status == 403 and "superusers" in refused.body["reason"]
        assert (await admin("GET", limit)).body == 1
        assert (await admin("DELETE", limit)).status == 204
        assert (await boss("DELETE", path)).status == 204
    assert (await admin("POST", f"{other}/maxTopicsPerNamespace", 1)).status == 204
    assert (await boss("DELETE", other)).status == 403
    assert (await admin("DELETE", other)).status == 204
    assert (await boss("PUT", single.replace("other", "default"))).status == 204
    assert (await boss("DELETE", f"{single.replace('other', 'default')}/policies")).status == 204


@pytest.mark.parametrize("body", [None, "produce", {"a": 1}, ["fly"], [1], ["produce\n"], [["produce"]]])
async def test_what_is_no_permission_is_refused(admin: As, body: Any) -> None:
    for parent in (NAMESPACE, TOPIC):
        answer = await admin("POST", f"{parent}/permissions/app", body)
        assert answer.status == 400 and answer.body["reason"]
    assert (await admin("GET", f"{NAMESPACE}/permissions")).body == {}


@pytest.mark.parametrize("role", ["a%2Fb", "a%0Ab", "%20", "a" * 257, "..%2F..%2Fadmin", "%7F"])
async def test_what_is_no_role_is_refused(admin: As, role: str) -> None:
    for parent in (NAMESPACE, TOPIC):
        assert (await admin("POST", f"{parent}/permissions/{role}", ["produce"])).status == 400
    assert (await admin("GET", f"{NAMESPACE}/permissions")).body == {}


async def test_who_is_no_proxy_cannot_speak_for_others(admin: As, rest: Rest, tmp_path: Path) -> None:
    for role, original, status in (
        ("app", "admin", 403),
        ("gateway", "", 403),
        ("gateway", "gateway", 403),
        ("gateway", "ad/min", 403),
        ("gateway", "admin", 403),  # the gateway itself was granted nothing
    ):
        headers = {"X-Original-Principal": original} if original else {}
        assert (await As(rest, role, **headers)("GET", f"{TOPIC}/stats")).status == status
    await admin("POST", f"{NAMESPACE}/permissions/gateway", ["consume"])
    await admin("POST", f"{NAMESPACE}/permissions/app", ["consume"])
    through = As(rest, "gateway", **{"X-Original-Principal": "app"})
    assert (await through("GET", f"{TOPIC}/stats")).status == 200
    assert (
        await As(rest, "gateway", **{"X-Original-Principal": "other"})("GET", f"{TOPIC}/stats")
    ).status == 403
    assert audit(tmp_path)[-1]["role"] == "other through gateway"


async def test_why(admin: As, rest: Rest) -> None:
    await admin("POST", f"{NAMESPACE}/permissions/a*", ["consume"])
    said = (await admin("GET", f"{EXPLAIN}/app")).body
    assert said["consume"] == {
        "allowed": True,
        "why": "app was granted consume on the namespace public/default, by a*",
    }
    assert not said["produce"]["allowed"] and "grant it produce" in said["produce"]["why"]
    assert (await As(rest, "app")("GET", f"{EXPLAIN}/app")).status == 403


async def test_changes_are_written_down_without_secrets(admin: As, tmp_path: Path) -> None:
    await admin("POST", f"{NAMESPACE}/permissions/app", ["produce"])
    await admin("POST", f"{NAMESPACE}/permissions/app", ["fly"])
    *_, done, failed = audit(tmp_path)
    assert (done["event"], done["role"], done["on"]) == ("changed", "admin", "namespace public/default")
    assert done["action"] == f"POST {NAMESPACE}/permissions/app" and done["outcome"] == "204"
    assert failed["event"] == "failed" and "fly" in failed["outcome"]
    assert token("admin") not in str(audit(tmp_path))


@pytest.mark.parametrize(
    "path",
    [
        "/admin/v2/persistent/public%2Fdefault/x/orders/stats",
        "/admin/v2/persistent/..%2Fpublic/default/orders/stats",
        "/admin/v2/persistent/public/default%2F..%2F..%2Fother/orders/stats",
        "/admin/v2/namespaces/public%2Fdefault/permissions",
        "/admin/v2/tenants/..%2Fpublic",
        "/admin/v2/persistent/%00/default/orders/stats",
    ],
)
async def test_paths_lead_nowhere_else(admin: As, rest: Rest, path: str) -> None:
    assert (await As(rest, "app")("GET", path)).status in (400, 403, 404)
    assert (await admin("GET", path)).status in (400, 404)
