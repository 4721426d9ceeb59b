"""The collector: what is dead gives its room back, what is live stays readable byte for byte, at every crash point."""

from contextlib import suppress
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.bookie.collector import Collector, CollectorCore, Compact, Free, Wait
from quire.bookie.entry_log import EntryLogs
from quire.bookie.read_cache import BlockReader
from quire.runtime.clock import ManualClock
from quire.runtime.errors import DiskError, QuireError
from quire.runtime.limits import KIB, MIB
from quire.testing.disk import SimulatedDisk
from quire.testing.index import MemoryIndex

from .blocks import make_blocks

PLENTY = 1 << 40


# -- the core --------------------------------------------------------------------------------------------


def test_an_empty_log_is_freed() -> None:
    assert CollectorCore(set()).choose({1: 100, 2: 0}, {1: 100, 2: 100}, PLENTY, 0) == Free(2)


def test_a_log_without_a_count_is_freed_only_if_it_was_there_at_the_start() -> None:
    assert CollectorCore({1}).choose({}, {1: 100}, PLENTY, 0) == Free(1)
    assert CollectorCore({1}).choose({}, {2: 100}, PLENTY, 0) is None


def test_the_emptiest_log_is_compacted_and_full_ones_are_not() -> None:
    core = CollectorCore(set())
    assert core.choose({1: 40, 2: 30, 3: 60}, {1: 100, 2: 100, 3: 100}, PLENTY, 0) == Compact(2, 30)
    assert core.choose({3: 51}, {3: 100}, PLENTY, 0) is None
    core.give_up(2)
    assert core.choose({1: 40, 2: 30}, {1: 100, 2: 100}, PLENTY, 0) == Compact(1, 40)


def test_a_copy_must_find_room() -> None:
    assert CollectorCore(set()).choose({1: 40, 2: 30}, {1: 1000, 2: 60}, 35, 0) == Compact(2, 30)
    assert CollectorCore(set()).choose({1: 40, 2: 30}, {1: 1000, 2: 60}, 20, 0) is None


def test_copying_keeps_its_pace_and_freeing_does_not_wait() -> None:
    core = CollectorCore(set(), bytes_per_s=100)
    core.copied(250, now_s=10)
    assert core.choose({1: 10}, {1: 100}, PLENTY, 12.4) == Wait(pytest.approx(0.1))
    assert core.choose({1: 10, 2: 0}, {1: 100, 2: 100}, PLENTY, 12.4) == Free(2)
    assert core.choose({1: 10}, {1: 100}, PLENTY, 12.5) == Compact(1, 10)


def test_the_log_that_is_being_written_is_never_chosen() -> None:
    assert CollectorCore(set()).choose({1: 0}, {}, PLENTY, 0) is None


# -- the shell, on a node that crashes --------------------------------------------------------------------


class Node:
    """Logs, index, reader and collector over a simulated disk, and a model of what must be readable."""

    def __init__(self, seed: int = 0, capacity_bytes: int = 1 << 40) -> None:
        self.disk = SimulatedDisk(seed, capacity_bytes=capacity_bytes)
        self.index = MemoryIndex()
        self.live: dict[int, list[bytes]] = {}
        self.reports: list[QuireError] = []
        self.start()

    def start(self) -> None:
        self.clock = ManualClock()
        self.logs = EntryLogs(
            self.disk,
            "entries",
            file_bytes=128 * KIB,
            step_bytes=64 * KIB,
            record_bytes=32 * KIB,
        )
        self.logs.open()
        self.collector = Collector(
            self.index, self.logs, self.clock, self.reports.append, bytes_per_s=MIB, batch_bytes=20 * KIB
        )

    def crash(self) -> None:
        self.disk.crash()
        self.index = self.index.crash()
        self.start()

    def flush(self, sizes: dict[int, list[int]]) -> None:
        runs = []
        for ledger_id, sizes_of in sorted(sizes.items()):
            runs.append((ledger_id, make_blocks(ledger_id, len(self.live.get(ledger_id, ())), sizes_of)))
        rows = self.logs.append(runs)
        self.logs.sync()
        self.index.commit(rows, {}, b"")
        for ledger_id, made in runs:
            self.live.setdefault(ledger_id, []).extend(made)

    def delete(self, ledger_ids: set[int]) -> None:
        self.index.commit([], {}, b"", ledger_ids)
        for ledger_id in ledger_ids:
            self.live.pop(ledger_id, None)

    def collect(self) -> None:
        for _ in range(200):
            wait_s = self.collector.run()
            if wait_s is None:
                break
            self.clock.advance_ms(int(wait_s * 1000) + 1)
        else:
            raise AssertionError("the collector finds no end")

    def check(self) -> None:
        """All that is live is there byte for byte, and the index counts it right."""
        reader = BlockReader(self.index, self.logs)
        for ledger_id in range(8):
            found: list[bytes] = []
            while blocks := reader.read(ledger_id, len(found), 1 << 30):
                found += map(bytes, blocks)
            assert found == self.live.get(ledger_id, [])
        assert sum(self.index.usage().values()) == sum(
            len(b) for blocks in self.live.values() for b in blocks
        )


def test_deleted_ledgers_give_their_files_back_and_they_are_used_again() -> None:
    node = Node()
    for n in range(20):
        node.flush({1: [9000] * 10, 2: [100]})
        if n % 2:
            node.delete({1})
        node.collect()
        node.check()
    assert node.collector.logs_freed > 5
    assert len(node.disk.names("entries")) <= 8


