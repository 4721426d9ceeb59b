"""What nobody should send: every answer is a 4xx with a reason, never a 500, and nothing is changed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serving.admin.conftest import TOPIC, Rest

NAMESPACE = "/admin/v2/namespaces/public/default"
AUDIT = f"{TOPIC}/subscription/audit"
RAW = "/quire/v1/topics/persistent/public/default/orders"
HUGE = "9" * 30
BODIES: list[Any] = [
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b"9" * 5000,
    HUGE.encode(),
    b'"%s"' % (b"9" * 5000),
    b"NaN",
    b"Infinity",
    '"²"'.encode(),
    b"null",
    b'{"ledgerId": %s, "entryId": 0}' % HUGE.encode(),
    b'{"retentionTimeInMinutes": %s}' % HUGE.encode(),
    b'{"bookkeeperWriteQuorum": %s, "bookkeeperAckQuorum": 1}' % HUGE.encode(),
    b'{"limitSize": %s}' % HUGE.encode(),
    b'{"adminRoles": "boss"}',
    b'"\\ud800"',
    b'{"adminRoles": ["\\udfff"]}',
    b'["\\udc00"]',
]
TAKES_A_BODY = [
    ("PUT", f"{TOPIC}/partitions"),
    ("POST", f"{TOPIC}/partitions"),
    ("PUT", AUDIT),
    ("POST", f"{AUDIT}/resetcursor"),
    ("POST", f"{NAMESPACE}/retention"),
    ("POST", f"{NAMESPACE}/persistence"),
    ("POST", f"{NAMESPACE}/backlogQuota"),
    ("POST", f"{NAMESPACE}/messageTTL"),
    ("POST", f"{NAMESPACE}/deduplication"),
    ("POST", f"{NAMESPACE}/schemaCompatibilityStrategy"),
    ("POST", f"{NAMESPACE}/autoTopicCreation"),
    ("PUT", "/admin/v2/namespaces/public/orders"),
    ("PUT", TOPIC),
    ("PUT", "/admin/v2/tenants/shop"),
]


@pytest.mark.parametrize(("method", "path"), TAKES_A_BODY)
async def test_a_body_that_is_none_is_a_refusal_or_harmless(rest: Rest, method: str, path: str) -> None:
    for body in BODIES:
        for headers in ({}, {"Content-Type": "application/json; charset=klingon"}):
            answer = await rest.ask(method, path, data=body, headers=headers)
            assert answer.status < 500, (body[:40], answer)
            assert answer.status < 300 or answer.body["reason"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{RAW}/blocks?ledger={HUGE}&entry=0"),
        ("GET", f"{RAW}/blocks?ledger=0&entry={HUGE}"),
        ("GET", f"{RAW}/blocks?ledger=%C2%B2&entry=0"),
        ("GET", f"{RAW}/blocks?ledger=0&entry=0&bytes={'9' * 5000}"),
        ("POST", f"{AUDIT}/skip/{HUGE}"),
        ("POST", f"{AUDIT}/skip/%C2%B2"),
        ("POST", f"{AUDIT}/resetcursor/{HUGE}"),
        ("POST", f"{AUDIT}/resetcursor/{'9' * 5000}"),
        ("POST", f"/quire/v1/ledgers/{HUGE}/recover"),
        ("POST", "/quire/v1/ledgers/%C2%B2/recover"),
        ("PUT", f"/admin/v2/persistent/public/default/{'x' * 3000}"),
        ("PUT", "/admin/v2/persistent/public/default/%00"),
        ("PUT", "/admin/v2/persistent/public/default/%FF%FE"),
        ("PUT", "/admin/v2/persistent/public/default/.."),
        ("GET", f"/admin/v2/persistent/{'x' * 3000}/default/orders/stats"),
        ("GET", "/admin/v2/tenants/%00"),
        ("GET", "/admin/v2/namespaces/%2F/%2F"),
    ],
)
async def test_a_path_that_is_none_is_a_refusal_or_harmless(rest: Rest, method: str, path: str) -> None:
    await rest.put(TOPIC)
    await rest.put(AUDIT)
    answer = await rest.ask(method, path)
    assert answer.status < 500, answer
    assert answer.status < 300 or answer.body["reason"]


async def test_what_is_not_there_is_named(rest: Rest) -> None:
    answer = await rest.get("/admin/v2/persistant/public/default/orders")
    assert (answer.status, answer.body["reason"]) == (
        404,
        "no resource at /admin/v2/persistant/public/default/orders: check the path",
    )
    answer = await rest.ask("PATCH", TOPIC)
    assert (answer.status, answer.body["reason"]) == (405, f"{TOPIC} supports DELETE, PUT, but not PATCH")


async def test_a_quotas_action_that_is_none_is_refused_with_those_that_are(rest: Rest) -> None:
    answer = await rest.post(f"{NAMESPACE}/backlogQuota", {"policy": "panic"})
    assert answer.status == 400 and "consumer_backlog_eviction" in answer.body["reason"]
    assert (await rest.get(f"{NAMESPACE}/backlogQuotaMap")).body == {}


async def test_what_a_topic_that_keeps_nothing_cannot_tell(rest: Rest) -> None:
    topic = "non-persistent/public/default/orders"
    for path in (f"/quire/v1/topics/{topic}/explain", f"/admin/v2/{topic}/internalStats"):
        answer = await rest.get(path)
        assert answer.status == 400 and "not supported for non-persistent topic" in answer.body["reason"]


@pytest.mark.parametrize("name", [".", "..", "%2e%2e", "a%2F..%2Fb", "%2E"])
async def test_dots_name_nothing_new(rest: Rest, name: str) -> None:
    asked = [
        f"/admin/v2/persistent/public/default/{name}",
        f"/admin/v2/persistent/public/default/{name}/partitions",
    ]
    if "%2F" not in name:
        asked += [f"/admin/v2/namespaces/public/{name}", f"/admin/v2/tenants/{name}"]
    for path in asked:
        answer = await rest.put(path, 2 if path.endswith("partitions") else None)
        assert answer.status == 400 and "URL libraries resolve" in answer.body["reason"], path
    assert (await rest.put("/admin/v2/persistent/public/default/a..b")).status == 204


@pytest.mark.parametrize("change", ["split", "unload", "take"])
async def test_a_bundle_with_slashes_is_refused(rest: Rest, change: str) -> None:
    for bundle in ("default/00000000_40000000%2Fx", "a%2Fb/00000000_40000000"):
        answer = await rest.put(f"/quire/v1/brokers/bundles/public/{bundle}/{change}")
        assert answer.status == 400 and "not a bundle" in answer.body["reason"]
