"""An open ledger with a damaged copy: its owner hears of the report and ends it, and then repair mends it."""

from __future__ import annotations

import asyncio

import pytest

from quire.ledger.bookies import Bookies
from quire.ledger.writer import LedgerWriter
from quire.metadata import paths
from quire.metadata.underreplicated import Reports, damage_reports
from quire.testing.cluster import Listener, turns_until, write
from quire.testing.metadata import MemoryStore
from tests.ledger.repair_cluster import Cluster
from tests.ledger.test_state_log import Counts, ids


@pytest.fixture
async def cluster() -> Cluster:
    made = Cluster(4)
    await made.know()
    made.ledgers.follow_damage()
    return made


async def written(cluster: Cluster) -> LedgerWriter:
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 5))
    return writer


async def report(cluster: Cluster, bookie: str, ledger_id: int) -> None:
    reports = Reports(cluster.store, cluster.clock)
    reports.start()
    reports.met(bookie, ledger_id, 0, "rot")
    await turns_until(lambda: not reports._waiting)
    await reports.stop()
    await turns_until(lambda: cluster.ledgers._reported._is_stale)


async def known(cluster: Cluster) -> set[int]:
    """What is to be left, when all that was told is known."""
    cluster.ledgers.ledgers_to_roll()
    await turns_until(lambda: cluster.ledgers._reported._reading is None)
    return cluster.ledgers.ledgers_to_roll()


async def test_an_open_ledger_with_a_damaged_copy_is_to_end(cluster):
    writer, other = await written(cluster), await written(cluster)
    assert await known(cluster) == set()
    await report(cluster, writer.core.fragments[-1].bookies[0], writer.ledger_id)
    assert await known(cluster) == {writer.ledger_id}
    await writer.close()
    assert await known(cluster) == set()
    assert not other.core.fragments[1:]


async def test_a_report_of_a_bookie_that_the_ledger_does_not_name_ends_nothing(cluster):
    writer = await written(cluster)
    (stranger,) = {str(each.bookie) for each in cluster.bookies} - {*writer.core.fragments[-1].bookies}
    await report(cluster, stranger, writer.ledger_id)
    assert await known(cluster) == set()


async def test_what_names_a_bookie_that_was_given_up_is_to_end_at_once(cluster):
    writer, operators = await written(cluster), Bookies(cluster.ledgers)
    gone = writer.core.fragments[-1].bookies[0].partition(":")[0]
    cluster.directory.leave(gone)
    assert await known(cluster) == set(), "it may be restarting"
    await operators.recover(gone)
    await turns_until(lambda: cluster.ledgers._reported._is_stale)
    assert await known(cluster) == {writer.ledger_id}
    await operators.keep(gone)
    await turns_until(lambda: cluster.ledgers._reported._is_stale)
    assert await known(cluster) == set()


async def test_nothing_is_read_while_there_is_no_news(cluster):
    writer = await written(cluster)
    await known(cluster)
    counts = cluster.ledgers.store.counts
    before = counts.reads
    for _ in range(10):
        assert await known(cluster) == set()
    assert counts.reads == before
    await report(cluster, writer.core.fragments[-1].bookies[0], 1 << 40)
    assert await known(cluster) == set()
    assert counts.reads > before, "of another's ledger: read once, and not kept"
    assert not cluster.ledgers._reported._copies


async def test_what_could_not_be_read_is_read_later(cluster):
    writer = await written(cluster)
    await report(cluster, writer.core.fragments[-1].bookies[0], writer.ledger_id)
    store = cluster.ledgers.store
    assert isinstance(store, MemoryStore)
    store.suspend()
    assert await known(cluster) == set()
    store.resume()
    assert await known(cluster) == {writer.ledger_id}


async def test_what_is_no_report_hides_no_other(cluster):
    writer = await written(cluster)
    uuid = writer.core.fragments[-1].bookies[0].rpartition(":")[0]
    await cluster.store.create(f"{paths.UNDERREPLICATED}/0/readme", b"")
    await cluster.store.create(paths.underreplicated(1 << 40), b"no record")
    await report(cluster, f"{uuid}:1", writer.ledger_id)
    assert await known(cluster) == {writer.ledger_id}


async def test_an_idle_state_log_is_mended(cluster):
    counts = await Counts(cluster, cluster.ledgers).open()
    counts.count(b"a")
    await counts.until_durable()
    (first,) = await ids(cluster)
    bookie = (await cluster.info(first)).fragments[0].bookies[0]
    cluster.bookies[int(bookie[7])].flip(first, 0)
    await report(cluster, bookie, first)
    counts.log.roll_if_writing_to(await known(cluster))
    assert counts.log._rolling is not None
    await asyncio.wait([counts.log._rolling])
    assert await ids(cluster) != [first]
    await cluster.looks(3)
    assert not await damage_reports(cluster.store)
