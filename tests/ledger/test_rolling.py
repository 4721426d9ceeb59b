"""Open ledgers to roll: those that name a drained bookie, or one that is absent for long."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from quire.ledger import rolling, states
from quire.ledger.ledgers import Ledgers
from quire.ledger.rolling import LedgersToRoll
from quire.ledger.settings import LedgerSettings
from quire.ledger.writer import LedgerWriter
from quire.metadata.records import BookieIntent, PersistencePolicy
from quire.testing.cluster import Listener, MemoryCluster, turns_until, write


async def test_only_what_names_an_unwanted_bookie_and_a_few_at_a_time(monkeypatch) -> None:
    cluster = MemoryCluster(4)
    writers = {}
    for _ in range(12):
        writer = await cluster.ledgers.create("test", Listener())
        writers[writer.ledger_id] = writer
    leave = LedgersToRoll(cluster.directory, cluster.clock, delay_s=600)

    def look(writers: dict[int, LedgerWriter]) -> set[int]:
        return leave.find(writers, cluster.ledgers._parts.loads)

    naming = {each.ledger_id for each in writers.values() if "bookie-0:1" in each.core.fragments[-1].bookies}
    assert naming and naming != writers.keys()
    assert look(writers) == set()
    cluster.directory.leave("bookie-0")
    assert look(writers) == set()
    cluster.clock.advance_ms(599_000)
    assert look(writers) == set(), "it may be restarting"
    cluster.clock.advance_ms(1_000)
    assert look(writers) == naming
    monkeypatch.setattr(rolling, "PER_LOOK_MAX", 2)
    assert len(look(writers)) == 2
    bookie = cluster.bookies[0]
    cluster.directory.join(bookie.record(), bookie)
    assert look(writers) == set(), "it is back"
    cluster.directory.join(replace(bookie.record(), intent=BookieIntent.DRAIN), bookie)
    assert look(writers) <= naming and look(writers)


async def test_a_process_waits_as_long_as_repair_does() -> None:
    cluster = MemoryCluster(3)
    ledgers = Ledgers(
        cluster.store.join(), cluster.directory, cluster.clock, Random(1), LedgerSettings(), lost_after_s=5
    )
    writer = await ledgers.create("test", Listener())
    assert ledgers.ledgers_to_roll() == set()
    cluster.directory.leave("bookie-0")
    assert ledgers.ledgers_to_roll() == set()
    cluster.clock.advance_ms(5_000)
    assert ledgers.ledgers_to_roll() == {writer.ledger_id}
    await ledgers.stop()


async def test_a_bookie_that_went_before_the_first_look_is_missed_all_the_same() -> None:
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("test", Listener())
    cluster.directory.leave("bookie-0")
    assert cluster.ledgers.ledgers_to_roll() == set()
    cluster.clock.advance_ms(600_000)
    assert cluster.ledgers.ledgers_to_roll() == {writer.ledger_id}


async def test_a_bookie_that_came_back_as_another_incarnation_is_left() -> None:
    """It may have lost what the open ledger still names it for."""
    cluster = MemoryCluster(4)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 5))
    victim = cluster.ensemble(writer)[0]
    victim.forget()
    cluster.directory.join(victim.record, victim)
    await listener.until(write(writer, 5))
    await turns_until(lambda: len(writer.core.fragments) == 2)
    assert cluster.ledgers.ledgers_to_roll() == {writer.ledger_id}
    await writer.close()
    on_all = PersistencePolicy(write_quorum=4, ack_quorum=2)
    after = await cluster.ledgers.create("test", Listener(), on_all)
    assert victim.bookie in states.ensemble(after.core.fragments[-1])
    assert cluster.ledgers.ledgers_to_roll() == set(), "what it holds as the new one it keeps"
