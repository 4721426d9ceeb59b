"""Connections that a broker takes: of those that stay silent, of an address, of a role; and how fast one may ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest

from quire.runtime.clock import SystemClock
from quire.runtime.settings import parse_address
from quire.security import connections as module
from quire.security.configuration import Configuration, Limits
from quire.security.security import make_security
from quire.serving.broker import Broker
from quire.serving.session import requests
from quire.serving.session.inbound import COMMANDS_A_TURN, Stop
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from tests.serving.conftest import QUIET, BrokerHouse, in_thread
from tests.serving.security import security, token
from tests.serving.session.test_connection import Client, entry, producer, subscribe


async def let_in(broker: Broker, role: str = "") -> Client:
    client = Client(broker)
    client.send(commands.connect("test", *(("token", token(role).encode()) if role else ())))
    (answer,) = await client.answers(1)
    assert answer.kind == pb.BaseCommand.CONNECTED, answer
    return client


async def refused(client: Client) -> str:
    """It was closed, and told why."""
    (answer,) = await client.answers(1)
    assert isinstance(answer.body, pb.CommandError) and client.transport.closed
    assert answer.body.error == pb.TooManyRequests
    return answer.body.message


def count(broker: Broker, limit: str) -> float:
    return broker.metrics()["quire_serving_limits_met_total"][limit,]


async def test_silent_connections_drop_one_another(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOGGING_IN_MAX", 3)
    broker = await house.start()
    honest = await let_in(broker)
    silent = [Client(broker) for _ in range(5)]
    for one in silent[:2]:
        assert "took too long" in await refused(one)
        one.connection.connection_lost(None)
    assert not any(one.transport.closed for one in (honest, *silent[2:]))
    await let_in(broker)
    assert "took too long" in await refused(silent[2])
    assert count(broker, "connections_logging_in") == 3
    metrics = broker.metrics()
    assert metrics["quire_serving_connections"] == 4
    assert metrics["quire_serving_connections_logging_in"] == 2
    assert metrics["quire_serving_connections_total"] == 7


async def test_sockets_that_stay_silent_keep_no_client_out(house: BrokerHouse) -> None:
    """They take all connections that the broker has, again and again."""
    broker = await house.start(connections_max=5)
    address = parse_address(broker.service_url.partition("://")[2])
    silent: list[asyncio.StreamWriter] = []
    try:
        for _ in range(3):
            silent += [(await asyncio.open_connection(*address))[1] for _ in range(20)]

            def work() -> None:
                client = pulsar.Client(broker.service_url, logger=QUIET, operation_timeout_seconds=30)
                client.create_producer("orders").send(b"hello")
                client.close()

            await in_thread(work)
        assert len(broker.sessions.connections) <= 5
    finally:
        for writer in silent:
            writer.close()


async def test_a_broker_whose_clients_have_all_logged_in_takes_no_more(house: BrokerHouse) -> None:
    broker = await house.start(connections_max=2)
    first, _ = await let_in(broker), await let_in(broker)
    assert "too many connections" in await refused(Client(broker))
    first.connection.connection_lost(None)
    await let_in(broker)
    assert count(broker, "connections") == 1


async def test_an_address_has_so_many(house: BrokerHouse) -> None:
    limits = Limits(connections_per_address=2)
    house.security = make_security(Configuration(limits=limits), SystemClock())
    broker = await house.start()
    first = await let_in(broker)
    silent = Client(broker)
    assert "2 connections from 127.0.0.1" in await refused(Client(broker))
    silent.connection.connection_lost(None)
    await let_in(broker)
    first.connection.connection_lost(None)
    await let_in(broker)
    assert count(broker, "connections_per_address") == 1


@pytest.fixture
def secured(house: BrokerHouse, tmp_path: Path) -> Callable[..., Any]:
    async def start(**limits: int) -> Broker:
        house.security = security(tmp_path, limits=Limits(**limits))
        return await house.start()

    return start


async def test_a_role_has_so_many(secured: Callable[..., Any]) -> None:
    broker = await secured(connections_per_role=2)
    first, _, other = [await let_in(broker, role) for role in ("app", "app", "other")]
    one_more = Client(broker)
    one_more.send(commands.connect("test", "token", token("app").encode()))
    assert "2 connections of app" in await refused(one_more)
    one_more.connection.connection_lost(None)
    for _ in range(5):
        await let_in(broker, "admin")
    first.connection.connection_lost(None)
    await let_in(broker, "app")
    assert count(broker, "connections_per_role") == 1
    assert not other.transport.closed


async def test_who_is_dropped_while_he_logs_in_is_not_counted_for_his_role(
    secured: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOGGING_IN_MAX", 1)
    broker = await secured(connections_per_role=1)
    dropped = Client(broker)
    dropped.send(commands.connect("test", "token", token("app").encode()))
    await let_in(broker, "other")
    assert "took too long" in await refused(dropped)
    dropped.connection.connection_lost(None)
    await let_in(broker, "app")


async def test_clients_of_a_proxy_count_for_their_roles_and_not_for_its_address(
    secured: Callable[..., Any],
) -> None:
    broker = await secured(connections_per_address=1, connections_per_role=2)

    def through(role: str) -> Client:
        client = Client(broker)
        body = pb.CommandConnect(
            client_version="c",
            auth_method_name="token",
            auth_data=token("gateway").encode(),
            original_principal=role,
        )
        client.send(commands.frame(pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=body)))
        return client

    for role in ("a", "b", "a", "b"):
        (answer,) = await through(role).answers(1)
        assert answer.kind == pb.BaseCommand.CONNECTED
    assert "2 connections of a" in await refused(through("a"))


# -- how much one may ask at once, and how fast ------------------------------------------------------------


async def test_who_has_asked_for_too_much_is_read_again_when_a_tenth_is_done(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when half is: what it publishes to the first of a thousand topics waits behind what it asks."""
    monkeypatch.setattr(requests, "REQUESTS_PENDING_PER_CONNECTION_MAX", 20)
    client = await let_in(await house.start())
    works = [asyncio.Event() for _ in range(20)]
    for work in works:
        assert client.transport.reading

        async def wait(work: asyncio.Event = work) -> None:
            await work.wait()

        client.connection.requests.start(wait(), "wait")
    for done, work in enumerate(works, 1):
        assert client.transport.reading == (done > 2)
        assert (Stop.REQUESTS in client.connection.inbound.stops) == (done <= 2)
        work.set()
        for _ in range(3):
            await asyncio.sleep(0)


