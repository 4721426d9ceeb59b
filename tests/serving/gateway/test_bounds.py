"""What clients can make a gateway keep, and for how long: answers that nobody reads, connections of who is gone."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvloop

from quire.gateway import connection as module
from quire.gateway import gateway as gateway_module
from quire.runtime.clock import SystemClock
from quire.security.configuration import Configuration, Limits
from quire.security.security import make_security
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.commands import Command

from .conftest import Front
from .raw import Raw

NAMES = [f"persistent://public/default/topic-{i}" for i in range(5_000)]
LIST_BYTES = len(commands.topics_of_namespace(1, NAMES))


def topics(request_id: int) -> bytes:
    body = pb.CommandGetTopicsOfNamespace(request_id=request_id, namespace="public/default")
    kind = pb.BaseCommand.GET_TOPICS_OF_NAMESPACE
    return commands.frame(pb.BaseCommand(type=kind, getTopicsOfNamespace=body))


def partitions(request_id: int) -> bytes:
    body = pb.CommandPartitionedTopicMetadata(request_id=request_id, topic="t")
    return commands.frame(pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA, partitionMetadata=body))


class Known:
    """A broker's answers, without a broker."""

    def __init__(self, *_: Any) -> None:
        self.asked = 0

    async def begin(self) -> Command:
        return Command(pb.BaseCommand.CONNECTED, pb.CommandConnected(server_version="x"))

    async def answer(self, question: Any) -> bytes:
        self.asked += 1
        await asyncio.sleep(0)
        return commands.topics_of_namespace(question.body.request_id, NAMES)

    def close(self) -> None: ...


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Lookups", Known)


def only(front: Front) -> Any:
    (connection,) = front.gateway.connections
    return connection


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_answers_that_nobody_reads_are_not_fetched(front: Front, known: None) -> None:
    host, _, port = front.service_url.partition("://")[2].rpartition(":")
    with socket.create_connection((host, int(port))) as client:
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, commands.connect("x") + b"".join(map(topics, range(30))))
        await until(lambda: front.gateway.connections and only(front)._stops)
        before = -1
        while before != only(front)._lookups.asked:
            before = only(front)._lookups.asked
            await asyncio.sleep(0.1)
        kept = only(front)._transport.get_write_buffer_size()
        assert kept <= 2 * LIST_BYTES + module.WRITE_HIGH_BYTES
        answered = 0
        while answered < 30 * LIST_BYTES:
            answered += len(await loop.sock_recv(client, 1 << 20))
    assert answered >= 30 * LIST_BYTES, "who reads gets them all"


async def test_many_open_questions_stop_the_reading(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Known):
        async def answer(self, question: Any) -> bytes:
            self.asked += 1
            return await asyncio.Future()

    monkeypatch.setattr(module, "Lookups", Silent)
    monkeypatch.setattr(module, "QUESTIONS_MAX", 10)
    client = await front.lookups()
    client.write(b"".join(map(partitions, range(100))))
    await until(lambda: only(front)._stops)
    assert only(front)._lookups.asked <= 10
    for task in list(only(front)._pending):
        task.cancel()
    await until(lambda: only(front)._lookups.asked > 10)


async def test_a_client_that_says_no_connect_is_closed(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_S", 0.05)
    client = await Raw.open(front.service_url)
    answer = await client.next()
    assert answer.kind == pb.BaseCommand.ERROR and "CONNECT" in answer.body.message  # type: ignore[attr-defined]
    with pytest.raises(EOFError):
        await client.next()
    await until(lambda: not front.gateway.connections)


async def test_a_client_that_vanished_ends_with_its_connection_to_the_broker(
    front: Front, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await script()
    await front.register("a", broker.url)
    silent, alive = await front.lookups(), await front.lookups()
    before = list(front.gateway.connections)
    for _ in range(2):
        for connection in before:
            connection.keep_alive()
    assert (await alive.next()).kind == (await silent.next()).kind == pb.BaseCommand.PING
    alive.write(commands.PONG)
    await until(lambda: any(one._was_heard for one in before))
    for connection in before:
        connection.keep_alive()
    await until(lambda: len(front.gateway.connections) == 1)
    (gone,) = set(before) - set(front.gateway.connections)
    assert all(upstream._transport.is_closing() for upstream in gone._lookups._upstreams.values())


async def test_the_gateway_looks_after_its_connections(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "KEEP_ALIVE_S", 0.01)
    other = Front()
    await other.start()
    try:
        monkeypatch.setattr(module, "Lookups", Known)
        client = await other.lookups()
        assert (await client.next()).kind == pb.BaseCommand.PING
        with pytest.raises(EOFError):
            await client.next()
    finally:
        await other.stop()


async def test_a_long_question_is_refused(front: Front) -> None:
    client = await Raw.open(front.service_url)
    client.write(b"\x00\x10\x00\x04\x00\x10\x00\x00" + bytes(100))
    assert (await client.next()).kind == pb.BaseCommand.ERROR


def test_a_gateway_on_the_loop_that_processes_run_on() -> None:
    """Its transports are of another family than asyncio's own."""

    async def ask() -> int:
        front = Front()
        await front.start()
        try:
            await front.register("b", "pulsar://127.0.0.1:1")
            (await front.connect()).close()
            await until(lambda: front.gateway.connections.total == 1)
            return front.gateway.connections.total
        finally:
            await front.stop()

    assert uvloop.run(ask()) == 1


async def test_silent_connections_drop_one_another_and_no_client(front: Front, script: Any) -> None:
    """It takes ten connections."""
    broker = await script()
    await front.register("a", broker.url)
    silent = [await Raw.open(front.service_url) for _ in range(15)]
    (await front.lookups()).close()
    told = await silent[0].next()
    assert isinstance(told.body, pb.CommandError) and "took too long" in told.body.message
    with pytest.raises(EOFError):
        await silent[0].next()
    assert len(front.gateway.connections) <= 10
    assert front.gateway.metrics()["quire_gateway_limits_met_total"]["connections_logging_in",] >= 6
    for one in silent:
        one.close()


async def test_an_address_has_so_many_connections(front: Front, script: Any) -> None:
    broker = await script()
    limits = Limits(connections_per_address=2)
    limited = Front(make_security(Configuration(limits=limits), SystemClock()))
    await limited.start()
    try:
        await limited.register("a", broker.url)
        first, _ = await limited.lookups(), await limited.lookups()
        refused = await Raw.open(limited.service_url)
        told = await refused.next()
        assert isinstance(told.body, pb.CommandError) and "2 connections from 127.0.0.1" in told.body.message
        first.close()
        await until(lambda: len(limited.gateway.connections) == 1)
        await limited.lookups()
        assert limited.gateway.metrics()["quire_gateway_limits_met_total"]["connections_per_address",] == 1
    finally:
        await limited.stop()


async def test_who_asks_too_fast_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(Known):
        async def answer(self, question: Any) -> bytes:
            self.asked += 1
            return commands.partitions(question.body.request_id, 0)

    monkeypatch.setattr(module, "Lookups", Short)
    limited = Front(make_security(Configuration(limits=Limits(requests_per_s=100)), SystemClock()))
    await limited.start()
    try:
        client = await limited.lookups()
        began = asyncio.get_running_loop().time()
        client.write(b"".join(map(partitions, range(190))))
        await until(lambda: only(limited)._lookups.asked == 190)
        assert asyncio.get_running_loop().time() - began >= 0.8
        assert limited.gateway.metrics()["quire_gateway_limits_met_total"]["requests_per_s",] >= 1
    finally:
        await limited.stop()
