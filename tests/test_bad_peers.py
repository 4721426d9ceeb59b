"""Peers that do what they must not: it costs their connection at most, and nobody else notices.

A steady producer and consumer go on beside each of them (`Steady`). What depends on sockets and memory runs against
a real process; random sequences of commands run against a broker in this process, many of them.
"""

from __future__ import annotations

import asyncio
import os
import resource
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.runtime.limits import COMMAND_BYTES_MAX, FRAME_BYTES_MAX, KIB, MIB
from quire.wire import commands, entry_frames
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import OutgoingMessage, encode_one
from tests.frames import ask_schema, bring_schema

from .chaos.machine import Machine, Surprises
from .chaos.raw import Raw, Refused
from .chaos.server import Server

TOPIC = "persistent://public/default/steady"
OTHER = "persistent://public/default/other"
MEMORY_BYTES_MAX = 600 * MIB
ROUNDS = 20
IDLE_CONNECTIONS = 2000


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server(tmp_path)
    await made.start()
    yield made
    await made.kill()


def message(number: int, size: int = 100) -> bytes:
    return encode_one(OutgoingMessage(b"%d " % number + os.urandom(size)), "peer", number, 1)


@asynccontextmanager
async def steady(server: Server) -> AsyncIterator[Callable[[], object]]:
    """A producer and its consumer; gives what makes some round trips, and makes more at the end."""
    raw = await Raw.open(server.address)
    await raw.subscribe(TOPIC, "steady")
    await raw.producer(TOPIC)
    sent = 0

    async def go_round() -> None:
        nonlocal sent
        for _ in range(ROUNDS):
            async with asyncio.timeout(60):
                raw.write(*commands.send(1, sent, 1, message(sent)))
                receipt, one = await raw.receipts.get(), await raw.delivered.get()
            assert receipt is not None and one is not None
            assert receipt.sequence_id == sent and int(one.payloads[0].split(b" ")[0]) == sent
            await raw.ack(one.position)
            sent += 1
        raw.write(commands.flow(1, ROUNDS))

    await go_round()
    yield go_round
    await go_round()
    await raw.close()


# -- what is no protocol ---------------------------------------------------------------------------------


def framed(total: int, command: int, rest: bytes = b"") -> bytes:
    return struct.pack(">II", total, command) + rest


CONNECT = commands.connect("bad peer")
NONSENSE = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("16030100f8010000f40303") + b"\x5a" * 240,
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "noise": Random(7).randbytes(64 * KIB),
    "empty frame": struct.pack(">I", 0),
    "frame without a command": CONNECT + framed(4, 0),
    "frame larger than any": CONNECT + framed(FRAME_BYTES_MAX + 1, 10),
    "frame of 4 GiB": CONNECT + framed(0xFFFFFFFF, 10),
    "command larger than its frame": CONNECT + framed(20, 100, b"x" * 100),
    "command larger than any": CONNECT
    + framed(COMMAND_BYTES_MAX + 5, COMMAND_BYTES_MAX + 1, bytes(COMMAND_BYTES_MAX + 1)),
    "command that is no protobuf": CONNECT + framed(12, 8, b"\xff" * 8),
    "command of an unknown type": CONNECT + framed(7, 3, b"\x08\xe7\x07"),
    "command without its body": CONNECT + framed(6, 2, b"\x08\x05"),
    "anything before CONNECT": commands.ask_lookup(1, TOPIC),
    "a broker's command": CONNECT + commands.success(1),
    "a message": CONNECT
    + b"".join([entry_frames.message_header(1, commands.message_id(1, 1), len(message(1))), message(1)]),
}


@pytest.mark.parametrize("name", NONSENSE)
async def test_nonsense_costs_the_connection(server: Server, name: str) -> None:
    async with steady(server) as go_round:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(NONSENSE[name])
        await go_round()
        async with asyncio.timeout(60):
            try:
                answer = await reader.read()
            except ConnectionResetError:
                answer = b""
        assert len(answer) < 2 * KIB
        writer.transport.abort()


async def test_a_frame_that_never_ends_holds_nobody_up(server: Server) -> None:
    async with steady(server) as go_round:
        peers = [await asyncio.open_connection(*server.address) for _ in range(50)]
        for at, (_, writer) in enumerate(peers):
            writer.write((CONNECT + framed(FRAME_BYTES_MAX - 4, 100, b"x" * 5000))[: 3 * at + 1])
        await go_round()
        for _, writer in peers:
            writer.transport.abort()


