"""The way to a broker: bytes as they are, both ways, with back-pressure, to registered brokers only."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.gateway.brokers import host_and_port
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb

from .conftest import Front

MIB = 1 << 20


async def test_bytes_pass_both_ways_as_they_are(front: Front, script: Any) -> None:
    broker = await script()
    await front.register("a", broker.url)
    client = await front.connect(host_and_port(broker.url))
    client.write(b"sent with the CONNECT")
    assert (await client.next()).kind == pb.BaseCommand.CONNECTED
    behind = await broker.arrived.get()
    assert not broker.received[0].body.proxy_to_broker_url
    assert await behind.bytes(21) == b"sent with the CONNECT"
    client.write(b"\x00\xff" * 5)
    assert await behind.bytes(10) == b"\x00\xff" * 5
    behind.write(b"back" * 1000)
    assert await client.bytes(4000) == b"back" * 1000


async def test_only_registered_brokers_are_reached(front: Front, script: Any) -> None:
    broker = await script()
    await front.register("a", "pulsar://127.0.0.1:1")
    client = await front.connect(host_and_port(broker.url))
    answer = await client.next()
    assert answer.kind == pb.BaseCommand.ERROR
    assert "not a registered broker" in answer.body.message  # type: ignore[attr-defined]
    with pytest.raises(EOFError):
        await client.next()
    assert not broker.received


async def test_a_client_of_a_broker_that_died_is_held_until_its_session_is_over(front: Front) -> None:
    await front.register("a", "pulsar://127.0.0.1:1")
    client = await front.connect("127.0.0.1:1")
    answer = asyncio.ensure_future(client.next())
    await asyncio.wait([answer], timeout=0.5)
    assert not answer.done()
    await front.unregister("a")
    assert (await answer).body.error == pb.ServiceNotReady  # type: ignore[attr-defined]


async def test_a_broker_that_is_gone_is_told_as_try_again(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.gateway.lookups.DIAL_S_MAX", 0.0)
    await front.register("a", "pulsar://127.0.0.1:1")
    client = await front.connect("127.0.0.1:1")
    assert (await client.next()).body.error == pb.ServiceNotReady  # type: ignore[attr-defined]


async def test_the_end_of_one_side_is_the_end_of_the_other_behind_its_last_bytes(
    front: Front, script: Any
) -> None:
    broker = await script()
    await front.register("a", broker.url)
    client = await front.connect(host_and_port(broker.url))
    await client.next()
    behind = await broker.arrived.get()
    behind.write(commands.close_producer(1, 2))
    behind.close()
    assert (await client.next()).kind == pb.BaseCommand.CLOSE_PRODUCER
    with pytest.raises(EOFError):
        await client.next()
    assert front.gateway.metrics()["quire_gateway_connections"] == 0


async def test_a_client_that_does_not_read_holds_its_broker_up_and_loses_nothing(
    front: Front, script: Any
) -> None:
    broker = await script()
    await front.register("a", broker.url)
    client = await front.connect(host_and_port(broker.url))
    await client.next()
    behind = await broker.arrived.get()
    total = 64 * MIB
    behind.write(bytes(total))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(behind._writer.drain(), 0.5)
    held = front.gateway.metrics()["quire_gateway_relayed_bytes_total"]
    assert held < total / 2, "the gateway took in what nobody reads"
    assert await client.bytes(total) == bytes(total)


async def test_clients_of_a_broker_that_hangs_are_let_go_when_its_session_is_over(
    front: Front, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.gateway.gateway.GONE_S", 0.0)
    hanging, well = await script(), await script()
    await front.register("a", hanging.url)
    await front.register("b", well.url)
    client = await front.connect(host_and_port(hanging.url))
    other = await front.connect(host_and_port(well.url))
    await client.next()
    await other.next()
    await front.unregister("a")
    with pytest.raises((EOFError, ConnectionError)):
        await client.next()
    (await well.arrived.get()).write(b"still here")
    assert await other.bytes(10) == b"still here"


async def test_clients_of_a_broker_that_registers_again_stay(
    front: Front, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.gateway.gateway.GONE_S", 0.05)
    broker = await script()
    await front.register("a", broker.url)
    client = await front.connect(host_and_port(broker.url))
    await client.next()
    await front.unregister("a")
    await front.register("a", broker.url)
    await asyncio.wait([asyncio.ensure_future(client.next())], timeout=0.2)
    assert front.gateway.metrics()["quire_gateway_connections"] == 1
