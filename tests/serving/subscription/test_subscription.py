"""Subscriptions on a topic and a log in memory: what consumers get, what is written, what survives."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from quire.runtime.errors import AlreadyExists, NotFound, Unavailable
from quire.runtime.tasks import Tasks
from quire.serving.model.ports import ConsumerBusy, EmptyName, Position
from quire.serving.model.request import SubscribeRequest
from quire.serving.subscription.delivery.block_source import BlockSource, ReadLimit
from quire.serving.subscription.dispatch.key_owners import AutoSplit
from quire.serving.subscription.dispatch.key_queue import KeyQueue
from quire.serving.subscription.pump import Pump
from quire.serving.subscription.subscriptions import (
    SubscriptionKind,
)
from quire.wire import commands
from tests.serving.subscription.fakes import FakePort, FakeTopic, ids, keyed
from tests.serving.subscription.stand import EXCLUSIVE, FAILOVER, SHARED, Stand, attach, settle


async def test_a_confirmed_block_is_delivered_in_the_same_turn_in_one_write(stand: Stand) -> None:
    _, port = await stand.consumer()
    stand.topic.publish([1] * 5)
    assert port.deliveries == 1
    assert port.positions() == [(1, entry) for entry in range(5)]
    assert not stand.topic.reads


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER])
async def test_what_was_published_before_is_read_from_cache_or_ledger(
    stand: Stand, kind: SubscriptionKind
) -> None:
    for _ in range(10):
        stand.topic.publish([1, 1, 1])
    stand.topic.roll()
    for _ in range(10):
        stand.topic.publish([1, 1, 1])
    expected = [(1, entry) for entry in range(30)] + [(3, entry) for entry in range(30)]
    stand.topic.cache = kind is not EXCLUSIVE
    _, port = await stand.consumer(kind)
    await settle()
    assert port.positions() == expected
    assert bool(stand.topic.reads) is (kind is EXCLUSIVE)
    stand.topic.publish([1])
    assert port.positions() == [(3, 30)]


async def test_while_blocks_are_dispatched_the_next_chunk_is_read(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two blocks make a chunk.
    monkeypatch.setattr("quire.serving.subscription.delivery.block_source.READ_CHUNK_BYTES", 90)
    stand.topic.cache = False
    for _ in range(6):
        stand.topic.publish([1])
    _, port = await stand.consumer(permits=2)
    await settle()
    assert port.positions() == [(1, 0), (1, 1)]
    assert stand.topic.reads == [(1, 0), (1, 2)], "one chunk ahead and no more"


async def test_a_failed_read_is_tried_again(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.serving.subscription.delivery.block_source.RETRY_S_MAX", 0)
    stand.topic.cache = False
    stand.topic.publish([1])
    stand.topic.failure = Unavailable("not now")
    _, port = await stand.consumer()
    await settle()
    assert port.positions() == [(1, 0)] and len(stand.topic.reads) == 2


async def test_what_was_trimmed_is_passed_over(stand: Stand) -> None:
    stand.topic.publish([1, 1])
    await stand.subscriptions.create("s", earliest=True)
    stand.topic.roll()
    stand.topic.publish([1])
    stand.topic.trim()
    stand.topic.cache = False
    _, port = await stand.consumer()
    await settle()
    assert port.positions() == [(3, 0)]
    assert await stand.backlog() == 1


async def test_one_subscription_dispatches_a_bounded_number_of_bytes_a_turn(stand: Stand) -> None:
    for at in range(40):
        stand.topic.publish([1], [b"\x0e\x01" + f"1:{at} ".encode() + bytes(100_000)])
    _, port = await stand.consumer()
    first = len(port.positions())
    assert 10 <= first <= 12
    await settle()
    assert len(port.positions()) == 40 - first


async def test_subscriptions_that_are_behind_take_turns_to_read(stand: Stand) -> None:
    limit = ReadLimit(reads_max=2, bytes_max=100)
    stand.topic.cache = False
    for _ in range(4):
        stand.topic.publish([1])
    for name in "abcde":
        made = await stand.subscriptions.create(name, earliest=True)
        made.pump.source = BlockSource(stand.topic, made.pump, Tasks("test"), limit)
    ports = [(await stand.consumer(name=name, permits=2))[1] for name in "abcde"]
    assert len(stand.topic.reads) == 0
    await asyncio.sleep(0)
    assert len(stand.topic.reads) == 2
    await settle()
    assert [port.positions() for port in ports] == [[(1, 0), (1, 1)]] * 5
    assert len(stand.topic.reads) == 5
    assert limit.bytes_held < 200, "who cannot dispatch what it holds lets go of it"


async def test_a_full_connection_is_sent_nothing_until_it_drains(stand: Stand) -> None:
    made, port = await stand.consumer()
    port.is_writable = False
    stand.topic.publish([1, 1])
    assert not port.raw
    port.is_writable = True
    made.resumed()
    await asyncio.sleep(0)
    assert port.positions() == [(1, 0), (1, 1)]


async def test_the_kind_of_a_subscription_is_its_consumers(stand: Stand) -> None:
    made, _ = await stand.consumer(SHARED)
    with pytest.raises(ConsumerBusy):
        await stand.consumer(EXCLUSIVE)
    made.close()
    made, _ = await stand.consumer(EXCLUSIVE)
    with pytest.raises(ConsumerBusy):
        await stand.consumer(EXCLUSIVE)
    with pytest.raises(EmptyName):
        await stand.consumer(EXCLUSIVE, name="")


async def test_failover_tells_who_is_active(stand: Stand) -> None:
    first, first_port = await stand.consumer(FAILOVER, consumer_name="b")
    _, second_port = await stand.consumer(FAILOVER, consumer_name="a")
    await settle()
    assert (first_port.is_active, second_port.is_active) == ([True], [False])
    stand.topic.publish([1, 1])
    first.ack(ids((1, 0)))
    assert first_port.positions() == [(1, 0), (1, 1)]
    first.close()
    await settle()
    assert second_port.is_active == [False, True]
    assert second_port.positions() == [(1, 1)]


async def test_a_subscription_is_durable_before_it_is_answered(stand: Stand) -> None:
    stand.log.is_automatic = False
    subscribing = asyncio.ensure_future(stand.consumer())
    await settle()
    assert not subscribing.done() and len(stand.log.records) == 1
    stand.log.sync()
    await subscribing
    stand.restart()
    assert [one.name for one in stand.subscriptions] == ["s"]


async def test_a_consumer_that_gives_up_while_it_subscribes_leaves_a_whole_subscription(stand: Stand) -> None:
    stand.log.is_automatic = False
    subscribing = asyncio.ensure_future(stand.consumer())
    await settle()
    subscribing.cancel()
    await settle()
    stand.log.sync()
    await settle()
    stand.log.is_automatic = True
    await stand.consumer()
    assert [one.name for one in stand.subscriptions] == ["s"]


async def test_a_subscription_that_fails_does_not_fail_the_publisher_or_others(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken, _ = await stand.consumer(name="a")
    _, port = await stand.consumer(name="b")
    monkeypatch.setattr(broken.port, "deliver", lambda parts: 1 / 0)
    stand.topic.publish([1])
    assert port.positions() == [(1, 0)]
    assert "subscription=a topic=persistent://public/default/t" in caplog.text


async def test_unsubscribe_only_alone(stand: Stand) -> None:
    first, _ = await stand.consumer(SHARED)
    second, _ = await stand.consumer(SHARED)
    with pytest.raises(ConsumerBusy):
        await first.subscription.unsubscribe(first.consumer)
    second.close()
    await first.subscription.unsubscribe(first.consumer)
    assert list(stand.subscriptions) == []
    stand.restart()
    assert list(stand.subscriptions) == []


async def test_creating_and_deleting_by_an_operator(stand: Stand) -> None:
    stand.topic.publish([1] * 4)
    await stand.subscriptions.create("early", earliest=True)
    await stand.subscriptions.create("late")
    await stand.subscriptions.create("there", at=commands.message_id(1, 3))
    with pytest.raises(AlreadyExists):
        await stand.subscriptions.create("late")
    stand.restart()
    found = {one.name: await one.stats.backlog() for one in stand.subscriptions}
    assert found == {"early": 4, "late": 0, "there": 1}
    _, port = await stand.consumer(name="early")
    with pytest.raises(ConsumerBusy):
        await stand.subscriptions.delete("early")
    await stand.subscriptions.delete("early", force=True)
    assert port.is_closed
    with pytest.raises(NotFound):
        await stand.subscriptions.delete("early")
    await stand.subscriptions.forget()
    stand.restart()
    assert list(stand.subscriptions) == []


async def test_stats_are_pulsars(stand: Stand) -> None:
    made, _ = await stand.consumer(SHARED, consumer_name="c", address="127.0.0.1:9")
    stand.topic.publish([2, 3])
    made.ack(ids((1, 0)))
    stats = await made.subscription.stats.describe()
    assert (stats.type, stats.msg_backlog, stats.unacked_messages) == ("Shared", 3, 3)
    assert stats.msg_out_counter == 5 and stats.bytes_out_counter > 0
    (one,) = stats.consumers
    assert (one.consumer_name, one.available_permits, one.unacked_messages) == ("c", 995, 3)
    assert one.address == "127.0.0.1:9"
    cursor = made.subscription.stats.of_cursor()
    assert (cursor.mark_delete_position, cursor.read_position) == ("1:0", "1:2")


async def test_unloading_closes_consumers(stand: Stand) -> None:
    made, port = await stand.consumer()
    stand.subscriptions.close()
    assert port.is_closed and not made.is_open
    made.close()
    made.flow(3)
    made.ack(ids((1, 0)))


async def test_a_read_that_is_cancelled_before_it_begins_gives_its_place_back() -> None:
    """FLOW and CLOSE_CONSUMER in one packet: the task of the read never took its first step."""
    topic, tasks, limit = FakeTopic(), Tasks("test"), ReadLimit(reads_max=1)
    position = topic.publish([1])
    topic.cache = False
    for _ in range(3):
        source = BlockSource(topic, Sleeper(), tasks, limit)
        source.fetch(position)
        source.close()
        await settle()
        source.fetch(position)
    assert limit.begin(Sleeper())


async def test_a_mistake_while_reading_is_no_end_of_reading() -> None:
    topic, woken = FakeTopic(), Sleeper()
    position = topic.publish([1])
    topic.cache = False
    topic.failure = ValueError("a mistake")  # type: ignore[assignment]
    source = BlockSource(topic, woken, Tasks("test"), ReadLimit())
    for expected in (None, position):
        woken.event.clear()
        source.fetch(position)
        await asyncio.wait_for(woken.event.wait(), 5)
        view = source.take(position)
        assert (view and view.holds(*position)) == (expected and True)


class Sleeper:
    """A `Reading` that only notes that it was woken."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def wake(self) -> None:
        self.event.set()

    def trimmed(self) -> None: ...


