"""What is known of a WAL from its record and its objects: the rows of its sets, and of its data objects.

Of a closed WAL that is all there is. Of an open one it is what had been uploaded when it was looked at last: data
objects up to the first hole, which are durable for good, for whoever closes it puts the fence at a hole.

A WAL whose record is gone held nothing of any ledger that lives (the collector removes it only then), so there absence
is proven, too; unless the store still has objects of it: then somebody lost the record, and nothing is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from quire.metadata.records import WalState
from quire.runtime.errors import NotFound, Unavailable
from quire.runtime.limits import KIB
from quire.wal import wal_object
from quire.wal.context import WalContext
from quire.wal.own_record import OwnRecord
from quire.wal.run_index import RunIndex, RunTable
from quire.wal.set_objects import SetObjects

AT_ONCE: Final = 32
"""Data objects of a closed WAL that are read together."""

AHEAD: Final = 4
"""The same of an open one, whose end nobody knows."""

WHOLE_BYTES: Final = 256 * KIB
"""A data object up to this size is read whole when its rows are, and kept: topics that trickle have a run each in it,
so whoever takes them over would ask for it once a topic."""

LOOKS_MAX: Final = 3
"""While the WAL's keeper makes sets of what was seen, and deletes it."""


class _Data(NamedTuple):
    seq: int
    table: RunTable
    deleted: Mapping[int, int]


class View:
    """What is known of a WAL; `refresh` makes it newer."""

    def __init__(self, context: WalContext, uuid: str) -> None:
        self.uuid = uuid
        self.index = RunIndex()
        self.is_final = False
        """Nothing will be added to it: the WAL is closed, or gone."""
        self.sets = SetObjects(context.objects, uuid, self.index)
        self.deleted: dict[int, int] = {}
        """Tombstones that lie in data objects."""
        self._context = context
        self._next_seq = 0
        self._lock = asyncio.Lock()

    def is_deleted(self, ledger_id: int) -> bool:
        return ledger_id in self.deleted or ledger_id in self.sets.catalogue.tombstones

    async def refresh(self) -> None:
        """Look at the WAL again. Raises `Unavailable`, `OutcomeUnknown`, `CorruptionError`."""
        async with self._lock:
            for _ in range(LOOKS_MAX):
                try:
                    await self._refresh()
                    return
                except NotFound:
                    continue  # the writer made a set of it, and the record says so by now
        raise Unavailable(f"wal-{self.uuid} changes faster than it can be read; try again")

    async def _refresh(self) -> None:
        try:
            record = (await OwnRecord.read(self._context.metadata, self.uuid)).record
        except NotFound:
            await self._is_gone()
            return
        await self.sets.load(record.catalogue, record.catalogue_crc)
        for seq in [seq for seq in self._seqs() if seq < record.trim_seq]:
            self.index.remove(wal_object.data_name(self.uuid, seq))
        self._next_seq = max(self._next_seq, record.trim_seq)
        is_closed = record.state is WalState.CLOSED
        await self._read_data(record.end_seq if is_closed else None, record.lost)
        self.is_final = is_closed

    def _seqs(self) -> list[int]:
        names = (wal_object.seq_of(name) for name in self.index)
        return [seq for seq in names if seq is not None]

    async def _is_gone(self) -> None:
        """The WAL has no record: is there nothing of it, either?"""
        left = await self._context.objects.list(wal_object.folder(self.uuid))
        if any(info.bytes > wal_object.FENCE_BYTES for info in left):
            raise Unavailable(
                f"wal-{self.uuid} has no record, but objects in {self._context.objects.url}: bring its record back"
            )
        for name in list(self.index):
            self.index.remove(name)
        self.is_final = True

    async def _read_data(self, end_seq: int | None, lost: Collection[int]) -> None:
        """Learn the rows of data objects up to the end, or to the first that is not there (yet)."""
        while end_seq is None or self._next_seq < end_seq:
            last = self._next_seq + (AHEAD if end_seq is None else AT_ONCE)
            seqs = range(self._next_seq, last if end_seq is None else min(last, end_seq))
            looks = [self._read_one(seq) for seq in seqs if seq not in lost]
            for found in await asyncio.gather(*looks, return_exceptions=True):
                if isinstance(found, NotFound) and end_seq is None:
                    return
                if isinstance(found, BaseException):
                    raise found
                if found is None:
                    if end_seq is None:
                        return
                    raise NotFound(
                        "a fence lies below the end: the object was trimmed, and somebody was late"
                    )
                self.index.add(found.table)
                self.deleted.update(found.deleted)
                self._next_seq = found.seq + 1
            self._next_seq = seqs.stop

    async def _read_one(self, seq: int) -> _Data | None:
        """None for a fence."""
        store, name = self._context.objects, wal_object.data_name(self.uuid, seq)
        content = await store.get_range(name, 0, wal_object.HEADER_BYTES)
        header = wal_object.header_of(content, self.uuid, seq)
        if header.kind is wal_object.Kind.FENCE:
            return None
        start = 0 if header.object_bytes <= WHOLE_BYTES else header.tail_offset
        content = memoryview(await store.get_range(name, start, header.object_bytes - start))
        rows, deleted = wal_object.read_data_tail(header, content[header.tail_offset - start :], name)
        if start == 0:
            self._context.cache.keep(name, content)
        return _Data(seq, RunTable(name, rows, wal_object.ROW), deleted)
