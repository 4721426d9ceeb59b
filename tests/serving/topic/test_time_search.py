"""Search by publish time: against a model over all clocks that clients may have, and on a real topic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from quire.metadata import topics
from quire.metadata.records import SegmentRecord, TopicRecord
from quire.runtime.errors import CorruptionError, NotFound
from quire.runtime.slices import Slices
from quire.serving.broker import Broker
from quire.serving.model.ports import Position
from quire.serving.topic import publish_times as ledger_times
from quire.serving.topic import time_search
from quire.serving.topic.meta_store import MetaStore
from quire.serving.topic.runs import PublishRun
from quire.serving.topic.segments import Active
from quire.serving.topic.time_search import TimeSearch
from quire.testing.metadata import MemoryStore
from quire.wire import block as blocks
from quire.wire.block import Buffer
from quire.wire.message import OutgoingMessage, encode_one
from quire.wire.publish_time import ANY_TIME_MS, PublishTimes, publish_times
from tests.serving.conftest import NAME, QUIET, BrokerHouse, in_thread

NOW_MS = 1_000_000
YEAR_MS = 365 * 24 * 3_600_000


def entry_at(publish_time_ms: int) -> bytes:
    return encode_one(OutgoingMessage(b"x"), "p", 0, publish_time_ms)


class Reader:
    """What the search uses of a `TopicReader`, over blocks in memory; counts what is read of each ledger."""

    def __init__(self) -> None:
        self.blocks: dict[int, list[Buffer]] = {}
        self.reads: list[int] = []
        self.damaged: set[int] = set()

    async def read(self, position: Position, bytes_max: int) -> list[Buffer]:
        await asyncio.sleep(0)
        if position.ledger_id in self.damaged:
            raise CorruptionError("damaged")
        self.reads.append(position.ledger_id)
        rest = [
            one for one in self.blocks[position.ledger_id] if blocks.peek(one).last_entry >= position.entry_id
        ]
        return rest[:2]

    async def find_time(self, ledger_id: int, time_ms: int) -> int:
        headers = [blocks.peek(one) for one in self.blocks[ledger_id]]
        before = [header.first_entry for header in headers if header.clock_ms < time_ms]
        return before[-1] if before else 0


class World:
    """A topic of which each inner list is a segment, and each list in it a block: (clock, publish times)."""

    def __init__(self, segments: Sequence[Sequence[tuple[int, list[int]]]]) -> None:
        self.store = MemoryStore()
        self.reader = Reader()
        self.segments = segments
        self.all: list[tuple[Position, int]] = []

    async def begin(self, known: Sequence[bool]) -> TimeSearch:
        self.meta_store = made = MetaStore(
            self.store, await topics.create(self.store, "/topic", TopicRecord(name="topic"))
        )
        sealed: SegmentRecord | None = None
        for number, segment in enumerate(self.segments):
            active = Active(number + 1, 0, 1)
            await made.begin(sealed, active)
            times = self.write(active, segment)
            sealed = active.sealed(NOW_MS)
            if number < len(known) and known[number]:
                sealed = replace(
                    sealed,
                    publish_min_ms=times.min_ms,
                    publish_max_ms=times.max_ms,
                    publish_ahead_ms=times.ahead_ms,
                )
        services: Any = SimpleNamespace(slices=Slices(), time_searches=asyncio.Semaphore(1))
        self.search = TimeSearch(made, self.reader, services)  # type: ignore[arg-type]
        return self.search

    def write(self, active: Active, segment: Sequence[tuple[int, list[int]]]) -> PublishTimes:
        times = PublishTimes()
        for clock_ms, published in segment:
            first = active.last_entry + 1
            made = blocks.cut(
                active.ledger_id, first, first - 1, clock_ms, first, [entry_at(time) for time in published]
            )
            self.reader.blocks.setdefault(active.ledger_id, []).append(made)
            times.add(made, blocks.peek(made))
            for time in published:
                active.last_entry += 1
                self.all.append((Position(active.ledger_id, active.last_entry), time))
            active.first_clock_ms = active.first_clock_ms or clock_ms
            active.last_clock_ms = clock_ms
            active.bytes += len(made)
        return times

    def expected(self, time_ms: int) -> Position:
        last = self.all[-1][0]
        return next(
            (at for at, time in self.all if time >= time_ms), last._replace(entry_id=last.entry_id + 1)
        )


clocks_off = st.sampled_from([0, 0, 0, 5_000, 11_000, 3_600_000, YEAR_MS, -60_000, -NOW_MS])
block = st.lists(clocks_off, min_size=1, max_size=3)
segment = st.lists(block, min_size=1, max_size=4)


def _clocked(shape: list[list[list[int]]]) -> list[list[tuple[int, list[int]]]]:
    """Return entries a second apart by the broker's clock, with the publish times of clocks that are off."""
    clock_ms, found = NOW_MS, list[list[tuple[int, list[int]]]]()
    for one in shape:
        found.append([])
        for offs in one:
            clock_ms += 1_000
            found[-1].append((clock_ms, [max(1, clock_ms + off) for off in offs]))
    return found


