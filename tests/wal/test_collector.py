"""Closed WALs become sets, then nothing; whose writer is gone is closed; who lives is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest

from quire.metadata import paths
from quire.metadata.records import WalState
from quire.objects.store import ObjectInfo
from quire.runtime.clock import Clock, ManualClock
from quire.runtime.errors import ConfigurationError, NotFound, OutcomeUnknown, WrongCluster
from quire.testing.metadata import MemoryStore
from quire.wal import own_record, tombstones, wal_object
from quire.wal.collector import GRACE_S, REMOVE_AFTER_S, SWEEP_UPLOADS_S, UPLOAD_MS, Collector
from quire.wal.foreign import ForeignWal
from quire.wal.own_record import OwnRecord
from quire.wire.bookie import BookieId, Status
from tests.wal.blocks import made
from tests.wal.context import wal_context
from tests.wal.node import Asked, Node


def collector_of(
    node: Node, clock: Clock | None = None, own: Callable[[], BookieId | None] = lambda: None
) -> Collector:
    return Collector(wal_context(node.store, node.metadata, clock=clock, broker="other"), own, lambda: True)


async def a_dead_one() -> tuple[Node, Asked]:
    """A WAL with blocks in a set and in data objects, closed by another; and the way to it."""
    node = await Node().start()
    await node.add(made(1, 0), made(2, 0))
    await node.wal.flush()
    await node.add(made(1, 1), made(3, 0))
    await node.add(made(1, 2))
    other = Asked(ForeignWal(node.context, node.uuid), node.bookie_id)
    await other.ask(1, 0, fence=True)
    await node.wal.stop()
    return node, other


async def test_data_objects_become_a_set_and_all_is_read_as_before() -> None:
    node, other = await a_dead_one()
    before = [await other.read(1, entry) for entry in range(3)]
    await collector_of(node).look()
    record = await node.record()
    assert record.trim_seq == record.end_seq == 3
    assert node.objects().count("set") == 2
    assert node.objects() == ["3", "set", "set", "sets"], "the fence is number 3"
    again = Asked(ForeignWal(node.context, node.uuid), node.bookie_id)
    for asked in (other, again):
        assert [await asked.read(1, entry) for entry in range(3)] == before
        assert (await asked.ask(1, 3)).status is Status.NO_SUCH_ENTRY


async def test_when_all_its_ledgers_are_deleted_the_fence_is_left_and_later_the_record_goes() -> None:
    node, other = await a_dead_one()
    clock = ManualClock()
    collector = collector_of(node, clock)
    await collector.look()
    for ledger_id in (1, 2):
        await other.delete(ledger_id)
    await collector.look()
    assert node.objects().count("set") == 1, "ledger 3 is alive"
    await other.delete(3)
    await collector.look()
    assert node.objects() == ["3"]
    late = wal_object.data_name(node.uuid, 1)
    await node.store.put_whole(late, [b"of a writer that stood still".ljust(300)])
    assert (
        await Asked(ForeignWal(node.context, node.uuid), node.bookie_id).ask(9, 0)
    ).status is Status.NO_SUCH_ENTRY
    calls = len(node.store.faults.calls)
    await collector.look()
    assert len(node.store.faults.calls) == calls, "meanwhile the store is asked nothing"
    clock.advance_ms(int(REMOVE_AFTER_S * 1000))
    await collector.look()
    assert node.objects() == ["3"], "what came late is gone, too"
    with pytest.raises(NotFound):
        await node.record()
    assert await tombstones.laid(node.metadata, node.uuid) == {}
    assert (await Asked(ForeignWal(node.context, node.uuid), node.bookie_id).ask(1, 0)).status in (
        Status.NO_SUCH_ENTRY,
        Status.DELETED,
    )


async def test_what_a_dead_writer_left_behind_is_swept() -> None:
    node, other = await a_dead_one()
    for name in (wal_object.set_name(node.uuid, 7, "x"), wal_object.data_name(node.uuid, 9)):
        await node.store.put_whole(name, (b"of a set that was never named, or an upload that came late",))
    await collector_of(node).look()
    assert node.objects() == ["3", "set", "set", "sets"]
    assert await other.read(3, 0) == [made(3, 0)]


async def test_a_death_in_the_middle_loses_nothing() -> None:
    """Whichever call to a store is the collector's last, another one finishes its work."""
    for calls in range(1, 60):
        node, other = await a_dead_one()
        left = calls

        def die(call: str) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                raise ConfigurationError("this process is dead")

        node.store.faults.before = die
        await collector_of(node).look()
        node.store.faults.before = lambda call: None
        await collector_of(node).look()
        assert await other.read(1, 0) + await other.read(2, 0) + await other.read(3, 0)
        assert node.objects() == ["3", "set", "set", "sets"]
        if left > 0:
            return
    raise AssertionError("it never came to its end")


