"""What a peer can make a session keep is weighed, and bounded: frames that do not end, and what waits in lanes."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from quire.runtime.limits import (
    ENTRY_OVERHEAD_BYTES,
    FRAME_ROOM_BYTES_MAX,
    HANDSHAKE_BYTES_MAX,
    HELD_BYTES_PER_CONNECTION_MAX,
    KIB,
    MIB,
    READ_ROOM_BYTES,
)
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.session import frame_room, inbound, session
from quire.serving.session.inbound import Stop
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from tests.serving.session.test_back_pressure import connected, publishing
from tests.serving.session.test_connection import TOPIC, Client, entry, kinds, producer, subscribe

LARGE = b"".join(commands.send(1, 0, 1, entry(bytes(5 * MIB - KIB))))


def feed(client: Client, data: bytes | memoryview) -> int:
    """Send while the broker reads; answers how much it took."""
    at = 0
    while at < len(data) and client.transport.reading and not client.transport.closed:
        room = client.connection.get_buffer(-1)
        taken = min(len(room), len(data) - at)
        room[:taken] = data[at : at + taken]
        client.connection.buffer_updated(taken)
        at += taken
    return at


async def feed_all(client: Client, data: bytes) -> None:
    """Send all of it, over as many turns of the loop as the broker wants."""
    async with asyncio.timeout(60):
        at = feed(client, data)
        while at < len(data):
            await asyncio.sleep(0)
            at += feed(client, data[at:])


async def feed_each(clients: list[Client], data: bytes | memoryview) -> list[int]:
    """Send as much from each as the broker takes, over as many turns as it wants; answers how much that is."""
    data, taken, quiet_turns = memoryview(data), [0] * len(clients), 0
    while quiet_turns < 20:
        more = [feed(client, data[at:]) for client, at in zip(clients, taken, strict=True)]
        taken = [at + some for at, some in zip(taken, more, strict=True)]
        quiet_turns = 0 if any(more) else quiet_turns + 1
        await asyncio.sleep(0)
    return taken


def kept(clients: list[Client]) -> int:
    return sum(one.connection.inbound._cutter.buffer_bytes for one in clients)


def drop(client: Client) -> None:
    client.connection.connection_lost(None)


async def test_before_connect_a_connection_holds_no_more_than_its_handshake(broker: Broker) -> None:
    clients = [Client(broker) for _ in range(60)]
    for client in clients:
        feed(client, LARGE[: 4 * MIB])
    assert all(client.transport.closed for client in clients)
    assert kept(clients) <= 60 * HANDSHAKE_BYTES_MAX
    assert kinds(clients[0].received()) == ["ERROR"]


async def test_who_does_not_say_connect_in_time_is_closed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "HANDSHAKE_S", 0.01)
    silent, good = Client(broker), await connected(broker)
    async with asyncio.timeout(60):
        while not silent.transport.closed:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not good.transport.closed
    drop(silent), drop(good)
    assert not broker.sessions.connections


async def test_half_frames_have_a_budget_and_others_go_on_in_turn(broker: Broker) -> None:
    clients = [await connected(broker) for _ in range(30)]
    half = LARGE[: 4 * MIB]
    taken = await feed_each(clients, half)
    assert broker.sessions.context.frame_room.used_bytes <= FRAME_ROOM_BYTES_MAX
    assert kept(clients) <= FRAME_ROOM_BYTES_MAX + 30 * 2 * READ_ROOM_BYTES
    waiting = [client for client in clients if not client.transport.reading]
    assert 15 < len(waiting) < 30 and taken.count(len(half)) == 30 - len(waiting)
    quiet = await publishing(broker, TOPIC)
    assert feed(quiet, b"".join(commands.send(1, 0, 1, entry(bytes(32 * KIB))))) > 32 * KIB
    assert kinds(await quiet.answers(1)) == ["SEND_RECEIPT"], "what is not large waits for nobody"
    for client in clients:
        if client.transport.reading:
            drop(client)
    assert all(client.transport.reading for client in waiting[:12]), "in the order of asking"


async def test_when_room_is_wanted_a_frame_that_does_not_end_costs_its_connection(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_room, "PRESSED_S", 0.05)
    monkeypatch.setattr(frame_room, "LOOK_AGAIN_S", 0.02)
    hostile = [await connected(broker) for _ in range(13)]
    await feed_each(hostile, LARGE[: 4 * MIB])
    honest = await publishing(broker, TOPIC)
    taken = feed(honest, LARGE)
    async with asyncio.timeout(60):
        while taken < len(LARGE):
            await asyncio.sleep(0.01)
            taken += feed(honest, LARGE[taken:])
    assert kinds(await honest.answers(1)) == ["SEND_RECEIPT"]
    assert any(client.transport.closed for client in hostile) and not honest.transport.closed


async def test_a_frame_that_does_not_end_is_not_waited_for_for_ever(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, quiet = await connected(broker), await connected(broker)
    feed(client, LARGE[:100])
    client.connection.keep_alive()
    assert not client.transport.closed
    monkeypatch.setattr(inbound, "FRAME_S_MAX", 0.0)
    client.connection.inbound.stop(Stop.HELD)
    client.connection.keep_alive()
    assert not client.transport.closed, "we do not read it"
    client.connection.inbound.go_on(Stop.HELD)
    client.connection.keep_alive()
    quiet.connection.keep_alive()
    assert client.transport.closed and not quiet.transport.closed


async def test_a_busy_connection_reads_in_larger_steps_while_there_is_room(broker: Broker) -> None:
    client = await publishing(broker, TOPIC)
    many = b"".join(b"".join(commands.send(1, n, 1, entry(bytes(1000)))) for n in range(4000))
    await feed_all(client, many)
    assert (
        client.connection.inbound._cutter.buffer_bytes == MIB == broker.sessions.context.frame_room.used_bytes
    )
    await client.answers(4000)
    broker.sessions.context.frame_room._waiting.append(
        (client.connection.inbound, FRAME_ROOM_BYTES_MAX, lambda: None)
    )
    broker.sessions.context.frame_room._press()
    assert client.connection.inbound._cutter.buffer_bytes <= READ_ROOM_BYTES
    drop(client)
    assert broker.sessions.context.frame_room.used_bytes == 0


def acks(count: int) -> bytes:
    return commands.ack(1, [commands.message_id(5, at) for at in range(count)], request_id=7)


def subscribing_waits(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Every SUBSCRIBE is under way until this is set."""
    go_on, real = asyncio.Event(), broker.sessions.topics.subscribe

    async def slow(*args: Any, **more: Any) -> Any:
        await go_on.wait()
        return await real(*args, **more)

    monkeypatch.setattr(broker.sessions.topics, "subscribe", slow)
    return go_on


