"""Who sends much has slices of the loop's time, and everybody else has turns in between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.runtime.limits import KIB, MIB
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.registry import topic_lists
from quire.serving.session.inbound import (
    COMMANDS_A_TURN,
    LARGE_COMMAND_BYTES,
    READ_WEIGHT_MAX,
    SMALL_READ_BYTES,
    Stop,
)
from quire.wire import commands, frame
from tests.serving.conftest import Turns
from tests.serving.session.test_back_pressure import connected, publishing
from tests.serving.session.test_connection import TOPIC, entry, kinds, subscribe
from tests.serving.session.test_weight import drop, feed, feed_all, subscribing_waits


async def test_commands_of_one_read_are_carried_out_in_slices_and_in_order(broker: Broker) -> None:
    clients = [await connected(broker) for _ in range(3)]
    count = 300
    asked = b"".join(commands.ask_lookup(number, TOPIC) for number in range(count))
    seen: list[int] = []
    for client in clients:
        start, real = client.connection.requests.start, client.connection.requests
        number = clients.index(client)

        def counted(work: Any, what: str, start: Any = start, number: int = number) -> Any:
            seen.append(number)
            return start(work, what)

        real.start = counted  # type: ignore[method-assign]
        assert feed(client, asked) == len(asked), "in one read"
        assert not client.transport.reading
    assert seen == [0] * COMMANDS_A_TURN + [1] * COMMANDS_A_TURN + [2] * COMMANDS_A_TURN
    for client in clients:
        answers = await client.answers(count)
        assert sorted(one.body.request_id for one in answers) == list(range(count))  # type: ignore[attr-defined]
    async with asyncio.timeout(60):
        while len(broker.sessions.context.slices):
            await broker.sessions.context.slices.turn()
    assert all(client.transport.reading for client in clients)
    middle = [seen[at : at + COMMANDS_A_TURN] for at in range(0, len(seen), COMMANDS_A_TURN)]
    assert [one[0] for one in middle[3:]] == [0, 1, 2] * (count // COMMANDS_A_TURN - 1), "each in his turn"


async def test_what_waits_for_its_slice_waits_for_everything_else_as_well(broker: Broker) -> None:
    client = await connected(broker)
    client.connection.pause_writing()
    feed(client, commands.PING * 200)
    client.connection.inbound.stop(Stop.ANSWERS)
    for _ in range(5):
        await broker.sessions.context.slices.turn()
    assert len(client.received()) == COMMANDS_A_TURN
    client.connection.resume_writing()
    assert kinds(await client.answers(200 - COMMANDS_A_TURN)) == ["PONG"] * (200 - COMMANDS_A_TURN)


async def test_a_connection_that_ends_drops_what_waits_for_its_slice(broker: Broker) -> None:
    client = await connected(broker)
    feed(client, commands.PING * 200)
    drop(client)
    async with asyncio.timeout(60):
        while len(broker.sessions.context.slices):
            await broker.sessions.context.slices.turn()


async def test_a_socket_that_is_always_full_is_not_read_for_ever_in_one_turn(broker: Broker) -> None:
    client = await publishing(broker, TOPIC)
    many = b"".join(b"".join(commands.send(1, n, 1, entry(b""))) for n in range(10_000))
    assert feed(client, many) < len(many) and not client.transport.reading
    assert client.connection.inbound._cutter.buffer_bytes <= 64 * KIB, (
        "a large read of tiny messages is a long turn"
    )
    await feed_all(client, many[len(many) :])
    large = await publishing(broker, f"{TOPIC}-large")
    data = b"".join(b"".join(commands.send(1, n, 1, entry(bytes(100_000)))) for n in range(100))
    assert MIB // 4 < feed(large, data) < 2 * READ_WEIGHT_MAX


async def test_what_all_send_together_is_read_over_many_turns(turns: Turns, broker: Broker) -> None:
    """Each alone would have its share of the first turn, and everybody else would wait for all of them."""
    clients = [await publishing(broker, f"{TOPIC}-{number}") for number in range(30)]
    many = b"".join(b"".join(commands.send(1, n, 1, entry(b""))) for n in range(5_000))
    first = [feed(client, many) for client in clients]
    assert sum(first) < READ_WEIGHT_MAX + len(clients) * 2 * SMALL_READ_BYTES
    assert min(first) > 0 and not any(client.transport.reading for client in clients)
    await asyncio.gather(*(feed_all(client, many[at:]) for client, at in zip(clients, first, strict=True)))
    for client in clients:
        assert set(kinds(await client.answers(5_000))) == {"SEND_RECEIPT"}


async def test_large_frames_of_many_grow_over_many_turns(broker: Broker) -> None:
    clients = [await publishing(broker, f"{TOPIC}-{number}") for number in range(10)]
    large = b"".join(commands.send(1, 0, 1, entry(bytes(4 * MIB))))
    first = [feed(client, large) for client in clients]
    assert sum(first) < 2 * READ_WEIGHT_MAX
    await asyncio.gather(*(feed_all(client, large[at:]) for client, at in zip(clients, first, strict=True)))
    for client in clients:
        assert kinds(await client.answers(1)) == ["SEND_RECEIPT"]


def large_acks(request_id: int) -> bytes:
    return commands.ack(1, [commands.message_id(5, at) for at in range(6_000)], request_id=request_id)


async def test_one_large_command_is_parsed_in_a_turn_over_all_who_send_some(
    turns: Turns, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [await connected(broker) for _ in range(10)]
    for client in clients:
        client.send(subscribe(1))
        await client.answers(1)
    loop, turn, at = asyncio.get_running_loop(), 0, list[int]()

    def count() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(count)

    def watched(raw: bytes) -> commands.Command:
        at.extend([turn] * (len(raw) > LARGE_COMMAND_BYTES))
        return parse(raw)

    count()
    parse = commands.parse
    monkeypatch.setattr(frame, "parse", watched)
    both = large_acks(1) + large_acks(2)
    taken = [feed(client, both) for client in clients]
    assert not at, "not in the turn in which they were read"
    await asyncio.gather(*(feed_all(client, both[at:]) for client, at in zip(clients, taken, strict=True)))
    for client in clients:
        assert kinds(await client.answers(2)) == ["ACK_RESPONSE", "ACK_RESPONSE"]
    assert len(at) == len(set(at)) == 20


async def test_what_waited_in_a_lane_is_carried_out_in_slices_and_in_order(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = subscribing_waits(broker, monkeypatch)
    client = await connected(broker)
    client.send(subscribe(1))
    ids = [commands.message_id(5, at) for at in range(500)]
    client.send(*(commands.ack(1, ids, request_id=number) for number in range(2, 40)))
    carried, take = list[int](), client.connection.carry_out

    def counted(cut: Any) -> None:
        carried.append(len(slices))
        take(cut)

    slices, put = list[Any](), broker.sessions.context.slices.put
    monkeypatch.setattr(broker.sessions.context.slices, "put", lambda work: (slices.append(work), put(work)))
    client.connection.carry_out = counted  # type: ignore[method-assign]
    go_on.set()
    await client.answers(1)
    client.send(commands.ack(1, ids, request_id=40))
    answers = await client.answers(39)
    assert [one.body.request_id for one in answers] == list(range(2, 41))  # type: ignore[attr-defined]
    assert len(carried) == 1 + 39 and max(map(carried.count, carried)) < 10
    assert broker.sessions.context.held.held_bytes == 0


async def test_questions_for_topics_are_answered_one_after_the_other(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, most, asked, real = 0, 0, 0, broker.sessions.topics.names

    async def watched(*arguments: str) -> list[str]:
        nonlocal under_way, most, asked
        under_way, asked = under_way + 1, asked + 1
        most = max(most, under_way)
        found = await real(*arguments)
        under_way -= 1
        return found

    monkeypatch.setattr(broker.sessions.topics, "names", watched)
    client, gone = await connected(broker), await connected(broker)
    client.send(*(commands.ask_topics(number, "public/default") for number in range(40)))
    answers = await client.answers(40)
    assert [one.body.request_id for one in answers] == list(range(40))  # type: ignore[attr-defined]
    assert most == 1
    asked = 0
    gone.send(*(commands.ask_topics(number, "public/default") for number in range(40)))
    drop(gone)
    async with asyncio.timeout(60):
        while under_way or len(broker.sessions.context.slices):
            await broker.sessions.context.slices.turn()
    assert asked <= 2 and broker.sessions.context.held.held_bytes == 0, (
        "nobody lists topics for one who is gone"
    )


async def test_who_asks_while_topics_are_listed_shares_the_next_list(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.registry.create(TopicName.parse("persistent://public/default/one"))
    lists = 0
    real = topic_lists.TopicList._read_folder

    async def counted(self: topic_lists.TopicList) -> None:
        nonlocal lists
        lists += 1
        await real(self)

    monkeypatch.setattr(topic_lists.TopicList, "_read_folder", counted)
    found = await asyncio.gather(
        *(broker.sessions.topics.names("public", "default", "persistent") for _ in range(100))
    )
    assert found == [["persistent://public/default/one"]] * 100
    assert lists <= 3
