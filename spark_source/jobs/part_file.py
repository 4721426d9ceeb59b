"""A Parquet file that a job writes: it appears under its name when it is whole and on disk, and is not there before.

pyarrow begins a row group with each call of its writer, and record batches are of 2 MiB: `RowGroups` gathers them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from quire.runtime.limits import MIB
from quire.spark_source.jobs import state

ROW_GROUP_BYTES: Final = 16 * MIB
ROW_GROUP_ROWS: Final = 65_536
"""A row group is written before it has more than either; one batch may."""


class RowGroups:
    """Record batches of one schema to a Parquet file, `where` pyarrow's writer takes one."""

    def __init__(self, where: Any, arrow: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(where, arrow, compression="zstd")
        self._held: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        rows, size = self._rows + batch.num_rows, self._bytes + batch.nbytes
        if rows > ROW_GROUP_ROWS or size > ROW_GROUP_BYTES:
            self.flush()
        self._held.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes

    def flush(self) -> None:
        """End the row group, if one has begun."""
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held))
        self._held, self._rows, self._bytes = [], 0, 0

    def finish(self) -> None:
        """All is written, and closed."""
        self.flush()
        self._writer.close()

    def close(self) -> None:
        """Without what is not written yet."""
        self._writer.close()


class PartFile:
    """One file, under another name until it is whole."""

    def __init__(self, path: Path, arrow: pa.Schema) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._partial = path.with_name(f"_{path.name}.{os.getpid()}")
        self._groups = RowGroups(self._partial, arrow)
        self.rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        self._groups.write(rows)
        self.rows += rows.num_rows

    def rest(self) -> None:
        """Hold no rows in memory while others are written elsewhere."""
        self._groups.flush()

    def appear(self) -> int:
        """Returns its size in bytes."""
        self._groups.finish()
        with self._partial.open("rb") as written:
            os.fsync(written.fileno())
        size = self._partial.stat().st_size
        os.replace(self._partial, self._path)
        state.sync_directory(self._path.parent)
        return size

    def drop(self) -> None:
        """Nothing stays of one that has not appeared."""
        self._groups.close()
        self._partial.unlink(missing_ok=True)