async def looks(collector: Collector, clock: ManualClock, count: int = 3) -> None:
    """That many looks, a grace period apart."""
    for _ in range(count):
        await collector.look()
        clock.advance_ms(int(GRACE_S * 1000))


async def test_a_log_is_closed_a_while_after_its_writer_s_node_is_gone() -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    clock = ManualClock()
    collector = collector_of(node, clock)
    await looks(collector, clock)
    assert (await node.record()).state is WalState.OPEN, "its writer is registered"
    await node.metadata.delete(paths.wal_writer(node.uuid))
    await collector.look()
    assert (await node.record()).state is WalState.OPEN
    clock.advance_ms(int(GRACE_S * 1000))
    await collector.look()
    assert (await node.record()).state is WalState.CLOSED
    await node.wal.stop()


async def test_a_writer_that_ends_is_not_registered_any_more() -> None:
    node = await Node().start()
    assert await node.metadata.children(paths.WAL_WRITERS) == [node.uuid]
    await node.wal.stop()
    assert await node.metadata.children(paths.WAL_WRITERS) == []


async def test_a_living_log_is_left_alone_however_wrong_its_broker_s_clock_was() -> None:
    """An earlier log of the same broker was begun while its clock was a day ahead."""
    ahead = ManualClock(2_000_000_000_000 + 86_400_000)
    former = await Node().start()
    former.context = wal_context(former.store, former.metadata, clock=ahead, broker="broker")
    record = await OwnRecord.begin(former.context)
    await record.change(state=WalState.CLOSED, end_seq=0)
    await record.unregister()
    clock = ManualClock()
    await looks(collector_of(former, clock), clock)
    assert (await former.record()).state is WalState.OPEN and not former.ended
    await former.add(made(1, 0))
    await former.wal.stop()


async def test_of_a_broker_of_an_older_version_its_registration_tells_that_it_lives() -> None:
    """It registers no logs; when it has been restarted in a newer version, what it wrote before is over."""
    node = await Node().start()
    old = await OwnRecord.begin(node.context)
    await old.unregister()
    await old.change(is_registered=False, broker="old")
    clock = ManualClock()
    collector = collector_of(node, clock)
    await node.metadata.create(paths.broker("old"), b"", ephemeral=True)
    await looks(collector, clock)
    assert (await OwnRecord.read(node.metadata, old.record.uuid)).record.state is WalState.OPEN
    newer = await OwnRecord.begin(wal_context(node.store, node.metadata, broker="old"))
    await looks(collector, clock)
    assert (await OwnRecord.read(node.metadata, old.record.uuid)).record.state is WalState.CLOSED
    assert (await OwnRecord.read(node.metadata, newer.record.uuid)).record.state is WalState.OPEN
    await node.wal.stop()


async def test_the_own_wal_is_never_taken_for_a_dead_one() -> None:
    node = await Node().start()
    clock = ManualClock()
    collector = collector_of(node, clock, lambda: node.bookie_id)
    for _ in range(3):
        await collector.look()
        clock.advance_ms(int(GRACE_S * 1000))
    assert (await node.record()).state is WalState.OPEN
    await node.wal.stop()


async def test_one_wal_s_trouble_is_no_reason_to_leave_the_others() -> None:
    node, _ = await a_dead_one()
    node.store.faults.flip(wal_object.data_name(node.uuid, 1), 120)
    second = await Node(store=node.store, metadata=node.metadata).start()
    await second.add(made(5, 0))
    other = Asked(ForeignWal(second.context, second.uuid), second.bookie_id)
    await other.ask(5, 0, fence=True)
    await second.wal.stop()
    await collector_of(node).look()
    assert (await node.record()).trim_seq == 1, "what is damaged is never thrown away"
    assert (await second.record()).trim_seq == 1
    assert await other.read(5, 0) == [made(5, 0)]


OLD, YOUNG = 1, 2