@settings(max_examples=200, deadline=None)
@given(
    shape=st.lists(segment, min_size=1, max_size=4),
    known=st.lists(st.booleans(), min_size=4, max_size=4),
    asked=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    off_ms=clocks_off,
)
def test_no_message_is_passed_over_whatever_clients_clocks_say(
    shape: list[list[list[int]]], known: list[bool], asked: list[int], off_ms: int
) -> None:
    async def ask() -> None:
        world = World(_clocked(shape))
        search = await world.begin(known)
        for step in asked:
            time_ms = max(0, NOW_MS + 1_000 * step + off_ms)
            assert await search.find(time_ms) == world.expected(time_ms)

    asyncio.run(ask())


@settings(max_examples=200, deadline=None)
@given(
    shape=st.lists(segment, min_size=1, max_size=4),
    known=st.lists(st.booleans(), min_size=4, max_size=4),
    asked=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=4),
    off_ms=clocks_off,
    checkpoint_bytes=st.sampled_from([1, 300, 1 << 20]),
)
def test_a_range_contains_every_message_of_the_time_whatever_clients_clocks_say(
    shape: list[list[list[int]]],
    known: list[bool],
    asked: list[tuple[int, int]],
    off_ms: int,
    checkpoint_bytes: int,
) -> None:
    async def ask() -> None:
        world = World(_clocked(shape))
        search = await world.begin(known)
        for steps in asked:
            start_ms, end_ms = (max(0, NOW_MS + 1_000 * step + off_ms) for step in steps)
            ranges = await search.ranges(start_ms, end_ms)
            assert ranges.keys() == {at.ledger_id for at, _ in world.all}
            for at, time in world.all:
                first, end = ranges[at.ledger_id]
                assert first <= at.entry_id < end or not start_ms <= time < end_ms

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_times, "CHECKPOINT_BYTES", checkpoint_bytes)
        asyncio.run(ask())


async def test_a_range_ends_at_the_last_piece_with_a_message_before_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger_times, "CHECKPOINT_BYTES", 1)
    blocks_of = [(NOW_MS + 10 * at, [NOW_MS + 10 * at, NOW_MS + 10 * at + 5]) for at in range(20)]
    world = World([blocks_of, blocks_of])
    search = await world.begin([])
    assert await search.ranges(NOW_MS + 50, NOW_MS + 80) == {1: (10, 16), 2: (10, 16)}
    assert await search.ranges(0, NOW_MS) == {1: (0, 0), 2: (0, 0)}
    assert await search.ranges(NOW_MS + 300, time_search.UNLIMITED_MS) == {1: (40, 40), 2: (40, 40)}
    assert world.reader.reads.count(1) == world.reader.reads.count(2) == 10, "each block was read once"
    active = world.meta_store.segments.active
    assert active is not None
    world.write(active, [(NOW_MS + 500, [NOW_MS + 55])])
    assert (await search.ranges(NOW_MS + 50, NOW_MS + 80))[2] == (10, 41), "a late message"


