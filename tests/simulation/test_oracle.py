"""What the oracle asks of bookies that lost what they had acknowledged: no more than they can keep."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from quire.bookie.storage import Storage
from quire.ledger import states
from quire.metadata.records import LedgerRecord
from quire.wire import block
from quire.wire.bookie import AddRequest, BookieId, Status
from tests.simulation.metadata import MetadataServer
from tests.simulation.oracle import Oracle
from tests.simulation.world import World

ONE, OTHER = (BookieId(f"{n:08}-0000-0000-0000-000000000000", 1) for n in (1, 2))
LEDGER = 7


@pytest.fixture
def oracle() -> Iterator[Oracle]:
    world = World(0)
    made = Oracle(world, MetadataServer(world, 1_000))
    for bookie in (ONE, OTHER):
        made.started(bookie.uuid, empty(bookie))
    yield made
    world.loop.close()


def empty(bookie: BookieId) -> Storage:
    """A bookie that has nothing."""
    index = SimpleNamespace(find=lambda ledger_id, entry: [])
    cache = SimpleNamespace(ledgers={}, tables=[])
    ledger_storage = SimpleNamespace(index=index)
    return cast(Storage, SimpleNamespace(bookie_id=bookie, cache=cache, ledger_storage=ledger_storage))


def acknowledge(oracle: Oracle, bookie: BookieId, entry: int, *, recovery: bool = False) -> None:
    made = bytes(block.cut(LEDGER, entry, entry - 1, 1_000, entry, [b"entry"]))
    oracle.blocks.setdefault(LEDGER, {})[entry] = made
    oracle.add_arrives(bookie, AddRequest(bookie, [made], recovery))([Status.OK])


def lose_all(oracle: Oracle, bookie: BookieId) -> BookieId:
    """An older copy of its disk, from before the ledger began, is put back while the bookie is down."""
    oracle.damaged(bookie.uuid)
    again = BookieId(bookie.uuid, bookie.incarnation + 1)
    oracle.started(again.uuid, empty(again))
    return again


def opened(*bookies: BookieId) -> LedgerRecord:
    return states.opened(LEDGER, 3, 2, bookies, "test", 0)


def judge_recovery(oracle: Oracle, record: LedgerRecord, last_entry: int) -> str:
    """Which invariant breaks when a recovery of the ledger closes with these fragments."""
    before = states.in_recovery(record)
    oracle._check_change(before, states.closed(before, before.fragments, last_entry, 0, 0))
    return str(getattr(oracle.world.violation, "rule", ""))


def test_a_recovery_need_not_write_again_what_a_bookie_lost_after_it_was_confirmed(oracle: Oracle) -> None:
    for bookie in (ONE, OTHER):
        acknowledge(oracle, bookie, 0)
    lose_all(oracle, OTHER)
    for bookie in (ONE, OTHER):
        acknowledge(oracle, bookie, 1, recovery=True)
    assert judge_recovery(oracle, opened(ONE, OTHER), 1) == ""


def test_a_block_may_be_confirmed_after_one_of_those_who_acknowledged_it_lost_it(oracle: Oracle) -> None:
    oracle.records[LEDGER] = opened(ONE, OTHER)
    acknowledge(oracle, OTHER, 0)
    lose_all(oracle, OTHER)
    acknowledge(oracle, ONE, 0)
    oracle.heard_confirmed(LEDGER, 0)
    assert oracle.world.violation is None


def test_what_a_bookie_acknowledged_before_its_incarnation_was_named_does_not_count(oracle: Oracle) -> None:
    for bookie in (ONE, OTHER):
        acknowledge(oracle, bookie, 0)
    again = lose_all(oracle, OTHER)
    assert judge_recovery(oracle, opened(ONE, again), 0) == "recovered"


def test_a_recovery_that_did_not_write_again_is_found_out(oracle: Oracle) -> None:
    acknowledge(oracle, ONE, 0)
    assert judge_recovery(oracle, opened(ONE, OTHER), 0) == "recovered"