async def test_commands_in_a_lane_are_weighed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = subscribing_waits(broker, monkeypatch)
    client = await connected(broker)
    client.send(subscribe(1))
    large = acks(60_000)
    taken = feed(client, large * 40)
    async with asyncio.timeout(60):
        while broker.sessions.context.held.held_bytes < len(large) - KIB:
            await broker.sessions.context.slices.turn()
            taken += feed(client, (large * 40)[taken:])
    assert taken < HELD_BYTES_PER_CONNECTION_MAX + MIB, "by a read at most"
    held = client.connection.consumers[1].lane._waiting
    assert sum(len(waits.raw) for waits, _ in held) < MIB  # type: ignore[union-attr]
    count = taken // len(large)
    go_on.set()
    assert sorted(kinds(await client.answers(1 + count))) == ["ACK_RESPONSE"] * count + ["SUCCESS"]
    async with asyncio.timeout(60):
        while broker.sessions.context.held.held_bytes or not client.transport.reading:
            await broker.sessions.context.slices.turn()


async def test_many_ids_are_acknowledged_in_turns_and_what_follows_waits(broker: Broker) -> None:
    client = await publishing(broker, TOPIC)
    client.send(subscribe(1), *(part for n in range(100) for part in commands.send(1, n, 1, entry())))
    await client.answers(101)
    topic: Any = broker.registry.find(TopicName.parse(TOPIC))
    subscription = topic.subscriptions.get("s")
    ledger_id = topic.log.last_confirmed.ledger_id
    ids = [commands.message_id(ledger_id, 10_000 + at) for at in range(19_900)]
    ids += [commands.message_id(ledger_id, at) for at in range(100)]
    client.send(commands.ack(1, ids, request_id=7))
    async with asyncio.timeout(60):
        while not client.connection.consumers[1].lane.is_busy:
            await broker.sessions.context.slices.turn()
    assert subscription.mark_delete.entry_id < 0
    client.send(commands.close_consumer(1, 8))
    assert sorted(kinds(await client.answers(2))) == ["ACK_RESPONSE", "SUCCESS"]
    assert subscription.mark_delete.entry_id == 99, "none of it is passed over by what comes behind"


