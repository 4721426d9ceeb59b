"""Ledgers in write-ahead logs, whose metadata is lost, over a bucket in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest

from quire.ledger import labels
from quire.ledger.directory import LocalDirectory
from quire.ledger.ledgers import Ledgers, LedgerWriter
from quire.metadata import paths, topics
from quire.metadata.records import LedgerState, WalState
from quire.rescue.begin import begin
from quire.rescue.facts import CopyFacts, take_apart
from quire.rescue.rescue import Report, Rescue
from quire.rescue.wals import Wals
from quire.runtime.clock import SystemClock
from quire.runtime.errors import ConfigurationError, Unavailable
from quire.testing.cluster import QUICK, Listener, expected, read_all, write
from quire.testing.metadata import MemoryStore
from quire.testing.objects import MemoryObjectStore
from quire.tiering import metadata_copy
from quire.wal import own_record, tombstones, wal_object
from quire.wal.directory import WalDirectory
from tests.wal.blocks import made
from tests.wal.context import wal_context
from tests.wal.node import eventually
from tests.wal.test_with_ledgers import Broker

URL = "zk://somewhere/quire"
TOPIC = "persistent://t/n/x"
PATH = paths.topic("t", "n", "x")


class World:
    """A bucket, the store that will be lost, and the one that is rebuilt."""

    def __init__(self) -> None:
        self.objects = MemoryObjectStore()
        self.lost = MemoryStore()
        self.brokers: list[Broker] = []
        self.renew()

    def renew(self) -> None:
        self.store = MemoryStore()
        self.wals = WalDirectory(wal_context(self.objects, self.store, broker="rescue"), LocalDirectory())
        self.ledgers = Ledgers(self.store, self.wals, SystemClock(), Random(1), QUICK)

    async def broker(self, name: str = "first") -> Broker:
        self.brokers.append(await Broker(name, self.objects, self.lost).start())
        return self.brokers[-1]

    async def copy(self) -> CopyFacts:
        if not await self.lost.children(paths.ROOT):
            return CopyFacts()
        await begin(self.lost, URL, "c", 5)
        cluster = await self.lost.get(paths.CLUSTER)
        await self.lost.put(
            paths.CLUSTER,
            cluster.value.replace(b'"rescue_begun_ms":5', b'"rescue_begun_ms":0'),
            cluster.version,
        )
        return take_apart(metadata_copy.decode((await metadata_copy.take(self.lost, 6)).sealed, "the copy"))

    async def rescue(
        self, copy: CopyFacts | None = None, *, accept_loss: bool = False, is_dry: bool = False
    ) -> Report:
        report, wals = Report(), self.wals
        await begin(self.store, URL, "c", 5)
        if is_dry:
            wals = WalDirectory(wal_context(self.objects, MemoryStore(), broker="rescue"), LocalDirectory())
        ledgers = Ledgers(self.store, wals, SystemClock(), Random(1), QUICK)
        asked = Wals(wals, lambda *_: None, accept_loss=accept_loss, is_dry=is_dry)
        rescue = Rescue(
            self.store,
            wals,
            ledgers,
            SystemClock(),
            lambda *_: None,
            asked,
            accept_loss=accept_loss,
            is_dry=is_dry,
        )
        await rescue.run(copy or CopyFacts(), None, report)
        await ledgers.stop()
        return report

    def names(self, part: str) -> list[str]:
        return [name for name in sorted(self.objects.faults.objects) if part in name]

    async def stop(self) -> None:
        for broker in self.brokers:
            await broker.stop()
        await self.ledgers.stop()
        await self.wals.stop()


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr("quire.wal.directory.RETRY_S", 0.01)
    world = World()
    yield world
    await world.stop()


async def ledger(broker: Broker, blocks: int = 5, purpose: str = f"topic:{TOPIC}") -> LedgerWriter:
    writer = await broker.ledgers.create(purpose, listener := Listener(), generation=7)
    last = write(writer, blocks)
    await listener.until(last)
    return writer


def uuid_of(broker: Broker) -> str:
    own = broker.wals.own_wal()
    assert own is not None
    return own.uuid.removeprefix("wal-")


async def test_all_is_told_by_the_bucket_alone_and_the_logs_are_closed(world: World) -> None:
    broker = await world.broker()
    writer = await broker.ledgers.create(f"topic:{TOPIC}", listener := Listener(), generation=7)
    await listener.until(write(writer, 5))
    await broker.wals.flush()
    await listener.until(write(writer, 5))
    await broker.is_closed_by_somebody()  # it goes on in another log
    await listener.until(write(writer, 5))
    last, before = broker.wals.own_wal(), set(world.objects.faults.objects)
    dry = await world.rescue(is_dry=True)
    assert dry.messages == 15 and not dry.lost and not dry.is_done
    assert set(world.objects.faults.objects) == before and not await world.store.children(paths.WALS)

    report = await world.rescue()
    assert report.is_done and not report.lost and len(report.logs) == 2
    assert await read_all(world.ledgers, writer.ledger_id) == expected(14)
    (segment,) = (await topics.load(world.store, PATH)).segments
    assert (segment.ledger_id, segment.messages) == (writer.ledger_id, 15)
    records = await own_record.all_records(world.store)
    assert {record.state for record in records.values()} == {WalState.CLOSED}
    write(writer, 1)  # by one that should have been stopped: it meets the fence
    await eventually(lambda: broker.wals.own_wal() != last)


async def test_what_was_not_acknowledged_behind_a_hole_stays_behind_it(world: World) -> None:
    broker = await world.broker()
    writer = await ledger(broker, 3)
    wal = uuid_of(broker)
    count = len(world.names(f"wal/{wal}/"))
    late = wal_object.encode_data(wal, count + 1, 0, count - 1, 5, [made(writer.ledger_id, 3)])
    world.objects.faults.objects[wal_object.data_name(wal, count + 1)] = b"".join(map(bytes, late)), 5
    report = await world.rescue()
    assert report.is_done and report.messages == 3
    assert (await world.ledgers.info(writer.ledger_id)).last_entry == 2
    assert (await own_record.all_records(world.store))[wal].end_seq == count


async def test_a_tombstone_holds_whoever_laid_it(world: World) -> None:
    first, second = await world.broker(), await world.broker("second")
    by_itself, by_another = await ledger(first), await ledger(first)
    await by_another.close()
    kept = await ledger(first)
    copy = await world.copy()
    await first.ledgers.delete(by_itself.ledger_id)
    await second.ledgers.delete(by_another.ledger_id)
    own = first.wals.port(first.wals.own_wal())  # type: ignore[arg-type]
    await eventually(lambda: by_another.ledger_id in own.laid.waiting)  # type: ignore[attr-defined]
    await own.flusher.tidy()  # type: ignore[attr-defined]
    report = await world.rescue(copy)
    assert report.is_done and not report.lost, report.lost
    segments = (await topics.load(world.store, PATH)).segments
    assert [each.ledger_id for each in segments] == [kept.ledger_id]


async def test_a_tombstone_that_another_log_has_is_laid_in_each(world: World) -> None:
    first, second = await world.broker(), await world.broker("second")
    writer = await first.ledgers.create(f"topic:{TOPIC}", listener := Listener(), generation=7)
    await listener.until(write(writer, 5))
    former = uuid_of(first)
    await first.is_closed_by_somebody()
    await listener.until(write(writer, 5))
    await first.ledgers.delete(writer.ledger_id)  # its former log has a tombstone in the lost store alone
    assert set(await tombstones.laid(world.lost, former)) >= {writer.ledger_id}
    assert second.wals.own_wal() is not None
    report = await world.rescue()
    assert report.is_done and report.messages == 0
    assert writer.ledger_id in await tombstones.laid(world.store, former)


async def test_a_ledger_of_the_copy_that_moved_without_a_label_is_found_in_both_logs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels.Label, "send", lambda self: None)
    broker = await world.broker()
    writer = await broker.ledgers.create(f"topic:{TOPIC}", listener := Listener(), generation=7)
    await listener.until(write(writer, 5))
    copy = await world.copy()
    await broker.is_closed_by_somebody()
    await listener.until(write(writer, 5))
    report = await world.rescue(copy)
    assert report.is_done and report.messages == 10
    assert await read_all(world.ledgers, writer.ledger_id) == expected(9)


async def test_a_ledger_that_nobody_knows_is_named_and_its_bytes_stay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels.Label, "send", lambda self: None)
    broker = await world.broker()
    writer = await ledger(broker)
    report = await world.rescue()
    (told,) = report.lost
    assert not report.is_done and f"{writer.ledger_id} (entries 0 to 4 in wal-{uuid_of(broker)})" in told
    before = set(world.objects.faults.objects)
    assert (await world.rescue(accept_loss=True)).is_done
    assert set(world.objects.faults.objects) >= before
    assert not await tombstones.laid(world.store, uuid_of(broker))


async def test_a_ledger_that_is_gone_from_its_log_is_doubtful(world: World) -> None:
    broker = await world.broker()
    writer = await ledger(broker)
    await writer.close()
    copy = await world.copy()
    world.objects.faults.objects.clear()
    report = await world.rescue(copy)
    assert report.is_done and not report.lost
    assert (await own_record.all_records(world.store))[uuid_of(broker)].state is WalState.CLOSED


async def test_a_rotten_catalogue_is_replaced_when_loss_is_accepted(world: World) -> None:
    broker = await world.broker()
    writer = await ledger(broker)
    await broker.wals.flush()
    world.objects.faults.flip(world.names("/sets-")[0], 30)
    report = await world.rescue()
    assert not report.is_done and "catalogue" in report.lost[0]
    assert not await world.store.children(paths.WALS), "nothing is closed by what may be too little"
    report = await world.rescue(accept_loss=True)
    assert report.is_done and report.messages == 5
    assert await read_all(world.ledgers, writer.ledger_id) == expected(4)


async def test_a_damaged_object_is_told_and_given_up_on_an_operators_word(world: World) -> None:
    broker = await world.broker()
    first = await ledger(broker, 3)
    second = await ledger(broker, 3)
    world.objects.faults.flip(world.names(uuid_of(broker))[0], 20)
    report = await world.rescue()
    assert not report.is_done and "cannot be closed" in report.lost[0]
    report = await world.rescue(accept_loss=True)
    assert report.is_done and (await own_record.all_records(world.store))[uuid_of(broker)].lost
    assert await read_all(world.ledgers, second.ledger_id) == expected(2)
    assert first.ledger_id not in {each.ledger_id for each in (await topics.load(world.store, PATH)).segments}


async def test_an_object_that_is_gone_from_a_closed_log_is_damage_and_not_absence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.rescue.wals.AGAIN_S", 0.0)
    first, second = await world.broker(), await world.broker("second")
    one, other = await ledger(first, 3), await ledger(first, 3)
    await second.ledgers.recover(one.ledger_id)
    await second.ledgers.recover(other.ledger_id)
    closed = next(
        uuid
        for uuid, record in (await own_record.all_records(world.lost)).items()
        if record.state is WalState.CLOSED
    )
    copy = await world.copy()
    del world.objects.faults.objects[world.names(closed)[1]]
    report = await world.rescue(copy)
    assert not report.is_done and "cannot read wal-" in report.lost[0]


async def test_a_store_that_refuses_once_is_asked_again(world: World) -> None:
    broker = await world.broker()
    await ledger(broker)
    for call in ("list", "get_range", "begin", "get_range"):
        world.objects.faults.fail_next(call, Unavailable("503"))
    report = await world.rescue()
    assert report.is_done and not report.lost and report.messages == 5


async def test_the_wrong_bucket_is_refused(world: World) -> None:
    broker = await world.broker()
    await ledger(broker)
    await broker.wals.flush()
    copy = await world.copy()
    world.objects = MemoryObjectStore()
    world.renew()
    with pytest.raises(ConfigurationError, match="use the same --wal as the brokers"):
        await world.rescue(copy)


async def test_an_interrupted_run_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await world.broker()
    writer = await ledger(broker)

    async def fail(*_: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(Rescue, "_write_bookies", fail)
        with pytest.raises(asyncio.CancelledError):
            await world.rescue()
    assert (await world.ledgers.info(writer.ledger_id)).state is LedgerState.CLOSED
    world.wals = WalDirectory(wal_context(world.objects, world.store, broker="again"), LocalDirectory())
    report = await world.rescue()
    assert report.is_done and not report.lost and report.messages == 5
