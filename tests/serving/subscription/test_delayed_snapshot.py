"""What a dispatcher found is taken in by the next one: in any history as if it had read everything again."""

from __future__ import annotations

import random
from array import array

import pytest
from pyroaring import BitMap

from quire.metadata.records import DelayedDeliveryPolicy
from quire.runtime.errors import CorruptionError
from quire.serving.model.ports import Position
from quire.serving.model.positions import Segments
from quire.serving.model.request import SubscriptionKind
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.subscription.cursor import cursor_record
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.delayed import delayed_delivery
from quire.serving.subscription.delayed.delayed_snapshot import DelayedSnapshot, SnapshotSegment, Times
from quire.serving.subscription.delayed.delays import Delays
from quire.serving.subscription.dispatch.key_shared import KeyShared
from quire.serving.subscription.dispatch.shared import Shared
from quire.wire.message import OutgoingMessage, encode_one
from tests.serving.subscription.fakes import FakeTopic, ids
from tests.serving.subscription.stand import Stand, settle
from tests.serving.subscription.test_delays import History

CURSOR_ID = 9
HOUR_MS = 3_600_000
KINDS = {"shared": Shared, "key_shared": KeyShared}


class Restarted(History):
    """A history whose dispatcher ends now and then, and another goes on with what was written down."""

    def __init__(self, kind: str, rng: random.Random) -> None:
        super().__init__(kind, rng)
        self.log: list[bytes] = []
        self.surveyed = Position(-1, -1)
        self.restored = 0

    def write(self) -> None:
        """The acknowledgements of a turn."""
        if self.cursor.is_reset:
            self.cursor.is_reset = False
            self.cursor.take_delta()
            self.log = list(cursor_record.snapshot(CURSOR_ID, self.cursor))
        else:
            self.log += cursor_record.deltas(CURSOR_ID, self.cursor.take_delta())

    def delayed_snapshot(self) -> None:
        for segment in self.dispatcher.delayed.delayed_snapshot():
            self.cursor.delayed_snapshot.extend(segment)
            self.log.append(cursor_record.delayed_snapshot(CURSOR_ID, segment))
            self.surveyed = Position(segment.ledger_id, segment.stop)

    def roll(self) -> None:
        """The log begins anew with a snapshot."""
        self.write()
        self.log = list(cursor_record.snapshot(CURSOR_ID, self.cursor))

    def restart(self) -> None:
        """Another broker, perhaps with another kind of subscription, or another tick."""
        self.write()
        cursor: Cursor | None = None
        for raw in self.log:
            _, _, begun, delta, segment = cursor_record.parse(raw)
            if begun is not None:
                cursor = begun
            elif delta is not None and cursor is not None:
                cursor.apply(delta)
            elif segment is not None and cursor is not None:
                cursor.delayed_snapshot.extend(segment)
        assert cursor is not None
        former, self.cursor, self.held = self.dispatcher, cursor, {}
        same_kind = self.rng.random() < 0.8
        kind = type(former) if same_kind else self.rng.choice(list(KINDS.values()))
        self.dispatcher = kind(cursor, Segments(self.topic.segments))
        self.delays = self.dispatcher.delayed.delays = Delays(self.rng.choice((10, 10, 10, 7)))
        self.delays.now_ms = self.now_ms
        self.restore()
        self.check()

    def restore(self) -> None:
        self.dispatcher.delayed.restore(self.cursor.delayed_snapshot)
        self.dispatcher.read.normalise()
        if self.dispatcher.read.window:  # else all of it is acknowledged, or found by another kind
            self.restored += 1
            end = self.dispatcher.read.segments.clamp(self.surveyed)
            assert self.dispatcher.read.position == end, "what was written down is not read again"

    def detach(self, consumer) -> None:  # type: ignore[no-untyped-def]
        if len(self.dispatcher.consumers) == 1:
            self.delayed_snapshot()
        super().detach(consumer)
        if not self.dispatcher.consumers:
            self.delays = self.dispatcher.delayed.delays = Delays(self.delays.tick_ms)
            self.delays.now_ms = self.now_ms
            self.restore()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(15))
