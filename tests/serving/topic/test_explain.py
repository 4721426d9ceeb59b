"""What is said of segments agrees with what trimming does to them, and each reason has its words."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from quire.metadata.records import ArchivePointer, RetentionPolicy, SegmentRecord
from quire.serving.model.ports import Position
from quire.serving.settings import BrokerSettings
from quire.serving.topic.lifecycle.explain import Circumstances, explain
from quire.serving.topic.lifecycle.retention import trimmable

NOW_MS = 1_000_000


def case_of(
    sealed: list[SegmentRecord],
    marks: dict[str, Position],
    retention: RetentionPolicy,
    *,
    compacted_to: Position | None = None,
    deduplicated_to: Position | None = None,
    has_archive: bool = True,
) -> Circumstances:
    active = SegmentRecord(ledger_id=100, last_entry=4, messages=5, bytes=50, created_ms=NOW_MS - 10)
    return Circumstances(
        [*sealed, active],
        marks,
        retention,
        compacted_to,
        deduplicated_to,
        BrokerSettings(),
        has_archive,
        BrokerSettings().archive_lag_ms,
        NOW_MS,
    )


def segment(ledger_id: int, sealed_ms: int = NOW_MS - 1000) -> SegmentRecord:
    return SegmentRecord(ledger_id=ledger_id, sealed_ms=sealed_ms, last_entry=9, messages=10, bytes=100)


@pytest.mark.parametrize("seed", range(50))
def test_what_is_not_kept_is_exactly_what_trimming_would_drop(seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    sealed = [segment(i, NOW_MS - 1000 * (10 - i)) for i in range(1, rng.randrange(2, 9))]
    marks = {str(n): Position(rng.randrange(1, 9), rng.choice((-1, 5, 9))) for n in range(rng.randrange(3))}
    time_ms, size = rng.choice([(-1, -1), (0, 0), (-1, 250), (3500, -1), (5500, 450)])
    retention = RetentionPolicy(retention_ms=time_ms, retention_bytes=size)
    rows = explain(case_of(sealed, marks, retention))
    free = [not row.kept_by for row in rows]
    count = trimmable(sealed, 50, marks.values(), retention, NOW_MS)
    assert free == [True] * count + [False] * (len(rows) - count)


def test_each_reason_is_named_with_its_end() -> None:
    pointer = ArchivePointer(store="s", name="n", bytes=1, crc=1, archived_ms=NOW_MS - 500)
    archived = SegmentRecord(
        ledger_id=1, sealed_ms=NOW_MS - 2000, last_entry=9, messages=10, bytes=100, archive=pointer
    )
    retention = RetentionPolicy(retention_ms=5000, retention_bytes=1000)
    rows = explain(
        case_of([archived, segment(2)], {"slow": Position(2, 3)}, retention, compacted_to=Position(1, 9))
    )
    kept = [[one.by for one in row.kept_by] for row in rows]
    assert kept == [["retention"], ["subscription", "retention", "compaction"], ["active"]]
    assert rows[0].kept_by[0].until_ms == NOW_MS + 3000
    assert "750 bytes left" in rows[0].kept_by[0].why
    assert "slow (acknowledged up to 2:3)" in rows[1].kept_by[0].why
    assert [row.bookies.by for row in rows] == ["lag", "archive", "active"]
    assert rows[0].bookies.until_ms == pointer.archived_ms + BrokerSettings().archive_lag_ms


def test_a_segment_that_only_an_earlier_one_keeps_says_so() -> None:
    old = SegmentRecord(ledger_id=2, sealed_ms=1, last_entry=9, messages=10, bytes=100)
    rows = explain(case_of([segment(1), old], {}, RetentionPolicy(retention_ms=5000, retention_bytes=-1)))
    assert [row.kept_by[0].by for row in rows] == ["retention", "order", "active"]


def test_why_archiving_fails_is_said_with_the_segment() -> None:
    case = replace(case_of([segment(1), segment(2)], {}, RetentionPolicy()), failures={1: "no room there"})
    whys = [row.bookies.why for row in explain(case)]
    assert "no room there" in whys[0] and "flushed" in whys[1]


def test_a_segment_on_object_storage_is_told_by_its_log() -> None:
    case = replace(case_of([segment(1), segment(2)], {}, RetentionPolicy()), wals={1: "wal-x", 100: "wal-y"})
    whys = [row.bookies.why for row in explain(replace(case, has_archive=False))]
    assert "wal-x" in whys[0] and "bookies" not in whys[0]
    assert "bookies' copy" in whys[1]
    assert "wal-y is the only one" in whys[2]


def test_without_an_archive_the_bookies_keep_it_and_many_names_are_cut() -> None:
    marks = {f"s{i}": Position(1, 0) for i in range(9)}
    for retention in (RetentionPolicy(retention_ms=-1, retention_bytes=-1), RetentionPolicy()):
        row = explain(case_of([segment(1)], marks, retention, has_archive=False))[0]
        assert "no archive" in row.bookies.why
        assert row.kept_by[0].why.endswith("and 4 more")
        assert ("is unlimited" in row.kept_by[-1].why) == (retention.retention_ms < 0)
