"""The driver: one segment's way from the bookies to the archive, cut short at every step."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from quire.metadata.records import ArchivePointer, ClusterRecord, SegmentRecord
from quire.metadata.segment_states import segment_state
from quire.runtime.clock import ManualClock
from quire.runtime.errors import (
    CorruptionError,
    Fenced,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    WrongCluster,
)
from quire.testing.objects import MemoryObjectStore
from quire.testing.place import CLUSTER, TrustedPlace
from quire.tiering import segment_label
from quire.tiering.archive import Archive, SegmentReader
from quire.tiering.offload import Action, Offloader, OffloadTopic, next_action
from quire.tiering.segment_label import label_of

from .segments import TOPIC, Source, but_labels, make_blocks, record_of

LAG_MS = 60_000
GENERATION = 77
DELAY_MS = 500
POINTER = ArchivePointer(store="memory://", name="segments/x", bytes=1, crc=2, archived_ms=1000)
SEALED = SegmentRecord(ledger_id=1, sealed_ms=1, last_entry=9)
ARCHIVED = replace(SEALED, archive=POINTER)
RELEASED = replace(ARCHIVED, on_bookies=False)


@pytest.mark.parametrize(
    ("segment", "now_ms", "gone", "action", "state"),
    [
        (SegmentRecord(ledger_id=1), 9_000_000, False, Action.NOTHING, "active"),
        (replace(SEALED, last_entry=-1), 9_000_000, False, Action.NOTHING, "sealed"),
        (SEALED, DELAY_MS, False, Action.NOTHING, "sealed"),
        (SEALED, 1 + DELAY_MS, False, Action.UPLOAD, "sealed"),
        (ARCHIVED, 1000 + LAG_MS - 1, False, Action.NOTHING, "archived"),
        (ARCHIVED, 1000 + LAG_MS, False, Action.RELEASE, "archived"),
        (replace(SEALED, sealed_ms=9_000_000), DELAY_MS, False, Action.UPLOAD, "sealed"),
        (ARCHIVED, 999, False, Action.RELEASE, "archived"),
        (RELEASED, 1000, False, Action.DELETE, "released"),
        (RELEASED, 1000, True, Action.NOTHING, "released"),
    ],
)
def test_the_table(segment: SegmentRecord, now_ms: int, gone: bool, action: Action, state: str) -> None:
    found = next_action(segment, now_ms=now_ms, lag_ms=LAG_MS, copy_is_gone=gone, delay_ms=DELAY_MS)
    assert found is action
    assert segment_state(segment, is_flushed=False).value == state


class Crash(Exception):
    """The process ends here."""


class Broker:
    """Topics in memory, as a broker shows them to the driver. `fail` names the call that fails next."""

    def __init__(self, count: int = 1) -> None:
        self.blocks = {ledger: make_blocks(20, 500, seed=ledger, ledger_id=ledger) for ledger in range(count)}
        self.segments = {ledger: record_of(blocks) for ledger, blocks in self.blocks.items()}
        self.on_bookies = set(self.blocks)
        self.unflushed: set[int] = set()
        self.failures: dict[str, Exception] = {}
        self.calls: list[str] = []
        self.lag_ms: int | None = None

    def topics(self) -> Iterable[OffloadTopic]:
        return [OffloadTopic(TOPIC, list(self.segments.values()), self.lag_ms)]

    def generation(self, topic: str) -> int:
        return GENERATION

    async def is_flushed(self, ledger_id: int) -> bool:
        return ledger_id not in self.unflushed

    async def open_reader(self, ledger_id: int) -> SegmentReader:
        self._call("open_reader")
        if ledger_id not in self.on_bookies:
            raise NotFound("trimmed")
        return Source(self.blocks[ledger_id])

    async def open_combined(self, topic: str, ledger_id: int) -> SegmentReader:
        return await self.open_reader(ledger_id)

    async def record_archived(self, topic: str, segment: SegmentRecord) -> None:
        self._call("record_archived")
        if segment.ledger_id not in self.segments:
            raise NotFound("trimmed")
        self.segments[segment.ledger_id] = replace(self.segments[segment.ledger_id], archive=segment.archive)

    async def record_released(self, topic: str, ledger_id: int) -> None:
        self._call("record_released")
        self.segments[ledger_id] = replace(self.segments[ledger_id], on_bookies=False)

    async def delete_copy(self, topic: str, ledger_id: int) -> None:
        self._call("delete_copy")
        assert not self.segments[ledger_id].on_bookies, "readers may still go to the bookies"
        self.on_bookies.discard(ledger_id)

    def _call(self, call: str) -> None:
        self.calls.append(call)
        error = self.failures.pop(call, None)
        if error is not None:
            raise error


class World:
    def __init__(self, segments: int = 1) -> None:
        self.clock = ManualClock()
        self.store = MemoryObjectStore(self.clock)
        self.broker = Broker(segments)
        self.restart()

    def restart(self) -> None:
        """A new process: what was only in memory is gone."""
        self.archive = Archive(TrustedPlace(self.store), self.clock)
        self.driver = Offloader(self.archive, self.broker, self.clock, lag_ms=LAG_MS)

    def pointer(self, ledger_id: int) -> ArchivePointer:
        pointer = self.broker.segments[ledger_id].archive
        assert pointer is not None
        return pointer

    async def damage(self, pointer: ArchivePointer, how: str) -> None:
        match how:
            case "flipped":
                self.store.faults.flip(pointer.name, pointer.bytes // 2)
            case "cut":
                content, modified_ms = self.store.faults.objects[pointer.name]
                self.store.faults.objects[pointer.name] = content[:-9], modified_ms
            case "missing":
                await self.archive.delete([pointer])

    async def proven(self) -> bool:
        """Every segment can be read in full, from the bookies or from the archive."""
        for ledger, segment in self.broker.segments.items():
            if segment.archive is not None:
                await self.archive.verify(segment.archive)
            if ledger not in self.broker.on_bookies and segment.archive is None:
                return False
            if segment.on_bookies and ledger not in self.broker.on_bookies:
                return False
        return True


async def test_who_listens_hears_in_every_round_of_what_is_archived_and_not_released() -> None:
    world = World(segments=2)
    heard: list[list[int]] = []
    world.driver.on_archived(lambda some: heard.append([one.segment.ledger_id for one in some]))
    for _ in range(3):
        await world.driver.run_once()
    world.clock.advance_ms(LAG_MS)
    await world.driver.run_once()
    await world.driver.run_once()
    assert heard == [[], [0, 1], [0, 1], [0, 1], []]


async def test_a_segments_whole_way() -> None:
    world = World(segments=3)
    report = await world.driver.run_once()
    assert (report.archived, report.released, report.failed) == (3, 0, 0)
    assert report.archived_bytes == sum(info.bytes for info in await but_labels(world.store))
    assert (await world.driver.run_once()).archived == 0
    world.clock.advance_ms(LAG_MS)
    report = await world.driver.run_once()
    assert (report.archived, report.released) == (0, 3)
    assert world.broker.on_bookies == set()
    assert await world.proven()
    world.broker.calls.clear()
    await world.driver.run_once()
    assert world.broker.calls == []


async def test_nothing_waits_while_space_is_short() -> None:
    world, is_short = World(), [False]
    driver = Offloader(
        world.archive,
        world.broker,
        world.clock,
        lag_ms=LAG_MS,
        delay_ms=world.clock.now_ms(),
        is_short_of_space=lambda: is_short[0],
    )
    world.broker.segments[0] = replace(world.broker.segments[0], sealed_ms=world.clock.now_ms())
    assert (await driver._do_round(by_hand=False)).archived == 0, "it was sealed a moment ago"
    is_short[0] = True
    assert (await driver._do_round(by_hand=False)).archived == 1
    is_short[0] = False
    assert (await driver._do_round(by_hand=False)).released == 0, "it was archived a moment ago"
    is_short[0] = True
    assert (await driver._do_round(by_hand=False)).released == 1


async def test_a_segment_waits_until_it_is_flushed_unless_asked_by_hand() -> None:
    world = World()
    world.broker.unflushed = {0}
    assert (await world.driver._do_round(by_hand=False)).waiting == 1
    assert world.driver.status().waiting == 1
    assert (await world.driver.run_once()).archived == 1


@pytest.mark.parametrize(
    "call",
    [
        "open_reader",
        "begin",
        "write",
        "finish",
        "get_range",
        "record_archived",
        "record_released",
        "delete_copy",
    ],
)
@pytest.mark.parametrize("happened", [False, True])
async def test_a_crash_at_any_step_repeats_a_step_at_most(call: str, happened: bool) -> None:
    world = World(segments=2)
    if call in ("begin", "write", "finish", "get_range"):
        world.store.faults.fail_next(call, Crash(), happened=happened)
    elif happened:
        world.broker = _crashing_after(world.broker, call)
        world.restart()
    else:
        world.broker.failures[call] = Crash()
    for _ in range(5):
        await world.driver.run_once()
        world.restart()
        assert await world.proven()
        world.clock.advance_ms(LAG_MS)
    assert world.broker.on_bookies == set()
    assert all(segment.archive is not None for segment in world.broker.segments.values())
    assert len(await but_labels(world.store)) <= 3, "one orphan at most"


def _crashing_after(broker: Broker, call: str) -> Broker:
    """The next `call` is made, and the process ends before it hears of it."""
    real = getattr(broker, call)

    async def crash(*arguments: object) -> None:
        setattr(broker, call, real)
        await real(*arguments)
        raise Crash

    setattr(broker, call, crash)
    return broker


async def test_a_lost_answer_to_the_recording_never_costs_the_object() -> None:
    world = World()
    world.broker = _crashing_after(world.broker, "record_archived")
    world.restart()
    await world.driver.run_once()
    assert world.broker.segments[0].archive is not None
    assert await world.proven()
    assert (await world.driver.run_once()).archived == 0


async def test_an_object_that_vanished_keeps_the_bookies_copy() -> None:
    world = World()
    await world.driver.run_once()
    pointer = world.broker.segments[0].archive
    assert pointer is not None
    await world.archive.delete([pointer])
    world.clock.advance_ms(LAG_MS)
    report = await world.driver.run_once()
    assert report.failed == 1
    assert pointer.name in report.errors[0]
    assert world.broker.on_bookies == {0}
    assert world.broker.segments[0].on_bookies


async def test_an_object_that_rotted_since_it_was_verified_keeps_the_bookies_copy() -> None:
    world = World()
    await world.driver.run_once()
    pointer = world.pointer(0)
    world.store.faults.flip(pointer.name, pointer.bytes // 2)
    world.clock.advance_ms(LAG_MS)
    report = await world.driver.run_once()
    assert (report.released, report.failed) == (0, 1)
    assert "segment 0 of" in report.errors[0] and pointer.name in report.errors[0]
    assert world.broker.on_bookies == {0} and pointer.name in world.archive.damaged
    world.store.faults.flip(pointer.name, pointer.bytes // 2)
    assert (await world.driver.run_once()).released == 1
    assert world.archive.damaged == {}


@pytest.mark.parametrize("lag_ms", [0, LAG_MS // 2, 2 * LAG_MS])
async def test_the_lag_of_a_topics_policies_is_instead_of_the_drivers(lag_ms: int) -> None:
    world = World()
    world.broker.lag_ms = lag_ms
    await world.driver.run_once()
    if lag_ms:
        world.clock.advance_ms(lag_ms - 1)
        assert (await world.driver.run_once()).released == 0
        world.clock.advance_ms(1)
    assert (await world.driver.run_once()).released == 1


async def test_an_object_that_was_verified_a_moment_ago_is_only_looked_at() -> None:
    world = World()
    driver = Offloader(world.archive, world.broker, world.clock, lag_ms=0)
    await driver.run_once()
    world.store.faults.calls.clear()
    assert (await driver.run_once()).released == 1
    assert world.store.faults.calls == ["size"]


@pytest.mark.parametrize("jump_ms", [-86_400_000, 0, 86_400_000])
async def test_an_object_that_another_process_verified_is_proven_whatever_the_clocks_say(
    jump_ms: int,
) -> None:
    world = World()
    await world.driver.run_once()
    pointer = world.pointer(0)
    world.broker.segments[0] = replace(
        world.broker.segments[0], archive=replace(pointer, archived_ms=pointer.archived_ms + jump_ms)
    )
    world.store.faults.flip(pointer.name, pointer.bytes // 2)
    world.restart()
    world.clock.advance_ms(LAG_MS)
    assert (await world.driver.run_once()).released == 0
    assert world.broker.on_bookies == {0}


class Moved(TrustedPlace):
    """Stores that prove to be another cluster's from some moment on."""

    error: Exception | None = None

    async def confirm(self) -> ClusterRecord:
        if self.error is not None:
            raise self.error
        return await super().confirm()


