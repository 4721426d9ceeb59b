"""A Parquet file that a job writes: it appears under its name when it is whole and on disk, and is not there before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from quire.spark_source.jobs import state

ROW_GROUP_ROWS: Final = 65_536


class PartFile:
    """One file, under another name until it is whole."""

    def __init__(self, path: Path, arrow: pa.Schema) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._partial = path.with_name(f"_{path.name}.{os.getpid()}")
        self._writer = pq.ParquetWriter(self._partial, arrow, compression="zstd")
        self.rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write_batch(rows, row_group_size=ROW_GROUP_ROWS)
        self.rows += rows.num_rows

    def appear(self) -> int:
        """Returns its size in bytes."""
        self._writer.close()
        with self._partial.open("rb") as written:
            os.fsync(written.fileno())
        size = self._partial.stat().st_size
        os.replace(self._partial, self._path)
        state.sync_directory(self._path.parent)
        return size

    def drop(self) -> None:
        """Nothing stays of one that has not appeared."""
        self._writer.close()
        self._partial.unlink(missing_ok=True)