@pytest.mark.parametrize("durable", [True, False])
async def test_a_subscription_that_is_made_while_its_topic_is_unloaded_is_refused(
    stand: Stand, durable: bool
) -> None:
    """Its consumer would be attached to what nobody serves any more, and be given nothing for ever."""
    stand.log.is_automatic = False
    making = asyncio.ensure_future(stand.consumer(durable=durable))
    await asyncio.sleep(0)
    if durable:
        await settle()  # its record is written, and not durable yet
    stand.subscriptions.close()
    stand.log.sync()
    with pytest.raises(Unavailable, match="was unloaded"):
        await making


async def test_a_forced_unsubscribe_closes_the_others(stand: Stand) -> None:
    first, first_port = await stand.consumer(SHARED)
    _, second_port = await stand.consumer(SHARED)
    await first.subscription.unsubscribe(first.consumer, force=True)
    assert second_port.is_closed and not first_port.is_closed
    assert stand.subscriptions.get("s") is None
    stand.restart()
    assert stand.subscriptions.get("s") is None


async def test_blocks_confirmed_in_one_turn_are_one_delivery(stand: Stand) -> None:
    _, port = await stand.consumer()
    stand.topic.publish_together([[1], [1, 1], [3], [1]])
    assert port.deliveries == 1
    assert port.positions() == [(1, entry) for entry in range(5)]
    assert await stand.backlog() == 7