@pytest.mark.parametrize("error", [WrongCluster("has no cluster"), Unavailable("no answer")])
async def test_bookies_copies_are_kept_where_the_place_is_not_proven(error: Exception) -> None:
    world = World(segments=2)
    place = Moved(world.store)
    world.archive = Archive(place, world.clock)
    world.driver = Offloader(world.archive, world.broker, world.clock, lag_ms=LAG_MS)
    await world.driver.run_once()
    place.error = error
    world.clock.advance_ms(LAG_MS)
    for _ in range(2):
        report = await world.driver.run_once()
        assert (report.released, report.failed) == (0, 2) and str(error) in report.errors[0]
    assert world.broker.on_bookies == {0, 1} and world.driver.status().failing == report.errors
    place.error = None
    assert (await world.driver.run_once()).released == 2
    assert world.driver.status().failing == []


async def test_after_a_restart_new_segments_do_not_wait_for_old_deletions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quire.tiering.offload.DELETIONS_PER_ROUND", 3)
    world = World(segments=5)
    await world.driver.run_once()
    world.clock.advance_ms(LAG_MS)
    await world.driver.run_once()
    world.broker.blocks[9] = make_blocks(20, 500, seed=9, ledger_id=9)
    world.broker.segments[9] = record_of(world.broker.blocks[9])
    world.broker.on_bookies.add(9)
    world.restart()
    world.broker.calls.clear()
    await world.driver._do_round(by_hand=False)
    assert world.broker.calls == [
        "open_reader",
        "delete_copy",
        "delete_copy",
        "delete_copy",
        "record_archived",
    ]
    await world.driver._do_round(by_hand=False)
    assert world.broker.calls.count("delete_copy") == 5


