"""Reports of damage: what is told, what is told over, and what need not be told."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from quire.metadata import paths
from quire.metadata.damage import DamageReports, damage_reports
from quire.runtime.clock import ManualClock
from quire.testing.cluster import turns_until
from quire.testing.metadata import MemoryStore

BOOKIE = "bookie-0:1"


@pytest.fixture
async def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def reports(store: MemoryStore) -> AsyncIterator[DamageReports]:
    made = DamageReports(store.join(), ManualClock())
    made.start()
    yield made
    await made.stop()


async def told(store: MemoryStore) -> list[tuple[int, int]]:
    """Ledger and entry of each report."""
    return sorted((each.ledger_id, each.entry) for each in await damage_reports(store))


async def test_of_each_copy_there_is_one_report_the_newest(
    store: MemoryStore, reports: DamageReports
) -> None:
    reports.met(BOOKIE, 7, 0, "rotten")
    reports.met(BOOKIE, 8, 1, "rotten")
    await turns_until(lambda: reports.reported == 2)
    assert await told(store) == [(7, 0), (8, 1)]
    news = (await store.get(paths.REPAIR_NEWS)).version
    reports._clock.advance_ms(60_000)  # type: ignore[attr-defined]
    reports.met(BOOKIE, 7, 3, "rotten")
    await turns_until(lambda: reports.reported == 3)
    assert await told(store) == [(7, 3), (8, 1)]
    assert (await store.get(paths.REPAIR_NEWS)).version > news


async def test_what_was_told_already_is_not_written_again(store: MemoryStore, reports: DamageReports) -> None:
    for entry in (0, 0, 1):
        reports.met(BOOKIE, 7, entry, "rotten")
        await turns_until(lambda: not reports._waiting)
        reports._clock.advance_ms(60_000)  # type: ignore[attr-defined]
    assert reports.reported == 2
    assert list((await damage_reports(store)).values()) == [1]


async def test_what_stands_there_and_cannot_be_read_is_written_over(
    store: MemoryStore, reports: DamageReports
) -> None:
    await store.create(paths.damage("bookie-0", 7), b"not a report")
    assert await told(store) == []
    reports.met(BOOKIE, 7, 0, "rotten")
    await turns_until(lambda: reports.reported == 1)
    assert await told(store) == [(7, 0)]
