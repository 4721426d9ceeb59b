"""A node on object storage: where its blocks are at each moment, what is deleted when, and how it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.metadata.records import WalState
from quire.runtime.errors import ConfigurationError, NotFound, OutcomeUnknown, Unavailable
from quire.runtime.limits import KIB, MIB
from quire.wal import flusher, tombstones, wal_object
from quire.wal.foreign import ForeignWal
from quire.wal.own_record import OwnRecord
from quire.wal.settings import WalSettings
from quire.wire.bookie import (
    LedgerInfoRequest,
    ReadRequest,
    Status,
)
from tests.wal.blocks import made
from tests.wal.node import Asked, Node, eventually


async def test_a_flush_puts_a_set_in_place_of_data_objects() -> None:
    node = await Node().start()
    await node.add(made(1, 0), made(2, 0))
    await node.add(made(1, 1))
    assert node.objects() == ["0", "1"]
    await node.wal.flush()
    await node.wal.trash.emptied()
    assert node.objects() == ["set", "sets"]
    assert (await node.record()).trim_seq == 2
    await node.add(made(1, 2))
    assert node.objects() == ["2", "set", "sets"]
    assert [await node.read(1, entry) for entry in range(3)] == [
        [made(1, 0), made(1, 1)],
        [made(1, 1)],
        [made(1, 2)],
    ]
    info = await node.wal.ask(LedgerInfoRequest(node.wal.bookie_id, 1))
    assert (info.last_entry, info.bytes, info.flushed) == (2, 3 * len(made(1, 0)), True)
    await node.wal.stop()


async def test_when_all_ledgers_are_deleted_nothing_is_left() -> None:
    node = await Node().start()
    await node.add(made(1, 0), made(2, 0))
    await node.wal.flush()
    await node.add(made(2, 1), made(3, 0))
    await node.delete(1)
    await node.wal.flusher.tidy()
    assert node.objects().count("set") == 1, "ledger 2 is alive"
    for ledger_id in (2, 3):
        await node.delete(ledger_id)
    await node.wal.flusher.tidy()
    await node.wal.trash.emptied()
    assert node.objects() == []
    record = await node.record()
    assert (record.catalogue, record.trim_seq) == ("", 5)
    await node.wal.stop()


async def test_a_tombstone_that_another_laid_counts_and_is_taken_away_when_it_is_recorded() -> None:
    node = await Node().start()
    await node.add(made(1, 0), made(2, 0))
    await node.wal.flush()
    await tombstones.lay(node.metadata, node.uuid, 1, 9)
    await tombstones.lay(node.metadata, node.uuid, 1, 9)
    await eventually(lambda: bool(node.wal.laid.waiting))
    await node.wal.flusher.tidy()
    assert await tombstones.laid(node.metadata, node.uuid) == {}
    assert (await node.wal.ask(ReadRequest(node.wal.bookie_id, 1, 0, MIB))).status is Status.DELETED
    await node.delete(2)
    await node.wal.flusher.tidy()
    await node.wal.trash.emptied()
    assert node.objects() == []
    await node.wal.stop()


async def test_a_deletion_that_is_forbidden_is_told_and_tried_again_with_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    node.store.faults.fail_next("delete", ConfigurationError("AccessDenied"))
    await node.wal.flush()
    await node.wal.trash.emptied()
    told = [record for record in caplog.records if "AccessDenied" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING"] and told[0].exc_info is None
    assert node.objects() == ["0", "set", "sets"]
    await node.add(made(1, 1))
    await node.wal.flush()
    await node.wal.trash.emptied()
    assert not [name for name in node.objects() if name.isdecimal()], "the one that stayed is gone as well"
    await node.wal.stop()


async def test_a_stop_leaves_all_in_sets_and_closes_without_a_fence() -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    await node.wal.stop()
    assert node.objects() == ["set", "sets"]
    record = await node.record()
    assert (record.state, record.trim_seq, record.end_seq) == (WalState.CLOSED, 1, 1)
    assert not node.ended


async def test_an_idle_node_asks_the_store_nothing() -> None:
    node = await Node().start()
    await node.wal.flusher.tidy()
    await node.wal.flush()
    await node.wal.stop()
    assert node.store.faults.calls == []
    assert (await node.record()).end_seq == 0


async def test_who_is_closed_ends_and_leaves_all_as_it_is() -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    await (await OwnRecord.read(node.metadata, node.uuid)).change(state=WalState.CLOSING)
    await eventually(lambda: bool(node.ended))
    with pytest.raises(Unavailable):
        await node.wal.flush()
    assert len(node.ended) == 1
    assert set(await node.queue(made(1, 2))) <= {Status.UNREACHABLE, Status.IO_ERROR}
    assert "0" in node.objects(), "whoever closes it reads it"
    await node.wal.stop()
    assert (await node.record()).state is WalState.CLOSING


async def test_a_fence_ends_it_and_what_was_not_acknowledged_stays_unknown() -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    fence = wal_object.encode_fence(node.uuid, 1, 0, "somebody")
    await node.store.put_whole(wal_object.data_name(node.uuid, 1), (fence,))
    assert list(await node.queue(made(1, 1))) == [Status.UNREACHABLE]
    assert len(node.ended) == 1
    await node.wal.stop()
    assert (await node.record()).state is WalState.OPEN


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("call", ["begin", "write", "finish", "get_range", "delete"])
async def test_a_store_that_fails_once_costs_nothing_but_time(call: str, happened: bool) -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    for _ in range(2):
        error = OutcomeUnknown("lost") if call in ("finish", "delete") else Unavailable("away")
        node.store.faults.fail_next(call, error, happened=happened)
    await node.add(made(1, 1))
    node.store.faults.fail_next(call, error, happened=happened)
    await node.wal.flush()
    assert await node.read(1, 0) == [made(1, 0), made(1, 1)]
    await node.delete(1)
    await node.wal.flusher.tidy()
    await node.wal.trash.emptied()
    assert node.objects() == [], "what was given up is deleted, too"
    await node.wal.stop()
    assert not node.ended


async def test_a_store_that_refuses_stops_the_line_and_loses_nothing() -> None:
    """What comes waits in line; the memtables' two sizes are what the node holds."""
    settings = WalSettings(wal_batch_ms=10, wal_batch_bytes=MIB, wal_memory_bytes=4 * MIB)
    node = await Node(settings).start()
    refusing = True

    def refuse(call: str) -> None:
        if refusing and call != "delete":
            raise Unavailable("503 SlowDown")

    node.store.faults.before = refuse
    blocks = [made(1, number, 1, 200 * KIB) for number in range(60)]
    answers = [node.queue(block) for block in blocks]
    await asyncio.sleep(0.3)
    assert not any(answer.done() for answer in answers)
    assert node.wal.cache.active.size_bytes + node.wal.cache.frozen.size_bytes < 5 * MIB  # type: ignore[union-attr]
    assert node.wal.bytes_unflushed > 60 * 200 * KIB, "the budget sees those that wait, too"
    refusing = False
    assert [list(await answer) for answer in answers] == [[Status.OK]] * 60
    await node.wal.flush()
    entry = 0
    while entry < 60:
        found = await node.read(1, entry)
        assert found == blocks[entry : entry + len(found)] and found
        entry += len(found)
    assert not node.ended
    await node.wal.stop()