@pytest.mark.parametrize("how", ["flipped", "cut", "missing"])
async def test_a_damaged_object_is_uploaded_again_from_the_bookies(how: str) -> None:
    world = World(segments=2)
    await world.driver.run_once()
    damaged = world.pointer(0)
    await world.damage(damaged, how)
    assert await world.driver.repair(TOPIC, world.broker.segments[0])
    assert not await world.driver.repair(TOPIC, world.broker.segments[1]), "it is whole"
    assert world.pointer(0).name != damaged.name
    assert (damaged.upload, world.pointer(0).upload) == (0, 1)
    assert await world.proven() and world.archive.damaged == {}
    assert len(await but_labels(world.store)) == 2, "the damaged object is gone"


@pytest.mark.parametrize("how", ["flipped", "missing"])
async def test_a_damaged_label_is_put_anew(how: str) -> None:
    world = World()
    await world.driver.run_once()
    pointer = world.pointer(0)
    name = label_of(pointer.name)
    if how == "missing":
        await world.store.delete(name)  # as where a segment was archived before there were labels
    else:
        world.store.faults.flip(name, 40)
    assert await world.driver.repair_label(TOPIC, world.broker.segments[0])
    label = await segment_label.read(world.store, name)
    assert (label.topic, label.segment) == (TOPIC, world.broker.segments[0])
    assert (label.generation, label.cluster) == (GENERATION, CLUSTER)
    assert world.pointer(0) == pointer, "the object was whole"
    assert not await world.driver.repair_label(TOPIC, world.broker.segments[0])


