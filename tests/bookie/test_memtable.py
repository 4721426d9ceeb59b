"""The memtable against a plain dictionary, and the ledgers' records."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.bookie.ledgers import RECORD_BYTES, LedgerState, decode
from quire.bookie.memtable import Memtable, find_time, read
from quire.runtime.errors import CorruptionError
from quire.wire.block import Buffer, cut, peek


def block_of(ledger_id: int, first_entry: int, count: int = 1, size: int = 1) -> Buffer:
    """Its clock is 100 and its first entry."""
    entries = [bytes(size)] * count
    return cut(ledger_id, first_entry, first_entry - 1, 100 + first_entry, first_entry, entries)


@given(seed=st.integers(0, 2**32))
def test_reads_are_those_of_a_sorted_map(seed: int) -> None:
    rng = Random(seed)
    tables = (Memtable(), Memtable())
    spans, entry = [], 0
    for _ in range(rng.randrange(1, 20)):
        entry += rng.choice((0, 0, 0, 2))  # now and then a gap
        count = rng.randint(1, 3)
        spans.append((entry, entry + count - 1, block_of(7, entry, count, size=rng.randint(1, 500))))
        entry += count
    for first, last, block in rng.sample(spans, len(spans)):
        table = rng.choice(tables)
        assert all(each.overlapping(7, first, last) is None for each in tables)
        table.add(7, first, last, block)
        assert table.overlapping(7, first, first) is table.overlapping(7, last, last + 5) is block
    for wanted in range(entry + 2):
        for bytes_max in (1, 500, 10_000):
            expected: list[Buffer] = []
            at = wanted
            for first, last, block in spans:
                if (first <= at <= last if not expected else first == at) and (
                    not expected or sum(map(len, expected)) + len(block) <= bytes_max
                ):
                    expected.append(block)
                    at = last + 1
                elif expected:
                    break
            assert read(tables, 7, wanted, bytes_max) == expected, (seed, wanted, bytes_max)
    assert sum(table.size_bytes for table in tables) == sum(len(block) for _, _, block in spans)


def test_runs_come_by_ledger_and_entry() -> None:
    table = Memtable()
    made = {at: block_of(*at) for at in ((2, 5), (1, 9), (2, 0), (1, 3))}
    for (ledger_id, first), block in made.items():
        table.add(ledger_id, first, first, block)
    assert list(table.runs()) == [(1, [made[1, 3], made[1, 9]]), (2, [made[2, 0], made[2, 5]])]


def test_time_is_found_over_both_tables() -> None:
    older, newer = Memtable(), Memtable()
    for first in range(5):
        older.add(1, first, first, block_of(1, first))
        newer.add(1, first + 5, first + 5, block_of(1, first + 5))

    def clock(block: Buffer) -> int:
        return peek(block).clock_ms

    assert find_time((older, newer), 1, 103, clock) == 3
    assert find_time((older, newer), 1, 107, clock) == 7
    assert find_time((older, newer), 1, 0, clock) == 0
    assert find_time((older, newer), 1, 110, clock) is None
    assert find_time((older, newer), 2, 0, clock) is None


def test_a_ledgers_record_comes_back() -> None:
    state = LedgerState(5)
    state.lac, state.flushed_last_entry, state.flushed_bytes = 10, 12, 999
    assert not decode(5, state.encode()).is_closed_to_writers
    state.put_in_limbo()
    found = decode(5, state.encode())
    assert (found.is_fenced, found.is_limbo, found.is_closed_to_writers) == (True, True, True)
    assert (found.lac, found.last_entry, found.flushed_last_entry, found.flushed_bytes) == (10, 12, 12, 999)
    state.lay_tombstone(3)
    assert decode(5, state.encode()).tombstone_version == 3


@given(place=st.integers(0, 8 * RECORD_BYTES - 1))
def test_a_flipped_bit_in_a_record_is_found(place: int) -> None:
    record = bytearray(LedgerState(5).encode())
    record[place // 8] ^= 1 << place % 8
    with pytest.raises(CorruptionError, match="ledger 5"):
        decode(5, bytes(record))
