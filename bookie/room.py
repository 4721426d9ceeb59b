"""How much room a bookie has left, and who may still write: classes of writes, as BookKeeper has them.

What is *left* is what the disk has free when everything accepted lies in the entry log; room that logs have and do not
use counts, and so do spare ones. Publishing stops while there is a reserve, so that all else can go on from it: what
is read is acknowledged, topics are loaded and deleted, and what was deleted gives its room back.

| left                             | new blocks | of high priority | fences, tombstones, LACs, checkpoints, compaction |
|----------------------------------|------------|------------------|---------------------------------------------------|
| more                             | yes        | yes              | yes                                               |
| below 2 × (reserve + a memtable) | yes        | yes              | yes; the node is *short of space*                 |
| below reserve + a memtable       | no         | yes              | yes; *full*                                       |
| below a quarter of the reserve   | no         | no               | yes, while they find room; *exhausted*            |

Of high priority are the state logs of brokers (cursors, deduplication) and what a ledger's recovery writes again; the
copies that repair makes are not. A full node takes blocks again when a memtable more is left than where it stopped,
else it would be full and usable by turns.

A node that is short of space, or whose disk has little free beside spare files, gives those back and compacts logs that
are worth it less; brokers release what is archived sooner.
"""

from __future__ import annotations

from typing import Final

_EXHAUSTED_SHARE: Final = 4


class Room:
    """See the table. A core: it is told what is left, and says what that means."""

    def __init__(self, reserve_bytes: int, memtable_bytes: int) -> None:
        self._reserve_bytes = reserve_bytes
        self._memtable_bytes = memtable_bytes
        self.is_short = self.is_full = self.is_exhausted = False
        self.for_copies_bytes = 0
        """What compaction may use: it gives more back in the end, but what comes meanwhile must find room, too."""

    def look(self, left_bytes: int, free_bytes: int) -> None:
        """So much is left now, of which the disk has so much free, for others too."""
        needed = self._reserve_bytes + self._memtable_bytes
        self.is_short = min(left_bytes, free_bytes) < 2 * needed
        self.is_full = left_bytes < needed + (self._memtable_bytes if self.is_full else 0)
        last_bytes = self._reserve_bytes // _EXHAUSTED_SHARE
        self.is_exhausted = left_bytes < last_bytes
        kept_bytes = 0 if self.is_exhausted else last_bytes + 2 * self._memtable_bytes
        self.for_copies_bytes = left_bytes - kept_bytes