async def test_a_damaged_object_that_bookies_do_not_have_any_more_is_told_of_and_stays() -> None:
    world = World()
    await world.driver.run_once()
    world.broker.on_bookies.clear()
    await world.damage(world.pointer(0), "flipped")
    with pytest.raises(
        CorruptionError, match=r"segment 0 of .* is damaged: .*cannot be uploaded again: trimmed"
    ):
        await world.driver.repair(TOPIC, world.broker.segments[0])
    assert len(await but_labels(world.store)) == 1 and list(world.archive.damaged) == [world.pointer(0).name]


async def test_a_store_that_does_not_answer_is_no_damage() -> None:
    world = World()
    await world.driver.run_once()
    world.store.faults.fail_next("get_range", Unavailable("no"))
    with pytest.raises(Unavailable):
        await world.driver.repair(TOPIC, world.broker.segments[0])
    assert world.archive.damaged == {}


async def test_a_segment_trimmed_while_it_was_uploaded_leaves_no_object() -> None:
    world = World()
    world.broker.failures["record_archived"] = NotFound("trimmed")
    report = await world.driver.run_once()
    assert (report.archived, report.failed) == (0, 0)
    assert await world.store.list() == []


async def test_a_topic_that_went_to_another_broker_is_let_alone() -> None:
    world = World()
    world.broker.failures["record_archived"] = Fenced("another broker")
    assert (await world.driver.run_once()).failed == 0
    assert len(await but_labels(world.store)) == 1, "its record may name the object: never deleted here"