async def test_many_small_commands_in_a_lane_weigh_as_well(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(broker.sessions.topics, "subscribe", never)
    client = await connected(broker)
    client.send(subscribe(1))
    frame = commands.flow(1, 1)
    assert feed(client, frame * 50_000) < 10_000 * len(frame)
    drop(client)
    assert broker.sessions.context.held.held_bytes == 0


async def test_what_waits_beyond_its_budget_stops_all_who_publish(broker: Broker) -> None:
    """Each connection may always have one more message waiting: many connections would have many."""
    client = await publishing(broker, TOPIC)
    broker.sessions.context.held.take(
        broker.sessions.context.held.limit_bytes + broker.services.budget.limit_bytes
    )
    feed(client, b"".join(commands.send(1, 0, 1, entry())))
    assert not client.transport.reading
    broker.sessions.context.held.give_back(broker.sessions.context.held.used_bytes)
    client.connection.held.hold(10)
    client.connection.held.release(10)
    assert client.transport.reading


async def test_tiny_messages_weigh_what_they_take(broker: Broker) -> None:
    client = await publishing(broker, TOPIC)
    before = broker.services.budget.held_bytes
    feed(client, b"".join(b"".join(commands.send(1, n, 1, entry(b""))) for n in range(400)))
    assert broker.services.budget.held_bytes - before >= 400 * (len(entry(b"")) + ENTRY_OVERHEAD_BYTES)
    await client.answers(400)
    assert broker.services.budget.held_bytes == 0


async def test_a_producer_and_a_consumer_keep_of_their_commands_what_is_asked_for(broker: Broker) -> None:
    client = await connected(broker)
    schema = pb.Schema(name="s", schema_data=b"", type=pb.Schema.Bytes)
    client.send(producer(1, 1, schema=schema), subscribe(2))
    await client.answers(2)
    for end in (client.connection.producers[1], client.connection.consumers[1]):
        parts = [getattr(end, name) for name in type(end).__slots__]
        assert not [part for part in parts if isinstance(part, pb.CommandProducer | pb.CommandSubscribe)]


def many_ids(kind: str) -> bytes:
    ids = [commands.message_id(5, at) for at in range(30_000)]
    for one in ids:
        one.ack_set.append(1)
    if kind == "ACK":
        return commands.ack(1, ids, request_id=7)
    body = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids)
    kind_number = pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES
    return commands.frame(pb.BaseCommand(type=kind_number, redeliverUnacknowledgedMessages=body))


def parsed() -> list[pb.CommandAck | pb.CommandRedeliverUnacknowledgedMessages]:
    """The commands of this process that are kept as they were parsed, with all that they hold."""
    gc.collect()
    kinds = pb.CommandAck | pb.CommandRedeliverUnacknowledgedMessages
    return [one for one in gc.get_objects() if isinstance(one, kinds)]


@pytest.mark.parametrize("kind", ["ACK", "REDELIVER"])
async def test_a_command_of_many_ids_is_kept_as_its_bytes_and_weighed(broker: Broker, kind: str) -> None:
    """All who sent one wait for one another; parsed, each would take ten times as much, which nobody would count."""
    others = parsed()  # of other tests
    client = await connected(broker)
    client.send(subscribe(1))
    await client.answers(1)
    large = many_ids(kind)
    await feed_all(client, large)
    async with asyncio.timeout(60):
        while not client.connection.consumers[1].lane.is_busy:
            await broker.sessions.context.slices.turn()
    assert len(large) - KIB < broker.sessions.context.held.held_bytes <= len(large)
    known = set(map(id, others))
    assert not [one for one in parsed() if id(one) not in known and one.ByteSize() > 1_000]
    assert not client.transport.reading
    await client.answers(kind == "ACK")
    async with asyncio.timeout(60):
        while broker.sessions.context.held.held_bytes or len(broker.sessions.context.slices):
            await broker.sessions.context.slices.turn()
    assert client.transport.reading


async def test_of_a_command_of_many_ids_nothing_is_left_when_its_connection_ends(broker: Broker) -> None:
    client = await connected(broker)
    client.send(subscribe(1))
    await client.answers(1)
    await feed_all(client, many_ids("ACK"))
    async with asyncio.timeout(60):
        while not client.connection.consumers[1].lane.is_busy:
            await broker.sessions.context.slices.turn()
    drop(client)
    assert broker.sessions.context.held.held_bytes == 0
    async with asyncio.timeout(60):
        while len(broker.sessions.context.slices):
            await broker.sessions.context.slices.turn()
    assert broker.sessions.context.held.held_bytes == 0 and not client.connection.requests.pending
