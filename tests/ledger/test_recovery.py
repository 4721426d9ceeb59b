"""Ledgers that another owner takes over: fencing, what recovery keeps, and what it never closes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from quire.ledger import recovery
from quire.metadata.records import Hole, LedgerRecord, LedgerState, PersistencePolicy, decode
from quire.runtime.errors import (
    ConfigurationError,
    CorruptionError,
    Fenced,
    LostForGood,
    Unavailable,
)
from quire.testing.cluster import QUICK, Listener, MemoryCluster, expected, read_all, turns_until, write
from quire.wire.bookie import AddRequest, ReadRequest, ReadResponse, Status, WriteLacRequest


async def test_a_new_owner_fences_the_old_one_and_keeps_what_was_confirmed():
    cluster = MemoryCluster(3)
    other = cluster.join()
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 5))
    record = await other.recover(writer.ledger_id)
    assert (record.state, record.last_entry) == (LedgerState.CLOSED, 4)
    write(writer, 1)
    assert isinstance(await listener.until_failed(), Fenced)
    with pytest.raises(Fenced):
        await writer.close()
    assert await read_all(other, writer.ledger_id) == expected(4)
    assert await other.recover(writer.ledger_id) == record


async def test_closing_a_ledger_that_was_taken_over_is_fenced_by_its_version():
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 1))
    cluster.clock.advance_ms(1)
    await cluster.join().recover(writer.ledger_id)
    with pytest.raises(Fenced):
        await writer.close()


async def test_recovery_keeps_a_block_that_one_bookie_has_when_the_others_cannot_say_no():
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 2))
    for bookie in cluster.bookies[1:]:
        bookie.unreachable = True
    cluster.bookies[0].loses_answers = True
    last = write(writer, 1)
    await listener.until_failed()
    for bookie in cluster.bookies:
        bookie.unreachable = bookie.loses_answers = False
    cluster.bookies[2].unreachable = True
    record = await cluster.ledgers.recover(writer.ledger_id)
    assert record.last_entry == last
    assert cluster.bookies[1].holds(writer.ledger_id, last), "written again to the ack quorum (rule 13)"


async def test_every_recovery_read_fences():
    """Rule 9."""
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 3))
    for bookie in cluster.bookies:
        bookie.requests.clear()
    await cluster.join().recover(writer.ledger_id)
    reads = [each for bookie in cluster.bookies for each in bookie.requests if isinstance(each, ReadRequest)]
    assert reads and all(read.fence for read in reads)


async def test_recovery_reads_only_the_tail():
    """Rule 11: it starts behind the LAC."""
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", listener := Listener())
    for _ in range(20):
        await listener.until(write(writer, 1))
    await cluster.join().recover(writer.ledger_id)
    added = [
        len(each.blocks)
        for each in cluster.bookies[0].requests
        if isinstance(each, AddRequest) and each.recovery
    ]
    assert sum(added) <= 3, "the last block or two, and the label before them"


@pytest.mark.parametrize("status", ["io error", "limbo", "unreachable", "incarnation"])
async def test_recovery_never_closes_on_an_unknown_answer(status):
    """Rules 12 and 19: with one of three missing and another unknown there is one negative too few."""
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 2))
    one, two, three = cluster.bookies
    one.unreachable = True
    if status == "io error":
        two.loses_answers, three.refuses = True, Status.IO_ERROR
        write(writer, 1)
        await listener.until_failed()
        two.loses_answers = False
        two.flip(writer.ledger_id, 2)
    elif status == "limbo":
        two.limbo = True
    elif status == "unreachable":
        two.unreachable = True
    else:
        two.forget()
    with pytest.raises((Unavailable, CorruptionError)):
        await cluster.join().recover(writer.ledger_id)
    assert (await cluster.ledgers.info(writer.ledger_id)).state is LedgerState.IN_RECOVERY


async def test_recovery_publishes_its_ensembles_only_with_the_close():
    """Rule 14."""
    cluster = MemoryCluster(4)
    writer = await cluster.ledgers.create(
        "test", listener := Listener(), PersistencePolicy(write_quorum=3, ack_quorum=3)
    )
    await listener.until(write(writer, 3))
    lost = cluster.ensemble(writer)[0]
    lost.unreachable = True
    before = (await cluster.ledgers.info(writer.ledger_id)).fragments
    other = cluster.join()
    put, published = other.store.put, []

    async def watched(path, value, version):
        published.append(decode(LedgerRecord, value, path))
        return await put(path, value, version)

    other.store.put = watched
    record = await other.recover(writer.ledger_id)
    assert [each.state for each in published] == [LedgerState.IN_RECOVERY, LedgerState.CLOSED]
    assert published[0].fragments == before
    assert published[1] == record and str(lost.bookie) not in record.fragments[-1].bookies
    assert record.last_entry == 2
    assert await read_all(cluster.ledgers, writer.ledger_id) == expected(2)


FEW_CHANGES = replace(QUICK, ensemble_changes_max=2, idle_lac_ms=60_000)


async def test_a_recovery_that_gets_on_may_change_its_ensemble_at_every_block(monkeypatch):
    """It would stop at the same block each time it is tried again."""
    monkeypatch.setattr(recovery, "_READ_BYTES", 1)
    cluster = MemoryCluster(4, settings=FEW_CHANGES)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 8))
    await cluster.ledgers.stop()
    other = cluster.join()
    other._parts.lag.bytes_max = 0  # whoever answers last is left behind
    record = await other.recover(writer.ledger_id)
    assert (record.state, record.last_entry) == (LedgerState.CLOSED, 7)
    assert len(record.fragments) - 1 > FEW_CHANGES.ensemble_changes_max
    assert await read_all(other, writer.ledger_id) == expected(7)


async def test_a_recovery_whose_bookies_fail_in_turns_says_try_again():
    cluster = MemoryCluster(4, settings=FEW_CHANGES)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 1))
    await cluster.ledgers.stop()
    sound = cluster.ensemble(writer)[0]
    others = [bookie for bookie in cluster.bookies if bookie is not sound]
    for bookie in others:
        bookie.refuses = Status.IO_ERROR
    with pytest.raises(
        Unavailable, match=r"cannot rewrite entries of ledger \d+: .* more than 2 ensemble changes"
    ):
        await cluster.join().recover(writer.ledger_id)
    for bookie in others:
        bookie.refuses = None
    assert (await cluster.join().recover(writer.ledger_id)).last_entry == 0


async def test_the_fewest_changes_that_are_allowed_do_for_a_bookie_that_is_lost():
    cluster = MemoryCluster(4, settings=replace(FEW_CHANGES, ensemble_changes_max=1))
    cluster.settings.validate()
    with pytest.raises(ConfigurationError, match="at least 1"):
        replace(FEW_CHANGES, ensemble_changes_max=0).validate()
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 1))
    await cluster.ledgers.stop()
    cluster.ensemble(writer)[0].unreachable = True
    assert (await cluster.join().recover(writer.ledger_id)).last_entry == 0


async def test_a_write_that_arrives_late_finds_the_fence_of_the_read_that_judged_it_absent():
    """Rule 9, the loss that it prevents: entry 1 is on B alone, absent at A, and on its way to a third."""
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", listener := Listener())
    a, b, late = cluster.bookies
    await listener.until(write(writer, 1))
    await turns_until(lambda: all(bookie.holds(writer.ledger_id, 0) for bookie in cluster.bookies))
    arrive, add = [], late.add
    late.add = lambda request, done: arrive.append((request, done))
    a_answers = []
    a.unreachable, a.deliver = True, a_answers.append
    write(writer, 1)
    await turns_until(lambda: bool(arrive))
    a.unreachable, a.deliver = False, b.deliver
    late.unreachable = True
    other = cluster.join()
    first_read = asyncio.Event()
    ask = b.ask

    async def only_the_first(request):
        response = await ask(request)
        if first_read.is_set():
            return ReadResponse(Status.UNREACHABLE)
        first_read.set()
        late.unreachable = False
        return response

    b.ask = only_the_first
    record = await other.recover(writer.ledger_id)
    assert record.last_entry == 0
    late.add = add
    for request, done in arrive:
        add(request, done)
    await listener.until_failed()
    assert listener.confirmations == [0], "a confirmed entry beyond the end"


async def test_two_recoveries_at_once_agree():
    """Rule 15."""
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 4))
    write(writer, 3)
    records = await asyncio.gather(*(cluster.join().recover(writer.ledger_id) for _ in range(4)))
    assert all(record == records[0] for record in records)
    assert records[0].last_entry >= 3


async def test_a_damaged_block_without_another_copy_stops_recovery_until_an_operator_gives_it_up():
    """Rule 26."""
    cluster = MemoryCluster(1)
    writer = await cluster.ledgers.create(
        "test", listener := Listener(), PersistencePolicy(write_quorum=1, ack_quorum=1)
    )
    last = write(writer, 3)
    await listener.until(last)
    cluster.bookies[0].flip(writer.ledger_id, 1)
    other = cluster.join()
    with pytest.raises(
        LostForGood,
        match=f"ledger {writer.ledger_id}.*entry 1.*entry log bookie-0 at offset 1.*--accept-loss",
    ):
        await other.recover(writer.ledger_id)
    assert (await other.info(writer.ledger_id)).state is LedgerState.IN_RECOVERY
    record = (await other.give_up(writer.ledger_id)).record
    assert (record.state, record.last_entry) == (LedgerState.CLOSED, 0)
    assert record.holes == (Hole(first_entry=1, last_entry=2, messages=2),)
    assert await read_all(other, writer.ledger_id) == expected(0)


async def test_an_operators_word_does_not_make_silence_an_absence(caplog):
    cluster = MemoryCluster(1)
    writer = await cluster.ledgers.create(
        "test", listener := Listener(), PersistencePolicy(write_quorum=1, ack_quorum=1)
    )
    await listener.until(write(writer, 3))
    cluster.bookies[0].unreachable = True
    with pytest.raises(Unavailable):
        await cluster.join().give_up(writer.ledger_id)


async def test_idle_writers_tell_their_lac_once():
    """Rule 7."""
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 3))
    reader = await cluster.join().open(writer.ledger_id)
    told = asyncio.Event()
    original = cluster.bookies[2]._write_lac
    cluster.bookies[2]._write_lac = lambda request: (told.set(), original(request))[1]
    await asyncio.wait_for(told.wait(), 5)
    assert len(await reader.read(0, 1 << 20)) == 3
    assert sum(isinstance(each, WriteLacRequest) for each in cluster.bookies[2].requests) == 1