async def test_failures_wait_longer_and_longer_and_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="quire.tiering.offload")
    world = World(segments=2)

    async def a_round(*, fails: bool) -> tuple[int, int, int]:
        if fails:
            world.store.faults.fail_next("begin", Unavailable("no"))
        report = await world.driver._do_round(by_hand=False)
        return report.archived, report.failed, report.waiting

    assert await a_round(fails=True) == (1, 1, 0)
    assert await a_round(fails=True) == (0, 0, 1)
    world.clock.advance_ms(1000)
    assert await a_round(fails=False) == (0, 1, 0), "the fault that waited"
    world.clock.advance_ms(1999)
    assert await a_round(fails=False) == (0, 0, 1)
    assert len(world.driver.status().failing) == 1
    world.clock.advance_ms(1)
    assert await a_round(fails=False) == (1, 0, 0)
    assert world.driver.status().failing == []
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert sum("succeeded after earlier failures" in record.getMessage() for record in caplog.records) == 1


async def test_a_mistake_of_ours_does_not_end_the_driver(caplog: pytest.LogCaptureFixture) -> None:
    world = World(segments=2)
    world.broker.failures["open_reader"] = ZeroDivisionError("oops")
    report = await world.driver.run_once()
    assert (report.archived, report.failed) == (1, 1)
    assert "ZeroDivisionError" in caplog.text


async def test_the_background_works_when_woken() -> None:
    world = World()
    world.broker.unflushed = {0}
    looked, done = asyncio.Event(), asyncio.Event()
    is_flushed, record = world.broker.is_flushed, world.broker.record_archived

    async def looking(ledger_id: int) -> bool:
        looked.set()
        return await is_flushed(ledger_id)

    async def recording(topic: str, segment: SegmentRecord) -> None:
        await record(topic, segment)
        done.set()

    world.broker.is_flushed = looking  # type: ignore[method-assign]
    world.broker.record_archived = recording  # type: ignore[method-assign]
    world.driver.start()
    await asyncio.wait_for(looked.wait(), 5)
    world.broker.unflushed = set()
    world.driver.wake()
    await asyncio.wait_for(done.wait(), 5)
    await world.driver.stop()
    assert (await world.driver.run_once()).archived == 0


async def test_an_upload_whose_outcome_is_unknown_is_recorded_when_it_is_there() -> None:
    world = World()
    world.store.faults.fail_next("finish", OutcomeUnknown("time-out"), happened=True)
    assert (await world.driver.run_once()).archived == 1
    assert await world.proven()


@pytest.mark.parametrize("happened", [True, False])
async def test_an_upload_whose_end_is_not_found_is_looked_at(happened: bool) -> None:
    """S3 answers NoSuchUpload to the end of an upload that it has carried out, sent again after a lost answer."""
    world = World()
    world.store.faults.fail_next("finish", NotFound("NoSuchUpload"), happened=happened)
    report = await world.driver.run_once()
    assert (report.archived, report.failed) == ((1, 0) if happened else (0, 1))
    assert (await world.driver.run_once()).archived == 1 - happened
    assert len(await but_labels(world.store)) == 1


@pytest.mark.parametrize("call", ["begin", "write"])
async def test_a_bucket_that_is_not_found_is_a_failure_and_no_trimmed_segment(call: str) -> None:
    world = World()
    world.store.faults.fail_next(call, NotFound("NoSuchBucket"))
    report = await world.driver.run_once()
    assert (report.archived, report.failed) == (0, 1)