async def test_uploads_that_never_ended_are_thrown_away_once_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    node, clock = await Node().start(), ManualClock()
    collector, uploads = collector_of(node, clock), node.store.faults.uploads
    clock.advance_ms(10 * UPLOAD_MS)
    uploads[OLD], uploads[YOUNG] = ("x", 0), ("y", clock.now_ms())
    place = collector._context.place
    with monkeypatch.context() as patched:
        patched.setattr(place, "confirm", AsyncMock(side_effect=WrongCluster("another store")))
        await collector.look()
    assert uploads.keys() == {OLD, YOUNG}, "they may be another cluster's"
    clock.advance_ms(int(SWEEP_UPLOADS_S * 1000))
    await collector.look()
    assert uploads.keys() == {YOUNG}
    uploads[OLD] = ("x", 0)
    await collector.look()
    assert OLD in uploads
    await node.wal.stop()


async def still_whole(node: Node, *ledgers: int) -> None:
    """The record names nothing that is missing, and all of these ledgers can be read."""
    record = await node.record()
    if record.catalogue:
        await node.store.size(record.catalogue)
    again = Asked(ForeignWal(node.context, node.uuid), node.bookie_id)
    for ledger_id in ledgers:
        assert await again.read(ledger_id, 0), f"ledger {ledger_id}"


async def test_a_slow_collector_deletes_nothing_that_a_faster_one_has_just_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two coordinators for a moment: one has looked, then the other writes a catalogue, then the first one sweeps."""
    node, other = await a_dead_one()
    await collector_of(node).look()
    slow, fast = collector_of(node), collector_of(node)
    sweep = slow._sweep

    async def sweep_late(*what: Any) -> None:
        await other.delete(3)
        await fast.look()
        await sweep(*what)

    monkeypatch.setattr(slow, "_sweep", sweep_late)
    await other.delete(2)
    await slow.look()
    await still_whole(node, 1)


async def test_a_change_that_another_made_alike_is_not_taken_for_the_own_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slower one's change is lost without an answer, and the record has the values that it wanted: the other's."""
    node, other = await a_dead_one()
    await collector_of(node).look()
    await node.store.put_whole(wal_object.set_name(node.uuid, 1, "x"), (b"of a death, to be swept",))
    slow_store, fast_store = Held(node.metadata), Held(node.metadata)
    slow = Collector(wal_context(node.store, slow_store, broker="slow"), lambda: None, lambda: True)  # type: ignore[arg-type]
    fast = Collector(wal_context(node.store, fast_store, broker="fast"), lambda: None, lambda: True)  # type: ignore[arg-type]
    has_written, has_swept = asyncio.Event(), asyncio.Event()
    real_list, slow_looks = node.store.list, None

    async def list_late(prefix: str = "") -> list[ObjectInfo]:
        if asyncio.current_task() is slow_looks and not listed:
            listed.append(prefix)
            await fast.look()  # it sweeps, too, and changes nothing else
            await other.delete(2)
            looking.append(asyncio.ensure_future(fast.look()))
            await has_written.wait()
        return await real_list(prefix)

    async def lose(_: object) -> None:
        raise OutcomeUnknown("connection loss")

    async def hold(_: object) -> None:
        if len(fast_store.puts) > 1:
            has_written.set()
            await has_swept.wait()

    looking: list[asyncio.Future[None]] = []
    listed: list[str] = []
    monkeypatch.setattr(node.store, "list", list_late)
    monkeypatch.setattr(own_record, "RETRY_S", 0.0)
    slow_store.before, fast_store.before = [lose], [hold] * 9
    slow_looks = asyncio.ensure_future(slow.look())
    await asyncio.wait_for(slow_looks, 10)
    has_swept.set()
    await asyncio.gather(*looking)
    await still_whole(node, 1, 3)


class Held:
    """A session with the metadata store, whose puts do first what a test has put in `before`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.before: list[Callable[[object], Awaitable[None]]] = []
        self.puts: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put(self, path: str, value: bytes, version: int) -> int:
        self.puts.append(path)
        if self.before:
            await self.before.pop(0)(value)
        return await self._store.put(path, value, version)


async def test_a_former_coordinator_stops_within_its_round() -> None:
    node, _ = await a_dead_one()
    second = await Node(store=node.store, metadata=node.metadata).start()
    await second.add(made(5, 0))
    await Asked(ForeignWal(second.context, second.uuid), second.bookie_id).ask(5, 0, fence=True)
    await second.wal.stop()
    may = iter((True, True))
    collector = Collector(
        wal_context(node.store, node.metadata, broker="other"), lambda: None, lambda: next(may, False)
    )
    await collector.look()
    trimmed = [(await each.record()).trim_seq > 1 for each in (node, second)]
    assert sum(trimmed) <= 1
