"""A WAL's record: each change by version; a lost answer is looked at; a store that does not answer is waited for."""

from __future__ import annotations

import asyncio

import pytest

from quire.metadata.records import WalState
from quire.runtime.errors import Fenced, OutcomeUnknown, Unavailable
from quire.testing.metadata import MemoryStore
from quire.testing.objects import MemoryObjectStore
from quire.wal import own_record
from quire.wal.own_record import OwnRecord
from tests.wal.context import wal_context


async def test_a_change_by_somebody_else_is_the_end() -> None:
    store = MemoryStore()
    record = await OwnRecord.begin(wal_context(MemoryObjectStore(), store))
    await record.change(trim_seq=3)
    other = await OwnRecord.read(store, record.record.uuid)
    assert other.record.trim_seq == 3
    await other.change(state=WalState.CLOSING)
    with pytest.raises(Fenced):
        await record.change(trim_seq=5)
    assert record.record.trim_seq == 3


@pytest.mark.parametrize(
    ("error", "happened"),
    [(OutcomeUnknown("lost"), True), (OutcomeUnknown("lost"), False), (Unavailable("away"), False)],
)
async def test_an_answer_that_was_lost(
    error: OutcomeUnknown | Unavailable, happened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_record, "RETRY_S", 0.0)
    store = MemoryStore()
    record = await OwnRecord.begin(wal_context(MemoryObjectStore(), store))
    store.fail_next(error, happened=happened)
    await record.change(trim_seq=3)
    await record.change(trim_seq=4)
    assert (await OwnRecord.read(store, record.record.uuid)).record.trim_seq == 4


async def test_of_two_changes_at_once_the_later_keeps_what_the_earlier_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_record, "RETRY_S", 0.0)
    store = MemoryStore()
    record = await OwnRecord.begin(wal_context(MemoryObjectStore(), store))
    store.fail_next(Unavailable("away"), happened=False)
    await asyncio.gather(
        record.change(trim_seq=3, catalogue="older"), record.change(trim_seq=7, catalogue="newer")
    )
    assert (record.record.trim_seq, record.record.catalogue) == (7, "newer")
    assert (await OwnRecord.read(store, record.record.uuid)).record == record.record


async def test_a_change_without_values_is_told_from_another_process_s_by_its_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_record, "RETRY_S", 0.0)
    store = MemoryStore()
    record = await OwnRecord.begin(wal_context(MemoryObjectStore(), store))
    other = await OwnRecord.read(store, record.record.uuid)
    await other.change()
    store.fail_next(OutcomeUnknown("lost"), happened=False)
    with pytest.raises(Fenced):
        await record.change()