async def test_a_damaged_message_is_refused_alone(server: Server) -> None:
    raw = await Raw.open(server.address)
    await raw.producer(OTHER)
    damaged = bytearray(message(1))
    damaged[-1] ^= 1
    for number, entry in enumerate([message(0), bytes(damaged), message(2)]):
        raw.write(*commands.send(1, number, 1, entry))
    answers = [await raw.receipts.get() for _ in range(3)]
    errors = {one.sequence_id: one for one in answers if isinstance(one, pb.CommandSendError)}
    assert errors.keys() == {1} and errors[1].error == pb.ChecksumError
    await raw.close()


# -- connections -----------------------------------------------------------------------------------------


async def test_a_connection_that_is_dead_is_closed(tmp_path: Path) -> None:
    """One that answers PING lives on; one that is half-open does not, and is found out."""
    server = Server(tmp_path, keep_alive_ms="200ms")
    await server.start()
    try:
        alive = await Raw.open(server.address)
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(CONNECT)
        async with asyncio.timeout(60):
            try:
                await reader.read()
            except ConnectionResetError:
                pass
        writer.transport.abort()
        await alive.ask(commands.ask_lookup, TOPIC)
        await alive.close()
    finally:
        await server.kill()


@pytest.fixture
def few_files() -> Iterator[Callable[[], None]]:
    """The usual 1,024 open files for processes that start now; the call gives this one as many as there may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < IDLE_CONNECTIONS + 500:
        pytest.skip(f"this machine allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    yield lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_two_thousand_idle_connections(few_files: Callable[[], None], server: Server) -> None:
    """The server sees to its own limit of open files."""
    few_files()
    async with steady(server) as go_round:
        idle = []
        for _ in range(IDLE_CONNECTIONS // 100):
            idle += await asyncio.gather(*(Raw.open(server.address) for _ in range(100)))
        await go_round()
        for raw in idle[:: IDLE_CONNECTIONS // 20]:
            await raw.ask(commands.ask_partitions, TOPIC)
        for raw in idle:
            await raw.close()


async def test_slow_readers_and_fast_writers_are_held_back(server: Server) -> None:
    """A producer that never waits and consumers that never read: memory stays bounded, others go on."""
    entry = message(0, 128 * KIB)
    async with steady(server) as go_round:
        deaf = [await subscribe_and_stop_reading(server, f"deaf-{number}") for number in range(3)]
        flood = await Raw.open(server.address)
        await flood.producer(OTHER)
        for number in range(4000):
            flood.write(*commands.send(1, number, 1, entry))
            if number % 64 == 0:
                await flood._writer.drain()
        await go_round()
        async with asyncio.timeout(60):
            for _ in range(4000):
                assert await flood.receipts.get() is not None
        await go_round()
        assert server.peak_bytes() < MEMORY_BYTES_MAX
        for writer in deaf:
            writer.transport.abort()
        await flood.close()


async def subscribe_and_stop_reading(server: Server, name: str) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection(*server.address)
    body = pb.CommandSubscribe(
        topic=OTHER, subscription=name, subType=pb.CommandSubscribe.Exclusive, consumer_id=1, request_id=1
    )
    writer.write(CONNECT + commands.subscribe(body) + commands.flow(1, 1_000_000))
    await reader.read(1)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return writer


# -- random commands -------------------------------------------------------------------------------------

IDS = st.integers(1, 3)
FLEETING = "non-persistent://public/default/fleeting"
TOPICS = st.sampled_from([TOPIC, OTHER, FLEETING, "persistent://no/such/namespace", "not a topic", ""])
POSITIONS = st.tuples(st.sampled_from([-1, 0, 101, 2**62]), st.sampled_from([-1, 0, 3, 2**62]))


def _subscribe(request_id: int, number: int, topic: str, kind: int) -> bytes:
    body = pb.CommandSubscribe(
        topic=topic,
        subscription=f"s{number}",
        subType=kind,  # type: ignore[arg-type]
        consumer_id=number,
        request_id=request_id,
    )
    return commands.subscribe(body)


REQUESTS = st.one_of(
    st.builds(lambda t: lambda r: commands.ask_lookup(r, t), TOPICS),
    st.builds(lambda t: lambda r: commands.ask_partitions(r, t), TOPICS),
    st.builds(
        lambda n, t: lambda r: commands.producer(pb.CommandProducer(topic=t, producer_id=n, request_id=r)),
        IDS,
        TOPICS,
    ),
    st.builds(
        lambda n, t, mode, epoch: (
            lambda r: commands.producer(
                pb.CommandProducer(
                    topic=t,
                    producer_id=n,
                    request_id=r,
                    producer_name=f"name {n % 2}",
                    producer_access_mode=mode,
                    topic_epoch=epoch,
                    initial_subscription_name="first" if epoch == 1 else "",
                )
            )
        ),
        IDS,
        TOPICS,
        st.sampled_from([pb.Shared, pb.Exclusive, pb.ExclusiveWithFencing]),
        st.none() | st.sampled_from([0, 1, 2**63]),
    ),
    st.builds(lambda n, t, k: lambda r: _subscribe(r, n, t, k), IDS, TOPICS, st.integers(0, 2)),
    st.builds(lambda n: lambda r: commands.close_producer(n, r), IDS),
    st.builds(lambda n: lambda r: commands.close_consumer(n, r), IDS),
    st.builds(lambda n: lambda r: commands.unsubscribe(n, r), IDS),
    st.builds(lambda n, p: lambda r: commands.seek(n, r, commands.message_id(*p)), IDS, POSITIONS),
    st.builds(lambda n: lambda r: commands.seek(n, r, publish_time_ms=1), IDS),
    st.builds(lambda n: lambda r: commands.ask_last_message_id(n, r), IDS),
    st.builds(
        lambda n, p, c: lambda r: commands.ack(n, [commands.message_id(*p)], cumulative=c, request_id=r),
        IDS,
        POSITIONS,
        st.booleans(),
    ),
    st.builds(lambda t: lambda r: ask_schema(r, t), TOPICS),
    st.builds(
        lambda t, k, d: lambda r: bring_schema(r, t, k, d),
        TOPICS,
        st.integers(0, 21),
        st.sampled_from([b"", b'"int"', b"{", b"\0\0\0\1x"]),
    ),
    st.builds(lambda: lambda r: commands.ask_topics(r, "public/default")),
)
NOTICES = st.one_of(
    st.builds(lambda n, p: commands.flow(n, p), IDS, st.sampled_from([0, 1, 1000, 2**32 - 1])),
    st.builds(lambda n, p: commands.ack(n, [commands.message_id(*p)]), IDS, POSITIONS),
    st.builds(lambda n: commands.redeliver(n), IDS),
    st.builds(lambda n, p: commands.redeliver(n, [commands.message_id(*p)]), IDS, POSITIONS),
    st.builds(lambda n, s: b"".join(commands.send(n, s, 1, message(s))), IDS, st.integers(0, 5)),
)
STEPS = st.lists(st.tuples(st.integers(0, 2), st.one_of(REQUESTS, NOTICES)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_each_request_of_random_commands_has_exactly_one_answer(
    steps: list[tuple[int, bytes | Callable[[int], bytes]]],
) -> None:
    with Surprises() as surprises:
        asyncio.run(_random_commands(steps))
    assert not surprises.found, surprises.found[0]


async def _random_commands(steps: list[tuple[int, bytes | Callable[[int], bytes]]]) -> None:
    machine = Machine(0)
    await machine.boot()
    raws = [await machine.connect() for _ in range(3)]
    bystander = await machine.connect()
    asked = []
    for at, step in steps:
        if isinstance(step, bytes):
            raws[at].write(step)
        else:
            asked.append((raws[at], asyncio.ensure_future(raws[at].ask(step))))
        await asyncio.sleep(0)
    if asked:
        await asyncio.wait([answer for _, answer in asked], timeout=30)
    for raw, answer in asked:
        assert answer.done(), "a request was never answered"
        error = answer.exception()
        assert error is None or isinstance(error, Refused) or raw.is_closed
    for raw in raws:
        assert not raw.is_closed or raw.problem is None, raw.problem
    await bystander.ask(commands.ask_partitions, TOPIC)
    await machine.cut()