def test_a_mostly_dead_log_is_copied_and_freed() -> None:
    node = Node()
    node.flush({1: [9000] * 10, 2: [3000, 3000], 3: [9000] * 10})
    node.flush({4: [9000] * 10})
    before = set(node.logs.sizes())
    node.delete({1, 3})
    node.collect()
    node.check()
    assert not before & set(node.logs.sizes())
    assert 6000 < node.collector.bytes_copied < 100_000


def test_nothing_is_deleted_because_a_start_came_between() -> None:
    node = Node()
    node.flush({1: [9000] * 30, 2: [100]})
    node.crash()
    node.collect()
    node.check()


def test_logs_that_no_commit_ever_named_are_freed_at_the_next_start() -> None:
    node = Node()
    node.logs.append([(1, make_blocks(1, 0, [9000] * 30))])
    node.logs.sync()
    node.collect()
    assert node.collector.logs_freed == 0, "their commit may be still to come"
    node.crash()
    node.collect()
    assert node.collector.logs_freed == 3
    node.check()


def test_damage_is_not_copied_and_its_log_stays() -> None:
    node = Node()
    node.flush({1: [9000] * 10, 2: [3000], 3: [3000]})
    node.flush({4: [9000] * 10})
    (row,) = node.index.rows(2, 0, 9)
    file = f"entries/{row.log_id:08d}.log"
    node.disk.flip(file, row.offset + 500)
    node.delete({1})
    node.collect()
    assert node.index.rows(2, 0, 9) == [row] and node.disk.exists(file)
    assert [error for error in node.reports if f"{file} at offset {row.offset}" in str(error)]
    del node.live[2]
    with pytest.raises(QuireError, match="do not match their checksum"):
        BlockReader(node.index, node.logs).read(2, 0, 1)
    assert node.index.rows(3, 0, 9)[0].log_id != row.log_id, "what is whole was copied"


def test_an_unreadable_sector_does_not_stop_the_collector() -> None:
    node = Node()
    node.flush({1: [9000] * 10, 2: [3000]})
    node.flush({4: [9000] * 10})
    node.delete({1})
    (row,) = node.index.rows(2, 0, 9)
    file = node.logs.file_name(row.log_id).removeprefix(f"{node.disk.root}/")
    node.disk.spoil(file, row.offset)
    node.collect()
    assert node.reports and node.index.rows(2, 0, 9) == [row]
    node.disk.restore(file, row.offset)
    node.check()


def test_compaction_works_when_the_disk_is_full_for_writers() -> None:
    node = Node(capacity_bytes=1024 * KIB)
    for n in range(100):
        if node.logs.room_bytes() >= 128 * KIB:  # the reserve
            node.flush({1 if n % 3 else 2: [9000] * 3, 3: [500]})
    node.delete({1})
    node.collect()
    assert node.collector.logs_freed > 0
    node.check()
    assert node.logs.room_bytes() >= 128 * KIB
    node.flush({5: [9000] * 3})
    node.check()


STEPS = st.one_of(
    st.dictionaries(st.integers(0, 7), st.lists(st.integers(1, 9000), min_size=1, max_size=8), min_size=1),
    st.sets(st.integers(0, 7), min_size=1, max_size=3),
    st.sampled_from(["collect", "crash"]),
)


@settings(max_examples=60, deadline=None)
@given(history=st.lists(STEPS, max_size=25))
def test_random_histories_keep_what_is_live(history: list[object]) -> None:
    node = Node()
    for step in history:
        if isinstance(step, dict):
            node.flush(step)
        elif isinstance(step, set):
            node.delete(step)
        elif step == "crash":
            node.crash()
        else:
            node.collect()
        node.check()


@pytest.mark.parametrize("seed", range(60))
def test_a_crash_at_any_point_of_a_collection_loses_nothing(seed: int) -> None:
    rng = Random(seed)
    node = Node(seed)
    for _ in range(6):
        node.flush(
            {n: [rng.randrange(1, 9000) for _ in range(rng.randrange(1, 6))] for n in rng.sample(range(8), 4)}
        )
    node.delete(set(rng.sample(range(8), 4)))
    node.disk.crash_after(rng.randrange(60))
    with suppress(DiskError):
        node.collect()
    node.crash()
    node.check()
    node.collect()
    node.check()
    node.flush({1: [5000] * 9})
    node.check()


@pytest.mark.parametrize("seed", range(5))
def test_a_power_cut_at_every_disk_operation_of_one_collection_loses_nothing(seed: int) -> None:
    """Logs freed and compacted in several batches; what survives of unsynced pages differs from seed to seed."""
    for cut_after in count():
        node = Node(seed)
        for _ in range(6):
            node.flush({n: [9000, 700, 3000] for n in range(6)})
        node.delete({1, 2, 3, 4})
        node.disk.crash_after(cut_after)
        was_cut = False
        try:
            node.collect()
        except DiskError:
            was_cut = True
        node.crash()
        node.check()
        node.collect()
        node.check()
        node.flush({1: [5000] * 9})
        node.check()
        if not was_cut:
            break
    assert cut_after > 10, f"a collection of {cut_after} operations shows nothing"
