"""Bookies that are slow, hang, come back or rot: patience, quarantine, lag, widening, and where readers turn to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from quire.ledger import narrow, placement, states
from quire.ledger.directory import BookiesAlone
from quire.ledger.ledgers import Ledgers
from quire.ledger.placement import Quarantine
from quire.ledger.replicas import REPORT_AGAIN_S, Replicas
from quire.ledger.rtt import RttEstimator
from quire.ledger.writer_core import Lag, Pending, Replica, WriterCore
from quire.metadata.records import BookieRecord, Fragment
from quire.runtime.clock import ManualClock
from quire.runtime.errors import CorruptionError, QuireError, Unavailable
from quire.testing.bookie import MemoryBookie
from quire.testing.cluster import QUICK, Listener, MemoryCluster, cut, expected, read_all, turns_until, write
from quire.wire.bookie import BookieId, ReadRequest, Status


# -- patience ------------------------------------------------------------------------------------------
def test_patience_is_the_least_while_nothing_is_known():
    assert RttEstimator().timeout(8, 1.5, 10) == 1.5


def test_time_outs_follow_what_is_usual_within_its_bounds():
    estimator = RttEstimator()
    for _ in range(50):
        estimator.observe(0.5)
    assert estimator.timeout(8, 1.5, 10) == pytest.approx(4, rel=0.01)
    assert estimator.timeout(8, 1.5, 2) == 2
    for _ in range(100):
        estimator.observe(0.001)
    assert estimator.timeout(8, 1.5, 10) == 1.5


def test_one_that_varies_is_given_more_than_its_mean():
    steady, restless = RttEstimator(), RttEstimator()
    for number in range(100):
        steady.observe(0.1)
        restless.observe(0.15 if number % 2 else 0.05)
    assert restless.timeout(1, 0, 10) > 2 * steady.timeout(1, 0, 10)


# -- quarantine and placement --------------------------------------------------------------------------
def test_quarantine_ends():
    clock = ManualClock()
    quarantine = Quarantine(clock.monotonic, 10)
    quarantine.put([BookieId("a", 1)])
    clock.advance_ms(9_999)
    assert list(quarantine.members()) == [BookieId("a", 1)]
    clock.advance_ms(1)
    assert not quarantine.members()


def sound(count: int, enough: int, *suspects: str) -> list[str]:
    available = [BookieRecord(uuid=uuid, incarnation=1) for uuid in "abc"]
    quarantine = Quarantine(ManualClock().monotonic)
    quarantine.put([BookieId(uuid, 1) for uuid in suspects])
    chosen = placement.EnsemblePlacement({}, lambda: 0.5, quarantine).choose_sound(count, enough, available)
    return [bookie.uuid for bookie in chosen]


def test_who_is_in_quarantine_is_taken_only_for_want_of_others():
    assert sound(3, 2) == ["a", "b", "c"]
    assert sound(3, 2, "b") == ["a", "c"]
    assert sound(3, 2, "a", "b") == ["a", "b", "c"]


def test_a_fuller_disk_weighs_like_more_ledgers():
    half = BookieRecord(uuid="half", incarnation=1, free_bytes=50, total_bytes=100)
    empty = BookieRecord(uuid="empty", incarnation=1, free_bytes=100, total_bytes=100)

    def first(half_load: int, empty_load: int) -> str:
        loads = {BookieId("half", 1): half_load, BookieId("empty", 1): empty_load}
        return placement.EnsemblePlacement(loads, lambda: 0.5).choose(1, [half, empty])[0].uuid

    assert first(10, 19) == "empty" and first(10, 21) == "half"


async def test_a_bookie_that_failed_gets_no_new_ledgers_for_a_while():
    cluster = MemoryCluster(4)
    ledgers = Ledgers(cluster.store.join(), cluster.directory, cluster.clock, cluster.rng, cluster.settings)
    writer = await ledgers.create("test", listener := Listener())
    victim = cluster.ensemble(writer)[0]
    victim.unreachable = True
    await listener.until(write(writer, 1))
    await turns_until(lambda: str(victim.bookie) not in writer.core.fragments[-1].bookies)
    for _ in range(8):
        assert victim not in cluster.ensemble(await ledgers.create("test", Listener()))
    cluster.clock.advance_ms(round(placement.QUARANTINE_S * 1000))
    victim.unreachable = False
    assert victim in cluster.ensemble(await ledgers.create("test", Listener())), "it has the least load"
    await ledgers.stop()


# -- lag -----------------------------------------------------------------------------------------------
class Effects:
    """Remembers what a core asked for."""

    def __init__(self) -> None:
        self.sent: dict[tuple[int, str], tuple[Pending, Replica]] = {}
        self.is_armed = False

    def send(self, pending: Pending, replica: Replica) -> None:
        self.sent[pending.last_entry, replica.bookie.uuid] = pending, replica

    def send_later(self, pending: Pending, replica: Replica) -> None: ...

    def confirmed(self, last_entry: int) -> None: ...

    def conflict(self, replica: Replica) -> None:
        self.core.conflicts(replica.bookie)

    def arm_change(self) -> None:
        self.is_armed = True

    def commit(self, fragments: tuple[Fragment, ...]) -> None: ...

    def failed(self, error: QuireError) -> None:
        raise error


class Stage:
    """A core over bookies named by letters, which shares `lag` with others."""

    def __init__(self, letters: str, ack_quorum: int, lag: Lag) -> None:
        self.effects = Effects()
        fragment = states.fragment(0, [BookieId(letter, 1) for letter in letters])
        self.core = WriterCore(7, (fragment,), ack_quorum, self.effects, changes_max=9, lag=lag)

    def add(self) -> int:
        entry = self.core.last_added + 1
        self.core.add(Pending(cut(7, entry), entry))
        return entry

    def answer(self, entry: int, letters: str) -> None:
        for letter in letters:
            self.core.answered(*self.effects.sent[entry, letter], Status.OK)
        self.core.advance()


def test_lag_counts_confirmed_blocks_of_all_ledgers_until_they_are_answered():
    lag, size = Lag(), len(cut(7, 0))
    one, other = Stage("abc", 2, lag), Stage("abc", 2, lag)
    for stage in (one, other):
        stage.answer(stage.add(), "ab")
    assert lag.bytes == 2 * size
    one.answer(0, "c")
    assert lag.bytes == size
    other.core.finish()
    assert lag.bytes == 0


def test_beyond_its_limit_the_bookie_that_lags_is_left_and_no_other():
    stage = Stage("abc", 2, Lag(bytes_max=2 * len(cut(7, 0))))
    for _ in range(2):
        stage.answer(stage.add(), "ac")
    assert not stage.effects.is_armed
    stage.answer(stage.add(), "ac")
    assert stage.effects.is_armed and [bookie.uuid for bookie in stage.core.failed_bookies()] == ["b"]
    assert stage.core._lagging.of_process.bytes == 0, "nobody is waited for"


def test_nobody_is_left_below_the_ack_quorum():
    stage = Stage("abc", 2, Lag(bytes_max=0))
    stage.core.lose(stage.core._ensemble.replicas[0])
    entry = stage.add()
    stage.answer(entry, "bc")
    assert [bookie.uuid for bookie in stage.core.failed_bookies()] == ["a"]
    wide = Stage("abcd", 2, Lag(bytes_max=0))
    wide.answer(wide.add(), "ab")
    assert len(wide.core.live_bookies()) == 2


# -- narrow --------------------------------------------------------------------------------------------
async def test_a_narrow_ledger_is_widened_when_a_bookie_comes(monkeypatch):
    monkeypatch.setattr(narrow, "INTERVAL_S", 0)
    cluster = MemoryCluster(2)
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 3))
    assert len(writer.core.fragments[-1].bookies) == 2
    newcomer = cluster.grow()
    await turns_until(lambda: len(writer.core.fragments[-1].bookies) == 3)
    await turns_until(lambda: writer.core.state.name == "STEADY")
    last = write(writer, 3)
    await listener.until(last)
    assert [fragment.first_entry for fragment in writer.core.fragments] == [0, 3]
    assert newcomer.holds(writer.ledger_id, last) and not newcomer.holds(writer.ledger_id, 2)
    record = await writer.close()
    assert record.fragments == writer.core.fragments
    assert await read_all(cluster.join(), writer.ledger_id) == expected(last)


async def test_a_tick_widens_so_many_and_the_next_one_others(monkeypatch):
    monkeypatch.setattr(narrow, "INTERVAL_S", 0)

    class Thin:
        def __init__(self) -> None:
            self.asked = 0

        def widen(self) -> None:
            self.asked += 1

    writers = [Thin() for _ in range(narrow.WIDENED_PER_TICK_MAX + 10)]
    watched = narrow.Narrow()
    for writer in writers:
        watched.watch(writer)
    await turns_until(lambda: writers[0].asked == 1)
    assert sum(writer.asked for writer in writers) == narrow.WIDENED_PER_TICK_MAX
    await turns_until(lambda: writers[-1].asked == 1)
    for writer in writers:
        watched.forget(writer)
    watched.stop()


# -- reading -------------------------------------------------------------------------------------------
async def closed(cluster: MemoryCluster, blocks: int = 3) -> int:
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, blocks))
    await writer.close()
    return writer.ledger_id


def readers_of(cluster: MemoryCluster, ledger_id: int) -> list[MemoryBookie]:
    """Who was asked for blocks, in order."""
    return [
        bookie
        for bookie in cluster.bookies
        if any(isinstance(each, ReadRequest) and each.ledger_id == ledger_id for each in bookie.requests)
    ]


async def test_a_replica_that_hangs_is_not_waited_for():
    cluster = MemoryCluster(3)
    ledger_id = await closed(cluster)
    held: list[Callable[[], None]] = []
    for bookie in cluster.bookies[:2]:
        bookie.deliver = held.append
    assert await asyncio.wait_for(read_all(cluster.ledgers, ledger_id), 5) == expected(2)
    assert held, "one that hangs was asked, too"


async def test_one_that_answers_in_time_is_asked_alone():
    cluster = MemoryCluster(3)
    ledger_id = await closed(cluster)
    assert await read_all(cluster.ledgers, ledger_id) == expected(2)
    assert len(readers_of(cluster, ledger_id)) == 1


async def test_the_own_rack_is_read_first_and_who_failed_lately_last():
    cluster = MemoryCluster(3)
    racks = {bookie.bookie.uuid: f"rack-{number}" for number, bookie in enumerate(cluster.bookies)}

    class Racked(BookiesAlone):
        port = cluster.directory.port

        def available(self) -> list[BookieRecord]:
            return [BookieRecord(uuid=uuid, incarnation=1, rack=rack) for uuid, rack in racks.items()]

    quarantine = Quarantine(cluster.clock.monotonic)
    replicas = Replicas(Racked(), cluster.clock, quarantine, rack="rack-1")
    a, b, c = ensemble = [bookie.bookie for bookie in cluster.bookies]
    assert replicas.order(ensemble, 2) == [b, c, a]
    quarantine.put([b])
    assert replicas.order(ensemble, 2) == [c, a, b]


async def test_patience_with_a_replica_grows_with_what_it_takes():
    cluster = MemoryCluster(1)
    replicas = Replicas(cluster.directory, cluster.clock, Quarantine(cluster.clock.monotonic))
    bookie = cluster.bookies[0].bookie
    for _ in range(50):
        replicas.observe_read(bookie, 0.001)
    quick = replicas.speculate_s(bookie)
    for _ in range(50):
        replicas.observe_read(bookie, 0.2)
    assert quick < 0.1 < replicas.speculate_s(bookie)


async def test_damage_of_one_place_is_told_now_and_then():
    """Repair may have mended it since, and it may be damaged anew."""
    cluster = MemoryCluster(1)
    replicas = Replicas(cluster.directory, cluster.clock, Quarantine(cluster.clock.monotonic))
    told: list[int] = []
    replicas.on_damage = lambda bookie, ledger_id, entry, what: told.append(entry)
    for entry in (1, 1, 2):
        replicas.report(cluster.bookies[0].bookie, 7, entry, "rotten")
    cluster.clock.advance_ms(int(REPORT_AGAIN_S * 1000))
    replicas.report(cluster.bookies[0].bookie, 7, 1, "rotten")
    assert told == [1, 2, 1]


@pytest.mark.parametrize("fault", ["rotten", "lying disk", "never had it"])
async def test_damage_is_told_though_another_replica_has_it(fault):
    cluster = MemoryCluster(3)
    ledger_id = await closed(cluster)
    [first] = await asked_first(cluster, ledger_id)
    if fault == "never had it":
        first.ledgers[ledger_id].blocks.pop(1)
        first.ledgers[ledger_id].firsts.remove(1)
    else:
        first.flip(ledger_id, 1)
        first.serves_damage = fault == "lying disk"
    told: list[tuple[BookieId, int, int, str]] = []
    cluster.ledgers.on_damage(lambda *damage: told.append(damage))
    assert await read_all(cluster.ledgers, ledger_id, 1) == expected(2)
    assert [damage[:3] for damage in told] == [(first.bookie, ledger_id, 1)]
    assert told[0][3]


async def asked_first(cluster: MemoryCluster, ledger_id: int) -> list[MemoryBookie]:
    reader = await cluster.ledgers.open(ledger_id)
    await reader.read(0, 1)
    return readers_of(cluster, ledger_id)


async def test_silence_is_not_damage():
    cluster = MemoryCluster(3)
    ledger_id = await closed(cluster)
    for bookie in cluster.bookies:
        bookie.unreachable = True
    told: list[object] = []
    cluster.ledgers.on_damage(lambda *damage: told.append(damage))
    with pytest.raises(Unavailable):
        await read_all(cluster.ledgers, ledger_id)
    assert told == []


async def test_damage_everywhere_is_told_of_each_and_raised():
    cluster = MemoryCluster(3)
    ledger_id = await closed(cluster)
    for bookie in cluster.bookies:
        bookie.flip(ledger_id, 0)
    told: list[BookieId] = []
    cluster.ledgers.on_damage(lambda bookie, *rest: told.append(bookie))
    with pytest.raises(CorruptionError):
        await read_all(cluster.ledgers, ledger_id)
    assert sorted(told) == sorted(bookie.bookie for bookie in cluster.bookies)


# -- no quorum -----------------------------------------------------------------------------------------
async def test_changes_that_lead_to_nothing_come_less_and_less_often():
    """Two of three are away and fail in turns: the ledger waits for them rather than fail in a second."""
    cluster = MemoryCluster(3, settings=replace(QUICK, ensemble_change_delay_ms=20))
    writer = await cluster.ledgers.create("test", listener := Listener())
    delays = [writer.next_change_delay_s() for _ in range(8)]
    assert delays == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]
    await listener.until(write(writer, 1))
    assert [writer.next_change_delay_s() for _ in range(2)] == [0.02, 0.04]
