"""Compacted reading: the last message of each key in the range, unless it is a tombstone. Performs no I/O.

The rules are the same as for the broker's compaction (`serving.topic.compaction.compacting`), message by message:

| message | is a row |
|---|---|
| the last one with its key | yes |
| with a key, but not the last one | no |
| without a value (null or empty) | no: it removes its key (a tombstone) |
| without a key | yes |
| an undecodable entry that is kept (`on_undecodable=raw`) | yes |

Brokers do not expose the result of their own compaction, so a query reads the topic twice: first the keys with their
message indexes, then the rows. The second pass keeps the rows with the last index of their key. "Last" is by the
message index over a partition's whole range, so one task reads that range. The result equals that of a compaction that
has just ended: each key has at most one row.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from quire.runtime.errors import QuireError
from quire.runtime.limits import MIB
from quire.spark_source import schema

COLUMNS: Final = ("key", "message_index", schema.REMOVES)
"""Columns that a batch for `LastOfKey.note` needs; `LastOfKey.kept` needs the first two."""

KEYS_BYTES_MAX: Final = 128 * MIB
"""Maximum bytes of keys in a task's memory: each takes its length plus about 30 bytes. Grouping needs twice as much."""

NOTED_ROWS_MAX: Final = 500_000
NOTED_BYTES_MAX: Final = 32 * MIB
"""Numbers of noted rows and of their bytes beyond which they are reduced to one row per key."""

_NOTED: Final = pa.schema([("key", pa.binary()), ("at", pa.int64())])


class TooManyKeys(QuireError):
    """Raised if the keys of a partition do not fit into a task's memory."""


class LastOfKey:
    """Index of the last message of each key.

    Call `note` for all batches of a range in the first pass, then `kept` for each of them in the second.
    """

    def __init__(self) -> None:
        self._last = _NOTED.empty_table()
        """For each key, 2 * the index of its last message, plus 1 if that message is a tombstone."""
        self._noted: list[pa.RecordBatch] = []
        self._noted_rows = self._noted_bytes = 0
        self._indexes: npt.NDArray[np.int64] | None = None

    def note(self, batch: pa.RecordBatch) -> None:
        """Add a batch in the first pass. Raises `TooManyKeys`."""
        key, index, removes = (batch.column(name) for name in COLUMNS)
        at = pc.add(pc.multiply(index, 2), removes.cast(pa.int64()))
        noted = pa.RecordBatch.from_arrays([key, at], schema=_NOTED).filter(_has_key(key))
        self._noted.append(noted)
        self._noted_rows += noted.num_rows
        self._noted_bytes += noted.nbytes
        if self._noted_rows > NOTED_ROWS_MAX or self._noted_bytes > NOTED_BYTES_MAX:
            self._gather()

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that compaction keeps; for the second pass."""
        if self._indexes is None:
            self._gather()
            at = self._last["at"].to_numpy()
            self._indexes = np.sort(at[at % 2 == 0] // 2)
            self._last = _NOTED.empty_table()
        index = batch.column("message_index").to_numpy()
        place = np.searchsorted(self._indexes, index)
        is_last = np.zeros(len(index), np.bool_)
        inside = place < len(self._indexes)
        is_last[inside] = self._indexes[place[inside]] == index[inside]
        return batch.filter(pc.or_(pc.invert(_has_key(batch.column("key"))), pa.array(is_last)))

    def _gather(self) -> None:
        table = pa.concat_tables([self._last, pa.Table.from_batches(self._noted, _NOTED)])
        self._noted, self._noted_rows, self._noted_bytes = [], 0, 0
        found = table.group_by("key", use_threads=False).aggregate([("at", "max")])
        self._last = found.rename_columns(["key" if name == "key" else "at" for name in found.column_names])
        if self._last.nbytes > KEYS_BYTES_MAX:
            raise TooManyKeys(
                f"a partition has more keys than a task can hold ({self._last.num_rows} keys need "
                f"{self._last.nbytes >> 20} MiB); narrow the range, or omit compacted and group by key in Spark"
            )


def _has_key(key: pa.Array) -> pa.Array:
    """Return a mask of the messages with a key; an empty key counts as no key, as in brokers."""
    return pc.fill_null(pc.greater(pc.binary_length(key), 0), False)
