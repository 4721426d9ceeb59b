"""A gateway where clients log in and that speaks for them to brokers, and one that passes their credentials on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pulsar
import pytest
from aiohttp import web
from msgspec.structs import replace

from quire.metadata.records import Policies
from quire.process.listeners import listen, url_of
from quire.runtime.member import DOCTOR, SUPPORT
from quire.security.configuration import AuthorizationConfiguration, Credentials
from quire.serving.admin.app import make_app
from quire.serving.broker import Broker
from tests.serving.conftest import QUIET, BrokerHouse, in_thread
from tests.serving.security import PASSWORD, audit, configuration, security, token

from .conftest import Front

TOPIC = "persistent://public/default/orders"
STATS = "/admin/v2/persistent/public/default/orders/stats"


@pytest.fixture
async def broker(house: BrokerHouse, tmp_path: Path) -> Broker:
    house.security = security(tmp_path)
    broker = await house.start()
    granted = {"app": ("produce", "consume"), "gateway": ("produce", "consume"), "reader": ("consume",)}
    await broker.namespaces.change("public", "default", lambda _: Policies(permissions=granted))
    return broker


async def front_of(broker: Broker, front: Front) -> AsyncIterator[Front]:
    await front.start()
    rest = listen("127.0.0.1:0")
    runner = web.AppRunner(make_app(broker), shutdown_timeout=0.1)
    await runner.setup()
    await web.SockSite(runner, rest).start()
    broker.addresses.http_url = url_of("http", rest)
    await front.register("only", broker.service_url, broker.addresses.http_url)
    yield front
    await front.stop()
    await runner.cleanup()


@pytest.fixture
async def proxy(broker: Broker, tmp_path: Path) -> AsyncIterator[Front]:
    folder = tmp_path / "gateway"
    folder.mkdir()
    own = Credentials(method="token", token=token("gateway"))
    rules = AuthorizationConfiguration(proxies=("gateway",))
    async for front in front_of(broker, Front(security(folder, client=own, authorization=rules))):
        yield front


@pytest.fixture
async def passing(broker: Broker) -> AsyncIterator[Front]:
    async for front in front_of(broker, Front()):
        yield front


async def produce(front: Front, authentication: Any, seconds: int = 5) -> None:
    def work() -> None:
        client = pulsar.Client(
            front.service_url, authentication, logger=QUIET, operation_timeout_seconds=seconds
        )
        try:
            client.create_producer(TOPIC).send(b"hello")
        finally:
            client.close()

    await in_thread(work)


def by_token(role: str, **options: Any) -> Any:
    return pulsar.AuthenticationToken(token(role, **options))


async def test_right_credentials_do_what_they_may_through_a_proxy(proxy: Front) -> None:
    await right_and_wrong(proxy)


async def test_right_credentials_do_what_they_may_passed_on(passing: Front) -> None:
    await right_and_wrong(passing)


async def right_and_wrong(front: Front) -> None:
    await produce(front, by_token("app"))
    await produce(front, pulsar.AuthenticationBasic("app", PASSWORD))
    with pytest.raises(pulsar.AuthorizationError):
        await produce(front, by_token("reader"))
    for wrong in (None, by_token("app", seconds=-5), pulsar.AuthenticationBasic("app", "x")):
        with pytest.raises((pulsar.AuthenticationError, pulsar.ConnectError, pulsar.Timeout)):
            await produce(front, wrong, 1)


async def test_brokers_are_told_who_it_is(proxy: Front, tmp_path: Path) -> None:
    with pytest.raises(pulsar.AuthorizationError):
        await produce(proxy, by_token("reader"))
    denied = [line for line in audit(tmp_path) if line["event"] == "denied"]
    assert {line["role"] for line in denied} == {"reader through gateway"}


async def test_a_superuser_has_no_more_through_a_gateway_than_the_gateway(proxy: Front) -> None:
    await produce(proxy, by_token("admin"))
    async with aiohttp.ClientSession() as session:
        headers = {"Authorization": f"Bearer {token('admin')}"}
        async with session.get(proxy.http_url + "/admin/v2/tenants", headers=headers) as answer:
            assert answer.status == 403 and "gateway" in (await answer.json())["reason"]


async def test_who_speaks_for_others_does_not_come_in_here(proxy: Front) -> None:
    with pytest.raises(pulsar.PulsarException):
        await produce(proxy, by_token("gateway"), 1)


async def test_what_is_forbidden_anonymously_is_unauthorized(broker: Broker, tmp_path: Path) -> None:
    """As without a gateway: the broker itself sees a named role there."""
    folder = tmp_path / "gateway"
    folder.mkdir()
    own = Credentials(method="token", token=token("gateway"))
    rules = AuthorizationConfiguration(proxies=("gateway",))
    known = replace(configuration(folder).authentication, anonymous_role="guest")
    front = Front(security(folder, client=own, authorization=rules, authentication=known))
    granted = {"guest": ("produce", "consume"), "gateway": ("produce", "consume")}
    async for proxy in front_of(broker, front):
        async with aiohttp.ClientSession() as session:
            for path in (STATS, "/admin/v2/tenants", f"{DOCTOR}?here=true"):
                async with session.get(proxy.http_url + path) as answer:
                    assert answer.status == 401 and "Bearer" in answer.headers["WWW-Authenticate"], path
                    assert (await answer.json())["reason"]
                named = {"Authorization": f"Bearer {token('nobody')}"}
                async with session.get(proxy.http_url + path, headers=named) as answer:
                    assert answer.status == 403, path
        await broker.namespaces.change("public", "default", lambda _: Policies(permissions=granted))
        await produce(proxy, None)
        async with aiohttp.ClientSession() as session, session.get(proxy.http_url + STATS) as answer:
            assert answer.status == 200


async def test_rest(proxy: Front, tmp_path: Path) -> None:
    await produce(proxy, by_token("app"))
    asked: list[tuple[dict[str, str], int]] = [
        ({"Authorization": f"Bearer {token('app')}"}, 200),
        ({"Authorization": f"Bearer {token('nobody')}"}, 403),
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": f"Bearer {token('nobody')}", "X-Original-Principal": "app"}, 403),
        ({"Authorization": f"Bearer {token('gateway')}", "X-Original-Principal": "app"}, 403),
    ]
    async with aiohttp.ClientSession() as session:
        for headers, status in asked:
            async with session.get(proxy.http_url + STATS, headers=headers) as answer:
                assert answer.status == status, headers
        async with session.get(proxy.http_url + "/metrics") as answer:
            assert answer.status == 200
    failed = [line for line in audit(tmp_path / "gateway") if line["event"] == "login-failed"]
    assert len(failed) == 4


async def test_a_connection_ends_with_its_credentials_and_comes_back(proxy: Front) -> None:
    await renewed(proxy)


async def test_credentials_that_are_passed_on_are_renewed(passing: Front) -> None:
    await renewed(passing)


async def renewed(front: Front) -> None:
    given: list[float] = []

    def supply() -> str:
        given.append(time.monotonic())
        return token("app", seconds=1.5)

    def work() -> None:
        client = pulsar.Client(
            front.service_url, pulsar.AuthenticationToken(supply), logger=QUIET, operation_timeout_seconds=5
        )
        try:
            producer = client.create_producer(TOPIC)
            ends = time.monotonic() + 4
            while time.monotonic() < ends:
                producer.send(b"hello")
                time.sleep(0.05)
        finally:
            client.close()

    await asyncio.wait_for(in_thread(work), 30)
    assert len(given) >= 4


async def until_empty(front: Front) -> None:
    async with asyncio.timeout(20):
        while front.gateway.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_user_who_is_taken_away_goes_from_a_gateway(proxy: Front, tmp_path: Path) -> None:
    client = pulsar.Client(
        proxy.service_url,
        pulsar.AuthenticationBasic("app", PASSWORD),
        logger=QUIET,
        operation_timeout_seconds=1,
    )
    await in_thread(lambda: client.create_producer(TOPIC, send_timeout_millis=1_000))
    opened = list(proxy.gateway.connections)
    assert {one._lookups is None for one in opened} == {True, False}, "a relay, and one for questions"
    users = tmp_path / "gateway" / "users"
    users.write_text("".join(line for line in users.open() if not line.startswith("app:")))
    async with asyncio.timeout(20):
        while set(proxy.gateway.connections) & set(opened):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await in_thread(client.close)
    revoked = [line for line in audit(tmp_path / "gateway") if line["event"] == "revoked"]
    assert [line["role"] for line in revoked] == ["app"] * len(opened), "once for each"


async def test_a_relay_that_ends_leaves_no_timer_for_its_credentials(proxy: Front) -> None:
    client = pulsar.Client(proxy.service_url, by_token("app", seconds=3_600), logger=QUIET)
    await in_thread(lambda: client.create_producer(TOPIC).send(b"hello"))
    timers = [one._expiry for one in proxy.gateway.connections]
    assert len(timers) == 2 and not any(one is None or one.cancelled() for one in timers)
    await in_thread(client.close)
    await until_empty(proxy)
    assert all(one is not None and one.cancelled() for one in timers)


async def test_the_console_is_there_before_log_in_and_asks_by_the_gateway(proxy: Front) -> None:
    async with aiohttp.ClientSession() as session:
        for path in ("/console", "/console/", "/console/js/app.js"):
            async with session.get(proxy.http_url + path) as answer:
                assert answer.status == 200 and "Content-Security-Policy" in answer.headers, path
                assert b"quire" in (await answer.read()).lower(), "compressed as the broker sends it"
        async with session.get(proxy.http_url + "/console/../quire/v1/whoami") as answer:
            assert answer.status == 401
        headers = {"Authorization": f"Bearer {token('app')}"}
        async with session.get(proxy.http_url + "/quire/v1/whoami", headers=headers) as answer:
            assert (await answer.json())["role"] == "app"


async def test_another_sites_page_changes_nothing(proxy: Front) -> None:
    """Nor is a page of this site refused by the broker, which is asked by another name."""
    own = {"Authorization": f"Bearer {token('app')}"}
    subscription = proxy.http_url + STATS.replace("/stats", "/subscription/s")
    async with aiohttp.ClientSession() as session:
        for headers, expected in (
            ({"Origin": "http://elsewhere"}, 403),
            ({"Sec-Fetch-Site": "cross-site"}, 403),
            ({"Origin": proxy.http_url}, 204),
        ):
            async with session.put(subscription, headers={**own, **headers}) as answer:
                assert answer.status == expected, await answer.text()
            lookup = STATS.replace("/stats", "2/partitions?checkAllowAutoCreation=true")
            async with session.get(proxy.http_url + lookup, headers={**own, **headers}) as answer:
                assert answer.status == {204: 200}.get(expected, expected), "it creates topics"


@pytest.mark.parametrize("path", [DOCTOR, SUPPORT])
async def test_a_gateway_tells_of_itself_to_whom_a_broker_takes_for_a_superuser(
    passing: Front, proxy: Front, path: str
) -> None:
    async def ask(front: Front, role: str = "") -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token(role)}"} if role else {}
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{front.http_url}{path}?here=true", headers=headers) as answer,
        ):
            return answer.status, await answer.json()

    status, said = await ask(passing, "admin")
    assert status == 200 and [member["kind"] for member in said["members"]] == ["gateway"]
    for front, role, refused in (
        (passing, "app", 403),
        (passing, "", 403),
        (proxy, "app", 403),
        (proxy, "", 401),
    ):
        status, said = await ask(front, role)
        assert status == refused and "reason" in said and "members" not in said
