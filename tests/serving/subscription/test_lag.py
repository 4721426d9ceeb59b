"""Backlogs in messages, bytes and seconds, against a full count after random histories; why nothing is dispatched."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from quire.runtime.clock import ManualClock
from quire.runtime.errors import Unavailable
from quire.runtime.limits import DEAL_BYTES_PER_BLOCK_MIN, DEAL_BYTES_PER_ENTRY_MIN
from quire.serving.model.ports import Position
from quire.serving.model.request import KeySharing, SubscribeRequest, SubscriptionKind
from quire.serving.model.statistics import SubscriptionStats
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.subscription import counting, lag
from quire.serving.subscription.byte_index import STEP_BYTES, ByteIndex, Point
from quire.serving.subscription.cursor.cursor import Cursor, CursorKey
from quire.serving.subscription.cursor.cursor_store import CursorStore
from quire.serving.subscription.dispatch import blocked
from quire.serving.subscription.subscription import Subscription
from quire.serving.subscription.subscriptions import Subscriptions
from quire.wire import block, commands, message
from quire.wire.hashing import key_slot
from tests.serving.subscription.fakes import FakeLog, FakePort, FakeTopic, ids, keyed
from tests.serving.subscription.stand import Attached, attach

NOW_MS = 1_000_000
numbers = st.integers(0, 14)
steps = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.tuples(st.integers(1, 4), numbers), min_size=1, max_size=5)),
    st.tuples(st.just("ack"), st.lists(numbers, min_size=1, max_size=5, unique=True)),
    st.tuples(st.just("ack part"), st.tuples(numbers, st.integers(1, 15))),
    st.tuples(st.just("flow"), st.integers(1, 12)),
    st.tuples(st.just("again"), st.none()),
    st.tuples(st.just("seek"), numbers),
    st.tuples(st.sampled_from(["ack up to", "roll", "trim", "leave", "restart"]), numbers),
)


class House:
    """A topic whose entries say when they were published, one subscription, and a log that outlives brokers."""

    def __init__(self, kind: SubscriptionKind) -> None:
        self.topic, self.log, self.kind = FakeTopic(), FakeLog(), kind
        self.published_ms: dict[Position, int] = {}
        self.sequence = 0
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

    @property
    def subscription(self) -> Subscription:
        found = self.subscriptions.get("s")
        assert found is not None
        return found

    async def do(self, what: str, value: Any) -> None:
        ledger, consumers = (
            self.topic.ledgers[-1],
            [Attached(self.subscription, one) for one in self.subscription.consumers],
        )
        match what:
            case "publish":
                self.publish(value)
            case "leave" if consumers:
                consumers[0].close()
            case "restart":
                self.subscriptions.close()
                self.start()
            case "seek":
                await self.subscription.seek(commands.message_id(ledger, value))
            case "roll":
                self.topic.roll()
            case "trim" if len(self.topic.ledgers) > 1:
                self.topic.trim()
                self.subscription.pump.trimmed()
            case _ if not consumers:
                request = SubscribeRequest("s", self.kind, 1, initial_earliest=True)
                await attach(self.subscriptions, request, FakePort())
            case "ack":
                consumers[0].ack(ids(*((ledger, entry) for entry in value)))
            case "ack part":
                one = commands.message_id(ledger, value[0], ack_set=[value[1]], batch_size=4)
                consumers[0].ack([one])
            case "ack up to" if self.kind is SubscriptionKind.EXCLUSIVE:
                consumers[0].ack(ids((ledger, value)), cumulative=True)
            case "flow":
                consumers[0].flow(value)
            case "again":
                consumers[0].redeliver()
        for _ in range(8):
            await asyncio.sleep(0)

    def publish(self, entries: list[tuple[int, int]]) -> None:
        ledger = self.topic.ledgers[-1]
        first = self.topic.last_entry(ledger) + 1
        made = []
        for offset, (_, at) in enumerate(entries):
            self.sequence += 1
            text = f"{ledger}:{first + offset}".encode()
            self.published_ms[Position(ledger, first + offset)] = NOW_MS - at
            one = message.OutgoingMessage(text + b" " * at)
            made.append(message.encode_one(one, "p", self.sequence, NOW_MS - at))
        self.topic.publish([count for count, _ in entries], made)

    def count(self) -> tuple[int, int, int | None]:
        """By looking at everything: messages, bytes from the first entry on that is not acknowledged, its time."""
        cursor, messages, size, published_ms = self.subscription.cursor, 0, 0, None
        for buffer in self.topic.blocks:
            header = block.peek(buffer)
            counts = block.message_counts(buffer, header)
            begin = 0
            for offset, end in enumerate(block.ends(buffer, header)):
                at = Position(header.ledger_id, header.first_entry + offset)
                own = end - begin + (header.entries_offset if offset == 0 else 0)
                begin = end
                if not cursor.is_acknowledged(at):
                    bits = cursor.remaining(at)
                    messages += bits.bit_count() if bits else counts[offset]
                    published_ms = self.published_ms[at] if published_ms is None else published_ms
                size += own if published_ms is not None else 0
        return messages, size, published_ms


@pytest.mark.parametrize("kind", [SubscriptionKind.EXCLUSIVE, SubscriptionKind.SHARED])
@settings(max_examples=150, deadline=None)
@given(history=st.lists(steps, max_size=30))
def test_backlogs_are_what_a_full_count_finds(kind: SubscriptionKind, history: list[tuple[str, Any]]) -> None:
    async def play() -> None:
        house = House(kind)
        await house.subscriptions.create("s", earliest=True)
        for what, value in history:
            await house.do(what, value)
            messages, size, published_ms = house.count()
            found = await house.subscription.stats.describe()
            assert found.msg_backlog == messages
            assert (found.backlog_size, found.backlog_size_exact) == (size, True)
            assert found.earliest_msg_publish_time_in_backlog == (published_ms or 0)
            assert (found.oldest_backlog_message_age_seconds == -1) is (published_ms is None)

    asyncio.run(play())


async def test_a_long_walk_is_taken_in_steps_and_interpolated_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, index = FakeTopic(), ByteIndex()
    topic.cache = False
    for _ in range(100):
        topic.publish([1] * 4, [b"\x0e\x01" + bytes(25_000)] * 4)
    monkeypatch.setattr(lag, "WALK_BYTES_MAX", 3 << 20)
    position = Position(1, 202)
    lengths = [len(one) for one in topic.blocks]
    true = sum(lengths[50:]) - (lengths[0] - 2 * 25_002)
    answers = [await lag.bytes_from(topic, index, position) for _ in range(3)]
    assert [one.is_exact for one in answers] == [False, True, True]
    assert abs(answers[0].size - true) < true / 10 and answers[1].size == answers[2].size == true
    reads = len(topic.reads)
    # From the end it is nearer, and what lies between is known to the next who asks.
    assert await lag.bytes_from(topic, index, Position(1, 396)) == (lengths[-1], True)
    assert len(topic.reads) == reads + 1


async def test_an_unreadable_topic_has_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = FakeTopic()
    topic.cache = False
    topic.publish([1, 1])
    topic.failure = Unavailable("no bookie answers")
    found = await lag.bytes_from(topic, ByteIndex(), Position(1, 1))
    assert not found.is_exact and 0 < found.size < len(topic.blocks[0])


async def test_stats_say_why_nothing_is_dispatched() -> None:
    house = House(SubscriptionKind.SHARED)
    house.topic.policies = TopicPolicies(unacked_messages_max=4)
    await house.subscriptions.create("s")

    async def reason() -> str:
        found = await house.subscription.stats.describe()
        assert found.blocked_subscription_on_unacked_msgs is (found.blocked_reason == blocked.UNACKED)
        return str(found.blocked_reason)

    assert await reason() == ""
    house.topic.publish([1] * 5)
    assert await reason() == blocked.NO_CONSUMER
    port = FakePort()
    made = await attach(house.subscriptions, SubscribeRequest("s", house.kind, 1), port)
    assert await reason() == blocked.NO_PERMITS == made.stats().blocked_reason
    port.is_writable = False
    made.flow(10)
    assert await reason() == blocked.NOT_WRITABLE
    port.is_writable, house.topic.cache, house.topic.failure = True, False, Unavailable("no bookie answers")
    made.resumed()
    assert await reason() == blocked.READING
    for _ in range(8):
        await asyncio.sleep(0)
    assert await reason() == "reading fails: no bookie answers"
    house.topic.cache = True
    made.resumed()
    await asyncio.sleep(0)
    assert await reason() == ""
    assert made.stats().blocked_reason == blocked.UNACKED
    house.topic.publish([1])
    assert await reason() == blocked.UNACKED
    made.ack(ids((1, 0), (1, 1)))
    assert await reason() == "" and (await house.subscription.stats.describe()).message_ack_rate == 0
    assert made.meter.acked == house.subscription.pump.meter.acked == 2


async def test_stats_say_what_keys_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(SubscriptionKind.KEY_SHARED)
    await house.subscriptions.create("s")
    slot = key_slot(b"k")

    async def consumer(first: int, last: int, name: str) -> Attached:
        request = SubscribeRequest(
            "s", house.kind, 1, name, sharing=KeySharing(is_sticky=True), key_ranges=[(first, last)]
        )
        made = await attach(house.subscriptions, request, FakePort())
        made.flow(10)
        return made

    def publish() -> None:
        place = house.topic.next_position(house.topic.last_confirmed)
        house.topic.publish([1], [keyed("k", place)])

    async def stats() -> SubscriptionStats:
        return await house.subscription.stats.describe()

    low = await consumer(0, 0, "low")
    publish()
    assert (await stats()).blocked_reason == blocked.NO_OWNER
    high = await consumer(slot, slot, "high")
    house.subscription.pump.wake()
    found = await stats()
    assert (found.blocked_reason, found.key_shared_mode) == ("", "STICKY")
    assert found.consumers[1].key_hash_ranges == [f"[{slot}, {slot}]"]
    high.consumer.permits = 0
    publish()
    assert (await stats()).blocked_reason == blocked.NO_PERMITS
    monkeypatch.setattr("quire.serving.subscription.dispatch.key_shared.LOOK_AHEAD_ENTRIES_MAX", 1)
    assert (await stats()).blocked_reason == blocked.LOOK_AHEAD
    monkeypatch.undo()
    high.flow(10)
    assert (await stats()).blocked_reason == "" and low.unacked == 0


async def test_looking_ahead_gives_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that nobody is sent take the loop's time as well; only so many are passed in a turn."""
    house = House(SubscriptionKind.KEY_SHARED)
    await house.subscriptions.create("s", earliest=True)
    for _ in range(10):
        place = house.topic.next_position(house.topic.last_confirmed)
        house.topic.publish([1], [keyed("k", place)], clock_ms=0)
    monkeypatch.setattr(
        "quire.serving.subscription.pump.DEAL_BYTES_PER_TURN",
        3 * (DEAL_BYTES_PER_BLOCK_MIN + DEAL_BYTES_PER_ENTRY_MIN),
    )
    request = SubscribeRequest("s", house.kind, 1, sharing=KeySharing(is_sticky=True), key_ranges=[(0, 0)])
    made = await attach(house.subscriptions, request, FakePort())
    made.flow(1)
    dispatcher = house.subscription.pump.dispatcher
    assert dispatcher.read.position == (1, 3)
    for _ in range(8):
        await asyncio.sleep(0)
    assert dispatcher.read.position == (1, 10) and made.permits == 1


