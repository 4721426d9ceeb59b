"""Where reading begins: start positions, seek by id and by time, skipping."""

from __future__ import annotations

import asyncio

import pytest

from quire.runtime.errors import Unavailable
from quire.serving.model.ports import NotAllowed, Position
from quire.serving.subscription.subscriptions import (
    SubscriptionKind,
)
from quire.wire import commands, message
from quire.wire import pulsar_pb2 as pb
from tests.serving.subscription.fakes import ids
from tests.serving.subscription.stand import EXCLUSIVE, FAILOVER, SHARED, Stand


async def test_latest_begins_behind_what_is_there(stand: Stand) -> None:
    stand.topic.publish([1, 1])
    _, port = await stand.consumer(initial_earliest=False)
    stand.topic.publish([1])
    assert port.positions() == [(1, 2)]
    stand.topic.roll()
    stand.topic.publish([1])
    assert port.positions() == [(3, 0)]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (commands.message_id(-1, -1), [0, 1, 2, 3]),
        (commands.message_id(2**63 - 1, 2**63 - 1), []),
        (commands.message_id(1, 1), [1, 2, 3]),
        (commands.message_id(1, 1, batch_index=0), [1, 2, 3]),
        (commands.message_id(1, 77), []),
    ],
)
async def test_a_reader_starts_where_it_says(
    stand: Stand, start: pb.MessageIdData, expected: list[int]
) -> None:
    stand.topic.publish([1, 2, 1, 1])
    made, port = await stand.consumer(durable=False, start=start)
    assert [entry for _, entry in port.positions()] == expected
    assert not made.subscription.is_durable
    assert not stand.log.records
    stand.topic.publish([1])
    assert port.positions() == [(1, 4)]
    with pytest.raises(NotAllowed):
        await stand.consumer(durable=True)
    made.close()
    assert list(stand.subscriptions) == []


async def test_seek_closes_consumers_and_begins_there(stand: Stand) -> None:
    made, port = await stand.consumer()
    stand.topic.publish([1] * 6)
    made.ack(ids((1, 5)), cumulative=True)
    await made.subscription.seek(commands.message_id(1, 2))
    assert port.is_closed and not made.is_open
    assert await stand.backlog() == 4
    stand.restart()
    made, port = await stand.consumer()
    assert port.positions() == [(1, entry) for entry in range(2, 6)]
    await made.subscription.seek(commands.message_id(2**63 - 1, 2**63 - 1))
    _, port = await stand.consumer()
    assert port.positions() == []
    await made.subscription.seek(commands.message_id(-1, -1))
    _, port = await stand.consumer()
    assert len(port.positions()) == 6


async def test_seek_into_a_batch_leaves_out_what_lies_before(stand: Stand) -> None:
    made, _ = await stand.consumer()
    stand.topic.publish([4, 4])
    await made.subscription.seek(commands.message_id(1, 1, ack_set=[0b1100], batch_size=4))
    stand.restart()
    _, port = await stand.consumer()
    (got,) = port.messages()
    assert got.message_id.entryId == 1 and list(got.ack_set) == [0b1100]


def entry_at(publish_time_ms: int) -> bytes:
    sent = message.OutgoingMessage(b"x")
    return message.encode_one(sent, producer_name="p", sequence_id=0, publish_time_ms=publish_time_ms)


async def test_seek_by_time_compares_the_messages_own_times(stand: Stand) -> None:
    made, _ = await stand.consumer(permits=0)
    stand.topic.publish([1] * 3, [entry_at(time) for time in (100, 101, 105)], clock_ms=105)
    stand.topic.publish([1] * 3, [entry_at(time) for time in (106, 110, 120)], clock_ms=120)
    for time_ms, expected in ((0, 0), (101, 1), (102, 2), (106, 3), (107, 4), (120, 5), (121, 6)):
        await made.subscription.seek_time(time_ms)
        assert made.subscription.mark_delete == Position(1, expected - 1)


async def test_a_seek_of_a_topic_that_was_unloaded_meanwhile_fails_and_changes_nothing(stand: Stand) -> None:
    """Who loads the topic again has a cursor of its own: a seek of the former one would be answered and forgotten."""
    made, _ = await stand.consumer()
    stand.topic.publish([1] * 6)
    made.ack(ids((1, 3)), cumulative=True)
    seeking = asyncio.ensure_future(made.subscription.seek_time(0))
    await asyncio.sleep(0)
    assert not seeking.done()
    stand.subscriptions.close()
    with pytest.raises(Unavailable):
        await seeking
    with pytest.raises(Unavailable):
        await made.subscription.seek(commands.message_id(1, 0))
    with pytest.raises(Unavailable):
        await made.subscription.skip(None)
    assert made.subscription.mark_delete == Position(1, 3)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER])
async def test_skipping_acknowledges_and_keeps_the_consumers(stand: Stand, kind: SubscriptionKind) -> None:
    made, port = await stand.consumer(kind, permits=5)
    stand.topic.publish([1] * 4)
    stand.topic.roll()
    stand.topic.publish([2] * 4)
    assert len(port.positions()) == 5
    await made.subscription.skip_up_to(Position(3, 1))
    assert (await stand.backlog(), made.unacked) == (4, 0)
    made.flow(2)
    assert port.positions() == [(3, 2)]
    await made.subscription.skip(None)
    assert (await stand.backlog(), made.unacked, made.is_open) == (0, 0, True)
    stand.restart()
    assert await stand.backlog() == 0


async def test_a_reader_that_sought_finds_its_subscription_and_one_that_left_leaves_nothing(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.serving.subscription.subscription.LEFT_ALONE_S", 0)
    for _ in range(3):
        stand.topic.publish([1])
    reader, port = await stand.consumer(durable=False)
    await reader.subscription.seek(commands.message_id(1, 2))
    assert port.is_closed
    again, port = await stand.consumer(durable=False)
    assert again.subscription is reader.subscription
    await asyncio.sleep(0.001)
    assert port.positions() == [(1, 2)]
    await again.subscription.seek_time(0)
    async with asyncio.timeout(60):
        while stand.subscriptions.get("s") is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
