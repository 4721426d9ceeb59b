"""The same rules over three real storage nodes in this process: real journals, real fdatasync, 3/3/2."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import pytest

from quire.bookie.settings import BookieSettings
from quire.bookie.storage import Storage
from quire.ledger.directory import LocalDirectory
from quire.ledger.ledgers import Ledgers
from quire.ledger.settings import LedgerSettings
from quire.ledger.state_log import StateLog, StateLogOwner
from quire.metadata.records import BookieRecord, LedgerState, PersistencePolicy
from quire.runtime.clock import SystemClock
from quire.runtime.errors import Fenced, NotFound
from quire.runtime.limits import MIB
from quire.testing.cluster import Listener, expected, read_all, turns_until, write
from quire.testing.metadata import MemoryStore
from quire.wire.bookie import BookieId


class Nodes:
    """Storage nodes under one directory, each of which can be stopped and started."""

    def __init__(self, root) -> None:
        self.root = root
        self.store = MemoryStore()
        self.directory = LocalDirectory()
        self.running: dict[int, Storage] = {}

    async def start(self, number: int) -> None:
        settings = BookieSettings(
            journal=str(self.root / f"journal-{number}"),
            entry_log=str(self.root / f"entries-{number}"),
            journal_segment_bytes=16 * MIB,
            entry_log_bytes=16 * MIB,
            disk_reserve_bytes=0,
        )
        storage = self.running[number] = Storage(settings)
        await storage.start()
        record = BookieRecord(uuid=storage.bookie_id.uuid, incarnation=storage.bookie_id.incarnation)
        self.directory.join(record, storage)

    async def stop(self, number: int) -> BookieId:
        storage = self.running.pop(number)
        self.directory.leave(storage.bookie_id.uuid)
        await storage.stop()
        return storage.bookie_id

    def process(self) -> Ledgers:
        settings = LedgerSettings(ensemble_change_delay_ms=0, idle_lac_ms=5)
        return Ledgers(self.store.join(), self.directory, SystemClock(), Random(1), settings)


@pytest.fixture
async def nodes(tmp_path) -> AsyncIterator[Nodes]:
    nodes = Nodes(tmp_path)
    for number in range(3):
        await nodes.start(number)
    yield nodes
    for number in list(nodes.running):
        await nodes.stop(number)


async def test_write_take_over_read_restart_read_delete(nodes):
    mine, other = nodes.process(), nodes.process()
    writer = await mine.create("test", listener := Listener())
    last = write(writer, blocks=200, count=5)
    await listener.until(last)
    record = await other.recover(writer.ledger_id)
    assert (record.state, record.last_entry) == (LedgerState.CLOSED, last)
    write(writer, 1)
    assert isinstance(await listener.until_failed(), Fenced)
    assert await read_all(other, writer.ledger_id) == expected(last)
    for number in range(3):
        await nodes.stop(number)
        await nodes.start(number)
    assert await read_all(other, writer.ledger_id, 1 * MIB) == expected(last)
    reader = await other.open(writer.ledger_id)
    assert 0 <= await reader.find_time(500) <= 500
    await other.delete(writer.ledger_id)
    with pytest.raises(NotFound):
        await other.info(writer.ledger_id)


async def test_a_node_that_stops_is_left_and_the_ledger_goes_on(nodes):
    mine = nodes.process()
    writer = await mine.create("test", listener := Listener())
    await listener.until(write(writer, 50))
    lost = await nodes.stop(0)
    await listener.until(write(writer, 50))
    await turns_until(lambda: str(lost) not in writer.core.fragments[-1].bookies, 1_000_000)
    last = write(writer, 50)
    record = await writer.close()
    assert record.last_entry == last and len(record.fragments[-1].bookies) == 2
    assert await read_all(nodes.process(), writer.ledger_id, 1 * MIB) == expected(last)


async def test_recovery_with_a_node_that_comes_back(nodes):
    writer = await nodes.process().create("test", listener := Listener())
    await listener.until(write(writer, 20))
    last = write(writer, 20)
    await nodes.stop(1)
    record = await nodes.process().recover(writer.ledger_id)
    assert listener.last <= record.last_entry <= last
    await nodes.start(1)
    assert await read_all(nodes.process(), writer.ledger_id, 1 * MIB) == expected(record.last_entry)


async def test_closed_ledgers_are_flushed_after_a_checkpoint(nodes):
    mine = nodes.process()
    writer = await mine.create("test", listener := Listener())
    await listener.until(write(writer, 20))
    await writer.close()
    for storage in nodes.running.values():
        await storage.flush()
    assert await mine.is_flushed(writer.ledger_id)


async def test_one_copy_as_standalone_has_it(nodes):
    mine = nodes.process()
    writer = await mine.create(
        "test", listener := Listener(), PersistencePolicy(write_quorum=1, ack_quorum=1)
    )
    last = write(writer, 100, 3)
    await listener.until(last)
    writer.abandon()
    for number in range(3):
        await nodes.stop(number)
        await nodes.start(number)
    assert (await nodes.process().recover(writer.ledger_id)).last_entry == last
    assert await read_all(nodes.process(), writer.ledger_id, 1 * MIB) == expected(last)


async def test_a_state_log_on_real_disks(nodes):
    state: list[bytes] = []

    async def open_log() -> StateLog:
        state.clear()
        ledgers = nodes.process()
        return await StateLog.open(
            ledgers, "/quire/state/x", StateLogOwner(state.append, lambda: list(state))
        )

    log = await open_log()
    done: list[object] = []
    for number in range(500):
        state.append(b"%d" % number)
        log.append(b"%d" % number, done.append)
    await turns_until(lambda: len(done) == 500, 1_000_000)
    assert done == [None] * 500
    await open_log()
    assert state == [b"%d" % number for number in range(500)]
