"""Sets and catalogues: what was written is read by another, and only proof makes garbage."""

from __future__ import annotations

import pytest

from quire.runtime.errors import CorruptionError, NotFound, Unavailable
from quire.testing.objects import MemoryObjectStore
from quire.wal.run_index import RunIndex
from quire.wal.run_reader import RunReader, run_cache
from quire.wal.set_objects import SetObjects
from tests.wal.blocks import made

WAL = "0a0b0c0d-0000-4000-8000-000000000007"


class Sets:
    """The sets of one WAL, and what reads them."""

    def __init__(self, store: MemoryObjectStore) -> None:
        self.index = RunIndex()
        self.sets = SetObjects(store, WAL, self.index)
        self.reader = RunReader(store, self.index, run_cache(1 << 20))

    async def write(
        self, runs: dict[int, list[bytes]], deleted: dict[int, int] | None = None
    ) -> tuple[str, int]:
        """Returns name and checksum of the catalogue that names a set of `runs`, too."""
        more = [await self.sets.write_set(sorted(runs.items()), 0, 1, 99)] if runs else []
        change = await self.sets.write_catalogue(more, deleted or {}, ())
        self.sets.adopt(change)
        return change.name, change.crc

    async def read(self, ledger_id: int, entry: int, bytes_max: int = 1 << 20) -> list[bytes]:
        return list(map(bytes, await self.reader.read(ledger_id, entry, bytes_max)))


async def test_another_finds_by_the_catalogue_what_was_written() -> None:
    store = MemoryObjectStore()
    blocks = [made(1, 0, 3), made(1, 3), made(1, 9)]
    name, crc = await Sets(store).write({1: blocks, 2: [made(2, 0)]})
    other = Sets(store)
    await other.sets.load(name, crc)
    assert await other.read(1, 1) == blocks[:2]
    assert await other.read(1, 3) == blocks[1:2]
    assert await other.read(1, 4) == []
    assert await other.read(1, 9) == blocks[2:]
    assert await other.read(1, 0, 1) == blocks[:1]


async def test_a_read_goes_over_runs_and_sets() -> None:
    store = MemoryObjectStore()
    sets = Sets(store)
    blocks = [made(1, number, 1, 300_000) for number in range(8)]
    await sets.write({1: blocks[:5]})
    await sets.write({1: blocks[5:]})
    assert await sets.read(1, 0, 4 << 20) == blocks


async def test_rot_is_damage_and_a_later_run_is_told_to_who_comes_there() -> None:
    store = MemoryObjectStore()
    sets = Sets(store)
    blocks = [made(1, number, 1, 700_000) for number in range(2)]
    await sets.write({1: blocks})
    (name,) = [name for name in store.faults.objects if "/set-" in name]
    store.faults.flip(name, 96 + 800_000)
    assert await sets.read(1, 0, 4 << 20) == blocks[:1]
    with pytest.raises(CorruptionError, match="set-"):
        await sets.read(1, 1)


async def test_a_set_goes_when_all_its_ledgers_have_tombstones() -> None:
    store = MemoryObjectStore()
    sets = Sets(store)
    await sets.write({1: [made(1, 0)], 2: [made(2, 0)]})
    await sets.write({2: [made(2, 1)]})
    assert not sets.sets.would_free([1]) and sets.sets.would_free([2])
    change = await sets.sets.write_catalogue([], {2: 5}, ())
    assert [entry.first_seq for entry in change.catalogue.sets] == [0]
    assert change.catalogue.tombstones == {2: 5}, "the first set still has a block of it"
    assert sum("/set-" in name for name in change.dropped) == 1
    sets.sets.adopt(change)
    change = await sets.sets.write_catalogue([], {1: 6}, ())
    assert (change.name, change.catalogue.tombstones, len(change.dropped)) == ("", {}, 2)


async def test_a_tombstone_stays_while_a_data_object_has_blocks() -> None:
    sets = Sets(MemoryObjectStore())
    change = await sets.sets.write_catalogue([], {1: 5, 2: 5}, {2})
    assert change.catalogue.tombstones == {2: 5}


async def test_a_set_whose_rows_rotted_before_they_were_read_back_counts_for_nothing() -> None:
    store = MemoryObjectStore()
    sets = Sets(store)
    store.faults.fail_next("get_range", Unavailable("slow down"))
    with pytest.raises(Unavailable):
        await sets.sets.write_set([(1, [made(1, 0)])], 0, 1, 99)
    assert await sets.read(1, 0) == []


async def test_a_catalogue_that_is_gone_is_not_an_empty_one() -> None:
    with pytest.raises(NotFound):
        await Sets(MemoryObjectStore()).sets.load("wal/x/sets-1", 7)
