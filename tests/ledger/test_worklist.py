"""What waits in the queue of repair: when it is due again, and what many ledgers cost."""

from __future__ import annotations

import tracemalloc

import pytest

from quire.ledger.worklist import WorkEvent, Worklist, WorkState
from quire.metadata import underreplicated
from quire.metadata.underreplicated import listed
from tests.ledger.repair_cluster import Cluster


def test_what_waits_says_whom_it_has_to_leave_and_is_due_again() -> None:
    work = Worklist()
    work.enqueue([7, 8])
    work.enqueue([7])
    assert work.begin(frozenset({"a", "b"})) == 7
    assert work.leaving() == {"a": 1, "b": 1}, "until its end it may be any of them"
    work.restrict_leaving(7, frozenset({"b", "c"}))
    work.finish(7, WorkEvent.FAILED)
    assert work.leaving() == {"b": 1}
    assert work.begin(frozenset()) == 8 and work.begin(frozenset()) is None
    work.finish(8, WorkEvent.DONE)
    work.tick(0.0)
    assert work.count(WorkState.QUEUED) == 1
    assert work.begin(frozenset()) == 7
    work.finish(7, WorkEvent.IS_OPEN, frozenset({"b"}))
    work.tick(1.0)
    assert work.begin(frozenset()) == 7, "who waits alone is looked at often"


@pytest.mark.parametrize("event", [WorkEvent.LACKS_BOOKIE, WorkEvent.BOOKIE_IS_AWAY])
def test_news_are_looked_at_where_a_bookie_is_waited_for(event: WorkEvent) -> None:
    work = Worklist()
    work.enqueue([7])
    work.begin(frozenset())
    work.finish(7, event)
    work.tick(1.0)
    assert work.begin(frozenset()) is None
    work.has_news = True
    work.tick(2.0)
    assert work.begin(frozenset()) == 7 and not work.has_news


def test_an_event_that_means_nothing_in_a_state_is_a_bug() -> None:
    work = Worklist()
    work.enqueue([7])
    with pytest.raises(AssertionError, match="bug: an under-replicated ledger in state QUEUED received DONE"):
        work.finish(7, WorkEvent.DONE)


async def test_many_queued_ledgers_cost_little_memory_and_few_calls() -> None:
    """A hundred thousand cost twenty times as much: nothing grows faster than their number."""
    count = 5_000
    cluster = Cluster(3)
    await cluster.know()
    for ledger_id in range(count):
        await underreplicated.put(cluster.store, ledger_id, "a test says so")
    counts = cluster.repair._store.counts
    reads, changes = counts.reads, counts.changes
    tracemalloc.start()
    await cluster.repair.look()
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert cluster.repair.status().checked == count
    assert [each async for each in listed(cluster.store)] == []
    assert counts.reads - reads <= 2 * count + 100, "its node, and its ledger's"
    assert counts.changes - changes <= count + 100
    assert peak_bytes < 4 << 20
