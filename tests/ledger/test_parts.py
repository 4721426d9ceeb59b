"""The small parts: placement, the outbox's limit, what memory counts, the record's changes, settings."""

from __future__ import annotations

import asyncio

import pytest

from quire.ledger import placement, states
from quire.ledger.idle import PORTION, IdleLacs
from quire.ledger.settings import LedgerSettings
from quire.metadata.records import BookieRecord, Fragment, LedgerState, PersistencePolicy
from quire.runtime.errors import ConfigurationError, OutcomeUnknown, Unavailable
from quire.runtime.limits import ADD_REQUEST_BYTES_MAX, MIB
from quire.runtime.tasks import Tasks
from quire.testing.cluster import Listener, MemoryCluster, cut, expected, read_all, turns_until, write
from quire.wire import block
from quire.wire.bookie import AddRequest, BookieId


# -- placement -----------------------------------------------------------------------------------------
def bookies(*racks: str) -> list[BookieRecord]:
    return [BookieRecord(uuid=f"b{number}", incarnation=1, rack=rack) for number, rack in enumerate(racks)]


def chosen(count, available, loads, **kwargs) -> list[str]:
    found = placement.EnsemblePlacement(loads, lambda: 0.5).choose(count, available, **kwargs)
    return [bookie.uuid for bookie in found]


def test_distinct_racks_come_before_low_load():
    loads = {BookieId("b2", 1): 9}
    assert chosen(2, bookies("left", "left", "right"), loads) == ["b0", "b2"]


def test_the_racks_of_those_who_stay_are_avoided():
    assert chosen(1, bookies("left", "left", "right"), {}, beside=[BookieId("b0", 1)]) == ["b2"]


def test_one_rack_for_all_is_better_than_too_few_copies():
    assert len(chosen(3, bookies("left", "left", "left"), {})) == 3


def test_the_least_loaded_is_taken_and_the_newcomer_first():
    loads = {BookieId("b0", 1): 3, BookieId("b1", 1): 1}
    assert chosen(3, bookies("", "", ""), loads) == ["b2", "b1", "b0"]


def test_neither_read_only_nor_failed_nor_present_bookies_are_taken():
    present, failed, full, free = bookies("", "", "", "")
    full = BookieRecord(uuid=full.uuid, incarnation=1, read_only=True)
    ids = [placement.bookie_id(each) for each in (present, failed)]
    assert chosen(4, [present, failed, full, free], {}, beside=ids[:1], never=ids[1:]) == ["b3"]


def test_a_failed_bookie_that_came_back_as_another_incarnation_is_another_bookie():
    again = BookieRecord(uuid="b0", incarnation=2)
    assert chosen(1, [again], {}, never=[BookieId("b0", 1)]) == ["b0"]


async def test_new_ledgers_spread_over_the_bookies_and_closed_ones_count_no_more():
    cluster = MemoryCluster(6)
    writers = [await cluster.ledgers.create("test", Listener()) for _ in range(20)]
    loads = cluster.ledgers._parts.loads
    assert set(loads.values()) == {10}
    for writer in writers:
        await writer.close()
    assert set(loads.values()) == {0}


# -- the outbox ----------------------------------------------------------------------------------------
async def test_a_request_has_a_limit_in_bytes():
    cluster = MemoryCluster(1)
    writer = await cluster.ledgers.create(
        "test", listener := Listener(), PersistencePolicy(write_quorum=1, ack_quorum=1)
    )
    for entry in range(20):
        writer.add(block.cut(writer.ledger_id, entry, -1, 0, entry, [bytes(1 * MIB)]), entry)
    await listener.until(19)
    sizes = [
        sum(map(len, each.blocks)) for each in cluster.bookies[0].requests if isinstance(each, AddRequest)
    ]
    assert len(sizes) == 3 and max(sizes) <= ADD_REQUEST_BYTES_MAX


async def test_an_owner_that_fails_on_its_confirmation_does_not_take_others_with_it(caplog):
    class Bad(Listener):
        def confirmed(self, last_entry: int) -> None:
            raise RuntimeError("a bug in a topic")

    cluster = MemoryCluster(3)
    bad = await cluster.ledgers.create("test", Bad())
    good = await cluster.ledgers.create("test", listener := Listener())
    write(bad, 1)
    await listener.until(write(good, 1))
    await turns_until(lambda: "a bug in a topic" in caplog.text)