async def test_stats_say_that_keys_drain() -> None:
    house = House(SubscriptionKind.KEY_SHARED)
    await house.subscriptions.create("s")
    for name in "ab":
        request = SubscribeRequest("s", house.kind, 1, name)
        (await attach(house.subscriptions, request, FakePort())).flow(100)
        for number in range(10):
            place = house.topic.next_position(house.topic.last_confirmed)
            house.topic.publish([1], [keyed(f"k{number}", place)])
    found = await house.subscription.stats.describe()
    assert found.blocked_reason == blocked.DRAINING and found.draining_hashes_count > 0
    house.subscription.pump.acknowledge(
        house.subscription.consumers[0], ids(*((1, entry) for entry in range(10)))
    )
    found = await house.subscription.stats.describe()
    assert (found.blocked_reason, found.draining_hashes_count, found.unacked_messages) == ("", 0, 10)


@given(st.lists(st.integers(0, 100), max_size=60), st.integers(0, 100))
def test_points_are_found_and_kept_apart(entries: list[int], wanted: int) -> None:
    index, end = ByteIndex(), Point(101, 101 * STEP_BYTES // 3)
    for entry in entries:
        index.learn(1, Point(entry, entry * STEP_BYTES // 3))
    before, behind = index.around(1, wanted, end)
    assert before.entry_id <= wanted < behind.entry_id
    known = index._by_ledger.get(1, [])
    assert known == sorted(known)
    assert all(b.offset - a.offset >= STEP_BYTES for a, b in pairwise(known))
    index.keep({2})
    assert index.around(1, wanted, end) == (Point(0, 0), end)


@given(st.lists(st.integers(0, 40), max_size=30))
def test_holes_are_the_runs_of_what_is_acknowledged(entries: list[int]) -> None:
    cursor = Cursor(CursorKey("t", 0, "s"), Position(1, -1))
    cursor.acked.add(1, BitMap(entries))
    assert counting.holes(cursor) == sum(entry - 1 not in entries for entry in set(entries))
