"""Damage that was reported: who mends it, where, and when its report goes."""

from __future__ import annotations

from typing import Any

import pytest

from quire.ledger import labels
from quire.ledger.bookies import Bookies
from quire.metadata import paths
from quire.metadata.records import DamageRecord, encode
from quire.metadata.underreplicated import Reports, damage_reports
from quire.testing.cluster import Listener, turns_until, write
from quire.wire import ledger_ids
from tests.ledger.repair_cluster import Cluster, one_more


async def test_what_rotted_is_mended_where_it_is_when_there_is_no_other_place(cluster: Cluster) -> None:
    record = await cluster.closed()
    await cluster.report_damage(1, record.ledger_id, 4)
    await cluster.repair.look()
    assert await cluster.info(record.ledger_id) == record
    assert "bookie-1:1" in cluster.holders(record)
    assert not await damage_reports(cluster.store)


async def test_damage_is_copied_elsewhere_and_the_report_goes(cluster: Cluster) -> None:
    record = await cluster.closed()
    cluster.bookies[1].cannot_mend = True
    await cluster.report_damage(1, record.ledger_id, 4)
    await cluster.repair.look()
    assert await cluster.info(record.ledger_id) == record, "three bookies, no place for another copy"
    assert len(await damage_reports(cluster.store)) == 1
    assert cluster.repair.status().failed == 1
    await one_more(cluster)
    await cluster.look_long_after()
    after = await cluster.info(record.ledger_id)
    assert set(after.fragments[0].bookies) == {"bookie-0:1", "bookie-2:1", "bookie-3:1"}
    assert set(after.fragments[0].bookies) <= cluster.holders(record)
    assert not await damage_reports(cluster.store)


async def test_damage_of_a_ledger_that_waits_for_a_bookie_is_mended_where_it_is(cluster: Cluster) -> None:
    record = await cluster.closed()
    cluster.lose(2)
    await cluster.look_long_after()
    assert cluster.repair.status().unplaced == 1
    await cluster.report_damage(0, record.ledger_id, 4)
    await cluster.repair.look()
    assert "bookie-0:1" in cluster.holders(record)
    assert not await damage_reports(cluster.store)
    assert cluster.repair.status().unplaced == 1


async def test_a_copy_that_lacks_blocks_is_made_whole_where_it_is(cluster: Cluster) -> None:
    record = await cluster.closed()
    cluster.cut_off(1, record.ledger_id, blocks=3)
    assert "bookie-1:1" not in cluster.holders(record)
    await cluster.report_damage(1, record.ledger_id, record.last_entry, flip=False)
    await cluster.repair.look()
    assert await cluster.info(record.ledger_id) == record
    assert "bookie-1:1" in cluster.holders(record)
    assert not await damage_reports(cluster.store)


async def test_a_rotten_copy_does_not_keep_another_bookie_from_the_one_that_it_is_to_have(
    cluster: Cluster,
) -> None:
    """One copy is rotten, one lacks a block, and there is one other bookie: whoever it stands in for, all get whole."""
    record = await cluster.closed()
    cluster.bookies[1].cannot_mend = True
    lacking = cluster.bookies[2].ledgers[record.ledger_id]
    lacking.blocks.pop(lacking.firsts.pop(3))
    await one_more(cluster)
    await cluster.report_damage(1, record.ledger_id, 5)
    await cluster.report_damage(2, record.ledger_id, 3, flip=False)
    for _ in range(4):
        await cluster.look_long_after()
    after = await cluster.info(record.ledger_id)
    assert set(after.fragments[0].bookies) == {"bookie-0:1", "bookie-2:1", "bookie-3:1"}
    assert set(after.fragments[0].bookies) <= cluster.holders(record)
    assert not await damage_reports(cluster.store)


async def test_a_report_that_is_settled_does_not_outlive_another_copys_damage(cluster: Cluster) -> None:
    """Two bookies were sent away and are back, a third one's copy rots: none is sent away again for what is past."""
    record = await cluster.closed()
    await one_more(cluster)
    rotten, left, good = (int(each[len("bookie-") :][:1]) for each in record.fragments[0].bookies)
    cluster.bookies[rotten].cannot_mend = True
    await cluster.report_damage(rotten, record.ledger_id, 5)
    for number in (left, 3):
        await cluster.report_damage(number, record.ledger_id, 3, flip=False)
    for _ in range(3):
        await cluster.look_long_after()
    after = await cluster.info(record.ledger_id)
    assert set(after.fragments[0].bookies) == {f"bookie-{number}:1" for number in (left, good, 3)}
    assert set(after.fragments[0].bookies) <= cluster.holders(record)
    assert not await damage_reports(cluster.store)


async def test_who_left_for_damage_gets_a_new_copy_only_when_nobody_else_can(cluster: Cluster) -> None:
    record = await cluster.closed()
    await one_more(cluster)
    await one_more(cluster)
    cluster.repair._replicator._copier.loads[cluster.bookies[4].bookie] = (
        1  # it would be the other one's turn
    )
    await cluster.report_damage(3, record.ledger_id, 3, flip=False)
    await cluster.report_damage(1, record.ledger_id, 5)
    await cluster.repair.look()
    assert "bookie-4:1" in (await cluster.info(record.ledger_id)).fragments[0].bookies


async def test_damage_of_a_deleted_ledger_is_forgotten(cluster: Cluster) -> None:
    record = await cluster.closed()
    await cluster.report_damage(1, record.ledger_id, 4)
    await cluster.ledgers.delete(record.ledger_id)
    await cluster.repair.look()
    assert not await damage_reports(cluster.store)


