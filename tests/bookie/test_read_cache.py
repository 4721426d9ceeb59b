"""The block reader: right blocks, few reads, bounded memory, errors that say where."""

import errno
import threading
from pathlib import Path
from random import Random

import pytest

from quire.bookie.entry_log import EntryLogs
from quire.bookie.read_cache import BlockReader
from quire.runtime.disk import RealDisk
from quire.runtime.errors import CorruptionError, DiskError
from quire.runtime.limits import KIB, MIB, READ_CHUNK_BYTES_MAX
from quire.testing.disk import SimulatedDisk
from quire.testing.index import MemoryIndex

from .blocks import make_blocks


class Node:
    """Entry logs with an index and some ledgers in them."""

    def __init__(self, disk: SimulatedDisk | RealDisk) -> None:
        self.disk = disk
        self.index = MemoryIndex()
        self.logs = EntryLogs(disk, "entries", file_bytes=16 * MIB, step_bytes=MIB, record_bytes=512 * KIB)
        self.logs.open()
        self.blocks: dict[int, list[bytes]] = {}

    def flush(self, **sizes: list[int]) -> None:
        """Blocks of these sizes for ledger "l1", "l2", ..., one entry each, after what is there."""
        runs = []
        for name, sizes_of in sorted(sizes.items()):
            ledger_id = int(name[1:])
            there = self.blocks.setdefault(ledger_id, [])
            made = make_blocks(ledger_id, len(there), sizes_of)
            there += made
            runs.append((ledger_id, made))
        rows = self.logs.append(runs)
        self.logs.sync()
        self.index.commit(rows, {}, b"")

    def reads(self) -> int:
        assert isinstance(self.disk, SimulatedDisk)
        return self.disk.operations


@pytest.fixture
def node() -> Node:
    return Node(SimulatedDisk())


def reader_of(node: Node, cache_bytes: int = 64 * MIB) -> BlockReader:
    return BlockReader(node.index, node.logs, cache_bytes=cache_bytes)


def test_whole_blocks_up_to_the_bytes_asked_for_and_one_at_least(node: Node) -> None:
    node.flush(l1=[1000] * 10, l2=[500])
    reader = reader_of(node)
    size = len(node.blocks[1][0])
    assert reader.read(1, 0, 3 * size) == node.blocks[1][:3]
    assert reader.read(1, 4, 3 * size - 1) == node.blocks[1][4:6]
    assert reader.read(1, 9, 1) == node.blocks[1][9:]
    assert reader.read(1, 2, MIB) == node.blocks[1][2:]
    assert reader.read(1, 10, MIB) == reader.read(3, 0, MIB) == []


def test_a_read_begins_with_the_block_that_contains_the_entry() -> None:
    node = Node(SimulatedDisk())
    made = make_blocks(7, 100, [50] * 4, entry_count=10)
    rows = node.logs.append([(7, made)])
    node.index.commit(rows, {}, b"")
    reader = reader_of(node)
    assert reader.read(7, 119, MIB) == made[1:]
    assert reader.read(7, 120, 1) == made[2:3]
    assert reader.read(7, 99, MIB) == reader.read(7, 140, MIB) == []


def test_a_read_ends_at_a_gap(node: Node) -> None:
    rows = node.logs.append([(1, make_blocks(1, 0, [10]) + make_blocks(1, 2, [10]))])
    node.index.commit(rows, {}, b"")
    reader = reader_of(node)
    assert len(reader.read(1, 0, MIB)) == 1
    assert reader.read(1, 1, MIB) == []
    assert len(reader.read(1, 2, MIB)) == 1


def test_what_was_read_is_answered_without_the_disk(node: Node) -> None:
    node.flush(l1=[1000] * 100)
    reader = reader_of(node)
    assert reader.peek(1, 0, MIB) == []
    reader.read(1, 0, MIB)
    before = node.reads()
    assert reader.peek(1, 50, MIB) == reader.read(1, 50, MIB) == node.blocks[1][50:]
    assert node.reads() == before
    reader.forget(1)
    assert reader.peek(1, 50, MIB) == []


def test_a_sequential_reader_costs_one_read_a_megabyte(node: Node) -> None:
    node.flush(l1=[60 * KIB] * 100)
    reader = reader_of(node)
    before, entry, got = node.reads(), 0, 0
    while blocks := reader.read(1, entry, 200 * KIB):
        assert blocks == node.blocks[1][entry : entry + len(blocks)]
        entry += len(blocks)
        got += sum(map(len, blocks))
    assert entry == 100
    assert node.reads() - before <= 2 * got / READ_CHUNK_BYTES_MAX + 2


def test_the_cache_keeps_to_its_bytes_and_answers_stay_as_they_were(node: Node) -> None:
    for _ in range(3):
        node.flush(l1=[30 * KIB] * 100, l2=[30 * KIB] * 100)
    reader = reader_of(node, cache_bytes=2 * MIB)
    rng = Random(1)
    held = []
    for _ in range(300):
        ledger_id, entry = rng.choice((1, 2)), rng.randrange(300)
        blocks = reader.read(ledger_id, entry, 300 * KIB)
        held.append((ledger_id, entry, blocks))
        del held[:-20]
        assert reader.cached_bytes <= 2 * MIB
        for seen_ledger_id, first, seen in held:
            expected = node.blocks[seen_ledger_id][first : first + len(seen)]
            assert list(map(bytes, seen)) == expected  # comparing views goes byte by byte, and takes seconds