async def test_a_range_of_segments_that_cannot_be_searched_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Segments of unknown times are read whole; each search measures more, and an archived segment needs no search."""
    world = World([[(NOW_MS + at, [NOW_MS + at])] for at in range(6)])
    search = await world.begin([])
    monkeypatch.setattr(time_search, "OLDER_BYTES_MAX", 2 * world.meta_store.segments.sealed[0].bytes)
    world.reader.damaged = {5}
    assert (await search.ranges(NOW_MS, NOW_MS + 1)).keys() == {4, 6}
    world.reader.damaged = set()
    assert (await search.ranges(NOW_MS, NOW_MS + 1)).keys() == {3, 4, 5, 6}
    found = await search.ranges(NOW_MS, NOW_MS + 1)
    assert found.keys() == {1, 2, 3, 4, 5, 6} and found[1] == (0, 1)
    assert found[6] == (0, 0)


async def test_what_one_question_has_read_no_other_reads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that say 1970 make a question walk to the end: the first one."""
    monkeypatch.setattr(ledger_times, "CHECKPOINT_BYTES", 1)
    world = World([[(NOW_MS + at, [1_970] * 100) for at in range(20)] for _ in range(3)])
    search = await world.begin([])
    times = [1_971, NOW_MS, 2 * NOW_MS]
    found = await asyncio.gather(*(search.find(time) for time in times))
    assert set(found) == {Position(3, 2_000)} and len(world.reader.reads) == 30
    active = world.meta_store.segments.active
    assert active is not None
    world.write(active, [(NOW_MS + 50, [1_970, 5_000_000])])
    assert await search.find(2 * NOW_MS) == Position(3, 2_001)
    assert world.reader.reads[30:] == [3, 3], "only what is new, and the piece that has it"


async def test_what_was_read_of_a_sealed_segment_is_recorded() -> None:
    world = World([[(NOW_MS, [NOW_MS + 7, NOW_MS - 3])], [(NOW_MS + 10, [NOW_MS])]])
    search = await world.begin([])
    assert await search.find(NOW_MS + 8) == Position(2, 1)
    [record, _] = (await topics.load(world.store, "/topic")).segments
    assert (record.publish_min_ms, record.publish_max_ms, record.publish_ahead_ms) == (
        NOW_MS - 3,
        NOW_MS + 7,
        7,
    )
    again = TimeSearch(world.meta_store, world.reader, search._services)  # type: ignore[arg-type]
    world.reader.reads.clear()
    assert await again.find(NOW_MS + 8) == Position(2, 1)
    assert set(world.reader.reads) == {2}