async def test_damage_of_an_open_ledger_that_does_not_name_the_bookie_is_forgotten(cluster: Cluster) -> None:
    """It is nobody's to mend, and would be looked at in vain at every look."""
    await one_more(cluster)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 5))
    [other] = set(cluster.bookies) - set(cluster.ensemble(writer))
    named = cluster.ensemble(writer)[0]
    for each in (named, other):
        await cluster.report_damage(cluster.bookies.index(each), writer.ledger_id, 3, flip=each is named)
    await cluster.repair.look()
    assert [each.bookie for each in await damage_reports(cluster.store)] == [str(named.bookie)]
    await writer.close()
    cluster.clock.advance_ms(5_000)
    await cluster.repair.look()
    assert not await damage_reports(cluster.store)


async def test_damage_that_every_copy_has_is_an_error_and_changes_nothing(cluster: Cluster) -> None:
    record = await cluster.closed()
    for number in range(3):
        cluster.bookies[number].flip(record.ledger_id, 4)
    await one_more(cluster)
    cluster.lose(0)
    await cluster.look_long_after()
    assert await cluster.info(record.ledger_id) == record
    status = cluster.repair.status()
    assert status.failed == 1 and "cannot be copied" in status.error


async def test_damage_that_is_reported_while_the_copy_is_mended_is_mended_too(
    cluster: Cluster, monkeypatch
) -> None:
    """The report of what rotted behind the mending must not go with the one of what is mended."""
    record = await cluster.closed()
    await cluster.report_damage(0, record.ledger_id, 0)
    reports = Reports(cluster.store.join(), cluster.clock)
    reports.start()
    repair = cluster.repair._replicator._copier.repair

    async def rots_behind(*given: Any) -> Any:
        repaired = await repair(*given)
        if not reports.reported:
            cluster.bookies[0].flip(record.ledger_id, 3)
            reports.met("bookie-0:1", record.ledger_id, 3, "rotten")
            await turns_until(lambda: reports.reported == 1)
        return repaired

    monkeypatch.setattr(cluster.repair._replicator._copier, "repair", rots_behind)
    await cluster.looks(2)
    await reports.stop()
    assert "bookie-0:1" in cluster.holders(record)
    assert not await damage_reports(cluster.store)


async def test_what_is_no_report_keeps_nobody_from_the_reports(cluster: Cluster) -> None:
    record = await cluster.closed()
    for name in ("foreign", f"{record.ledger_id + 1:016x}"):
        await cluster.store.create(f"{paths.UNDERREPLICATED}/0/{name}", b"")
        await cluster.store.create(f"{paths.DAMAGE}/bookie-0/{name}", b"")
    await cluster.report_damage(1, record.ledger_id, 4)
    await cluster.looks(1)
    assert len(cluster.holders(record)) == 3


async def test_damage_that_an_older_version_reported_is_mended_by_the_first_audit(cluster: Cluster) -> None:
    record = await cluster.closed()
    cluster.bookies[1].flip(record.ledger_id, 4)
    report = DamageRecord(bookie="bookie-1:1", ledger_id=record.ledger_id, entry=4)
    await cluster.store.create(paths.damage("bookie-1", record.ledger_id), encode(report))
    for old in ("wish", "news", "narrow"):
        await cluster.store.create(f"/quire/repair/{old}", b"all")
    await cluster.look_long_after()
    assert "bookie-1:1" in cluster.holders(record)
    assert not await damage_reports(cluster.store)
    assert await cluster.store.children(paths.DAMAGE) == []


async def test_a_label_that_rotted_is_told_anew_and_the_report_goes(cluster: Cluster) -> None:
    """It is reported by the id that bookies keep it under; whoever asks an operator's question hears of its ledger."""
    record = await cluster.closed()
    await cluster.report_damage(1, ledger_ids.label_id(record.ledger_id), 1)
    kept = cluster.bookies[1].ledgers[ledger_ids.label_id(record.ledger_id)]
    assert kept.damaged == {1}
    (shown,) = (await Bookies(cluster.ledgers).show("bookie-1"))["damage"]
    assert shown["ledger"] == record.ledger_id and shown["what"].startswith("its label")
    await cluster.repair.look()
    await turns_until(lambda: not kept.damaged)
    assert labels.read(kept.blocks[1][1]) == (record, 1)
    assert await cluster.info(record.ledger_id) == record
    assert not await damage_reports(cluster.store)


async def test_a_label_of_a_deleted_ledger_that_rotted_is_forgotten(cluster: Cluster) -> None:
    record = await cluster.closed()
    await cluster.ledgers.delete(record.ledger_id)
    await cluster.report_damage(1, ledger_ids.label_id(record.ledger_id), 1, flip=False)
    await cluster.repair.look()
    assert cluster.bookies[1].ledgers[ledger_ids.label_id(record.ledger_id)].is_deleted
    assert not await damage_reports(cluster.store)


@pytest.mark.parametrize("is_reported", [False, True])
async def test_who_is_given_the_blocks_that_it_lacked_is_told_the_label(
    cluster: Cluster, is_reported: bool
) -> None:
    """The bookie took none of either when its writer was there, whether an audit finds that or a reader."""
    record = await cluster.closed()
    cluster.cut_off(1, record.ledger_id, blocks=20)
    del cluster.bookies[1].ledgers[ledger_ids.label_id(record.ledger_id)]
    if is_reported:
        await cluster.report_damage(1, record.ledger_id, 0, flip=False)
    cluster.repair._auditor.is_wanted = not is_reported
    await cluster.repair.look()
    assert "bookie-1:1" in cluster.holders(record)
    await turns_until(lambda: cluster.bookies[1].holds(ledger_ids.label_id(record.ledger_id), 1))
    assert await cluster.info(record.ledger_id) == record
