"""The publisher: what it cuts, in which order it answers, and what it does when a ledger ends early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.ledger.writer import LedgerWriter
from quire.ledger.writer_core import Pending
from quire.runtime.budget import ByteBudget
from quire.runtime.clock import ManualClock
from quire.runtime.errors import QuireError
from quire.runtime.limits import (
    BLOCK_BYTES_MAX,
    BLOCK_ENTRIES_MAX,
    BLOCKS_IN_FLIGHT_PER_LEDGER_MAX,
    ENTRY_OVERHEAD_BYTES,
    MIB,
)
from quire.serving.model.rates import Received, Totals
from quire.serving.topic.publish import Publisher, Reports
from quire.serving.topic.runs import InFlightBlock, PublishRun
from quire.serving.topic.segments import Active
from quire.serving.topic.tenant_shares import TenantShares
from quire.serving.topic.turn import Turn
from quire.wire import block as blocks
from quire.wire import commands, varint
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import BlockHeader, Buffer


class Writer:
    """What is used of a `LedgerWriter`: its blocks can be looked at, and are confirmed by hand."""

    def __init__(self, ledger_id: int, more_full_blocks_max: int) -> None:
        self.ledger_id = ledger_id
        self.blocks: list[Buffer] = []
        self.more_full_blocks_max = more_full_blocks_max

    def write(self, pending: Pending) -> None:
        assert blocks.verify(pending.block).last_entry == pending.last_entry
        self.blocks.append(pending.block)

    @property
    def headers(self) -> list[BlockHeader]:
        return [blocks.verify(block) for block in self.blocks]

    @property
    def entries(self) -> list[bytes]:
        return [bytes(entry) for block in self.blocks for entry in blocks.entries(block, blocks.peek(block))]


class Producer:
    name = "p"

    def __init__(self, producer_id: int = 0) -> None:
        self.producer_id = producer_id
        self.written: list[bytes] = []

    def write(self, data: Buffer, /) -> None:
        self.written.append(bytes(data))

    def ready(self, last_sequence_id: int) -> None: ...

    def fenced(self, error: QuireError) -> None: ...

    def close(self, service_url: str = "") -> None: ...

    @property
    def receipts(self) -> list[tuple[int, int, int]]:
        """(sequence id, ledger, entry) of each receipt."""
        data = b"".join(self.written)
        found = []
        while data:
            size = int.from_bytes(data[:4], "big")
            body = commands.parse(data[8 : 4 + size]).body
            assert isinstance(body, pb.CommandSendReceipt)
            assert body.producer_id == self.producer_id
            found.append((body.sequence_id, *commands.position(body.message_id)))
            data = data[4 + size :]
        return found


class Sink:
    readers = ()

    def __init__(self) -> None:
        self.received = Received(Totals())
        self.flights: list[InFlightBlock] = []

    def confirmed(self, flights: Sequence[InFlightBlock]) -> None:
        self.flights += flights


class World:
    """A publisher, and the loop whose turns a test ends by hand."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.clock = ManualClock()
        self.budget = ByteBudget()
        self.sink = Sink()
        self.shares = TenantShares(self.budget)
        turn = Turn(self.clock, self.calls.append)
        self.reports = Reports(turn, MIB, is_heard=True)
        self.reports.listen(self.sink)
        self.publisher = Publisher(turn, self.shares.of("public"), self.reports)
        self._next = 0

    def attach(self, ledger_id: int, next_index: int = 0, more_full_blocks_max: int = 0) -> Writer:
        writer = Writer(ledger_id, more_full_blocks_max)
        self.publisher.attach(cast(LedgerWriter, writer), Active(writer.ledger_id, next_index, 0), 0)
        return writer

    def publish(self, producer: Producer, *sizes: int, counts: list[int] | None = None) -> None:
        heads, entries = [], []
        for size in sizes:
            heads.append(b"\x08%c\x10" % producer.producer_id + varint.encode(self._next))
            entries.append((b"%d:" % self._next).ljust(size, b"x"))
            self._next += 1
        self.publisher.publish(producer, PublishRun.of(producer.producer_id, heads, entries, counts))

    def turn(self) -> None:
        while self.calls:
            self.calls.pop(0)()


@pytest.fixture
def world() -> World:
    return World()


def test_one_turn_makes_one_block(world: World) -> None:
    writer, producer = world.attach(7), Producer()
    world.publish(producer, 100)
    world.publish(producer, 100, 100)
    assert writer.blocks == []
    world.turn()
    assert [(one.first_entry, one.entry_count, one.first_index) for one in writer.headers] == [(0, 3, 0)]
    world.publish(producer, 100)
    world.turn()
    assert [(one.first_entry, one.entry_count, one.first_index) for one in writer.headers] == [
        (0, 3, 0),
        (3, 1, 3),
    ]


