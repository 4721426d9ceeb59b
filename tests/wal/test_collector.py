"""Closed WALs become sets, then nothing; whose writer is gone is closed; who lives is left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quire.metadata import paths
from quire.metadata.records import WalState
from quire.runtime.clock import Clock, ManualClock
from quire.runtime.errors import ConfigurationError, NotFound
from quire.wal import tombstones, wal_object
from quire.wal.collector import GRACE_S, REMOVE_AFTER_S, Collector
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


async def test_whose_writer_is_gone_is_closed_after_a_while_and_who_lives_is_not() -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    clock = ManualClock()
    collector = collector_of(node, clock)
    await node.metadata.create(paths.broker("broker"), b"", ephemeral=True)
    for _ in range(3):
        await collector.look()
        clock.advance_ms(int(GRACE_S * 1000))
    assert (await node.record()).state is WalState.OPEN, "its broker is registered"
    await node.metadata.delete(paths.broker("broker"))
    await collector.look()
    assert (await node.record()).state is WalState.OPEN
    clock.advance_ms(int(GRACE_S * 1000))
    await collector.look()
    assert (await node.record()).state is WalState.CLOSED
    await node.wal.stop()


async def test_of_a_broker_s_wals_the_newest_is_its_own() -> None:
    node = await Node().start()
    await node.metadata.create(paths.broker("broker"), b"", ephemeral=True)
    clock = ManualClock((await node.record()).created_ms + 1)
    newer = await OwnRecord.begin(wal_context(node.store, node.metadata, clock=clock, broker="broker"))
    collector = collector_of(node, clock)
    for _ in range(2):
        await collector.look()
        clock.advance_ms(int(GRACE_S * 1000))
    assert (await node.record()).state is WalState.CLOSED
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
