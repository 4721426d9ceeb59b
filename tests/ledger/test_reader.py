"""A reader that is kept for long: the bookies that it knew are replaced one by one, and it goes on reading."""

from __future__ import annotations

import asyncio

import pytest

from quire.ledger import states
from quire.ledger.reader import LedgerReader
from quire.metadata import paths
from quire.metadata.records import BookieIntent, LedgerRecord, encode
from quire.runtime.errors import CorruptionError, NotFound, Unavailable
from quire.wire.bookie import Status
from tests.ledger.repair_cluster import Cluster, one_more


@pytest.fixture
async def cluster() -> Cluster:
    made = Cluster(3)
    await made.know()
    return made


async def replace_all(cluster: Cluster) -> None:
    """Drain and retire the three bookies that the cluster began with."""
    for number in range(3):
        await one_more(cluster)
        cluster.bookies[number].refuses = Status.READ_ONLY
        await cluster.want(number, BookieIntent.DRAIN)
        await cluster.looks(4)
        cluster.lose(number)


async def kept(cluster: Cluster) -> tuple[LedgerRecord, LedgerReader]:
    """A closed ledger and a reader of it that has read already."""
    record = await cluster.closed()
    reader = await cluster.ledgers.open(record.ledger_id)
    assert await reader.read(0, 300)
    return record, reader


def silence(cluster: Cluster) -> None:
    for bookie in cluster.bookies:
        bookie.unreachable = True


async def test_a_closed_ledger_is_read_where_repair_moved_it(cluster):
    record, reader = await kept(cluster)
    before = await reader.read(0, 300)
    await replace_all(cluster)
    moved = await cluster.info(record.ledger_id)
    assert not {*states.all_bookies(moved)} & {*states.all_bookies(record)}
    assert await reader.read(0, 300) == before


async def test_all_reads_under_way_go_on_and_not_only_the_first(cluster):
    _, reader = await kept(cluster)
    await replace_all(cluster)
    assert all(await asyncio.gather(*(reader.read(entry, 300) for entry in range(5))))


async def test_a_closed_ledger_is_searched_by_time_where_repair_moved_it(cluster):
    _, reader = await kept(cluster)
    found = [await reader.find_time(time_ms) for time_ms in (0, 7, 99)]
    await replace_all(cluster)
    assert [await reader.find_time(time_ms) for time_ms in (0, 7, 99)] == found


async def test_what_all_bookies_fail_is_an_error_as_long_as_the_record_names_no_others(cluster):
    record, reader = await kept(cluster)
    for bookie in cluster.bookies:
        bookie.flip(record.ledger_id, 0)
    with pytest.raises(CorruptionError):
        await reader.read(0, 300)
    silence(cluster)
    with pytest.raises(Unavailable, match="cannot be read now"):
        await reader.read(0, 300)
    cluster.ledgers.store.suspend()
    with pytest.raises(Unavailable, match="cannot be read now"):
        await reader.read(0, 300)


@pytest.mark.parametrize("is_gone", [True, False])
async def test_a_deleted_ledger_is_not_found_whether_or_not_a_bookie_says_so(cluster, is_gone):
    record, reader = await kept(cluster)
    if is_gone:
        await cluster.ledgers.delete(record.ledger_id)
    else:
        await cluster.store.put(paths.ledger(record.ledger_id), encode(states.deleting(record)), -1)
    silence(cluster)
    with pytest.raises(NotFound, match="deleted"):
        await reader.read(0, 300)
    with pytest.raises(NotFound, match="deleted"):
        await reader.find_time(0)
    assert reader.last_confirmed == record.last_entry
