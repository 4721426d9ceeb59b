"""Ledgers over three bookies in memory, 3/3/2: write, lose a bookie, take over, read, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from quire.ledger.ledgers import Above
from quire.metadata import paths
from quire.metadata.records import BookieRecord, LedgerState, PersistencePolicy, encode
from quire.metadata.store import Put
from quire.runtime.errors import (
    CorruptionError,
    Fenced,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    VersionConflict,
)
from quire.testing.bookie import deliver_soon
from quire.testing.cluster import Listener, MemoryCluster, cut, expected, read_all, turns_until, write
from quire.wire.bookie import AddRequest, ReadRequest, ReadResponse, Status


async def test_what_is_written_is_read():
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", listener := Listener())
    last = write(writer, blocks=10, count=3)
    await listener.until(last)
    assert writer.core.blocks_pending == 0
    assert await read_all(cluster.ledgers, writer.ledger_id) == expected(last)
    record = await writer.close()
    assert (record.state, record.last_entry) == (LedgerState.CLOSED, last)
    assert await cluster.ledgers.info(writer.ledger_id) == record
    assert await read_all(cluster.join(), writer.ledger_id) == expected(last)


async def test_close_waits_for_what_is_pending():
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", Listener())
    last = write(writer, blocks=5)
    assert (await writer.close()).last_entry == last


async def _knocked(cluster: MemoryCluster) -> bool:
    """Whether repair was told that a closed ledger may lack something."""
    await asyncio.sleep(0.01)
    return bool(await cluster.store.children(paths.UNDERREPLICATED))


async def test_a_ledger_that_every_bookie_has_wholly_is_no_matter_for_repair(monkeypatch):
    """The last one answers after the ledger was closed."""
    monkeypatch.setattr("quire.ledger.writer.LATE_ANSWERS_S", 0.01)
    late: list[Callable[[], None]] = []
    cluster = MemoryCluster(2)
    third = cluster.grow(late.append)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, blocks=5))
    await writer.close()
    assert writer.core.bytes_pending > 0
    third.deliver = deliver_soon
    for answer in late:
        answer()
    assert writer.core.bytes_pending == 0
    assert not await _knocked(cluster)


async def test_repair_is_told_of_a_bookie_that_still_owes_answers(monkeypatch):
    monkeypatch.setattr("quire.ledger.writer.LATE_ANSWERS_S", 0)
    cluster = MemoryCluster(3)
    cluster.bookies[2].refuses = Status.BUSY
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, blocks=5))
    await writer.close()
    assert await _knocked(cluster)
    assert writer.core.bytes_pending == 0


async def test_repair_is_told_of_a_ledger_that_left_a_bookie_or_was_recovered():
    cluster = MemoryCluster(4)
    whole = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(whole, blocks=5))
    await whole.close()
    assert not await _knocked(cluster)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, blocks=5))
    cluster.ensemble(writer)[0].unreachable = True
    await listener.until(write(writer, blocks=5))
    await writer.close()
    assert await _knocked(cluster)

    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, blocks=5))
    writer.abandon()
    await cluster.ledgers.recover(writer.ledger_id)
    assert await _knocked(cluster)


async def test_a_ledger_that_failed_while_it_drained_is_no_empty_one():
    """Nothing is confirmed, but what it was given may be on bookies: it must be recovered, not removed."""
    cluster = MemoryCluster(3)
    for bookie in cluster.bookies:
        bookie.refuses = Status.CONFLICT
    writer = await cluster.ledgers.create("test", Listener())
    assert not writer.was_given_blocks
    write(writer, 1)
    await writer.drain()
    assert isinstance(writer.error, OutcomeUnknown)
    assert writer.last_confirmed == -1 and writer.was_given_blocks


async def test_blocks_of_one_turn_travel_in_one_request_and_are_one_confirmation():
    cluster = MemoryCluster(1)
    create = cluster.ledgers.create
    writers = [
        await create("test", Listener(), PersistencePolicy(write_quorum=1, ack_quorum=1)) for _ in range(3)
    ]
    for writer in writers:
        write(writer, blocks=4)
    listeners = [writer._listener for writer in writers]
    for listener in listeners:
        await listener.until(3)
        assert listener.confirmations == [3]
    [request] = [each for each in cluster.bookies[0].requests if isinstance(each, AddRequest)]
    assert len(request.blocks) == 3 + 12, "before each ledger's blocks its label"


async def test_ids_grow_over_processes_when_asked_to():
    cluster = MemoryCluster(3)
    one, other = cluster.ledgers, cluster.join()
    first = await one.create("test", Listener())
    second = await other.create("test", Listener())
    third = await one.create("test", Listener())
    assert first.ledger_id < third.ledger_id < second.ledger_id
    fourth = await one.create("test", Listener(), ledger_id=Above(second.ledger_id))
    assert fourth.ledger_id > second.ledger_id


async def test_a_ledger_costs_one_metadata_operation_to_create():
    cluster = MemoryCluster(3)
    await cluster.ledgers.create("test", Listener())
    calls = []
    store = cluster.ledgers.store
    for name in ("get", "put", "create", "children"):
        original = getattr(store, name)

        def counted(*args, _original=original, _name=name, **kwargs):
            calls.append(_name)
            return _original(*args, **kwargs)

        setattr(store, name, counted)
    await cluster.ledgers.create("test", Listener())
    assert calls == ["create"]


async def test_what_stands_beside_a_ledger_holds_with_it_or_not_at_all():
    cluster = MemoryCluster(3)
    ledgers, store = cluster.ledgers, cluster.store
    await store.create("/list", b"")
    reserved = await ledgers.reserve(7)
    assert reserved > 7
    with pytest.raises(VersionConflict):
        await ledgers.create(
            "test", Listener(), ledger_id=reserved, atomically_with=[Put("/list", b"mine", 5)]
        )
    with pytest.raises(NotFound):
        await ledgers.info(reserved)
    writer = await ledgers.create(
        "test", listener := Listener(), ledger_id=reserved, atomically_with=[Put("/list", b"opened", 0)]
    )
    assert (await store.get("/list")).value == b"opened"
    last = write(writer, blocks=2)
    await listener.until(last)
    with pytest.raises(Fenced):
        await writer.close([Put("/list", b"closed", 0)])
    assert (await ledgers.info(reserved)).state is LedgerState.OPEN
    assert (await store.get("/list")).value == b"opened"


async def test_a_ledger_that_was_never_written_to_goes_without_a_trace():
    cluster = MemoryCluster(3)
    await cluster.store.create("/list", b"")
    writer = await cluster.ledgers.create("test", Listener())
    await writer.discard([Put("/list", b"without it", 0)])
    assert (await cluster.store.get("/list")).value == b"without it"
    with pytest.raises(NotFound):
        await cluster.ledgers.info(writer.ledger_id)
    taken_over = await cluster.ledgers.create("test", Listener())
    await cluster.join().recover(taken_over.ledger_id)
    with pytest.raises(Fenced):
        await taken_over.discard([Put("/list", b"zombie's", 1)])
    assert (await cluster.store.get("/list")).value == b"without it"


async def test_a_ledger_ends_together_with_what_stands_beside_it():
    cluster = MemoryCluster(3)
    await cluster.store.create("/list", b"")
    writer = await cluster.ledgers.create("test", listener := Listener())
    last = write(writer, blocks=2)
    await listener.until(last)
    await writer.drain()
    closed = await writer.close([Put("/list", b"closed", 0)])
    assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, last)
    assert await cluster.ledgers.info(writer.ledger_id) == closed
    assert (await cluster.store.get("/list")).value == b"closed"


# -- ensemble changes ----------------------------------------------------------------------------------
async def test_a_lost_bookie_is_replaced():
    cluster = MemoryCluster(4)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 3))
    lost = cluster.ensemble(writer)[0]
    lost.unreachable = True
    await listener.until(write(writer, 3))
    await turns_until(lambda: len(writer.core.fragments) == 2)
    record = await cluster.ledgers.info(writer.ledger_id)
    assert str(lost.bookie) not in record.fragments[-1].bookies and len(record.fragments[-1].bookies) == 3
    await writer.close()
    assert await read_all(cluster.ledgers, writer.ledger_id) == expected(5)


async def test_without_a_replacement_the_fragment_narrows_but_not_below_the_ack_quorum():
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", listener := Listener())
    cluster.bookies[0].unreachable = True
    await listener.until(write(writer, 2))
    await turns_until(lambda: len(writer.core.fragments[-1].bookies) == 2)
    await listener.until(write(writer, 2))
    cluster.bookies[1].unreachable = True
    write(writer, 2)
    assert isinstance(await listener.until_failed(), OutcomeUnknown)
    assert listener.last == 3
    with pytest.raises(Unavailable):
        await cluster.ledgers.recover(writer.ledger_id)
    cluster.bookies[1].unreachable = False
    assert (await cluster.ledgers.recover(writer.ledger_id)).last_entry >= 3


async def test_a_bookie_replaced_twice_and_back_again_hangs_nobody():
    """Rule 2: acks are counted per (bookie, generation)."""
    cluster = MemoryCluster(4)
    writer = await cluster.ledgers.create("test", listener := Listener())
    for _ in range(6):
        lost = cluster.ensemble(writer)[1]
        lost.unreachable = True
        before = len(writer.core.fragments)
        await listener.until(write(writer, 2))
        await turns_until(lambda before=before: len(writer.core.fragments) > before)
        lost.unreachable = False
        await listener.until(write(writer, 2))
    await writer.close()
    assert await read_all(cluster.ledgers, writer.ledger_id) == expected(23)
    assert writer.core.changes >= 6


async def test_creation_may_start_narrow_and_not_below_the_ack_quorum():
    cluster = MemoryCluster(2)
    writer = await cluster.ledgers.create("test", Listener())
    assert len(writer.core.fragments[0].bookies) == 2
    with pytest.raises(Unavailable, match="1 of 1 bookies"):
        await MemoryCluster(1).ledgers.create("test", Listener())


async def test_a_read_only_bookie_is_left():
    cluster = MemoryCluster(4)
    writer = await cluster.ledgers.create("test", listener := Listener())
    full = cluster.ensemble(writer)[2]
    full.refuses = Status.READ_ONLY
    await listener.until(write(writer, 3))
    await turns_until(lambda: str(full.bookie) not in writer.core.fragments[-1].bookies)
    await writer.close()
    assert await read_all(cluster.ledgers, writer.ledger_id) == expected(2)


async def test_a_busy_bookie_is_asked_again():
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create(
        "test", listener := Listener(), PersistencePolicy(write_quorum=3, ack_quorum=3)
    )
    cluster.bookies[0].refuses = Status.BUSY
    last = write(writer, 3)
    for _ in range(10):
        await asyncio.sleep(0)
    assert listener.last == -1
    cluster.bookies[0].refuses = None
    await listener.until(last)
    assert len(writer.core.fragments[-1].bookies) == 3 and writer.core.changes == 0


@pytest.mark.parametrize("happened", [True, False])
async def test_a_change_whose_outcome_is_unknown_is_looked_up(happened):
    cluster = MemoryCluster(4)
    writer = await cluster.ledgers.create(
        "test", listener := Listener(), PersistencePolicy(write_quorum=3, ack_quorum=3)
    )
    cluster.ensemble(writer)[0].unreachable = True
    cluster.ledgers.store.fail_next(OutcomeUnknown("time-out"), happened=happened)
    await listener.until(write(writer, 3))
    assert (await cluster.ledgers.info(writer.ledger_id)).fragments == writer.core.fragments


# -- reading -------------------------------------------------------------------------------------------
async def test_nobody_reads_beyond_what_is_confirmed():
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create(
        "test", listener := Listener(), PersistencePolicy(write_quorum=3, ack_quorum=3)
    )
    await listener.until(write(writer, 2))
    held = []
    cluster.bookies[0].deliver = held.append
    write(writer, 2)
    for _ in range(5):
        await asyncio.sleep(0)
    cluster.bookies[0].deliver = cluster.bookies[1].deliver
    assert cluster.bookies[1].holds(writer.ledger_id, 3)
    assert await read_all(cluster.ledgers, writer.ledger_id) == expected(1)
    other = await cluster.join().open(writer.ledger_id)
    assert await other.read(2, 1000) == []
    for answer in held:
        answer()
    await listener.until(3)
    assert await read_all(cluster.ledgers, writer.ledger_id) == expected(3)


@pytest.mark.parametrize("fault", ["unreachable", "io error", "lying disk", "never had it"])
async def test_another_replica_answers_when_one_cannot(fault):
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 3))
    await writer.close()
    for bookie in cluster.bookies[:2]:
        if fault == "unreachable":
            bookie.unreachable = True
        elif fault == "never had it":
            bookie.ledgers[writer.ledger_id].blocks.pop(1)
            bookie.ledgers[writer.ledger_id].firsts.remove(1)
        else:
            bookie.flip(writer.ledger_id, 1)
            bookie.serves_damage = fault == "lying disk"
    assert await read_all(cluster.ledgers, writer.ledger_id) == expected(2)


async def test_confirmed_data_that_nobody_has_is_damage_and_silence_is_not():
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 3))
    await writer.close()
    reader = await cluster.ledgers.open(writer.ledger_id)
    for bookie in cluster.bookies:
        bookie.flip(writer.ledger_id, 1)
    with pytest.raises(CorruptionError, match=r"entry 1 .*entry log"):
        await reader.read(1, 1000)
    cluster.bookies[0].unreachable = True
    with pytest.raises(Unavailable):
        await reader.read(1, 1000)


async def test_a_reader_follows_an_open_ledger_through_ensemble_changes():
    cluster = MemoryCluster(6)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 2))
    reader = await cluster.ledgers.open(writer.ledger_id)
    await reader.read(0, 1000)
    for bookie in cluster.ensemble(writer):
        bookie.unreachable = True
        await listener.until(write(writer, 2))
        await turns_until(lambda bookie=bookie: str(bookie.bookie) not in writer.core.fragments[-1].bookies)
    last = write(writer, 1)
    await listener.until(last)
    assert await reader.read(last, 1000) == [cut(writer.ledger_id, last, 1, last - 1, last)]


async def test_find_time_misses_no_block():
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 5))
    await writer.close()
    missing = cluster.bookies[0].ledgers[writer.ledger_id]
    missing.blocks.pop(3)
    missing.firsts.remove(3)
    reader = await cluster.ledgers.open(writer.ledger_id)
    assert [await reader.find_time(time_ms) for time_ms in (0, 3, 4, 9)] == [0, 3, 4, 5]
    for bookie in cluster.bookies[1:]:
        bookie.unreachable = True
    with pytest.raises(Unavailable):
        await reader.find_time(3)


async def test_find_time_in_an_empty_ledger():
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", Listener())
    assert await (await cluster.ledgers.open(writer.ledger_id)).find_time(3) == 0


# -- deleting ------------------------------------------------------------------------------------------
async def test_delete_lays_tombstones_and_removes_the_record():
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 2))
    await cluster.join().delete(writer.ledger_id)
    with pytest.raises(NotFound):
        await cluster.ledgers.info(writer.ledger_id)
    write(writer, 1)
    assert isinstance(await listener.until_failed(), Fenced)
    assert not any(bookie.holds(writer.ledger_id, 2) for bookie in cluster.bookies), "recreated (rule 20)"
    await cluster.ledgers.delete(writer.ledger_id)


@pytest.mark.parametrize("by", ["writer", "recovery"])
async def test_a_bookie_that_left_with_blocks_that_nobody_confirmed_gets_the_tombstone_too(by):
    """An ensemble change at the same entry replaces the fragment; whoever goes with it may hold blocks all the same."""
    cluster = MemoryCluster(4)
    writer = await cluster.ledgers.create(
        "test", listener := Listener(), PersistencePolicy(write_quorum=3, ack_quorum=3)
    )
    left = cluster.ensemble(writer)[0]
    left.loses_answers = True
    if by == "writer":
        await listener.until(write(writer, 1))
        left.loses_answers = False
        assert left.bookie not in writer.core.fragments[-1].bookies and len(writer.core.fragments) == 1
    else:
        write(writer, 1)
        await turns_until(lambda: left.holds(writer.ledger_id, 0))
        writer.abandon()
    record = await cluster.join().recover(writer.ledger_id)
    assert left.holds(writer.ledger_id, 0) and record.former == (str(left.bookie),)
    left.loses_answers = False
    await cluster.join().delete(writer.ledger_id)
    assert not left.holds(writer.ledger_id, 0)


async def test_a_ledger_that_is_deleted_while_it_is_recovered_is_gone():
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 2))
    for bookie in cluster.bookies:
        bookie.refuses = Status.DELETED
    with pytest.raises(NotFound):
        await cluster.join().recover(writer.ledger_id)


async def test_the_record_stays_until_every_replica_has_answered_or_was_retired():
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 2))
    await writer.close()
    silent = cluster.bookies[0]
    silent.unreachable = True
    path = paths.bookie(silent.bookie.uuid)
    await cluster.store.create(path, encode(BookieRecord(uuid=silent.bookie.uuid, incarnation=1)))
    with pytest.raises(Unavailable, match="bookie-0"):
        await cluster.ledgers.delete(writer.ledger_id)
    assert (await cluster.ledgers.info(writer.ledger_id)).state is LedgerState.DELETING
    with pytest.raises(NotFound):
        await cluster.ledgers.recover(writer.ledger_id)
    await cluster.store.delete(path)
    await cluster.ledgers.delete(writer.ledger_id)
    with pytest.raises(NotFound):
        await cluster.ledgers.info(writer.ledger_id)


async def test_flushed_when_every_replica_says_so():
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 2))
    assert not await cluster.ledgers.is_flushed(writer.ledger_id)
    await writer.close()
    assert await cluster.ledgers.is_flushed(writer.ledger_id)
    cluster.bookies[1].is_flushed = False
    assert not await cluster.ledgers.is_flushed(writer.ledger_id)


async def test_a_bookie_whose_port_fails_is_an_unknown_and_no_reason_to_wait_for_ever(monkeypatch):
    cluster = MemoryCluster(1)
    writer = await cluster.ledgers.create("test", Listener(), PersistencePolicy(write_quorum=1, ack_quorum=1))
    writer.abandon()

    async def broken(request: ReadRequest) -> ReadResponse:
        raise ValueError("a mistake")

    with monkeypatch.context() as patch:
        patch.setattr(cluster.bookies[0], "ask", broken)
        with pytest.raises(Unavailable, match="a mistake"):
            await asyncio.wait_for(cluster.ledgers.recover(writer.ledger_id), 5)
    assert (await cluster.ledgers.recover(writer.ledger_id)).last_entry == -1


@pytest.mark.parametrize(("copies", "is_told"), [(1, False), (2, True)])
async def test_a_ledger_with_one_copy_is_no_matter_for_repair_after_a_recovery(copies: int, is_told: bool):
    cluster = MemoryCluster(copies)
    policy = PersistencePolicy(write_quorum=copies, ack_quorum=1)
    writer = await cluster.ledgers.create("test", listener := Listener(), policy)
    await listener.until(write(writer, blocks=3))
    writer.abandon()
    await cluster.ledgers.recover(writer.ledger_id)
    assert await _knocked(cluster) == is_told
