"""Disk space of a bookie, and the writes that it still accepts.

The thresholds are like [BookKeeper's](https://bookkeeper.apache.org/docs/reference/config#disk-utilization-options).

*Left* is the disk space that will be free when all accepted blocks are in the entry log. Unused space in logs and
spares counts as free. Publishing stops at the reserve, which is for all other work: acknowledgements, loading and
deleting topics, and freeing the space of deleted ledgers.

| left                             | new blocks | of high priority | fences, tombstones, LACs, checkpoints, compaction |
|----------------------------------|------------|------------------|---------------------------------------------------|
| more                             | yes        | yes              | yes                                               |
| below 2 × (reserve + a memtable) | yes        | yes              | yes; the node is *short of space*                 |
| below reserve + a memtable       | no         | yes              | yes; *full*                                       |
| below a quarter of the reserve   | no         | no               | yes, while they find space; *exhausted*           |

Two kinds of blocks have high priority: blocks of brokers' state logs (cursors, deduplication), and blocks that a
ledger's recovery writes again. Copies made by repair do not. A full node accepts blocks again when the space left
exceeds the threshold by another memtable (hysteresis).

A node is also short of space if the disk's free space alone, without logs and spares, is below 2 × (reserve + a
memtable). Then it removes its spares, and compacts logs with a higher live share; brokers release archived segments
sooner.
"""

from __future__ import annotations

from typing import Final

_EXHAUSTED_SHARE: Final = 4
"""Divisor of the reserve: a node with less space left than reserve / divisor is exhausted."""


class Room:
    """Classification of free space by the module's table. Performs no I/O."""

    def __init__(self, reserve_bytes: int, memtable_bytes: int) -> None:
        self._reserve_bytes = reserve_bytes
        self._memtable_bytes = memtable_bytes
        self.is_short = self.is_full = self.is_exhausted = False
        self.for_copies_bytes = 0
        """Space in bytes that compaction may use for copies; the rest is for blocks that arrive meanwhile."""

    def look(self, left_bytes: int, free_bytes: int) -> None:
        """Update the classification. `left_bytes` is *left* as defined in the module.

        `free_bytes` is the free space of the disk, which other programs may also use.
        """
        needed = self._reserve_bytes + self._memtable_bytes
        self.is_short = min(left_bytes, free_bytes) < 2 * needed
        self.is_full = left_bytes < needed + (self._memtable_bytes if self.is_full else 0)
        last_bytes = self._reserve_bytes // _EXHAUSTED_SHARE
        self.is_exhausted = left_bytes < last_bytes
        assert self.is_exhausted <= self.is_full <= self.is_short
        kept_bytes = 0 if self.is_exhausted else last_bytes + 2 * self._memtable_bytes
        self.for_copies_bytes = left_bytes - kept_bytes
