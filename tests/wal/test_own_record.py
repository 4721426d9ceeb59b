"""A WAL's record: each change by version; a lost answer is looked at; a store that does not answer is waited for."""

from __future__ import annotations

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
