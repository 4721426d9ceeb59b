"""Brokers among themselves where people log in: they present their own credentials, and permissions hold everywhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pulsar
import pytest

from quire.metadata.records import Policies
from quire.metadata.watches import Watches
from quire.security.configuration import Credentials
from tests.serving.ownership.cluster import Brokers, Member, until
from tests.serving.security import security, token


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    made = Brokers(security=security(tmp_path))
    yield made
    await made.close()


def granting(**permissions: tuple[str, ...]) -> Any:
    return lambda _: Policies(permissions=permissions)


def path(topic: str, what: str = "") -> str:
    return f"/admin/v2/persistent/public/default/{topic}{what}"


async def ask(member: Member, method: str, where: str, role: str) -> int:
    """Of a broker, following where it sends us with the same credentials, as commands do."""
    url = member.broker.addresses.http_url + where
    headers = {"Authorization": f"Bearer {token(role)}"}
    async with aiohttp.ClientSession() as session:
        for _ in range(5):
            async with session.request(method, url, headers=headers, allow_redirects=False) as answer:
                if answer.status != 307:
                    return answer.status
                url = answer.headers["Location"]
    raise AssertionError("brokers redirect to one another")


async def test_brokers_ask_one_another_with_their_own_credentials(brokers: Brokers) -> None:
    one, two = await brokers.start(), await brokers.start()
    assert await ask(one, "PUT", path("orders", "/partitions?partitions=4"), "admin") < 500
    client = brokers.client(authentication=pulsar.AuthenticationToken(token("admin")))
    for number in range(8):
        producer = await asyncio.to_thread(client.create_producer, f"t-{number}")
        await asyncio.to_thread(producer.send, b"hello")
    owners = {brokers.owner(f"persistent://public/default/t-{number}") for number in range(8)}
    assert owners == {one, two}, "both have some"
    for number in range(8):
        assert await ask(one, "GET", path(f"t-{number}", "/stats"), "admin") == 200
        assert await ask(one, "GET", path(f"t-{number}", "/stats"), "app") == 403
    assert await ask(one, "GET", "/admin/v2/namespaces/public/default/topics", "admin") == 200


async def test_a_revocation_reaches_a_broker_that_hears_of_no_change(brokers: Brokers) -> None:
    one, two = await brokers.start(), await brokers.start()
    await one.broker.admin.policies.change_namespace("public", "default", granting(app=("produce",)))
    client = brokers.client(two, authentication=pulsar.AuthenticationToken(token("app")))
    producers = [await asyncio.to_thread(client.create_producer, f"t-{number}") for number in range(8)]
    for member in (one, two):
        assert any(session.producers for session in member.broker.sessions.connections)
    two.store.watches = Watches()
    await one.broker.admin.policies.change_namespace("public", "default", granting())

    def nobody_produces() -> bool:
        return not any(
            session.producers for member in (one, two) for session in member.broker.sessions.connections
        )

    await until(nobody_produces)
    assert len(producers) == 8


async def test_a_broker_that_presents_nothing_is_refused_by_others(tmp_path: Path) -> None:
    brokers = Brokers(security=security(tmp_path, client=Credentials()))
    try:
        one = await brokers.start()
        await brokers.start()
        await until(lambda: len(one.ownership.brokers()) == 2)
        await one.broker.admin.policies.change_namespace("public", "default", granting(app=("produce",)))
        lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
        assert {line["event"] for line in lines} == {"login-failed"}
    finally:
        await brokers.close()


async def test_a_page_that_cannot_follow_has_the_owner_asked_for_it(brokers: Brokers) -> None:
    """With the caller's permissions, which the broker that is asked looks at, and the answer of the owner."""
    one, two = await brokers.start(), await brokers.start()
    await one.broker.namespaces.change("public", "default", granting(reader=("consume",)))
    client = brokers.client(authentication=pulsar.AuthenticationToken(token("admin")))
    names = [f"t-{number}" for number in range(8)]
    for name in names:
        producer = await asyncio.to_thread(client.create_producer, name)
        await asyncio.to_thread(producer.send, b"hello")
    assert {brokers.owner(f"persistent://public/default/{name}") for name in names} == {one, two}
    looks = "/quire/v1/topics/persistent/public/default/{}/messages"

    async def status(role: str, method: str, where: str, body: Any = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token(role)}", "X-Quire-Follow": "true"}
        url = one.broker.addresses.http_url + where
        options: dict[str, Any] = {"headers": headers, "json": body, "allow_redirects": False}
        async with aiohttp.ClientSession() as session, session.request(method, url, **options) as answer:
            return answer.status, await answer.json() if answer.content_length else None

    for name in names:
        found, (look,) = await status("reader", "GET", looks.format(name))
        assert found == 200 and look["text"] == "hello"
        assert (await status("nobody", "GET", looks.format(name)))[0] == 403
        assert (await status("reader", "PUT", path(name, "/unload")))[0] == 403
        assert (await status("reader", "PUT", path(name, "/subscription/s"), "earliest"))[0] == 204
        found, why = await status("reader", "GET", path(name, "/subscription/none/position/1"))
        assert found == 404 and "none" in why["reason"]
    page = (await status("reader", "GET", "/quire/v1/namespaces/public/default/topics"))[1]
    assert [row["producers"] for row in page["topics"]] == [1] * 8, "of both brokers"
    overview = (await status("admin", "GET", "/quire/v1/overview"))[1]
    assert (
        all(row["now"]["connections"] >= 1 for row in overview["brokers"]) and len(overview["brokers"]) == 2
    )
