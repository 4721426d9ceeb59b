"""Claims of ranges of ledger ids: each range is used once, whatever copy of the metadata came back."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quire.identity import id_ranges
from quire.identity.id_ranges import FAR, claim_range, claimed_ranges, claims_of
from quire.identity.place import Place
from quire.identity.stores import StoreRole
from quire.ledger.directory import LocalDirectory
from quire.ledger.ids import IDS_PER_RANGE, Claim, LedgerIds
from quire.metadata.cluster import begin_cluster
from quire.process.ledger_home import claim_of
from quire.runtime.errors import DiskFull, OutcomeUnknown, Unavailable, WrongCluster
from quire.testing.metadata import MemoryStore
from quire.testing.objects import MemoryObjectStore


async def a_place(objects: MemoryObjectStore, role: StoreRole = StoreRole.ARCHIVE) -> Place:
    metadata = MemoryStore()
    place = Place(metadata, objects, (await begin_cluster(metadata, 1)).uuid, role)
    await place.enter()
    return place


async def test_a_range_is_claimed_once() -> None:
    place = await a_place(MemoryObjectStore())
    assert [await claim_range(place, number) for number in (1, 3, 2)] == [0, 0, 0]
    assert [await claim_range(place, number) for number in (1, 2, 3)] == [3, 3, 3]
    other = Place(place.metadata, place.objects, place.cluster, StoreRole.LOGS)
    assert await claim_range(other, 2) == 0, "an archive and logs in one bucket"


async def test_of_two_claims_at_once_one_succeeds() -> None:
    place = await a_place(MemoryObjectStore())
    found = await asyncio.gather(*(claim_range(place, 7) for _ in range(5)))
    assert sorted(found) == [0, 7, 7, 7, 7]


async def test_an_empty_directory_below_a_missing_mount_claims_nothing() -> None:
    objects = MemoryObjectStore()
    place = await a_place(objects)
    assert await claim_range(place, 5) == 0
    bucket = objects.faults
    mounted = dict(bucket.objects)
    bucket.objects.clear()
    with pytest.raises(WrongCluster):
        await claim_range(place, 5)
    assert not bucket.objects
    bucket.objects.update(mounted)
    assert await claim_range(place, 5) == 5


async def test_an_unknown_outcome_counts_as_claimed() -> None:
    objects = MemoryObjectStore()
    place = await a_place(objects)
    objects.faults.fail_next("finish", OutcomeUnknown("no answer"), happened=True)
    assert await claim_range(place, 7) == 7


async def test_few_claims_are_kept_and_older_ranges_stay_used() -> None:
    place = await a_place(MemoryObjectStore())
    for number in range(1, 5 * FAR):
        assert await claim_range(place, number) == 0
    kept = await claimed_ranges(place)
    assert len(kept) <= 2 * FAR + 1 and kept[-1] == 5 * FAR - 1
    for number in (1, 2 * FAR, 4 * FAR - 1, 4 * FAR, 5 * FAR - 1):
        assert await claim_range(place, number) == 5 * FAR - 1
    assert {name.rpartition("/")[0] + "/" for name in await names(place)} == {claims_of(place)}


async def names(place: Place) -> list[str]:
    return [info.name for info in await place.objects.list(id_ranges.FOLDER)]


async def test_ids_are_never_given_twice_without_bookies(caplog: pytest.LogCaptureFixture) -> None:
    """The blocks of the first process are in logs on object storage, or archived."""
    place = await a_place(MemoryObjectStore())

    def process(metadata: MemoryStore) -> LedgerIds:
        return LedgerIds(metadata, LocalDirectory(), lambda number: claim_range(place, number))

    first, used = process(MemoryStore()), set()
    for _ in range(5 * IDS_PER_RANGE):
        used.add(await first.next(-1))
    restored = MemoryStore()
    second = process(restored)
    again = {await second.next(-1) for _ in range(3 * IDS_PER_RANGE)}
    assert min(again) > max(used) and len(again) == 3 * IDS_PER_RANGE
    assert caplog.text.count("were used before") == 1, "the next ranges follow"
    third = process(restored)
    assert await third.next(-1) > max(again)


def claims(archive: Place | None, logs: Place | None, *, is_open: bool = True) -> Claim:
    one = SimpleNamespace(place=archive, store=archive.objects) if archive is not None else None
    context = SimpleNamespace(place=logs, objects=logs.objects) if logs is not None else None
    wals = SimpleNamespace(context=context, own_wal=lambda: is_open or None, why_not_ready="no log")
    return claim_of(cast(Any, one), cast(Any, wals) if logs is not None else None)


@pytest.mark.parametrize("error", [Unavailable("it is down"), DiskFull("no room")])
async def test_ranges_are_used_without_the_archive_but_not_without_the_logs_store(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    down, up = MemoryObjectStore(), MemoryObjectStore()
    archive, logs = await a_place(down), await a_place(up, StoreRole.LOGS)
    caplog.set_level(logging.WARNING)
    down.faults.fail_next("finish", error)
    assert await claims(archive, logs)(5) == 0 and str(error) in caplog.text
    assert await claims(archive, logs)(5) == 5, "claimed in the logs' store"
    up.faults.fail_next("finish", error)
    with pytest.raises(Unavailable, match="cannot claim"):
        await claims(archive, logs)(6)
    with pytest.raises(Unavailable, match="no log"):
        await claims(archive, logs, is_open=False)(7)
    assert await claims(None, None)(5) == 0


async def test_an_archive_that_hangs_delays_a_range_for_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.process.ledger_home.CLAIM_S", 0.01)
    archive = await a_place(MemoryObjectStore())

    async def hang(prefix: str = "") -> list[Any]:
        return await asyncio.Event().wait() and []  # type: ignore[return-value]

    monkeypatch.setattr(archive.objects, "list", hang)
    assert await claims(archive, None)(1) == 0
