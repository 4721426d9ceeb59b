"""Compacted reading: of each key the last message in the range, where it is not a delete. A core.

The rules are the broker's compaction's (`serving.topic.compaction.compacting`), message by message:

| message | is a row |
|---|---|
| with a key, the last one of it | yes |
| with a key, not the last one | no |
| without a value (null, or no bytes) | no: it removes its key |
| without a key | yes |
| an entry that is kept as it is (`on_undecodable=raw`) | yes |

The brokers keep the result of their own compaction to themselves; so this reads the topic, twice: first only the keys
with the indexes of their messages, then the rows, and lets through those whose indexes are the last. "Last" is by the
message index, over all of a partition's range, so the range is one task's. The result is what a compaction that has
just ended would leave, rather than what the last one left with all that came after it: no key is there twice.
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
"""What `note` needs. `kept` needs the first two."""

KEYS_BYTES_MAX: Final = 128 * MIB
"""Keys that a task remembers, some 30 bytes each beside their text, and twice that while it gathers them."""

NOTED_ROWS_MAX: Final = 500_000
NOTED_BYTES_MAX: Final = 32 * MIB
"""Rows and bytes after which what was noted is gathered: one for each key."""

_NOTED: Final = pa.schema([("key", pa.binary()), ("at", pa.int64())])


class TooManyKeys(QuireError):
    """A partition's keys do not fit into a task's memory."""


class LastOfKey:
    """`note` all batches of a range, then `kept` says of each what is left of it."""

    def __init__(self) -> None:
        self._last = _NOTED.empty_table()
        """Of each key, 2 * the index of its last message, and 1 more when that removes it."""
        self._noted: list[pa.RecordBatch] = []
        self._noted_rows = self._noted_bytes = 0
        self._indexes: npt.NDArray[np.int64] | None = None

    def note(self, batch: pa.RecordBatch) -> None:
        """First pass. Raises `TooManyKeys`."""
        key, index, removes = (batch.column(name) for name in COLUMNS)
        at = pc.add(pc.multiply(index, 2), removes.cast(pa.int64()))
        noted = pa.RecordBatch.from_arrays([key, at], schema=_NOTED).filter(_has_key(key))
        self._noted.append(noted)
        self._noted_rows += noted.num_rows
        self._noted_bytes += noted.nbytes
        if self._noted_rows > NOTED_ROWS_MAX or self._noted_bytes > NOTED_BYTES_MAX:
            self._gather()

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Second pass: the rows of the batch that stay."""
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
                f"a partition has more keys than a task can remember ({self._last.num_rows} fill "
                f"{self._last.nbytes >> 20} MiB); narrow the range, or leave out compacted and group by key in Spark"
            )


def _has_key(key: pa.Array) -> pa.Array:
    """An empty key is none, as for brokers."""
    return pc.fill_null(pc.greater(pc.binary_length(key), 0), False)