async def test_of_older_segments_that_nothing_is_known_of_only_some_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many as a question may read, the newest first; the next question reaches further back."""
    step = 10 * time_search.CLOCK_SKEW_MS
    world = World([[(NOW_MS + at * step, [NOW_MS + (at + 100) * step])] for at in range(6)])
    search = await world.begin([])
    monkeypatch.setattr(time_search, "OLDER_BYTES_MAX", 2 * world.meta_store.segments.sealed[0].bytes)
    time_ms = NOW_MS + 99 * step
    assert [(await search.find(time_ms)).ledger_id for _ in range(3)] == [4, 3, 2]


async def test_an_older_segment_that_cannot_be_read_fails_no_search() -> None:
    step = 10 * time_search.CLOCK_SKEW_MS
    world = World([[(NOW_MS + at * step, [NOW_MS + at * step])] for at in range(3)])
    search = await world.begin([])
    world.reader.damaged = {1}
    assert await search.find(NOW_MS + step) == Position(2, 0)
    with pytest.raises(CorruptionError):
        await search.find(NOW_MS)


async def test_a_segment_that_is_trimmed_meanwhile_is_reported() -> None:
    world = World([[(NOW_MS, [NOW_MS])], [(NOW_MS + 1, [NOW_MS + 1])]])
    search = await world.begin([])
    read = world.reader.read

    async def trimmed(position: Position, bytes_max: int) -> list[Buffer]:
        world.reader.read = read  # type: ignore[method-assign]
        await world.meta_store.trim(2)
        return await read(position, bytes_max)

    world.reader.read = trimmed  # type: ignore[method-assign]
    with pytest.raises(NotFound, match="trimmed"):
        await search.find(NOW_MS)


def test_an_entry_that_cannot_be_read_belongs_to_any_time() -> None:
    nothing = encode_one(OutgoingMessage(b"x"), "p", 0, 5)[:6] + b"\0\0\0\0"
    made = blocks.cut(1, 0, -1, 10, 0, [entry_at(5), nothing, b"\x0e\x01", b"", entry_at(2**64 - 1)])
    header = blocks.peek(made)
    assert publish_times(made, header) == [5, *[ANY_TIME_MS] * 4]
    times = PublishTimes()
    times.add(made, header)
    assert (times.min_ms, times.max_ms) == (1, ANY_TIME_MS), "no reader leaves such a segment out"
    lost = blocks.blank(1, 5, 10, 5, [1, 1])
    assert publish_times(lost, blocks.peek(lost)) == []


# -- a whole broker ---------------------------------------------------------------------------------------


async def publish_at(broker: Broker, times_ms: Sequence[int]) -> None:
    """Publish an entry for each of the publish times."""
    topic = await broker.registry.open_persistent(NAME)
    heads = [b"\x08\x01\x10%c" % number for number in range(len(times_ms))]
    producer: Any = SimpleNamespace(name="p", write=lambda _: None)
    topic.log.publisher.publish(producer, PublishRun.of(1, heads, [entry_at(time) for time in times_ms]))
    assert await topic.log.publisher.flushed()


@pytest.mark.parametrize("ahead_ms", [-YEAR_MS, -60_000, 0, 9_000, 11_000, 3 * 3_600_000, YEAR_MS])
async def test_a_seek_finds_the_same_before_and_after_archiving_and_a_restart(
    house: BrokerHouse, ahead_ms: int
) -> None:
    broker = await house.start()
    base_ms = house.clock.now_ms() + ahead_ms
    await broker.registry.open(NAME, create=True)
    for part in range(2):
        await publish_at(broker, [base_ms + 100 * number for number in range(5 * part, 5 * part + 5)])
        if part == 0:
            topic = await broker.registry.open_persistent(NAME)
            await topic.log.writing.roll()  # type: ignore[misc]

    async def found() -> list[int]:
        log = (await broker.registry.open_persistent(NAME)).log
        first, second = (view for view in log.segments() if view.messages)
        asked = [await log.find_time(base_ms + 100 * number + 50) for number in range(-1, 10)]
        ledgers = {first.ledger_id: 0, second.ledger_id: 5}
        return [at.entry_id + ledgers.get(at.ledger_id, 10) for at in asked]

    expected = list(range(11))
    assert await found() == expected
    client = pulsar.Client(broker.service_url, logger=QUIET)
    consumer = await in_thread(lambda: client.subscribe(str(NAME), "s"))
    await in_thread(lambda: consumer.seek(base_ms + 550))
    got = await in_thread(lambda: [consumer.receive(20_000).publish_timestamp() for _ in range(4)])
    assert got == [base_ms + 100 * number for number in range(6, 10)]
    await in_thread(client.close)
    assert broker.offloading is not None
    report = await broker.offloading.run(seal=True)
    assert report.failed == 0
    sealed = (await broker.registry.open_persistent(NAME)).log.segment_list.sealed
    assert [(one.publish_min_ms, one.publish_max_ms) for one in sealed if one.messages] == [
        (base_ms, base_ms + 400),
        (base_ms + 500, base_ms + 900),
    ]
    await house.stop(broker)
    broker = await house.start()
    assert await found() == expected


async def test_searches_of_many_topics_take_turns() -> None:
    """Few hold a chunk at once, and a short one does not wait for the end of the long ones."""
    running = asyncio.Semaphore(2)
    long = [World([[(NOW_MS + at, [1_970] * 100) for at in range(20)]]) for _ in range(5)]
    short = World([[(NOW_MS, [NOW_MS])]])
    searches = [await world.begin([]) for world in [*long, short]]
    held = most = 0
    for world, search in zip([*long, short], searches, strict=True):
        search._services = SimpleNamespace(slices=Slices(), time_searches=running)  # type: ignore[assignment]
        read = world.reader.read

        async def counted(position: Position, bytes_max: int, read: Any = read) -> list[Buffer]:
            nonlocal held, most
            held += 1
            most = max(most, held)
            found = await read(position, bytes_max)
            held -= 1
            return found  # type: ignore[no-any-return]

        world.reader.read = counted  # type: ignore[method-assign]
    tasks = [asyncio.ensure_future(search.find(NOW_MS)) for search in searches]
    assert await tasks[-1] == Position(1, 0)
    assert not any(task.done() for task in tasks[:-1])
    await asyncio.gather(*tasks)
    assert most == 2