# -- the writer's shell --------------------------------------------------------------------------------
async def test_bytes_count_until_the_slow_bookie_has_answered_or_was_dropped():
    """Rule 6."""
    cluster = MemoryCluster(4)
    writer = await cluster.ledgers.create("test", listener := Listener())
    slow, slower = cluster.ensemble(writer)[:2]
    held = []
    slow.deliver = held.append
    last = write(writer, 3)
    await listener.until(last)
    size = len(cut(writer.ledger_id, 0))
    assert (writer.core.blocks_pending, writer.core.bytes_pending) == (0, 3 * size)
    held.pop()()
    assert writer.core.bytes_pending == 0
    write(writer, 2)
    await listener.until(last + 2)
    assert writer.core.bytes_pending == 2 * size
    slow.unreachable = True
    slow.deliver = slower.deliver
    await listener.until(write(writer, 1))
    await turns_until(lambda: str(slow.bookie) not in writer.core.fragments[-1].bookies)
    await turns_until(lambda: writer.core.bytes_pending == 0)


async def test_an_abandoned_writer_says_nothing_more_and_recovery_finds_what_it_wrote():
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", listener := Listener())
    last = write(writer, 3)
    await asyncio.sleep(0)
    writer.abandon()
    record = await cluster.ledgers.recover(writer.ledger_id)
    assert (listener.last, listener.error) == (-1, None)
    assert record.last_entry == last
    assert await read_all(cluster.ledgers, writer.ledger_id) == expected(last)
    with pytest.raises(OutcomeUnknown):
        await writer.close()


async def test_a_writer_whose_metadata_store_stays_silent_gives_up_with_an_unknown_outcome():
    cluster = MemoryCluster(4)
    writer = await cluster.ledgers.create(
        "test", listener := Listener(), PersistencePolicy(write_quorum=3, ack_quorum=3)
    )
    cluster.ensemble(writer)[0].unreachable = True
    cluster.ledgers.store.suspend()
    write(writer, 1)
    assert isinstance(await listener.until_failed(), OutcomeUnknown)
    assert listener.last == -1


async def test_stop_abandons_what_is_open():
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", Listener())
    write(writer, 1)
    await cluster.ledgers.stop()
    assert isinstance(writer.error, OutcomeUnknown)


async def test_a_creation_in_doubt_is_told_as_not_now():
    cluster = MemoryCluster(3)
    await cluster.ledgers.create("test", Listener())
    cluster.ledgers.store.fail_next(OutcomeUnknown("time-out"), happened=True)
    with pytest.raises(Unavailable):
        await cluster.ledgers.create("test", Listener())
    await cluster.ledgers.create("test", Listener())


async def test_quorums_that_make_no_sense_are_refused():
    cluster = MemoryCluster(3)
    with pytest.raises(ConfigurationError):
        await cluster.ledgers.create("test", Listener(), PersistencePolicy(write_quorum=2, ack_quorum=3))
    with pytest.raises(ConfigurationError, match="ack_quorum"):
        LedgerSettings(write_quorum=1, ack_quorum=2).validate()
    LedgerSettings().validate()


# -- records -------------------------------------------------------------------------------------------
def test_an_empty_last_fragment_is_replaced_and_another_stays():
    first, second = Fragment(first_entry=0, bookies=("a:1",)), Fragment(first_entry=5, bookies=("b:1",))
    again = Fragment(first_entry=5, bookies=("c:1",))
    assert states.with_fragment((first,), second) == (first, second)
    assert states.with_fragment((first, second), again) == (first, again)


def test_which_fragment_holds_an_entry():
    record = states.opened(7, 1, 1, [BookieId("a", 1)], "test", 0)
    record = states.changed(record, (*record.fragments, Fragment(first_entry=5, bookies=("b:1",))))
    assert [states.fragment_index(record, entry) for entry in (0, 4, 5, 99)] == [0, 0, 1, 1]
    assert states.all_bookies(record) == (BookieId("a", 1), BookieId("b", 1))


def test_a_ledger_never_ends_before_what_is_confirmed():
    record = states.opened(7, 1, 1, [BookieId("a", 1)], "test", 0)
    record = states.changed(record, (*record.fragments, Fragment(first_entry=5, bookies=("b:1",))))
    with pytest.raises(AssertionError):
        states.closed(record, record.fragments, 3, 0, 0)
    assert states.closed(record, record.fragments, 4, 0, 0).state is LedgerState.CLOSED


# -- idle writers --------------------------------------------------------------------------------------
async def test_many_that_fall_silent_at_once_are_no_burst_and_each_is_told_once():
    class Idle:
        error = None
        told = 0

        async def write_lac(self) -> None:
            self.told += 1

    tasks = Tasks("test")
    idle = IdleLacs(tasks, 0)
    writers = [Idle() for _ in range(PORTION * 2 + 1)]
    batches = []
    original = idle._write_lacs
    idle._write_lacs = lambda batch: (batches.append(len(batch)), original(batch))[1]
    for writer in writers:
        idle.touch(writer)
    await turns_until(lambda: all(writer.told for writer in writers), 1_000_000)
    assert {writer.told for writer in writers} == {1}
    assert max(batches) == PORTION and len(batches) == 3