async def test_who_asks_too_fast_waits_and_nobody_else(house: BrokerHouse) -> None:
    house.security = make_security(Configuration(limits=Limits(requests_per_s=40)), SystemClock())
    broker = await house.start()
    hasty, other = await let_in(broker), await let_in(broker)
    loop = asyncio.get_running_loop()
    began = loop.time()
    hasty.send(*(commands.ask_lookup(number, "t") for number in range(100)))
    assert Stop.RATE in hasty.connection.inbound.stops and not hasty.transport.reading
    assert hasty.connection.requests.pending <= COMMANDS_A_TURN, "what fits a turn, and no more for now"
    other.send(commands.ask_lookup(1, "t"))
    await other.answers(1)
    assert other.transport.reading
    answered = 0
    async with asyncio.timeout(60):
        while answered < 100 or not hasty.transport.reading:
            await asyncio.sleep(0.001)
            answered += len(hasty.received())
    assert answered == 100 and loop.time() - began >= 0.25, "ten too many came in the first turn alone"
    assert count(broker, "requests_per_s") >= 1


async def test_what_is_sent_acknowledged_and_permitted_is_not_counted(house: BrokerHouse) -> None:
    house.security = make_security(Configuration(limits=Limits(requests_per_s=10)), SystemClock())
    broker = await house.start()
    client = await let_in(broker)
    client.send(producer(1), subscribe(2))
    await client.answers(2)
    for number in range(100):
        client.send(*commands.send(1, number, 1, entry()), commands.flow(1, 1))
        client.send(commands.ack(1, [commands.message_id(1, number)]))
    assert Stop.RATE not in client.connection.inbound.stops and client.transport.reading
    client.send(*(commands.ask_lookup(number, "t") for number in range(10)))
    assert Stop.RATE in client.connection.inbound.stops and not client.transport.reading
    client.connection.connection_lost(None)
