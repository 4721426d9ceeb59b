"""Keeper: makes all changes to a WAL's sets, catalogue and record, in crash-safe order.

The writer is the keeper while the WAL is open, and the collector afterwards. Compare-and-set of the WAL's record in the
metadata store ensures that there is one keeper at a time.

A *data object* is one upload of the writer: blocks of many ledgers, in the order of their adds. A *set* is an object
with the blocks of many data objects, sorted by ledger. A *catalogue* is an object that lists the sets and the
tombstones. The record names the current catalogue, and the trim point below which data objects are no longer needed. A
change takes these steps:

    write the set, and read its rows back → write a catalogue that names it → write the record, by compare-and-set
    → delete data objects below the trim point, and unneeded sets and catalogues

Until the record is written, the WAL is unchanged. A crash before that leaves an orphan: a set or catalogue that no
record names, without effect. While the store is slow or denies access, the keeper repeats its requests. A version
conflict on the record (`Fenced`) means that another process has become the keeper.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from quire.wal import wal_object
from quire.wal.own_record import OwnRecord
from quire.wal.patience import until_answered
from quire.wal.set_objects import SetObjects
from quire.wal.trash import Trash
from quire.wal.wal_object import SetEntry
from quire.wire.block import Buffer


class Keeper:
    """Keeper of one WAL. `sets` contains the sets and the catalogue that the record names."""

    def __init__(self, record: OwnRecord, sets: SetObjects, trash: Trash) -> None:
        self._record = record
        self._sets = sets
        self._trash = trash
        self._changing = asyncio.Lock()

    @property
    def trim_seq(self) -> int:
        """Sequence number below which all live blocks of data objects have been copied into sets."""
        return self._record.record.trim_seq

    async def write_set(
        self, runs: Sequence[tuple[int, Sequence[Buffer]]], last_seq: int, clock_ms: int
    ) -> SetEntry:
        """Write a set of `runs`, which are sorted by ledger.

        They contain all live blocks of the data objects from the trim point to `last_seq`.
        """
        return await until_answered(
            partial(self._sets.write_set, runs, self.trim_seq, last_seq, clock_ms), "write of a set"
        )

    async def change(
        self,
        sets: Sequence[SetEntry],
        trim_seq: int,
        deleted: Mapping[int, int],
        elsewhere: Collection[int],
    ) -> None:
        """Add `sets` and the tombstones `deleted` to the WAL; then queue the deletion of data objects below `trim_seq`.

        `elsewhere` contains the ledgers with blocks in the remaining data objects; their tombstones are kept. Raises
        `Fenced`, `ConfigurationError`.
        """
        async with self._changing:
            former_seq, uuid = self.trim_seq, self._record.record.uuid
            trim_seq = max(trim_seq, former_seq)
            write = partial(self._sets.write_catalogue, sets, deleted, elsewhere)
            change = await until_answered(write, "write of a catalogue")
            await self._record.change(trim_seq=trim_seq, catalogue=change.name, catalogue_crc=change.crc)
            self._sets.adopt(change)
            self._trash.add(change.dropped)
            self._trash.add(wal_object.data_name(uuid, seq) for seq in range(former_seq, trim_seq))
