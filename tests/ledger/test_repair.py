"""The coordinator over bookies in memory: what it copies, when, and what it leaves alone."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from quire.ledger import repair_copy, repair_core, states
from quire.metadata import paths
from quire.metadata.notify import touch
from quire.metadata.records import (
    BookieIntent,
    LedgerRecord,
    LedgerState,
    RepairRecord,
    decode,
    encode,
)
from quire.metadata.underreplicated import listed
from quire.runtime.errors import NotFound, Unavailable
from quire.testing.cluster import Listener, expected, read_all, turns_until, write
from quire.wire.bookie import ReadRequest, Status
from tests.ledger.repair_cluster import DELAY_MS, Cluster, one_more


async def test_what_a_lost_bookie_held_is_copied_and_the_record_says_so(cluster: Cluster) -> None:
    record = await cluster.closed()
    await one_more(cluster)
    cluster.lose(0)
    await cluster.look_long_after()
    after = await cluster.info(record.ledger_id)
    assert set(after.fragments[0].bookies) == {"bookie-1:1", "bookie-2:1", "bookie-3:1"}
    assert set(after.fragments[0].bookies) <= cluster.holders(record)
    assert after.former == ("bookie-0:1",)
    assert await read_all(cluster.join(), record.ledger_id) == expected(record.last_entry)


async def test_a_time_out_is_not_a_loss(cluster: Cluster) -> None:
    record = await cluster.closed()
    await one_more(cluster)
    cluster.lose(0)
    await cluster.repair.look()
    cluster.clock.advance_ms(DELAY_MS - 1)
    await cluster.repair.look()
    cluster.come_back(0)
    await cluster.look_long_after()
    assert await cluster.info(record.ledger_id) == record
    cluster.bookies[0].unreachable = True  # silent, but registered
    await cluster.look_long_after()
    assert await cluster.info(record.ledger_id) == record


async def test_a_new_coordinator_waits_anew(cluster: Cluster) -> None:
    record = await cluster.closed()
    await one_more(cluster)
    cluster.lose(0)
    await cluster.repair.look()
    cluster.clock.advance_ms(DELAY_MS)
    await cluster.coordinator().look()
    assert await cluster.info(record.ledger_id) == record


async def test_narrow_ledgers_are_widened_when_a_bookie_comes(cluster: Cluster) -> None:
    cluster.lose(2)
    record = await cluster.closed()
    assert len(record.fragments[-1].bookies) == 2
    await cluster.repair.look()
    cluster.come_back(2)
    await cluster.look_long_after()
    after = await cluster.info(record.ledger_id)
    assert len(after.fragments[-1].bookies) == 3 and len(cluster.holders(record)) == 3


async def test_ledgers_that_were_narrow_when_the_round_came_are_widened_when_they_are_closed(
    cluster: Cluster, monkeypatch
) -> None:
    """No bookie comes or goes any more when they are closed: who closes them must tell."""
    monkeypatch.setattr("quire.ledger.writer.LATE_ANSWERS_S", 0)
    await cluster.look_long_after()
    writers = []
    for _ in range(2):
        writer = await cluster.ledgers.create("test", listener := Listener())
        await listener.until(write(writer, 5, 3))
        cluster.bookies[2].unreachable = True  # a connection broke; the registration stays
        write(writer, 5, 3)
        await turns_until(lambda writer=writer: len(writer.core.fragments[-1].bookies) == 2)
        await listener.until(write(writer, 5, 3))
        cluster.bookies[2].unreachable = False
        writers.append(writer)
    await cluster.look_long_after()
    records = [await writers[0].close()]
    writers[1].abandon()
    other = cluster.join()
    records.append(await other.recover(writers[1].ledger_id))
    for each in (cluster.ledgers, other):
        await turns_until(lambda each=each: each._parts.reports.reported == 1)
    cluster.repair.wake()
    await cluster.looks(2)
    for record in records:
        assert min(len(each.bookies) for each in record.fragments) == 2
        after = await cluster.info(record.ledger_id)
        assert min(len(each.bookies) for each in after.fragments) == 3 and len(cluster.holders(record)) == 3


async def test_blocks_before_an_ensemble_change_get_the_copy_that_they_lack(cluster: Cluster) -> None:
    """Two of three had confirmed them when the third was left; it is named by the fragment that they end."""
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 5, 3))
    third = cluster.bookies[2]
    await turns_until(lambda: third.holds(writer.ledger_id, 14))
    third.unreachable = True
    await listener.until(write(writer, 5, 3))
    await turns_until(lambda: len(writer.core.fragments[-1].bookies) == 2)
    third.unreachable = False
    writer.widen()
    await turns_until(lambda: len(writer.core.fragments[-1].bookies) == 3)
    await listener.until(write(writer, 5, 3))
    record = await writer.close()
    first, *_ = record.fragments
    assert str(third.bookie) in first.bookies and not third.holds(record.ledger_id, 29), "what this is about"
    await cluster.look_long_after()
    assert len(cluster.holders(record)) == 3
    assert cluster.repair.status().failed == 0


async def test_while_bookies_are_lacking_ledgers_that_are_closed_cost_no_audit(cluster: Cluster) -> None:
    """Each of them is narrow, and nothing can be done about it; what others of them lack can."""
    cluster.lose(2)
    await cluster.closed()
    await cluster.look_long_after()
    assert cluster.repair.status().unplaced == 1
    audit_at = cluster.repair._auditor._audit_at
    record = await cluster.closed()
    lacking = cluster.bookies[1].ledgers[record.ledger_id]
    lacking.blocks.pop(lacking.firsts.pop(3))
    assert len(cluster.holders(record)) == 1
    await turns_until(lambda: not cluster.ledgers._parts.reports._waiting)
    cluster.repair.wake()
    await cluster.repair.look()
    assert cluster.repair._auditor._audit_at == audit_at
    assert len(cluster.holders(record)) == 2
    assert cluster.repair.status().unplaced == 2
    cluster.come_back(2)
    await cluster.repair.look()
    assert len(cluster.holders(record)) == 3
    assert not [each async for each in listed(cluster.store)]


async def test_news_of_nothing_costs_no_audit(cluster: Cluster) -> None:
    await cluster.look_long_after()
    before = cluster.repair._auditor._audit_at
    cluster.repair.wake()
    await cluster.repair.look()
    assert cluster.repair._auditor._audit_at == before


async def test_open_ledgers_are_left_and_counted(cluster: Cluster) -> None:
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 5))
    await one_more(cluster)
    cluster.lose(0)
    await cluster.look_long_after()
    record = await cluster.info(writer.ledger_id)
    assert record.state is LedgerState.OPEN and "bookie-0:1" in record.fragments[0].bookies
    assert cluster.repair.status().open == 1
    await writer.close()
    cluster.clock.advance_ms(5_000)
    await cluster.repair.look()
    assert "bookie-0:1" not in (await cluster.info(writer.ledger_id)).fragments[0].bookies


async def test_an_idle_coordinator_costs_the_store_nothing(cluster: Cluster) -> None:
    await cluster.closed()
    await cluster.look_long_after()
    cluster.repair._store.suspend()  # type: ignore[attr-defined]
    for _ in range(20):
        await cluster.repair.look()
        cluster.clock.advance_ms(5_000)


async def test_last_blocks_that_lack_a_copy_get_it_in_a_round(cluster: Cluster) -> None:
    record = await cluster.closed()
    cluster.cut_off(1, record.ledger_id, blocks=3)
    del cluster.bookies[2].ledgers[record.ledger_id]
    cluster.bookies[1].limbo = True  # it cannot know whether it had them; it has not
    cluster.repair._auditor.is_wanted = True
    await cluster.repair.look()
    assert len(cluster.holders(record)) == 3
    assert await cluster.info(record.ledger_id) == record
    assert cluster.repair.status().repaired == 1


async def test_a_hole_before_what_a_recovery_wrote_again_is_filled_in_a_round(cluster: Cluster) -> None:
    """A copy missed a block that two confirmed; the writer died, and recovery wrote again only what came behind it."""
    record = await cluster.closed()
    lacking = cluster.bookies[1].ledgers[record.ledger_id]
    lacking.blocks.pop(lacking.firsts.pop(7))
    assert "bookie-1:1" not in cluster.holders(record)
    cluster.repair._auditor.is_wanted = True
    await cluster.repair.look()
    assert len(cluster.holders(record)) == 3
    assert cluster.repair.status().repaired == 1


async def test_a_hole_inside_a_fragment_that_is_not_the_last_is_filled_in_a_round(cluster: Cluster) -> None:
    """Other holes in every copy, so no copy is greater than another."""
    await one_more(cluster)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 9))
    cluster.ensemble(writer)[0].unreachable = True
    await listener.until(write(writer, 1))
    await turns_until(lambda: len(writer.core.fragments) == 2)
    await listener.until(write(writer, 9))
    for each in cluster.bookies:
        each.unreachable = False
    record = await writer.close()
    for number, bookie in enumerate(record.fragments[0].bookies):
        holed = cluster.named(bookie).ledgers[record.ledger_id]
        for first in (2 * number, 2 * number + 1, number + 6):
            holed.blocks.pop(first)
            holed.firsts.remove(first)
    cluster.repair._auditor.is_wanted = True
    await cluster.repair.look()
    for bookie in record.fragments[0].bookies:
        assert all(cluster.named(bookie).holds(record.ledger_id, entry) for entry in range(9)), bookie


@pytest.mark.parametrize("how", ["another fragment", "former"])
async def test_what_only_a_bookie_has_that_the_fragment_does_not_name_is_copied_from_there(
    cluster: Cluster, how: str
) -> None:
    """It was left when it failed, and had taken what the writer then wrote again to others; these lost everything."""
    record = await cluster.closed()
    for _ in range(2):
        await one_more(cluster)
    path = paths.ledger(record.ledger_id)
    lost = states.fragment(40, [each.bookie for each in cluster.bookies[3:]])
    if how == "former":
        record = replace(
            record, fragments=(replace(lost, first_entry=0),), former=record.fragments[0].bookies
        )
    else:
        record = replace(record, fragments=(*record.fragments, lost))
    await cluster.store.put(path, encode(record), -1)
    for number in (3, 4):
        cluster.lose(number)
        await cluster.want(number, BookieIntent.GIVE_UP)
    await cluster.looks(2)
    after = await cluster.info(record.ledger_id)
    assert set(after.fragments[-1].bookies) == {"bookie-0:1", "bookie-1:1", "bookie-2:1"}
    reader = await cluster.join().open(record.ledger_id)
    assert await reader.read(40, 100)


async def test_a_bookie_that_takes_nothing_does_not_keep_the_others_from_theirs(cluster: Cluster) -> None:
    record = await cluster.closed()
    for number in (0, 2):
        lacking = cluster.bookies[number].ledgers[record.ledger_id]
        lacking.blocks.pop(lacking.firsts.pop(3))
    cluster.bookies[0].refuses = Status.READ_ONLY
    cluster.repair._auditor.is_wanted = True
    await cluster.repair.look()
    assert cluster.repair.status().failed == 1
    assert cluster.bookies[2].holds(record.ledger_id, 3)
    cluster.bookies[0].refuses = None
    cluster.clock.advance_ms(60_000)
    cluster.repair._auditor.is_wanted = True
    await cluster.repair.look()
    assert cluster.bookies[0].holds(record.ledger_id, 3)


async def test_who_leaves_without_a_replacement_first_fills_the_holes_of_those_that_stay(
    cluster: Cluster,
) -> None:
    """A confirmed block may lie on an ack quorum only, and one of these be told to go."""
    record = await cluster.closed()
    lacking = cluster.bookies[1].ledgers[record.ledger_id]
    lacking.blocks.pop(lacking.firsts.pop(3))
    await cluster.want(0, BookieIntent.DRAIN)
    cluster.bookies[1].refuses = Status.READ_ONLY
    await cluster.look_long_after()
    assert len((await cluster.info(record.ledger_id)).fragments[0].bookies) == 3

    cluster.bookies[1].refuses = None
    await cluster.look_long_after()
    assert len((await cluster.info(record.ledger_id)).fragments[0].bookies) == 2
    assert all(cluster.bookies[number].holds(record.ledger_id, 3) for number in (1, 2))


async def test_an_empty_ledger_is_left_without_a_word(cluster: Cluster) -> None:
    record = await (await cluster.ledgers.create("test", Listener())).close()
    await cluster.want(0, BookieIntent.DRAIN)
    await cluster.look_long_after()
    assert "bookie-0:1" not in (await cluster.info(record.ledger_id)).fragments[0].bookies


async def test_a_bookie_that_lost_its_disk_gets_its_copies_again(cluster: Cluster) -> None:
    record = await cluster.closed()
    await cluster.repair.look()
    cluster.bookies[2].forget()
    await cluster.repair.look()
    after = await cluster.info(record.ledger_id)
    assert set(after.fragments[0].bookies) == {"bookie-0:1", "bookie-1:1", "bookie-2:2"}
    assert len(cluster.holders(record)) == 3


async def test_a_ledger_that_is_changed_meanwhile_is_looked_at_again(cluster: Cluster, monkeypatch) -> None:
    record = await cluster.closed()
    await one_more(cluster)
    cluster.lose(0)
    read, times = repair_copy.Copier._copy, 0

    async def copy(self, record, version, plan):
        nonlocal times
        refused = await read(self, record, version, plan)
        times += 1
        if times == 1:
            path = paths.ledger(record.ledger_id)
            node = await cluster.store.get(path)
            await cluster.store.put(path, node.value, node.version)
        return refused

    monkeypatch.setattr(repair_copy.Copier, "_copy", copy)
    await cluster.look_long_after()
    assert times == 2
    assert "bookie-0:1" not in (await cluster.info(record.ledger_id)).fragments[0].bookies


async def test_a_ledger_deleted_while_it_is_copied_stays_deleted(cluster: Cluster, monkeypatch) -> None:
    record = await cluster.closed()
    await one_more(cluster)
    cluster.lose(0)
    fence = repair_copy.Copier._fence

    async def deleted_first(self, ledger_id, target):
        for each in cluster.bookies[1:3]:
            each.ledgers[ledger_id].is_deleted = True
        await cluster.store.delete(paths.ledger(ledger_id))
        await fence(self, ledger_id, target)

    monkeypatch.setattr(repair_copy.Copier, "_fence", deleted_first)
    await cluster.look_long_after()
    with pytest.raises(NotFound):
        await cluster.info(record.ledger_id)
    assert cluster.repair.status().failed == 0


async def test_targets_are_fenced(cluster: Cluster) -> None:
    record = await cluster.closed()
    await one_more(cluster)
    cluster.lose(0)
    await cluster.look_long_after()
    assert cluster.bookies[3].ledgers[record.ledger_id].is_fenced


async def test_one_coordinator_at_a_time_and_the_next_takes_over(cluster: Cluster) -> None:
    first, second = cluster.coordinator(), cluster.coordinator()
    first.start()
    await turns_until(lambda: first.is_coordinator, 100_000)
    second.start()
    record = await cluster.closed()
    await one_more(cluster)
    assert not second.is_coordinator
    await first.stop()
    await turns_until(lambda: second.is_coordinator, 100_000)
    cluster.lose(0)
    await cluster.want(0, BookieIntent.GIVE_UP)
    await turns_until(lambda: second.status().repaired > 0, 100_000)
    assert "bookie-0:1" not in (await cluster.info(record.ledger_id)).fragments[0].bookies
    await turns_until(lambda: second.status().state == "idle", 100_000)
    await second.stop()
    told = decode(RepairRecord, (await cluster.store.get(paths.REPAIR_PROGRESS)).value, "progress")
    assert told.coordinator == "test" and told.repaired == 1 and told.bytes_copied > 0


@pytest.mark.parametrize("error", [KeyError("a mistake"), Unavailable("the store has a hiccup")])
async def test_a_look_that_fails_is_not_the_end_of_repair_nor_a_new_beginning(
    cluster: Cluster, monkeypatch, error: Exception
) -> None:
    """Nobody else would repair, as the lease is held; and who was missed before has been gone for that long."""
    look, failures = cluster.repair.look, 0

    async def looked() -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise error
        await look()

    monkeypatch.setattr(cluster.repair, "look", looked)
    record = await cluster.closed()
    await one_more(cluster)
    cluster.lose(0)
    cluster.repair.start()
    await turns_until(lambda: bool(cluster.repair._auditor.absences.absent()), 100_000)
    failures = 1
    await turns_until(lambda: not failures, 100_000)
    cluster.clock.advance_ms(DELAY_MS)
    await turns_until(lambda: cluster.repair.status().repaired == 1, 100_000)
    assert "bookie-0:1" not in (await cluster.info(record.ledger_id)).fragments[0].bookies
    await cluster.repair.stop()


async def test_a_round_that_an_operator_asked_for_and_that_fails_is_had_again(
    cluster: Cluster, monkeypatch
) -> None:
    await cluster.closed()
    work = cluster.repair._auditor.work
    monkeypatch.setattr(cluster.repair._auditor, "work", lambda *_, **__: 1 / 0)
    await touch(cluster.store, paths.UNDERREPLICATED_ALL)
    await cluster.repair._look_and_log_failure()
    monkeypatch.setattr(cluster.repair._auditor, "work", work)
    assert cluster.repair.status().checked == 0
    await cluster.repair._look_and_log_failure()
    assert cluster.repair.status().checked == 1


async def test_a_mistake_about_one_ledger_keeps_nobody_from_the_others(cluster: Cluster, monkeypatch) -> None:
    records = [await cluster.closed() for _ in range(3)]
    holders = repair_core.good_holders

    def mistaken(record: LedgerRecord, view: repair_core.View) -> object:
        return holders(record, view) if record.ledger_id != records[0].ledger_id else 1 / 0

    monkeypatch.setattr(repair_core, "good_holders", mistaken)
    lacking = cluster.bookies[1].ledgers[records[2].ledger_id]
    lacking.blocks.pop(lacking.firsts.pop(3))
    cluster.repair._auditor.is_wanted = True
    await cluster.repair.look()
    assert cluster.repair.status().failed == 1
    assert len(cluster.holders(records[2])) == 3


async def test_an_operator_may_ask_for_a_round(cluster: Cluster) -> None:
    await cluster.closed()
    await cluster.repair.look()
    await touch(cluster.store, paths.UNDERREPLICATED_ALL)
    cluster.repair.wake()
    await cluster.repair.look()
    assert cluster.repair.status().checked == 1
    with pytest.raises(NotFound):
        await cluster.store.get(paths.UNDERREPLICATED_ALL)


async def test_many_ledgers_are_copied_from_many_to_many() -> None:
    cluster = Cluster(6)
    await cluster.know()
    records = [await cluster.closed(blocks=3) for _ in range(30)]
    cluster.lose(0)
    for each in cluster.bookies:
        each.requests.clear()
    await cluster.look_long_after()
    touched = [record for record in records if "bookie-0:1" in record.fragments[0].bookies]
    for record in touched:
        after = await cluster.info(record.ledger_id)
        assert set(after.fragments[0].bookies) <= cluster.holders(record)
    took = [
        each for each in cluster.bookies[1:] if any(type(r).__name__ == "AddRequest" for r in each.requests)
    ]
    gave = [
        each
        for each in cluster.bookies[1:]
        if any(isinstance(r, ReadRequest) and not r.fence for r in each.requests)
    ]
    assert len(took) >= 3 and len(gave) >= 3
