"""Who keeps a WAL in order: its writer while it is open, the collector when it is closed. One at a time, by the record.

What a WAL has is what its record names, so a change is made in an order that a death at any point leaves whole:

    the set is written, and its rows read back → a catalogue that names it → the record, by version
    → data objects below the trim point, and sets and catalogues that nobody needs, are deleted

Until the record is written all is where it was, so a set or a catalogue from before a death is nobody's, and harms
nobody. A store that is slow or refuses is waited for. A conflict at the record (`Fenced`) means that somebody else
keeps the WAL now.
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
    """`sets` are those that the record names."""

    def __init__(self, record: OwnRecord, sets: SetObjects, trash: Trash) -> None:
        self._record = record
        self._sets = sets
        self._trash = trash
        self._changing = asyncio.Lock()

    @property
    def trim_seq(self) -> int:
        """Data objects below are in sets."""
        return self._record.record.trim_seq

    async def write_set(
        self, runs: Sequence[tuple[int, Sequence[Buffer]]], last_seq: int, clock_ms: int
    ) -> SetEntry:
        """A set of `runs`, sorted by ledger, that are all the living blocks from the trim point to `last_seq`."""
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
        """Have `sets` count from now on, and the tombstones `deleted`; data objects below `trim_seq` may go.

        `elsewhere`: ledgers that have blocks in data objects that stay. Raises `Fenced`, `ConfigurationError`.
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
