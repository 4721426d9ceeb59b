"""Ledgers over WALs: what writers, recoveries, deletions and repair make of WALs that end and change hands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest

from quire.ledger import labels, states
from quire.ledger.directory import LocalDirectory
from quire.ledger.ledgers import Ledgers, LedgerWriter
from quire.ledger.reader import LedgerReader
from quire.ledger.repair_core import Copy, View, good_holders, plan
from quire.ledger.rolling import LedgersToRoll
from quire.metadata.records import LedgerState, PersistencePolicy, Storage, WalState
from quire.runtime.clock import ManualClock, SystemClock
from quire.runtime.errors import NotFound, Unavailable
from quire.testing.cluster import QUICK, Listener, MemoryCluster, write
from quire.testing.metadata import MemoryStore
from quire.testing.objects import MemoryObjectStore
from quire.wal import directory as directory_module
from quire.wal import tombstones
from quire.wal.directory import WalDirectory
from quire.wal.own_record import OwnRecord
from quire.wire import block
from quire.wire.bookie import BookieId, ReadRequest
from quire.wire.ledger_ids import label_id
from tests.wal.context import wal_context
from tests.wal.node import eventually


class Broker:
    """A process of a cluster without bookies."""

    def __init__(self, name: str, store: MemoryObjectStore, metadata: MemoryStore) -> None:
        self.metadata = metadata
        self.objects = store
        self.wals = WalDirectory(wal_context(store, metadata, broker=name), LocalDirectory())
        self.ledgers = Ledgers(metadata, self.wals, SystemClock(), Random(1), QUICK)

    async def start(self) -> Broker:
        await self.wals.start()
        return self

    async def stop(self) -> None:
        await self.ledgers.stop()
        await self.wals.stop()

    async def is_closed_by_somebody(self) -> None:
        """Somebody begins to close its WAL, and it has begun another one."""
        own = self.wals.own_wal()
        assert own is not None
        record = await OwnRecord.read(self.metadata, own.uuid.removeprefix("wal-"))
        await record.change(state=WalState.CLOSING)
        await eventually(lambda: self.wals.own_wal() not in (None, own))


@pytest.fixture
async def brokers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Broker, Broker]]:
    monkeypatch.setattr(directory_module, "RETRY_S", 0.01)
    store, metadata = MemoryObjectStore(), MemoryStore()
    both = [await Broker(name, store, metadata).start() for name in ("first", "second")]
    yield both[0], both[1]
    for broker in both:
        await broker.stop()


async def everything(reader: LedgerReader) -> list[int]:
    """First entries of all blocks."""
    found: list[int] = []
    entry = 0
    while blocks := await reader.read(entry, 1 << 20):
        found += [block.read_header(each).first_entry for each in blocks]
        entry = block.read_header(blocks[-1]).last_entry + 1
    return found


async def written(broker: Broker, blocks: int = 10) -> tuple[LedgerWriter, Listener]:
    listener = Listener()
    writer = await broker.ledgers.create("test", listener)
    write(writer, blocks=blocks)
    await listener.until(blocks - 1)
    return writer, listener


async def test_one_copy_whatever_the_quorums_of_bookies_are(brokers: tuple[Broker, Broker]) -> None:
    first, _ = brokers
    writer = await first.ledgers.create("test", Listener(), PersistencePolicy(write_quorum=3, ack_quorum=2))
    record = await first.ledgers.info(writer.ledger_id)
    assert (record.write_quorum, record.ack_quorum) == (1, 1)
    assert states.storage(record) is Storage.OBJECTS
    with pytest.raises(Unavailable, match="0 of 0 bookies"):
        await first.ledgers.create("test", Listener(), PersistencePolicy(storage=Storage.BOOKIES))


async def test_a_writer_goes_on_in_the_next_wal(brokers: tuple[Broker, Broker]) -> None:
    first, _ = brokers
    writer, listener = await written(first)
    await first.is_closed_by_somebody()
    write(writer, blocks=10)
    await listener.until(19)
    await writer.close()
    assert len((await first.ledgers.info(writer.ledger_id)).fragments) == 2
    for broker in brokers:
        assert await everything(await broker.ledgers.open(writer.ledger_id)) == list(range(20))


async def test_each_log_has_the_label_before_the_ledgers_first_block_there(
    brokers: tuple[Broker, Broker],
) -> None:
    first, second = brokers
    logs = [first.wals.own_wal()]
    writer, listener = await written(first)
    await first.is_closed_by_somebody()
    write(writer, blocks=10)
    await listener.until(19)
    logs.append(first.wals.own_wal())
    record = await first.ledgers.info(writer.ledger_id)
    for log, fragments in zip(logs, (record.fragments[:1], record.fragments), strict=True):
        assert log is not None
        label = ReadRequest(log, label_id(writer.ledger_id), len(fragments) - 1, 1)
        (found,) = (await second.wals.port(log).ask(label)).blocks
        told, version = labels.read(found)
        assert (told.fragments, told.purpose, version) == (fragments, "test", len(fragments) - 1)


async def test_a_deletion_lets_the_label_go_with_the_ledger(brokers: tuple[Broker, Broker]) -> None:
    first, _ = brokers
    writer, _ = await written(first)
    own = first.wals.own_wal()
    assert own is not None
    await writer.close()
    await first.wals.flush()

    def sets() -> list[str]:
        return [name for name in first.objects.faults.objects if "/set-" in name]

    assert len(sets()) == 1
    await first.ledgers.delete(writer.ledger_id)
    await first.wals.port(own).flusher.tidy()  # type: ignore[attr-defined]
    await eventually(lambda: not sets())


async def test_another_takes_over_what_was_acknowledged_and_the_former_writer_is_fenced(
    brokers: tuple[Broker, Broker],
) -> None:
    first, second = brokers
    writer, listener = await written(first)
    recovered = await second.ledgers.recover(writer.ledger_id)
    assert (recovered.state, recovered.last_entry) == (LedgerState.CLOSED, 9)
    assert await everything(await second.ledgers.open(writer.ledger_id)) == list(range(10))
    write(writer, blocks=1)
    await listener.until_failed()


async def test_a_closed_ledger_is_read_from_the_living_wal_of_another(brokers: tuple[Broker, Broker]) -> None:
    first, second = brokers
    writer, _ = await written(first)
    own = first.wals.own_wal()
    await writer.close()
    assert await everything(await second.ledgers.open(writer.ledger_id)) == list(range(10))
    assert first.wals.own_wal() == own


async def test_a_deletion_by_another_lays_a_tombstone_before_the_record_goes(
    brokers: tuple[Broker, Broker],
) -> None:
    first, second = brokers
    writer, _ = await written(first)
    await writer.close()
    own = first.wals.own_wal()
    assert own is not None
    first.metadata.fail_next(Unavailable("away"), happened=False)  # of DELETING
    with pytest.raises(Unavailable):
        await second.ledgers.delete(writer.ledger_id)
    await second.ledgers.delete(writer.ledger_id)
    with pytest.raises(NotFound):
        await first.ledgers.info(writer.ledger_id)
    assert writer.ledger_id in await tombstones.laid(first.metadata, own.uuid.removeprefix("wal-"))


async def test_a_wal_that_does_not_take_the_tombstone_keeps_the_record() -> None:
    """Without its metadata a WAL looks like a bookie that was retired, whose tombstones nobody needs."""
    cluster = MemoryCluster(1)
    store = MemoryObjectStore()
    broker = await Broker("first", store, cluster.store).start()
    writer, _ = await written(broker)
    await writer.close()
    with pytest.raises(Unavailable, match="wal-"):
        await cluster.ledgers.delete(writer.ledger_id)  # a process that knows no WALs
    assert (await broker.ledgers.info(writer.ledger_id)).state is LedgerState.DELETING
    await broker.ledgers.delete(writer.ledger_id)
    await broker.stop()


async def test_repair_leaves_wals_alone(brokers: tuple[Broker, Broker]) -> None:
    first, _ = brokers
    writer, _ = await written(first)
    await writer.close()
    record = await first.ledgers.info(writer.ledger_id)
    (wal,) = states.all_bookies(record)
    view = View({}, {}, {wal.uuid}, {record.ledger_id: [str(wal)]})
    assert view.judge(record.ledger_id, wal) is Copy.GOOD
    made = plan(record, view, {}, lambda: 0.5)
    assert not made.fragments and not made.left and not made.is_unplaced
    assert good_holders(record, view) == {}


async def test_an_open_ledger_does_not_leave_a_wal_that_is_not_among_the_bookies(
    brokers: tuple[Broker, Broker],
) -> None:
    first, _ = brokers
    writer, _ = await written(first)
    clock = ManualClock()
    leaving = LedgersToRoll(LocalDirectory(), clock, 10)
    used: list[BookieId] = list(writer.core.live_bookies())
    for _ in range(3):
        assert leaving.find({writer.ledger_id: writer}, used) == set()
        clock.advance_ms(60_000)
        await asyncio.sleep(0)
