"""The state log: what was told durable is there again, whoever crashes or takes over, and whenever it rolls."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from quire.ledger import state_log
from quire.ledger.ledgers import Ledgers
from quire.ledger.state_log import RECORD_BYTES_MAX, StateLog, StateLogOwner
from quire.metadata import paths
from quire.metadata.records import StateLogRecord, decode
from quire.runtime.errors import (
    CorruptionError,
    Fenced,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    QuireError,
    Unavailable,
)
from quire.testing.cluster import MemoryCluster, turns_until
from quire.wire.bookie import Status

PATH = "/quire/state/t/n/bundle"


class Counts:
    """A state: how often each key was counted. Its deltas are not idempotent, so a lost or doubled one shows."""

    def __init__(
        self, cluster: MemoryCluster, ledgers: Ledgers | None = None, roll_bytes: int = 1 << 20
    ) -> None:
        self.counts: dict[bytes, int] = {}
        self.durable: dict[bytes, int] = {}
        self.errors: list[QuireError] = []
        self.failed: list[QuireError] = []
        self._ledgers = ledgers or cluster.join()
        self._roll_bytes = roll_bytes

    async def open(self) -> Counts:
        self.log = await StateLog.open(
            self._ledgers,
            PATH,
            StateLogOwner(self._apply, self._snapshot, on_failed=self.failed.append),
            roll_bytes=self._roll_bytes,
        )
        return self

    def count(self, key: bytes) -> None:
        self._apply(key + b"=1")

        def done(error: QuireError | None) -> None:
            if error is None:
                self.durable[key] = self.durable.get(key, 0) + 1
            else:
                self.errors.append(error)

        self.log.append(key + b"=1", done)

    async def until_durable(self) -> None:
        await turns_until(lambda: self.durable == self.counts or bool(self.errors))
        assert not self.errors

    def _apply(self, record: bytes) -> None:
        key, _, count = record.partition(b"=")
        self.counts[key] = self.counts.get(key, 0) + int(count)

    def _snapshot(self):
        return [b"%s=%d" % item for item in self.counts.items()]


async def ids(cluster: MemoryCluster) -> tuple[int, ...]:
    return decode(StateLogRecord, (await cluster.store.get(PATH)).value, PATH).ledgers


async def test_state_survives_close_and_open():
    cluster = MemoryCluster(3)
    one = await Counts(cluster).open()
    for key in (b"a", b"b", b"a"):
        one.count(key)
    await one.log.close()
    assert one.durable == {b"a": 2, b"b": 1}
    two = await Counts(cluster).open()
    assert two.counts == one.counts
    assert len(await ids(cluster)) == 1


async def test_state_survives_a_crash():
    cluster = MemoryCluster(3)
    one = await Counts(cluster).open()
    one.count(b"a")
    await one.until_durable()
    two = await Counts(cluster).open()
    assert two.counts == {b"a": 1}


async def test_nothing_is_told_durable_before_it_is():
    cluster = MemoryCluster(3)
    one = await Counts(cluster).open()
    held = []
    for bookie in cluster.bookies:
        bookie.deliver = held.append
    one.count(b"a")
    for _ in range(10):
        await asyncio.sleep(0)
    assert one.durable == {}
    held[0]()
    assert one.durable == {}
    held[1]()
    assert one.durable == {b"a": 1}


async def test_a_second_owner_kills_the_first():
    cluster = MemoryCluster(3)
    one = await Counts(cluster).open()
    one.count(b"a")
    await one.until_durable()
    two = await Counts(cluster).open()
    one.count(b"b")
    await turns_until(lambda: bool(one.failed))
    assert isinstance(one.failed[0], Fenced) and one.errors == one.failed
    one.count(b"c")
    await turns_until(lambda: len(one.errors) == 2)
    assert two.counts == {b"a": 1}
    with pytest.raises(Fenced):
        await one.log.close()


async def test_records_of_one_turn_are_one_block():
    cluster = MemoryCluster(3)
    one = await Counts(cluster).open()
    before = one.log._segment.writer.core.last_added
    for _ in range(50):
        one.count(b"a")
    await one.until_durable()
    ledger = cluster.bookies[0].ledgers[one.log._segment.writer.ledger_id]
    assert [header.entry_count for first, (header, _) in ledger.blocks.items() if first > before] == [50]


async def test_it_rolls_under_load_without_losing_or_doubling_anything():
    cluster = MemoryCluster(3)
    one = await Counts(cluster, roll_bytes=2000).open()
    first_ids = await ids(cluster)
    for turn in range(300):
        one.count(b"key %d" % (turn % 7))
        await asyncio.sleep(0)
    await one.until_durable()
    await turns_until(lambda: one.log._rolling is None)
    assert (await ids(cluster))[-1] > first_ids[-1] + 2, "it did not roll"
    assert len(await ids(cluster)) == 1
    two = await Counts(cluster).open()
    assert two.counts == one.counts


async def test_a_crash_in_the_middle_of_a_roll_falls_back_on_the_former_ledger():
    cluster = MemoryCluster(3)
    one = await Counts(cluster, roll_bytes=300).open()
    one.count(b"a")
    await one.until_durable()
    before = await ids(cluster)
    held = []
    original = one.log._switch_to

    def switch(new):
        for bookie in cluster.bookies:
            bookie.deliver = held.append
        original(new)

    one.log._switch_to = switch
    while not held:
        one.count(b"b")
        await asyncio.sleep(0)
    told = dict(one.durable)
    assert await ids(cluster) == before
    for bookie in cluster.bookies:
        bookie.deliver = asyncio.get_running_loop().call_soon
    two = await Counts(cluster).open()
    assert all(two.counts[key] >= count for key, count in told.items())
    for answer in held:
        answer()
    await turns_until(lambda: bool(one.failed))
    assert all(two.counts[key] >= count for key, count in one.durable.items())


async def test_what_is_written_behind_a_snapshot_is_not_durable_before_the_list_says_so():
    cluster = MemoryCluster(3)
    one = await Counts(cluster, roll_bytes=300).open()
    listing = asyncio.Event()
    original = one.log._list

    async def slow(new_ids):
        await listing.wait()
        await original(new_ids)

    one.log._list = slow
    while one.log._handover is None:
        one.count(b"a")
        await asyncio.sleep(0)
    durable = dict(one.durable)
    one.count(b"z")
    await turns_until(lambda: one.log._handover is not None and len(one.log._handover.held) > 0)
    assert b"z" not in one.durable
    assert durable.keys() <= {b"a"}
    listing.set()
    await one.until_durable()


async def test_closing_where_a_roll_is_due_begins_no_new_ledger():
    cluster = MemoryCluster(3)
    one = await Counts(cluster, roll_bytes=300).open()
    before = await ids(cluster)
    for _ in range(50):
        one.count(b"a")
    await one.log.close()
    assert one.durable == {b"a": 50} and await ids(cluster) == before


async def test_a_roll_for_which_there_are_no_bookies_waits():
    cluster = MemoryCluster(3)
    one = await Counts(cluster, roll_bytes=300).open()
    before = await ids(cluster)
    join, cluster.directory._records = cluster.directory._records, {}
    for _ in range(20):
        one.count(b"a")
        await asyncio.sleep(0)
    await one.until_durable()
    assert await ids(cluster) == before
    cluster.directory._records = join
    while await ids(cluster) == before:
        one.count(b"a")
        await asyncio.sleep(0)
    await one.until_durable()


async def test_a_list_that_another_owner_changed_ends_a_roll():
    cluster = MemoryCluster(3)
    one = await Counts(cluster, roll_bytes=300).open()
    node = await cluster.store.get(PATH)
    await cluster.store.put(PATH, node.value, node.version)
    while not one.failed:
        one.count(b"a")
        await asyncio.sleep(0)
    assert isinstance(one.failed[0], Fenced)


@pytest.mark.parametrize("happened", [True, False])
async def test_a_list_whose_put_is_in_doubt_is_looked_up(happened, monkeypatch):
    monkeypatch.setattr("quire.ledger.state_log._RETRY_S", 0)
    cluster = MemoryCluster(3)
    one = Counts(cluster)
    original = StateLog._list

    async def doubtful(log, new_ids):
        log._ledgers.store.fail_next(OutcomeUnknown("time-out"), happened=happened)
        await original(log, new_ids)

    monkeypatch.setattr(StateLog, "_list", doubtful)
    await one.open()
    one.count(b"a")
    await one.until_durable()
    assert await ids(cluster) == (one.log._segment.writer.ledger_id,)


async def test_a_former_ledger_that_could_not_be_deleted_is_deleted_later():
    cluster = MemoryCluster(3)
    one = await Counts(cluster).open()
    one.count(b"a")
    await one.until_durable()
    [former] = await ids(cluster)
    store = one._ledgers.store
    put, refused = store.put, 0

    async def refuse(path: str, value: bytes, version: int) -> int:
        nonlocal refused
        if path == paths.ledger(former):
            refused += 1
            raise Unavailable("the store does not answer for a moment")
        return await put(path, value, version)

    store.put = refuse
    one.log.roll_if_writing_to({former})
    await turns_until(lambda: one.log._rolling is None)
    assert len(await ids(cluster)) == 2 and refused == 1
    one.log.roll_if_writing_to(())
    assert one.log._rolling is None, "not again at once"
    store.put = put
    cluster.clock.advance_ms(60_000)
    one.log.roll_if_writing_to(())
    await turns_until(lambda: one.log._rolling is None)
    [current] = await ids(cluster)
    assert current != former
    with pytest.raises(NotFound):
        await one._ledgers.info(former)
    cluster.clock.advance_ms(60_000)
    one.log.roll_if_writing_to(())
    assert one.log._rolling is None, "there is nothing to delete"
    one.count(b"a")
    await one.log.close()
    assert (await Counts(cluster).open()).counts == {b"a": 2}


async def test_a_failed_opening_leaves_the_state_to_the_next():
    cluster = MemoryCluster(3)
    one = await Counts(cluster).open()
    one.count(b"a")
    await one.log.close()
    for bookie in cluster.bookies[:2]:
        bookie.refuses = Status.READ_ONLY
    with pytest.raises(Unavailable):
        await Counts(cluster).open()
    for bookie in cluster.bookies:
        bookie.refuses = None
    assert (await Counts(cluster).open()).counts == {b"a": 1}


async def test_a_large_state_is_many_records_and_a_larger_record_is_refused():
    cluster = MemoryCluster(3)
    one = await Counts(cluster).open()
    for number in range(3000):
        one.count(b"%d" % number + b"x" * 300)
    await one.log.close()
    two = await Counts(cluster).open()
    assert two.counts == one.counts
    three = await Counts(cluster).open()
    assert three.counts == one.counts
    with pytest.raises(LimitExceeded):
        three.log.append(bytes(RECORD_BYTES_MAX + 1))


async def test_a_listed_ledger_that_does_not_exist_is_damage():
    cluster = MemoryCluster(3)
    one = await Counts(cluster).open()
    await one.log.close()
    await cluster.ledgers.delete((await ids(cluster))[0])
    with pytest.raises(CorruptionError, match="does not exist"):
        await Counts(cluster).open()


async def test_an_owner_whose_snapshot_fails_is_told_and_leaves_no_ledger_open():
    cluster = MemoryCluster(3)
    counts = await Counts(cluster, roll_bytes=100).open()

    def broken() -> list[bytes]:
        raise ValueError("a mistake")

    counts.log._owner = replace(counts.log._owner, snapshot=broken)
    for _ in range(20):
        counts.count(b"key")
    await turns_until(lambda: bool(counts.failed))
    assert len(counts.failed) == 1 and isinstance(counts.failed[0], OutcomeUnknown)
    await turns_until(lambda: sum(counts.durable.values()) + len(counts.errors) == 20)
    assert not counts._ledgers._writers
    other = await Counts(cluster).open()
    assert other.counts.get(b"key", 0) >= sum(counts.durable.values())


async def test_a_roll_waits_while_the_metadata_store_is_silent(monkeypatch):
    """An election takes longer than the tries that opening has; the session outlives it."""
    monkeypatch.setattr(state_log, "_ATTEMPTS_MAX", 2)
    monkeypatch.setattr(state_log, "_RETRY_S", 0.001)
    cluster = MemoryCluster(3)
    ledgers = cluster.join()
    one = await Counts(cluster, ledgers, roll_bytes=2_000).open()
    create, store = ledgers.create, ledgers.store

    async def create_and_fall_silent(*given, **more):
        made = await create(*given, **more)
        store.suspend()
        asyncio.get_running_loop().call_later(0.1, store.resume)
        ledgers.create = create
        return made

    ledgers.create = create_and_fall_silent
    for number in range(300):
        one.count(b"k%d" % (number % 7))
    await asyncio.sleep(0.05)
    assert ledgers.create is create and not one.failed, "it rolls, and the store does not answer"
    async with asyncio.timeout(10):
        while one.log._rolling is not None or one.durable != one.counts:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not one.failed and not one.errors
    await one.log.close()


async def test_a_log_that_is_given_up_does_not_wait_for_a_silent_store(monkeypatch):
    monkeypatch.setattr(state_log, "_RETRY_S", 0.001)
    cluster = MemoryCluster(3)
    ledgers = cluster.join()
    one = await Counts(cluster, ledgers, roll_bytes=2_000).open()
    create, store = ledgers.create, ledgers.store

    async def create_and_fall_silent(*given, **more):
        made = await create(*given, **more)
        store.suspend()
        return made

    ledgers.create = create_and_fall_silent
    for number in range(300):
        one.count(b"k%d" % (number % 7))
    await turns_until(lambda: one.log._handover is not None)
    rolling = one.log._rolling
    one.log.abandon()
    async with asyncio.timeout(5):
        await rolling
    assert one.errors
