"""Deletions that a bookie missed are finished by the coordinator: no copy, and no record, stays for ever."""

from __future__ import annotations

import pytest

from quire.metadata import paths
from quire.metadata.records import BookieIntent, LedgerState
from quire.runtime.errors import NotFound, Unavailable
from quire.testing.cluster import turns_until
from tests.ledger.repair_cluster import DELAY_MS, Cluster


async def missed(cluster: Cluster) -> int:
    """A ledger whose deletion is not over, because bookie 0 is away or silent."""
    record = await cluster.closed()
    cluster.bookies[0].unreachable = True
    with pytest.raises(Unavailable, match="not deleted yet: no answer from bookie-0:1"):
        await cluster.ledgers.delete(record.ledger_id)
    assert (await cluster.info(record.ledger_id)).state is LedgerState.DELETING
    return record.ledger_id


async def is_gone(cluster: Cluster, ledger_id: int) -> bool:
    try:
        await cluster.info(ledger_id)
    except NotFound:
        return not any(each.holds(ledger_id, 0) for each in cluster.bookies)
    return False


async def test_a_bookie_that_was_away_gets_the_tombstone_when_it_is_back(cluster: Cluster) -> None:
    ledger_id = await missed(cluster)
    cluster.lose(0)
    await cluster.look_long_after()
    assert (await cluster.info(ledger_id)).state is LedgerState.DELETING, "it may still have the bytes"
    assert cluster.repair.status().failed == 0, "nobody is asked in vain"
    cluster.come_back(0)
    await cluster.repair.look()
    cluster.clock.advance_ms(DELAY_MS)
    await cluster.repair.look()
    assert await is_gone(cluster, ledger_id)


async def test_a_bookie_that_was_silent_for_a_while_gets_it_soon(cluster: Cluster) -> None:
    await cluster.repair.look()
    ledger_id = await missed(cluster)
    await turns_until(lambda: not cluster.ledgers._parts.reports._waiting)
    cluster.repair.wake()
    await cluster.repair.look()
    assert cluster.repair.status().failed == 1
    cluster.bookies[0].unreachable = False
    cluster.clock.advance_ms(60_000)
    await cluster.repair.look()
    assert await is_gone(cluster, ledger_id)


async def test_a_bookie_that_is_retired_meanwhile_is_waited_for_no_longer(cluster: Cluster) -> None:
    await cluster.know()
    ledger_id = await missed(cluster)
    cluster.lose(0)
    await cluster.look_long_after()
    assert (await cluster.info(ledger_id)).state is LedgerState.DELETING
    await cluster.want(0, BookieIntent.DRAIN)
    await cluster.look_long_after()
    with pytest.raises(NotFound):
        await cluster.store.get(paths.bookie("bookie-0"))
    cluster.clock.advance_ms(DELAY_MS)
    await cluster.repair.look()
    with pytest.raises(NotFound):
        await cluster.info(ledger_id)