async def test_consumers_that_leave_together_are_sorted_out_once(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ring, the entries that wait and the dispatch: once, not for each consumer of a connection that ends."""
    counts: Counter[str] = Counter()
    for owner, name in ((AutoSplit, "_build"), (KeyQueue, "_sort_all"), (Pump, "_run")):
        _count_calls(monkeypatch, owner, name, counts)
    made = [
        (await stand.consumer(SubscriptionKind.KEY_SHARED, consumer_id=at, consumer_name=f"c{at}"))[0]
        for at in range(50)
    ]
    at = Position(1, 0)
    stand.topic.publish([1] * 200, [keyed(f"k{entry}", at._replace(entry_id=entry)) for entry in range(200)])
    stays, port = await stand.consumer(SubscriptionKind.KEY_SHARED, consumer_name="stays")
    counts.clear()
    for one in made:
        one.close()
    await settle()
    assert len(port.positions()) == 200 and stays.unacked == 200
    assert counts == {"_build": 1, "_sort_all": 1, "_run": 1}


def _count_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, counts: Counter[str]) -> None:
    """Count the calls of a method, which takes nothing, in `counts`."""
    called = getattr(owner, name)

    def counted(one: object) -> None:
        counts[name] += 1
        called(one)

    monkeypatch.setattr(owner, name, counted)


@pytest.mark.parametrize("kind", list(SubscriptionKind))
async def test_a_seek_detaches_all_consumers_in_one_step(
    stand: Stand, kind: SubscriptionKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = 1 if kind is EXCLUSIVE else 20
    made = [await stand.consumer(kind, consumer_id=at, consumer_name=f"c{at}") for at in range(many)]
    stand.topic.publish([1] * 40, [keyed(f"k{entry}", Position(1, entry)) for entry in range(40)])
    subscription = stand.subscriptions.get("s")
    assert subscription is not None
    dispatcher = subscription.pump.dispatcher
    monkeypatch.setattr(dispatcher, "detach", None)
    await subscription.seek(ids((1, 10))[0])
    assert not dispatcher.consumers and all(port.is_closed for _, port in made)
    assert all(not one.is_open and not one.pending_acks for one, _ in made)
    monkeypatch.undo()
    _, port = await stand.consumer(kind)
    await settle()
    assert port.positions() == [(1, entry) for entry in range(10, 40)]


@pytest.mark.parametrize("kind", [SHARED, FAILOVER, SubscriptionKind.KEY_SHARED])
async def test_a_consumer_among_thousands_costs_no_look_at_all_of_them(
    stand: Stand, kind: SubscriptionKind
) -> None:
    """To come, to ask for messages and to leave: each consumer looks at few others, or all of them are quadratic."""
    looks = 0

    class Port(FakePort):
        def writable(self) -> bool:
            nonlocal looks
            looks += 1
            return True

    made = []
    for at in range(300):
        request = SubscribeRequest("s", kind, at, f"c{at}")
        made.append(await attach(stand.subscriptions, request, Port()))
        made[-1].flow(10)
    for one in made:
        one.close()
    await settle()
    assert looks < 10 * len(made)
