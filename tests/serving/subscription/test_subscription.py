"""Subscriptions on a topic and a log in memory: what consumers get, what is written, what survives."""

from __future__ import annotations

import asyncio

import pytest

from quire.ledger.state_log import RECORD_BYTES_MAX
from quire.runtime.clock import ManualClock
from quire.runtime.errors import AlreadyExists, NotFound, QuireError, Unavailable
from quire.runtime.tasks import Tasks
from quire.serving.ports import ConsumerBusy, NotAllowed, Position
from quire.serving.subscription.block_source import BlockSource, ReadLimit
from quire.serving.subscription.subscriptions import (
    Consumer,
    CursorStore,
    SubscribeRequest,
    SubscriptionKind,
    Subscriptions,
)
from quire.wire import commands, message
from quire.wire import pulsar_pb2 as pb
from tests.serving.subscription.fakes import FakeLog, FakePort, FakeTopic, ids

EXCLUSIVE, SHARED, FAILOVER = SubscriptionKind.EXCLUSIVE, SubscriptionKind.SHARED, SubscriptionKind.FAILOVER


class Stand:
    """A topic, its subscriptions, and the log behind them; `restart` keeps only what is durable."""

    def __init__(self) -> None:
        self.topic = FakeTopic()
        self.log = FakeLog()
        self.start()

    def start(self) -> None:
        self.store = CursorStore()
        for record in self.log.durable:
            self.store.apply(record)
        self.log.records = list(self.log.durable)
        self.store.attach(self.log)
        self.subscriptions = Subscriptions(self.topic, self.store, 7, ManualClock())
        self.topic.listener = self.subscriptions.confirmed
        self.subscriptions.load()

    restart = start

    async def consumer(
        self, kind: SubscriptionKind = EXCLUSIVE, name: str = "s", permits: int = 1000, **more: object
    ) -> tuple[Consumer, FakePort]:
        port = FakePort()
        more = {"initial_earliest": True, "consumer_id": 3, **more}
        request = SubscribeRequest(name, kind, **more)  # type: ignore[arg-type]
        made = await self.subscriptions.subscribe(request, port)
        made.flow(permits)
        return made, port

    async def backlog(self, name: str = "s") -> int:
        found = self.subscriptions.get(name)
        assert found is not None
        return (await found.stats())["msgBacklog"]


@pytest.fixture
def stand() -> Stand:
    return Stand()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


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


