"""Delayed entries by their times, against a model; and where times are found in a block."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from pyroaring import BitMap

from quire.serving.model.ports import Position
from quire.serving.model.positions import Segments
from quire.serving.model.request import SubscribeRequest, SubscriptionKind
from quire.serving.subscription.cursor.cursor import Cursor, CursorKey
from quire.serving.subscription.delayed.delays import Delays
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import BlockView
from quire.serving.subscription.dispatch.key_shared import KeyShared
from quire.serving.subscription.dispatch.shared import Shared
from quire.wire import block as blocks
from quire.wire import pulsar_pb2 as pb
from quire.wire.deliver_at import delivery_times
from quire.wire.message import OutgoingMessage, encode_batch, encode_one, seal
from tests.serving.subscription.fakes import FakePort, FakeTopic


@pytest.mark.parametrize("seed", range(20))
def test_any_history_gives_what_a_plain_table_gives(seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    tick_ms = rng.choice((1, 7, 20, 1000))
    delays, model, now_ms = Delays(tick_ms), dict[Position, int](), 1_700_000_000_000
    next_entry = [0, 0, 0]
    for _ in range(200):
        delays.now_ms = now_ms
        choice = rng.random()
        ledger_id = rng.randrange(3)
        if choice < 0.5:
            count = rng.choice((1, 5, 100))
            ids = [next_entry[ledger_id] + 2 * i for i in range(count)]
            times = [now_ms + 1 + rng.randrange(1 << rng.randrange(1, 42)) for _ in ids]
            next_entry[ledger_id] = ids[-1] + 1
            delays.add(ledger_id, ids, times)
            model |= {Position(ledger_id, one): at for one, at in zip(ids, times, strict=True)}
        elif choice < 0.7:
            now_ms += rng.randrange(1 << rng.randrange(1, 36))
            delays.now_ms = now_ms
            due = {Position(ledger, one) for ledger, some in delays.take_due() for one in some}
            assert due == {at for at, time in model.items() if -(-time // tick_ms) * tick_ms <= now_ms}
            model = {at: time for at, time in model.items() if at not in due}
        elif choice < 0.9:
            gone = BitMap(rng.sample(range(next_entry[ledger_id] + 1), min(5, next_entry[ledger_id])))
            delays.remove(ledger_id, gone)
            for one in gone:
                model.pop(Position(ledger_id, one), None)
        else:
            marked = Position(ledger_id, rng.randrange(next_entry[ledger_id] + 1) - 1)
            delays.remove_up_to(marked)
            model = {at: time for at, time in model.items() if at > marked}
        assert len(delays) == len(model) and bool(delays) == bool(model)
        least = min((-(-time // tick_ms) * tick_ms for time in model.values()), default=None)
        assert delays.next_ms() == least
    assert sum(len(some) for _, some in delays.take_all()) == len(model)
    assert not delays and delays.next_ms() is None


def test_a_delay_is_cut_to_the_longest_that_is_allowed() -> None:
    delays = Delays(10, delay_ms_max=1000)
    delays.now_ms = 5000
    delays.add(1, [0, 1], [5100, 9000])
    assert delays.next_ms() == 5100
    delays.now_ms = 6000
    assert delays.take_due() == [(1, BitMap([0, 1]))]


@pytest.mark.parametrize("size", [1, 2000])
def test_the_times_of_a_block_are_found_and_nothing_else_is_taken_for_one(size: int) -> None:
    """Large and small entries are looked through in two ways."""

    def entry(number: int, deliver_at_ms: int | None, payload: bytes = b"x" * size) -> bytes:
        return encode_one(OutgoingMessage(payload, deliver_at_ms=deliver_at_ms), "p", number, 1)

    tag = b"\x98\x01"
    bare = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    looks_like = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, ordering_key=tag * 3)
    broken = b"\x0e\x01" + bytes(4) + (20).to_bytes(4, "big") + tag + b"\xff" * 18
    entries = [
        entry(0, 5000),
        entry(1, None),
        entry(2, None, payload=tag * 10),
        entry(3, 7000, payload=tag * 10),
        seal(bare, b""),
        seal(looks_like, b""),
        entry(6, 900),
        broken,
        tag + tag,
        encode_batch([OutgoingMessage(tag), OutgoingMessage(b"2")], "p", 9, 1),
        entry(11, 2**62),
    ]
    for buffer in (
        blocks.cut(7, 100, -1, 0, 0, entries),
        memoryview(bytes(blocks.cut(7, 100, -1, 0, 0, entries))),
    ):
        header = blocks.peek(buffer)
        assert delivery_times(buffer, header, 0, 1000) == ([0, 3, 10], [5000, 7000, 2**62])
        assert delivery_times(buffer, header, 1, 5000) == ([3, 10], [7000, 2**62])
    plain = blocks.cut(7, 0, -1, 0, 0, [entry(0, None)] * 3)
    assert delivery_times(plain, blocks.peek(plain), 0, 0) == ([], [])


class History:
    """A dispatcher of many consumers on a topic in memory, with clock, and what every entry should be."""

    def __init__(self, kind: str, rng: random.Random) -> None:
        self.rng = rng
        self.topic = FakeTopic()
        self.cursor = Cursor(CursorKey(self.topic.name, 0, "s"), Position(1, -1))
        self.dispatcher = {"shared": Shared, "key_shared": KeyShared}[kind](
            self.cursor, Segments(self.topic.segments)
        )
        self.delays = self.dispatcher.delayed.delays = Delays(10)
        self.now_ms = self.delays.now_ms = 1_700_000_000_000
        self.due_ms: dict[Position, int] = {}
        self.counts: dict[Position, int] = {}
        """Of every entry: when it is due, and its messages."""
        self.is_batched = rng.random() < 0.5
        self.held: dict[Position, Consumer] = {}
        self.acked: set[Position] = set()
        self.arrivals = 0

    def publish(self) -> None:
        times = [
            self.rng.choice((None, self.now_ms + self.rng.randrange(1, 500)))
            for _ in range(self.rng.randrange(1, 6))
        ]
        entries = [
            encode_one(OutgoingMessage(b"x", key=self.rng.choice("abcdef"), deliver_at_ms=at), "p", 1, 1)
            for at in times
        ]
        counts = [self.rng.choice((1, 1, 3)) for _ in times] if self.is_batched else [1] * len(times)
        first = self.topic.publish(counts, entries)
        for offset, (at, count) in enumerate(zip(times, counts, strict=True)):
            position = Position(first.ledger_id, first.entry_id + offset)
            self.due_ms[position], self.counts[position] = at or 0, count

    def attach(self) -> None:
        self.arrivals += 1
        request = SubscribeRequest("s", SubscriptionKind.SHARED, self.arrivals, str(self.arrivals))
        consumer = Consumer(FakePort(), request, self.arrivals)
        consumer.permits = self.rng.choice((0, 3, 1000))
        self.dispatcher.attach(consumer)

    def detach(self, consumer: Consumer) -> None:
        self.dispatcher.detach(consumer)
        self.held = {at: who for at, who in self.held.items() if who is not consumer}

    def ack(self, ledger_id: int, entries: list[int]) -> None:
        self.dispatcher.acknowledge(ledger_id, entries)
        done = {Position(ledger_id, one) for one in entries} & self.due_ms.keys()
        self.acked |= done
        for at in done:
            self.held.pop(at, None)

    def redeliver(self, consumer: Consumer) -> None:
        self.dispatcher.redeliver(consumer, None)
        self.held = {at: who for at, who in self.held.items() if who is not consumer}

    def pass_time(self) -> None:
        self.now_ms += self.rng.randrange(300)
        self.delays.now_ms = self.now_ms
        self.dispatcher.delayed.release()

    def pump(self) -> None:
        while (wanted := self.dispatcher.wanted()) is not None:
            found = self.topic._from(wanted)
            if not found:
                break
            view = BlockView(found[0], blocks.peek(found[0]))
            for delivery in self.dispatcher.offer(view):
                for entry_id in delivery.entries():
                    at = Position(view.ledger_id, entry_id)
                    assert self.due_ms[at] <= self.now_ms, f"{at} came before its time"
                    assert at not in self.held and at not in self.acked, f"{at} was dispatched twice"
                    self.held[at] = delivery.consumer

    def check(self) -> None:
        read = self.dispatcher.read.position
        passed = {at for at in self.due_ms if at < read}
        waiting = {
            Position(ledger, one) for ledger, times in self.delays._by_ledger.items() for one in times.entries
        }
        queued = {
            Position(ledger, one) for ledger, some in self.dispatcher.queue.entries.items() for one in some
        }
        assert not waiting & queued and not (waiting | queued) & (self.held.keys() | self.acked)
        assert waiting | queued | self.held.keys() == passed - self.acked
        assert all(self.due_ms[at] > self.now_ms - 10 for at in waiting), "later than a tick"
        assert self.dispatcher.read.unacked == self.messages(passed - self.acked)
        index = self.dispatcher.read.index
        if index is not None and self.dispatcher.read.ahead_known:
            left = self.topic.index - index + self.dispatcher.read.unacked - self.dispatcher.read.ahead
            assert left == self.messages(self.due_ms.keys() - self.acked)

    def messages(self, positions: Iterable[Position]) -> int:
        return sum(self.counts[one] for one in positions)

    def step(self) -> None:
        """Something happens, at random; all that may be dispatched is."""
        rng, consumers, choice = self.rng, self.dispatcher.consumers, self.rng.random()
        if choice < 0.3:
            self.publish()
        elif choice < 0.4 or not consumers:
            self.attach()
        elif choice < 0.45:
            self.detach(rng.choice(consumers))
        elif choice < 0.55:
            rng.choice(consumers).permits += 5
        elif choice < 0.75 and self.due_ms:
            some = rng.sample(sorted(self.held or self.due_ms), 1)
            self.ack(some[0].ledger_id, [one.entry_id for one in some])
        elif choice < 0.8:
            self.redeliver(rng.choice(consumers))
        elif choice < 0.83:
            self.topic.roll()
        else:
            self.pass_time()
        self.settle()

    def settle(self) -> None:
        self.pump()
        self.dispatcher.read.normalise()
        self.pump()
        self.check()

    def finish(self) -> None:
        """Time passes until everything is due; it is dispatched and acknowledged."""
        if not self.dispatcher.consumers:
            self.attach()
        self.now_ms += 10_000
        self.delays.now_ms = self.now_ms
        self.dispatcher.delayed.release()
        while len(self.acked) < len(self.due_ms):
            for consumer in self.dispatcher.consumers:
                consumer.permits = 1000
            self.dispatcher.read.normalise()
            self.pump()
            assert self.held, "what is due is dispatched to whoever is ready"
            for at in list(self.held):
                self.ack(at.ledger_id, [at.entry_id])
            self.check()


@pytest.mark.parametrize("kind", ["shared", "key_shared"])
@pytest.mark.parametrize("seed", range(12))
def test_in_any_history_nothing_is_dispatched_early_twice_or_never(kind: str, seed: int) -> None:
    print("seed", seed)
    history = History(kind, random.Random(seed))
    for _ in range(150):
        history.step()
    history.finish()


def test_delays_that_count_no_longer_are_dispatched_at_once() -> None:
    history = History("shared", random.Random(1))
    history.attach()
    (consumer,) = history.dispatcher.consumers
    consumer.permits = 1000
    while len(history.due_ms) < 30:
        history.publish()
    history.pump()
    assert 0 < len(history.held) < len(history.due_ms)
    history.dispatcher.delayed.release_all()
    history.now_ms += 10_000
    history.pump()
    assert history.held.keys() == history.due_ms.keys()