def test_receipts_only_after_confirmation_and_before_the_sink(world: World) -> None:
    writer, producer = world.attach(7), Producer()
    world.publish(producer, 100, 100)
    world.turn()
    assert producer.written == []
    order: list[str] = []
    producer.write = lambda data, /: order.append("receipts")  # type: ignore[method-assign]
    world.sink.confirmed = lambda flights: order.append("sink")  # type: ignore[method-assign]
    world.publisher.confirmed(1)
    assert order == ["receipts", "sink"]
    assert len(writer.blocks) == 1


def test_each_producer_gets_its_own_receipts_in_order(world: World) -> None:
    world.attach(300)
    first, second = Producer(1), Producer(2)
    world.publish(first, 10, 10)
    world.publish(second, 10)
    world.publish(first, 10)
    world.turn()
    world.publisher.confirmed(3)
    assert first.receipts == [(0, 300, 0), (1, 300, 1), (3, 300, 3)]
    assert second.receipts == [(2, 300, 2)]


def test_a_block_ends_at_its_size_and_count(world: World) -> None:
    writer, producer = world.attach(1), Producer()
    world.publish(producer, *[BLOCK_BYTES_MAX // 4] * 6)
    world.turn()
    assert [one.entry_count for one in writer.headers] == [4, 2]
    world.publish(producer, *[20] * (BLOCK_ENTRIES_MAX + 5))
    world.turn()
    assert [one.entry_count for one in writer.headers[2:]] == [BLOCK_ENTRIES_MAX, 5]


def test_a_larger_entry_is_a_block_of_its_own(world: World) -> None:
    writer, producer = world.attach(1), Producer()
    world.publish(producer, 100, BLOCK_BYTES_MAX + 1, 100)
    world.turn()
    assert [one.entry_count for one in writer.headers] == [1, 1, 1]


def test_what_waits_makes_the_next_block_larger(world: World) -> None:
    writer, producer = world.attach(1), Producer()
    for _ in range(BLOCKS_IN_FLIGHT_PER_LEDGER_MAX + 5):
        world.publish(producer, 100)
        world.turn()
    assert len(writer.blocks) == BLOCKS_IN_FLIGHT_PER_LEDGER_MAX
    world.publisher.confirmed(0)
    world.turn()
    assert writer.headers[-1].entry_count == 5
    assert writer.headers[-1].lac == 0


def test_where_blocks_are_long_on_their_way_full_ones_may_be_more(world: World) -> None:
    writer, producer = world.attach(1, more_full_blocks_max=3), Producer()
    for _ in range(BLOCKS_IN_FLIGHT_PER_LEDGER_MAX + 5):
        world.publish(producer, 100)
        world.turn()
    assert len(writer.blocks) == BLOCKS_IN_FLIGHT_PER_LEDGER_MAX
    for _ in range(5):
        world.publish(producer, BLOCK_BYTES_MAX)
        world.turn()
    assert len(writer.blocks) == BLOCKS_IN_FLIGHT_PER_LEDGER_MAX + 3


def test_message_counts_and_index(world: World) -> None:
    writer, producer = world.attach(1, next_index=50), Producer()
    world.publish(producer, 100, 100, counts=[3, 4])
    world.publish(producer, 100)
    world.publish(Producer(2), 100, counts=[5])
    world.turn()
    world.publish(producer, 100)
    world.turn()
    first, second = writer.headers
    assert list(blocks.message_counts(writer.blocks[0], first)) == [3, 4, 1, 5]
    assert (first.first_index, second.first_index) == (50, 63)
    assert world.publisher.next_index == 64


def test_the_clock_of_blocks_never_goes_back(world: World) -> None:
    writer, producer = world.attach(1), Producer()
    world.publish(producer, 10)
    world.turn()
    world.clock._now_ms -= 5_000
    world.publish(producer, 10)
    world.turn()
    assert writer.headers[1].clock_ms == writer.headers[0].clock_ms


def test_the_budget_is_held_until_confirmation(world: World) -> None:
    world.attach(1)
    world.publish(Producer(), 100, 200)
    assert world.budget.held_bytes == 300 + 2 * ENTRY_OVERHEAD_BYTES
    world.turn()
    world.publisher.confirmed(1)
    assert world.budget.held_bytes == 0


def test_under_a_queue_that_never_empties_each_block_has_the_time_of_its_own_entries(world: World) -> None:
    """A run that is cut at its front and extended at its end in each turn is never older than what is left of it."""
    producer, wait = Producer(), BLOCKS_IN_FLIGHT_PER_LEDGER_MAX + 5
    world.attach(7)
    for second in range(50):
        world.publish(producer, *[10] * BLOCK_ENTRIES_MAX)
        world.publish(producer, *[10] * 2)  # in the same turn
        world.turn()
        if second >= wait:  # one block is confirmed a turn, and the queue stays
            world.publisher.confirmed(BLOCK_ENTRIES_MAX * (second - wait + 1) - 1)
            world.turn()
        world.clock.advance_ms(1000)
    assert len(world.publisher._waiting) == 1
    for flight in [*world.sink.flights, *world.publisher._flights]:
        assert flight.came_s == flight.first_entry // (BLOCK_ENTRIES_MAX + 2)
    assert world.sink.flights[-1].came_s > wait


def test_without_a_ledger_everything_waits(world: World) -> None:
    producer = Producer()
    world.publish(producer, 100)
    world.turn()
    writer = world.attach(1)
    world.turn()
    assert len(writer.blocks) == 1


def test_when_answered_comes_behind_the_receipts(world: World) -> None:
    world.attach(1)
    producer, order = Producer(), []
    producer.write = lambda data, /: order.append("receipt")  # type: ignore[method-assign]
    world.publisher.when_answered(lambda: order.append("at once"))
    world.publish(producer, 10)
    world.publisher.when_answered(lambda: order.append("behind the first"))
    world.publish(producer, 10)
    world.turn()
    world.publisher.when_answered(lambda: order.append("behind the second"))
    world.publisher.confirmed(1)
    assert order == ["at once", "receipt", "behind the first", "receipt", "behind the second"]


def test_rule_5_what_the_ledger_kept_is_answered_and_the_rest_cut_anew(world: World) -> None:
    old, producer = world.attach(1, next_index=10), Producer()
    for size in (100, 200, 300):
        world.publish(producer, size, size)
        world.turn()
    world.publish(producer, 400)
    world.publisher.take_back(1)
    assert producer.receipts == [(0, 1, 0), (1, 1, 1)]
    assert world.publisher.next_index == 12
    new = world.attach(2, next_index=12)
    world.turn()
    assert new.entries == [*old.entries[2:], b"6:".ljust(400, b"x")]
    world.publisher.confirmed(4)
    assert [number for number, _, _ in producer.receipts] == list(range(7))
    assert [place for _, *place in producer.receipts[2:]] == [[2, entry] for entry in range(5)]
    assert world.budget.held_bytes == 0


def test_dropping_gives_the_budget_back(world: World) -> None:
    world.attach(1)
    world.publish(Producer(), 100)
    world.turn()
    world.publish(Producer(), 100)
    world.publisher.drop()
    assert world.budget.held_bytes == 0


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_happens_every_entry_is_written_once_and_answered_in_order(data: st.DataObject) -> None:
    """Random publishing, confirming and failing: the ledgers together hold what was sent, in order."""
    world = World()
    producers = [Producer(1), Producer(2)]
    writer = world.attach(1)
    kept: list[bytes] = []
    sent: dict[int, list[int]] = {1: [], 2: []}
    confirmed = -1
    for _ in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.sampled_from(["publish", "publish", "turn", "confirm", "fail"]))
        if step == "publish":
            producer = data.draw(st.sampled_from(producers))
            sizes = data.draw(
                st.lists(st.sampled_from([10, 1_000, 100_000, 300_000]), min_size=1, max_size=6)
            )
            sent[producer.producer_id] += range(world._next, world._next + len(sizes))
            world.publish(producer, *sizes)
        elif step == "turn":
            world.turn()
        else:
            ends = [one.last_entry for one in writer.headers if one.last_entry > confirmed]
            if ends:
                confirmed = data.draw(st.sampled_from(ends))
            if step == "confirm":
                world.publisher.confirmed(confirmed)
            else:
                world.publisher.take_back(confirmed)
                kept += writer.entries[: confirmed + 1]
                writer = world.attach(writer.ledger_id + 1, len(kept))
                confirmed = -1
    for _ in range(1 + world._next):
        world.turn()
        if writer.blocks:
            world.publisher.confirmed(writer.headers[-1].last_entry)
    kept += writer.entries
    assert [int(entry.split(b":")[0]) for entry in kept] == list(range(world._next))
    for producer in producers:
        assert [number for number, _, _ in producer.receipts] == sent[producer.producer_id]
    assert world.budget.held_bytes == 0
    assert world.publisher.next_index == world._next