def test_any_history_goes_on_after_any_restart(kind: str, seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    history = Restarted(kind, rng)
    for _ in range(200):
        history.step()
        choice = rng.random()
        if choice < 0.1:
            history.delayed_snapshot()
        elif choice < 0.15:
            history.roll()
        elif choice < 0.22:
            history.restart()
        elif choice < 0.6:
            history.write()
    history.finish()
    assert history.restored


def later_entries(topic: FakeTopic, due_ms: list[int | None]) -> list[bytes]:
    ledger_id = topic.ledgers[-1]
    first = topic.last_entry(ledger_id) + 1
    return [
        encode_one(OutgoingMessage(f"{ledger_id}:{first + at}".encode(), key="k", deliver_at_ms=one), "p", at, 0)
        for at, one in enumerate(due_ms)
    ]  # fmt: skip


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    monkeypatch.setattr(delayed_delivery, "SNAPSHOT_ENTRIES", 50)
    return Stand()


def publish(stand: Stand, count: int, in_ms: int) -> None:
    """Blocks of ten entries, every other one to be delivered later."""
    for _ in range(0, count, 10):
        due = [stand.clock.now_ms() + in_ms if at % 2 else None for at in range(10)]
        stand.topic.publish([1] * 10, later_entries(stand.topic, due))


@pytest.mark.parametrize("kind", [SubscriptionKind.SHARED, SubscriptionKind.KEY_SHARED])
async def test_a_broker_that_takes_over_does_not_read_what_waits(
    stand: Stand, kind: SubscriptionKind
) -> None:
    consumer, port = await stand.consumer(kind)
    publish(stand, 1000, HOUR_MS)
    await settle()
    got = port.positions()
    assert len(got) == 500
    consumer.ack(ids(*got))
    await settle()
    stand.restart()
    stand.topic.reads.clear()
    stand.topic.cache = False
    _, port = await stand.consumer(kind)
    await settle()
    found = stand.subscriptions.get("s")
    assert found is not None and len(found.pump.delayed) == 500
    assert all(one.entry_id >= 900 for one in stand.topic.reads), "only what came after the last snapshot"
    assert await stand.backlog() == 500 and port.positions() == []
    publish(stand, 10, HOUR_MS)
    await settle()
    assert len(port.positions()) == 5 and len(found.pump.delayed) == 505


@pytest.mark.parametrize("kind", [SubscriptionKind.SHARED, SubscriptionKind.KEY_SHARED])
async def test_the_next_consumer_does_not_either(stand: Stand, kind: SubscriptionKind) -> None:
    consumer, port = await stand.consumer(kind)
    publish(stand, 100, HOUR_MS)
    await settle()
    consumer.ack(ids(*port.positions()[:-1]))
    consumer.close()
    await settle()
    stand.topic.reads.clear()
    stand.topic.cache = False
    _, port = await stand.consumer(kind)
    await settle()
    assert port.positions() == [(1, 98)], "what the other held"
    assert stand.topic.reads == [Position(1, 98)]


async def test_a_seek_forgets_what_was_found(stand: Stand) -> None:
    await stand.consumer(SubscriptionKind.SHARED)
    publish(stand, 200, HOUR_MS)
    await settle()
    found = stand.subscriptions.get("s")
    assert found is not None and list(found.cursor.delayed_snapshot)
    await found.seek(ids((1, 0))[0])
    assert not list(found.cursor.delayed_snapshot)
    stand.restart()
    _, port = await stand.consumer(SubscriptionKind.SHARED)
    await settle()
    assert len(port.positions()) == 100


@pytest.mark.parametrize("was_read", [True, False])
async def test_times_that_did_not_count_when_they_were_read_are_not_left_out(
    stand: Stand, was_read: bool
) -> None:
    """Delays are off for a while: what was sent then waits for its time with the next broker, as if it had read it."""
    await stand.consumer(SubscriptionKind.SHARED)
    if was_read:
        publish(stand, 100, HOUR_MS)
    stand.topic.policies = TopicPolicies(delayed_delivery=DelayedDeliveryPolicy(active=False))
    stand.subscriptions.policies_changed()
    publish(stand, 100, HOUR_MS)
    stand.topic.policies = TopicPolicies()
    stand.subscriptions.policies_changed()
    publish(stand, 200, HOUR_MS)
    await settle()
    stand.restart()
    _, port = await stand.consumer(SubscriptionKind.SHARED)
    await settle()
    assert len(port.positions()) == (200 if was_read else 150)
    assert await stand.backlog() == (400 if was_read else 300)


async def test_what_has_no_delays_writes_nothing(stand: Stand) -> None:
    consumer, _ = await stand.consumer(SubscriptionKind.SHARED)
    stand.topic.publish([1] * 1000)
    await settle()
    consumer.close()
    await settle()
    assert not any(cursor_record.parse(raw).segment for raw in stand.log.records)


# -- segments ------------------------------------------------------------------------------------------------


def segment(first: int, stop: int, ledger_id: int = 1, base: int = 100, **more: object) -> SnapshotSegment:
    entries = BitMap(range(first, stop, 2))
    times = Times(10, base, entries, [entries & BitMap(range(0, stop, 4)), BitMap(entries)])
    made = SnapshotSegment(ledger_id, first, stop, 10 * first, 10, None, times)
    return made._replace(**more)


def shown(snapshot: DelayedSnapshot) -> list[tuple[int, int, int]]:
    return [one[:3] for one in snapshot]


def test_segments_follow_each_other_or_begin_anew() -> None:
    snapshot = DelayedSnapshot()
    for one in (
        segment(5, 10),
        segment(10, 20),
        segment(0, 7, 3),
        segment(7, 9, 3, each=0, counts=array("I", [1, 2])),
    ):
        snapshot.extend(one)
    assert shown(snapshot) == [(1, 5, 20), (3, 0, 7), (3, 7, 9)]
    assert next(iter(snapshot)).times.ticks() == {
        at: 102 + (at % 4 == 0) for at in (5, 7, 9, 10, 12, 14, 16, 18)
    }
    snapshot.extend(segment(2, 4, 3))
    assert shown(snapshot) == [(3, 2, 4)], "it does not continue what is here"
    snapshot.extend(segment(4, 6, 3, is_first=True))
    assert shown(snapshot) == [(3, 4, 6)]


def test_pieces_that_count_otherwise_stay_apart() -> None:
    snapshot = DelayedSnapshot()
    for one in (segment(0, 4), segment(4, 8, base=200), segment(8, 12, base=200, slots=array("H", range(4)))):
        snapshot.extend(one)
    assert shown(snapshot) == [(1, 0, 4), (1, 4, 8), (1, 8, 12)]


def test_what_lies_behind_a_position() -> None:
    snapshot = DelayedSnapshot()
    snapshot.extend(segment(0, 4, each=0, counts=array("I", [1, 2, 3, 4]), slots=array("H", [5, 6, 7, 8])))
    snapshot.extend(segment(0, 10, 3))
    cut, rest = snapshot.since(Position(1, 2))
    assert (cut.first, cut.stop, cut.first_index, cut.next_index) == (2, 4, 3, 10)
    assert cut.counts == array("I", [3, 4]) and cut.slots == array("H", [7, 8])
    assert cut.times.entries == BitMap([2]) and rest.ledger_id == 3
    assert snapshot.since(Position(1, 4)) == [] == snapshot.since(Position(2, 0))


def test_what_is_acknowledged_is_pruned() -> None:
    snapshot = DelayedSnapshot()
    for one in (segment(0, 10), segment(0, 10, 3)):
        snapshot.extend(one)
    before = snapshot.held_bytes()
    snapshot.prune(Position(1, 9), lambda _, entries: entries - BitMap([4]))
    (left,) = snapshot
    assert left.ledger_id == 3 and left.times.entries == BitMap([0, 2, 6, 8])
    assert all(one <= left.times.entries for one in left.times.slices)
    assert snapshot.held_bytes() < before


def test_slots_that_nobody_will_ask_for_are_pruned() -> None:
    snapshot = DelayedSnapshot()
    snapshot.extend(segment(0, 10, slots=array("H", range(10))))
    snapshot.prune(Position(1, -1), lambda _, entries: entries - BitMap(range(9)))
    assert next(iter(snapshot)).slots is not None
    snapshot.prune(Position(1, -1), lambda _, entries: BitMap())
    assert next(iter(snapshot)).slots is None


async def test_a_survey_that_is_too_large_ends_there(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies behind it is read again, and nothing is lost."""
    monkeypatch.setattr(delayed_delivery, "SNAPSHOT_HELD_BYTES_MAX", 1_300)
    await stand.consumer(SubscriptionKind.SHARED)
    publish(stand, 1000, HOUR_MS)
    await settle()
    found = stand.subscriptions.get("s")
    assert found is not None
    (last,) = found.cursor.delayed_snapshot
    assert 100 <= last.stop < 500
    stand.restart()
    await stand.consumer(SubscriptionKind.SHARED)
    await settle()
    found = stand.subscriptions.get("s")
    assert found is not None and len(found.pump.delayed) == 500 and await stand.backlog() == 1000


def test_a_segment_is_a_record_and_a_damaged_one_is_damage() -> None:
    made = segment(
        5, 9, each=0, counts=array("I", [1, 2, 3, 4]), slots=array("H", [5, 6, 7, 65535]), is_first=True
    )
    raw = cursor_record.delayed_snapshot(CURSOR_ID, made)
    assert cursor_record.parse(raw).segment == made
    for end in range(len(raw)):
        with pytest.raises(CorruptionError):
            cursor_record.parse(raw[:end])
    with pytest.raises(CorruptionError):
        cursor_record.parse(raw + b"\0")
    rng = random.Random(5)
    for _ in range(300):
        at = rng.randrange(11, len(raw))
        try:
            cursor_record.parse(raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :])
        except CorruptionError:
            pass
