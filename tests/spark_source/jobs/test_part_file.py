"""Parquet files of jobs: what is one row group."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quire.spark_source.jobs import part_file
from quire.spark_source.jobs.part_file import PartFile

ARROW = pa.schema([("value", pa.binary())])


def batch(rows: int, size: int = 10) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([bytes(size)] * rows, pa.binary())], schema=ARROW)


def groups(path: Path) -> list[int]:
    """The rows of each row group."""
    found = pq.read_metadata(path)
    return [found.row_group(i).num_rows for i in range(found.num_row_groups)]


def test_small_batches_are_one_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_file, "ROW_GROUP_ROWS", 100)
    monkeypatch.setattr(part_file, "ROW_GROUP_BYTES", 10_000)
    file = PartFile(tmp_path / "a.parquet", ARROW)
    for one in (*[batch(30)] * 4, batch(5), batch(1, 20_000), batch(7)):
        file.write(one)
    size = file.publish()
    assert (groups(tmp_path / "a.parquet"), file.rows) == ([90, 35, 1, 7], 133)
    assert size == (tmp_path / "a.parquet").stat().st_size


def test_one_that_rests_holds_no_rows(tmp_path: Path) -> None:
    file = PartFile(tmp_path / "a.parquet", ARROW)
    file.write(batch(3))
    file.flush()
    file.write(batch(4))
    file.publish()
    assert groups(tmp_path / "a.parquet") == [3, 4]


def test_one_that_is_dropped_leaves_nothing(tmp_path: Path) -> None:
    file = PartFile(tmp_path / "a.parquet", ARROW)
    file.write(batch(3))
    file.discard()
    assert not list(tmp_path.iterdir())
