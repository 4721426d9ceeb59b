"""Parquet file of a job, which gets its final name only when it is complete and durable.

pyarrow begins a row group with each call of its writer. Record batches have only 2 MiB, so `RowGroups` combines them.
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
"""Limits of a row group. Only a row group of a single record batch may exceed them."""


class RowGroups:
    """Writer of record batches to a Parquet file; `where` is a path, or a file object for pyarrow."""

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
        """Write the last row group and the footer, and close the file."""
        self.flush()
        self._writer.close()

    def close(self) -> None:
        """Close the file, and drop the rows that are still held."""
        self._writer.close()


class PartFile:
    """A file that has a temporary name until it is complete."""

    def __init__(self, path: Path, arrow: pa.Schema) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._partial = path.with_name(f"_{path.name}.{os.getpid()}")
        self._groups = RowGroups(self._partial, arrow)
        self.rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        self._groups.write(rows)
        self.rows += rows.num_rows

    def flush(self) -> None:
        """Write held rows, to free their memory while rows of other files are written."""
        self._groups.flush()

    def publish(self) -> int:
        """Complete the file, make it durable, rename it to its final name, and return its size in bytes."""
        self._groups.finish()
        with self._partial.open("rb") as written:
            os.fsync(written.fileno())
        size = self._partial.stat().st_size
        os.replace(self._partial, self._path)
        state.sync_directory(self._path.parent)
        return size

    def discard(self) -> None:
        """Close the file, and delete it unless it was published."""
        self._groups.close()
        self._partial.unlink(missing_ok=True)