def test_memory_is_used_again(node: Node) -> None:
    node.flush(l1=[60 * KIB] * 200)
    reader = reader_of(node, cache_bytes=MIB)
    for _ in range(5):
        for entry in range(0, 200, 4):
            assert reader.read(1, entry, 1) == node.blocks[1][entry : entry + 1]
    assert reader.buffers.made < 20


@pytest.mark.parametrize("wanted", [0, 3, 5])
def test_damage_stops_the_answer_before_it_and_is_an_error_at_it(node: Node, wanted: int) -> None:
    node.flush(l1=[1000] * 10)
    (row,) = node.index.rows(1, 0, 9)
    place = row.offset + sum(map(len, node.blocks[1][:5]))
    assert isinstance(node.disk, SimulatedDisk)
    node.disk.flip("entries/00000001.log", place + 500)
    reader = reader_of(node)
    if wanted < 5:
        assert reader.read(1, wanted, MIB) == node.blocks[1][wanted:5]
    with pytest.raises(CorruptionError) as error:
        reader.read(1, 5, MIB)
    assert (error.value.file, error.value.offset) == ("simulated/entries/00000001.log", place)
    assert reader.read(1, 6, MIB) == node.blocks[1][6:], "blocks after the damage can be read"


def test_blocks_of_another_ledger_are_damage_not_an_answer(node: Node) -> None:
    node.flush(l1=[1000], l2=[1000])
    (first,), (second,) = node.index.rows(1, 0, 9), node.index.rows(2, 0, 9)
    node.index.commit([second._replace(ledger_id=1)], {}, b"", deleted=[1])
    with pytest.raises(CorruptionError, match="not at the position in the index"):
        reader_of(node).read(1, 0, MIB)
    assert first != second


def test_a_disk_error_is_an_error_and_the_next_read_tries_again(node: Node) -> None:
    node.flush(l1=[1000])
    assert isinstance(node.disk, SimulatedDisk)
    reader = reader_of(node)
    node.disk.fail("read", errno.EIO, times=2)
    with pytest.raises(DiskError):
        reader.read(1, 0, MIB)
    assert reader.read(1, 0, MIB) == node.blocks[1]


def test_a_log_freed_between_lookup_and_read_is_looked_up_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.flush(l1=[1000] * 5)
    reopened = EntryLogs(node.disk, "entries", file_bytes=16 * MIB, step_bytes=MIB, record_bytes=512 * KIB)
    reopened.open()
    node.logs = reopened
    reader = reader_of(node)
    original = node.index.rows
    moved = []

    def rows_then_move(ledger_id: int, entry: int, limit: int):  # type: ignore[no-untyped-def]
        rows = original(ledger_id, entry, limit)
        if not moved:
            moved.append(True)
            new = node.logs.append([(1, node.blocks[1])])
            node.index.replace(rows, new)
            node.logs.free(rows[0].log_id)
        return rows

    monkeypatch.setattr(node.index, "rows", rows_then_move)
    assert reader.read(1, 0, MIB) == node.blocks[1]


def test_readers_in_many_threads_with_read_ahead(tmp_path: Path) -> None:
    node = Node(RealDisk(tmp_path))
    for _ in range(4):
        node.flush(l1=[20 * KIB] * 100, l2=[3 * KIB] * 100, l3=[100] * 100)
    reader = reader_of(node, cache_bytes=2 * MIB)
    failures: list[BaseException] = []

    def run(ledger_id: int) -> None:
        try:
            for _ in range(3):
                entry = 0
                while blocks := reader.peek(ledger_id, entry, 100 * KIB) or reader.read(
                    ledger_id, entry, 100 * KIB
                ):
                    assert blocks == node.blocks[ledger_id][entry : entry + len(blocks)]
                    entry += len(blocks)
                    reader.read_ahead(ledger_id)
                assert entry == 400
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(1 + n % 3,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    node.logs.close()


def test_a_sequential_reader_finds_the_next_chunk_read_ahead(node: Node) -> None:
    node.flush(l1=[60 * KIB] * 100, l2=[60 * KIB])
    reader = reader_of(node)
    entry = len(reader.read(1, 0, 200 * KIB))
    assert not reader.wants_ahead(1), "one read is no sequence yet"
    while blocks := reader.peek(1, entry, 200 * KIB) or reader.read(1, entry, 200 * KIB):
        entry += len(blocks)
        assert reader.wants_ahead(1) or reader.peek(1, entry, 1) or entry == 100
        reader.read_ahead(1)
        assert not reader.wants_ahead(1)
        before = node.reads()
        assert reader.read(1, entry, 60 * KIB) == node.blocks[1][entry : entry + 1]
        assert node.reads() == before, "it was there before it was asked for"
    assert entry == 100


def test_two_readers_of_one_ledger_are_both_sequential(node: Node) -> None:
    node.flush(l1=[60 * KIB] * 100)
    reader = reader_of(node)
    first, second = len(reader.read(1, 0, 100 * KIB)), 50 + len(reader.read(1, 50, 100 * KIB))
    for start in (first, second):
        assert reader.read(1, start, 100 * KIB)
        assert reader.wants_ahead(1)
        reader.read_ahead(1)
