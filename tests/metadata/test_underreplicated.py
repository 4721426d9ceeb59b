"""The queue of under-replicated ledgers: what is told, told over, and need not be told; who takes it out again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quire.metadata import paths, underreplicated
from quire.metadata.records import DamageRecord, encode
from quire.metadata.store import Node
from quire.metadata.underreplicated import Reports, damage_reports
from quire.runtime.clock import ManualClock
from quire.runtime.errors import VersionConflict
from quire.testing.cluster import turns_until
from quire.testing.metadata import MemoryStore

BOOKIE = "bookie-0:1"


@pytest.fixture
async def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def reports(store: MemoryStore) -> AsyncIterator[Reports]:
    made = Reports(store.join(), ManualClock())
    made.start()
    yield made
    await made.stop()


async def told(store: MemoryStore) -> list[tuple[int, int]]:
    """Ledger and entry of each report."""
    return sorted((each.ledger_id, each.entry) for each in await damage_reports(store))


async def test_of_each_copy_there_is_one_report_the_newest(store: MemoryStore, reports: Reports) -> None:
    reports.met(BOOKIE, 7, 0, "rotten")
    reports.met(BOOKIE, 8, 1, "rotten")
    await turns_until(lambda: reports.reported == 2)
    assert await told(store) == [(7, 0), (8, 1)]
    news = (await store.get(paths.UNDERREPLICATED)).version
    reports._clock.advance_ms(60_000)  # type: ignore[attr-defined]
    reports.met(BOOKIE, 7, 3, "rotten")
    await turns_until(lambda: reports.reported == 3)
    assert await told(store) == [(7, 3), (8, 1)]
    assert (await store.get(paths.UNDERREPLICATED)).version > news


async def test_what_was_told_already_is_not_written_again(store: MemoryStore, reports: Reports) -> None:
    for entry in (0, 0, 1):
        reports.met(BOOKIE, 7, entry, "rotten")
        await turns_until(lambda: not reports._waiting)
        reports._clock.advance_ms(60_000)  # type: ignore[attr-defined]
    assert reports.reported == 2
    assert list((await damage_reports(store)).values()) == [1]


async def test_what_stands_there_and_cannot_be_read_is_written_over(
    store: MemoryStore, reports: Reports
) -> None:
    await store.create(paths.underreplicated(7), b"not a report")
    assert await told(store) == []
    reports.met(BOOKIE, 7, 0, "rotten")
    await turns_until(lambda: reports.reported == 1)
    assert await told(store) == [(7, 0)]


async def test_reasons_and_damage_of_one_ledger_are_one_node(store: MemoryStore, reports: Reports) -> None:
    reports.may_lack(7, "closed narrow")
    reports.met(BOOKIE, 7, 3, "rotten")
    reports.met("bookie-1:1", 7, 4, "rotten")
    await turns_until(lambda: reports.reported == 3)
    assert [each async for each in underreplicated.listed(store)] == [7]
    record, version = await underreplicated.read(store, 7)
    assert record.reasons == ("closed narrow",) and len(record.damage) == 2
    left, version = await underreplicated.settle(store, record, version, {"bookie-1"})
    assert [each.bookie for each in left.damage] == ["bookie-1:1"]
    assert await underreplicated.read(store, 7) == (left, version)
    await underreplicated.remove(store, 7, version)
    assert await told(store) == []


async def test_what_is_reported_again_is_not_removed_by_who_read_it_before(
    store: MemoryStore, reports: Reports
) -> None:
    reports.may_lack(7, "closed narrow")
    await turns_until(lambda: reports.reported == 1)
    _, version = await underreplicated.read(store, 7)
    reports.may_lack(7, "closed narrow")
    await turns_until(lambda: reports.reported == 2)
    with pytest.raises(VersionConflict):
        await underreplicated.remove(store, 7, version)


async def test_damage_that_an_older_version_reported_is_taken_over(store: MemoryStore) -> None:
    old = DamageRecord(bookie=BOOKIE, ledger_id=7, entry=3, what="rotten")
    await store.create(paths.damage("bookie-0", 7), encode(old))
    await store.create(paths.damage("bookie-0", 8), b"not a report")
    await underreplicated.take_over_damage(store)
    assert list(await damage_reports(store)) == [old]
    assert await store.children(paths.DAMAGE) == []
    before = store.counts.changes
    await underreplicated.take_over_damage(store)
    assert store.counts.changes == before


async def test_a_process_that_stops_reports_what_the_store_has_not_taken_yet() -> None:
    store = MemoryStore()
    reports = Reports(store.join(), ManualClock())
    reports.may_lack(7, "closed narrow")
    await reports.stop()
    assert [each async for each in underreplicated.listed(store)] == [7]


async def test_a_store_that_is_away_does_not_keep_a_process_from_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(underreplicated, "LAST_REPORT_S", 0.01)

    class Away(MemoryStore):
        async def get(self, path: str) -> Node:
            await asyncio.sleep(3600)
            raise AssertionError("nobody waits that long")

    reports = Reports(Away(), ManualClock())
    reports.may_lack(7, "closed narrow")
    await reports.stop()