async def test_a_set_that_was_named_is_never_taken_for_absent() -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    await node.wal.flush()
    (name,) = [name for name in node.store.faults.objects if "/set-" in name]
    del node.store.faults.objects[name]
    answer = await node.wal.ask(ReadRequest(node.wal.bookie_id, 1, 0, MIB))
    assert answer.status is Status.IO_ERROR and "set-" in answer.detail
    with pytest.raises(NotFound):
        await node.store.size(name)
    await node.wal.stop()


async def test_a_memtable_that_is_half_dead_for_a_while_is_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    node = await Node().start()
    await node.add(made(1, 0, 1, 1_000), made(2, 0, 1, 500))
    await node.delete(2)
    look = node.wal.flusher._look
    await look()
    monkeypatch.setattr(flusher, "MOSTLY_DEAD_S", -1.0)
    await look()
    assert "set" not in node.objects(), "most of it is alive"
    await node.delete(1)
    await node.add(made(3, 0, 1, 500))
    monkeypatch.undo()
    await look()
    assert "set" not in node.objects(), "it is young"
    monkeypatch.setattr(flusher, "MOSTLY_DEAD_S", -1.0)
    await look()
    await node.wal.trash.emptied()
    assert node.objects() == ["set", "sets"]
    assert await node.read(3, 0) == [made(3, 0, 1, 500)]
    await node.wal.stop()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
async def test_a_flush_that_meets_an_unexpected_exception_ends_the_log(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await Node().start()
    await node.add(made(1, 0))

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(wal_object, "encode_set", fail)
    with pytest.raises(Unavailable, match="internal error"):
        await node.wal.flush()
    assert len(node.ended) == 1 and repr(error) in node.wal.standing.failure
    assert list(await node.queue(made(1, 1))) != [Status.OK]
    await node.wal.stop()


async def test_a_stop_in_good_order_waits_for_uploads_that_began_while_it_flushed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    tidy = node.wal.flusher.tidy

    def busy(call: str) -> None:
        raise Unavailable("503")

    async def tidy_and_add() -> None:
        await tidy()
        node.queue(made(1, 1))
        node.store.faults.before = busy
        asyncio.get_running_loop().call_later(
            0.2, lambda: setattr(node.store.faults, "before", lambda call: None)
        )

    monkeypatch.setattr(node.wal.flusher, "tidy", tidy_and_add)
    await node.wal.stop()
    record = await node.record()
    assert (record.state, record.trim_seq, record.end_seq) == (WalState.CLOSED, 1, 2)
    assert wal_object.data_name(node.uuid, 1) in node.store.faults.objects
    other = Asked(ForeignWal(node.context, node.uuid), node.bookie_id)
    assert await other.read(1, 0) == [made(1, 0), made(1, 1)]


async def test_a_deletion_between_freeze_and_record_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tombstone of a ledger with blocks in the frozen memtable gets into the catalogue."""
    node = await Node().start()
    await node.add(made(1, 0), made(2, 0))
    real, asked = node.store.put, asyncio.Event()

    async def put(name: str, parts: Any) -> None:
        if "/set-" in name and not asked.is_set():
            asked.set()
            await node.delete(1)
        await real(name, parts)

    monkeypatch.setattr(node.store, "put", put)
    await node.wal.flush()
    await node.wal.flusher.tidy()
    await node.wal.flush()
    record = await node.record()
    content, _ = node.store.faults.objects[record.catalogue]
    catalogue = wal_object.decode_catalogue(content, record.catalogue_crc, "x")
    deleted = Asked(ForeignWal(node.context, node.uuid), node.bookie_id)
    assert 1 in catalogue.tombstones
    assert (await deleted.ask(1, 0)).status is Status.DELETED and await deleted.read(2, 0)
    await node.wal.stop()