async def test_while_blocks_are_dealt_the_next_chunk_is_read(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two blocks make a chunk.
    monkeypatch.setattr("quire.serving.subscription.block_source.READ_CHUNK_BYTES", 90)
    stand.topic.cache = False
    for _ in range(6):
        stand.topic.publish([1])
    _, port = await stand.consumer(permits=2)
    await settle()
    assert port.positions() == [(1, 0), (1, 1)]
    assert stand.topic.reads == [(1, 0), (1, 2)], "one chunk ahead and no more"


async def test_a_failed_read_is_tried_again(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.serving.subscription.block_source.RETRY_S_MAX", 0)
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


async def test_one_subscription_deals_a_bounded_number_of_bytes_a_turn(stand: Stand) -> None:
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
        made._source = BlockSource(stand.topic, made, Tasks("test"), limit)
    ports = [(await stand.consumer(name=name, permits=2))[1] for name in "abcde"]
    assert len(stand.topic.reads) == 0
    await asyncio.sleep(0)
    assert len(stand.topic.reads) == 2
    await settle()
    assert [port.positions() for port in ports] == [[(1, 0), (1, 1)]] * 5
    assert len(stand.topic.reads) == 5
    assert limit.bytes_held < 200, "who cannot deal what it holds lets go of it"


async def test_a_full_connection_is_dealt_nothing_until_it_drains(stand: Stand) -> None:
    made, port = await stand.consumer()
    port.is_writable = False
    stand.topic.publish([1, 1])
    assert not port.raw
    port.is_writable = True
    made.resumed()
    assert port.positions() == [(1, 0), (1, 1)]


async def test_an_acknowledgement_is_answered_when_it_is_durable(stand: Stand) -> None:
    made, _ = await stand.consumer()
    stand.topic.publish([1, 1, 1])
    stand.log.is_automatic = False
    answers: list[QuireError | None] = []
    made.ack(ids((1, 0)), done=answers.append)
    made.ack(ids((1, 1)), done=answers.append)
    before = len(stand.log.records)
    await settle()
    assert len(stand.log.records) == before + 1, "one record for all acknowledgements of a turn"
    assert answers == []
    stand.log.sync()
    assert answers == [None, None]
    made.ack(ids((1, 1)), done=answers.append)
    await settle()
    stand.log.sync(Unavailable("gone"))
    assert isinstance(answers[2], Unavailable)


async def test_a_restart_redelivers_exactly_what_was_not_durably_acknowledged(stand: Stand) -> None:
    made, _ = await stand.consumer(SHARED)
    stand.topic.publish([1] * 10)
    made.ack(ids((1, 0), (1, 1), (1, 4)))
    made.ack([commands.message_id(1, 6)])
    made.redeliver(ids((1, 7)))
    await settle()
    stand.log.is_automatic = False
    made.ack(ids((1, 9)))
    await settle()
    stand.restart()
    stand.log.is_automatic = True
    assert await stand.backlog() == 6
    _, port = await stand.consumer(SHARED)
    got = port.messages()
    assert [one.message_id.entryId for one in got] == [2, 3, 5, 7, 8, 9]
    assert [one.redelivery_count for one in got] == [0, 0, 0, 1, 0, 0]


async def test_single_messages_of_a_batch(stand: Stand) -> None:
    made, port = await stand.consumer(SHARED)
    stand.topic.publish([4, 4])
    port.messages()
    made.ack([commands.message_id(1, 0, ack_set=[0b1101], batch_size=4)])
    made.ack([commands.message_id(1, 0, ack_set=[0b0111], batch_size=4)])
    assert await stand.backlog() == 6
    assert made.unacked == 6
    await settle()
    stand.restart()
    made, port = await stand.consumer(SHARED, permits=2)
    (got,) = port.messages()
    assert list(got.ack_set) == [0b0101] and got.message_id.entryId == 0
    assert made.permits == 0, "only the unacknowledged messages count"
    made.ack([commands.message_id(1, 0, ack_set=[0], batch_size=4)])
    assert await stand.backlog() == 4


async def test_a_cumulative_acknowledgement_within_a_batch(stand: Stand) -> None:
    made, _ = await stand.consumer()
    stand.topic.publish([2, 3, 3])
    made.ack([commands.message_id(1, 1, ack_set=[0b100], batch_size=3)], cumulative=True)
    assert made.subscription.mark_delete == Position(1, 0)
    assert await stand.backlog() == 4


async def test_a_shared_subscription_takes_no_cumulative_acknowledgement(stand: Stand) -> None:
    made, _ = await stand.consumer(SHARED)
    stand.topic.publish([1, 1])
    answers: list[QuireError | None] = []
    made.ack(ids((1, 1)), cumulative=True, done=answers.append)
    assert isinstance(answers[0], NotAllowed)
    assert await stand.backlog() == 2


async def test_ids_that_do_not_exist_are_passed_over(stand: Stand) -> None:
    made, _ = await stand.consumer()
    stand.topic.publish([1, 1])
    made.ack(ids((1, 5), (1, 2**64 - 1), (99, 0), (2**64 - 1, 2**64 - 1), (0, 3)))
    made.ack(ids((99, 4)), cumulative=True)
    made.ack([commands.message_id(1, 77, ack_set=[1], batch_size=2)])
    made.ack([commands.message_id(1, 2**64 - 1, ack_set=[1], batch_size=2)], cumulative=True)
    assert await stand.backlog() == 2
    assert not made.subscription.cursor.acked and not made.subscription.cursor.partial


async def test_a_consumer_that_holds_too_much_waits_for_its_acknowledgements(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.serving.subscription.holding.UNACKED_MESSAGES_MAX", 4)
    made, port = await stand.consumer(SHARED)
    stand.topic.publish([1] * 4)
    stand.topic.publish([1] * 2)
    assert port.positions() == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert made.stats()["blockedConsumerOnUnackedMsgs"]
    made.ack(ids((1, 2)))
    assert port.positions() == [(1, 4), (1, 5)]


async def test_the_kind_of_a_subscription_is_its_consumers(stand: Stand) -> None:
    made, _ = await stand.consumer(SHARED)
    with pytest.raises(ConsumerBusy):
        await stand.consumer(EXCLUSIVE)
    made.close()
    made, _ = await stand.consumer(EXCLUSIVE)
    with pytest.raises(ConsumerBusy):
        await stand.consumer(EXCLUSIVE)
    with pytest.raises(NotAllowed):
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
    assert "subscription a of persistent://public/default/t failed" in caplog.text


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
    await made.subscription.skip_all()
    assert (await stand.backlog(), made.unacked, made.is_open) == (0, 0, True)
    stand.restart()
    assert await stand.backlog() == 0


async def test_unsubscribe_only_alone(stand: Stand) -> None:
    first, _ = await stand.consumer(SHARED)
    second, _ = await stand.consumer(SHARED)
    with pytest.raises(ConsumerBusy):
        await first.subscription.unsubscribe(first)
    second.close()
    await first.subscription.unsubscribe(first)
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
    stats = await stand.subscriptions.stats()
    assert {name: one["msgBacklog"] for name, one in stats.items()} == {"early": 4, "late": 0, "there": 1}
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


async def test_cursors_of_another_generation_are_not_taken_up(stand: Stand) -> None:
    await stand.consumer()
    later = Subscriptions(stand.topic, stand.store, 8, ManualClock())
    later.load()
    assert list(later) == []


async def test_the_backlog_is_exact_when_acknowledgements_come_before_the_messages_are_read(
    stand: Stand,
) -> None:
    stand.topic.publish([1, 3, 5, 1])
    stand.topic.publish([2, 2])
    made, port = await stand.consumer(permits=0)
    made.ack(ids((1, 1), (1, 4)))
    made.ack([commands.message_id(1, 2, ack_set=[0b10001], batch_size=5)])
    assert await stand.backlog() == 14 - 3 - 2 - 3
    made.flow(100)
    assert port.positions() == [(1, 0), (1, 2), (1, 3), (1, 5)]
    assert await stand.backlog() == 6


async def test_the_same_snapshot_gives_the_same_store(stand: Stand) -> None:
    made, _ = await stand.consumer(SHARED)
    stand.topic.publish([1] * 10)
    made.ack(ids((1, 3), (1, 5)))
    made.redeliver(ids((1, 4)))
    again = CursorStore()
    for record in stand.store.snapshot():
        again.apply(record)
    assert list(again.snapshot()) == list(stand.store.snapshot())


async def test_stats_are_pulsars(stand: Stand) -> None:
    made, _ = await stand.consumer(SHARED, consumer_name="c", address="127.0.0.1:9")
    stand.topic.publish([2, 3])
    made.ack(ids((1, 0)))
    stats = (await stand.subscriptions.stats())["s"]
    assert (stats["type"], stats["msgBacklog"], stats["unackedMessages"]) == ("Shared", 3, 3)
    assert stats["msgOutCounter"] == 5 and stats["bytesOutCounter"] > 0
    (one,) = stats["consumers"]
    assert (one["consumerName"], one["availablePermits"], one["unackedMessages"]) == ("c", 995, 3)
    assert one["address"] == "127.0.0.1:9"
    cursor = made.subscription.cursor_stats()
    assert (cursor["markDeletePosition"], cursor["readPosition"]) == ("1:0", "1:2")


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
    source = BlockSource(topic, woken, Tasks("test"))
    for expected in (None, position):
        woken.event.clear()
        source.fetch(position)
        await asyncio.wait_for(woken.event.wait(), 5)
        view = source.take(position)
        assert (view and view.holds(*position)) == (expected and True)


async def test_an_acknowledgement_is_answered_only_when_it_or_the_deletion_is_durable(stand: Stand) -> None:
    """Acknowledged and unsubscribed in one turn: a crash before the deletion is durable brings the message back."""
    consumer, _ = await stand.consumer()
    stand.topic.publish([1])
    await settle()
    stand.log.is_automatic = False
    answers: list[QuireError | None] = []
    consumer.ack(ids((1, 0)), done=answers.append)
    deletion = asyncio.ensure_future(stand.subscriptions.delete("s", force=True))
    await settle()
    assert answers == []
    stand.log.sync()
    await deletion
    assert answers == [None]
    consumer.ack(ids((1, 0)), done=answers.append)
    assert isinstance(answers[-1], NotFound), "nothing is done for a consumer that is closed"


async def test_what_one_turn_acknowledges_is_cut_to_records_that_a_log_takes(stand: Stand) -> None:
    """A client that acknowledges parts of huge batches, with more bits than any batch has."""
    consumer, _ = await stand.consumer(SHARED, permits=0)
    stand.topic.publish([1_000_000] * 12)
    words = [-2] + [-1] * 80_000
    done: list[QuireError | None] = []
    for entry in range(12):
        one = commands.message_id(1, entry)
        one.ack_set.extend(words)
        consumer.ack([one], done=done.append)
    await settle()
    assert done == [None] * 12
    assert max(map(len, stand.log.records)) <= RECORD_BYTES_MAX
    stand.restart()
    found = stand.subscriptions.get("s")
    assert found is not None
    assert [found.cursor.remaining(Position(1, entry)) for entry in range(12)] == [(1 << 1_000_000) - 2] * 12


async def test_a_snapshot_in_the_turn_of_a_redelivery_counts_it_once(stand: Stand) -> None:
    consumer, _ = await stand.consumer(SHARED)
    stand.topic.publish([1])
    await settle()
    consumer.redeliver(ids((1, 0)))
    snapshot = list(stand.store.snapshot())
    before = len(stand.log.records)
    await settle()
    found = CursorStore()
    for record in [*snapshot, *stand.log.records[before:]]:
        found.apply(record)
    [cursor] = found.of_topic(stand.topic.name)
    assert cursor.redeliveries.count(Position(1, 0)) == 1


class Sleeper:
    """A `Reading` that only notes that it was woken."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def wake(self) -> None:
        self.event.set()

    def trimmed(self) -> None: ...


async def test_a_forced_unsubscribe_closes_the_others(stand: Stand) -> None:
    first, first_port = await stand.consumer(SHARED)
    _, second_port = await stand.consumer(SHARED)
    await first.subscription.unsubscribe(first, force=True)
    assert second_port.is_closed and not first_port.is_closed
    assert stand.subscriptions.get("s") is None
    stand.restart()
    assert stand.subscriptions.get("s") is None


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
    async with asyncio.timeout(10):
        while stand.subscriptions.get("s") is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
