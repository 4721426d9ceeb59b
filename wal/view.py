"""View of a WAL for readers: an index of the rows of its sets and data objects.

The view of a closed WAL is complete. The view of an open WAL contains the data objects that existed at the last
refresh, up to the first missing one. These objects stay part of the WAL, because a close puts its fence at a missing
object.

The collector removes the record of a WAL only when no existing ledger has blocks in it. So a WAL without a record has
no blocks, unless the store still has its objects: then the record was lost, and blocks may exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from quire.metadata.records import WalRecord, WalState
from quire.runtime.errors import CorruptionError, NotFound, QuireError, Unavailable
from quire.runtime.limits import KIB
from quire.wal import wal_object
from quire.wal.context import WalContext
from quire.wal.own_record import OwnRecord
from quire.wal.proof import RecordOutdated, check_store, prove_missing
from quire.wal.run_index import RunIndex, RunTable
from quire.wal.set_objects import SetObjects

AT_ONCE: Final = 32
"""Number of data objects of a closed WAL that are read in parallel."""

AHEAD: Final = 4
"""Number of data objects of an open WAL that are read in parallel; few, because the WAL's end is not known."""

WHOLE_BYTES: Final = 256 * KIB
"""Maximum size of a data object that is read whole with its rows, and cached. Such an object has short runs of many
topics, so a takeover would otherwise request it once per topic.
"""

LOOKS_MAX: Final = 3
"""Maximum attempts of a read while the WAL's keeper copies objects into sets and deletes them."""


class _Data(NamedTuple):
    seq: int
    table: RunTable
    deleted: Mapping[int, int]


class View:
    """View of one WAL; call `refresh` to update it."""

    def __init__(self, context: WalContext, uuid: str) -> None:
        self.uuid = uuid
        self.index = RunIndex()
        self.is_final = False
        """Set when the view is complete: the WAL is closed, or was removed."""
        self.sets = SetObjects(context.objects, uuid, self.index)
        self.deleted: dict[int, int] = {}
        """Tombstones read from data objects: version by ledger."""
        self.version = -1
        """Version of the record as of the last read."""
        self._record: WalRecord | None = None
        self._context = context
        self._next_seq = 0
        self._lock = asyncio.Lock()

    def is_deleted(self, ledger_id: int) -> bool:
        return ledger_id in self.deleted or ledger_id in self.sets.catalogue.tombstones

    async def refresh(self) -> None:
        """Read the record and the rows of new objects.

        Raises `WrongCluster`, `Unavailable`, `OutcomeUnknown`, and `CorruptionError` for an object that is damaged, or
        is missing although the unchanged record names it.
        """
        async with self._lock:
            for _ in range(LOOKS_MAX):
                former = self.version
                try:
                    await self._refresh()
                    return
                except NotFound as error:
                    missing = error  # the writer copied the object into a set, which a newer record names
            if self.version == former:
                raise await self._why_missing(missing)
        raise Unavailable(f"wal-{self.uuid} changes faster than it can be read; try again")

    async def _why_missing(self, error: NotFound) -> QuireError:
        """Return the reason why an object that the record names is missing."""
        proven = await prove_missing(self._context.place, error, self.uuid, self.version)
        if isinstance(proven, CorruptionError) and self._record is not None:
            record = self._record
            listed = await self._context.objects.list(wal_object.folder(self.uuid))
            names = [info.name for info in listed]
            number = wal_object.number_of(record.catalogue) if record.catalogue else 0
            newer = [
                each
                for each in names
                if wal_object.is_catalogue(each) and wal_object.number_of(each) > number
            ]
            if newer and record.catalogue not in names:
                return RecordOutdated(self.uuid, f"it does not name {newer[-1]}, and {error}")
        return proven

    async def _refresh(self) -> None:
        try:
            own = await OwnRecord.read(self._context.metadata, self.uuid)
        except NotFound:
            await self._is_gone()
            return
        record, self.version = own.record, own.version
        self._record = record
        check_store(record, self._context.objects)
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
        """Confirm in the verified stores that a WAL without a record has no objects.

        Raises `Unavailable` if it has any.
        """
        await self._context.place.confirm()
        left = await self._context.objects.list(wal_object.folder(self.uuid))
        if any(info.bytes > wal_object.FENCE_BYTES for info in left):
            raise Unavailable(
                f"wal-{self.uuid} has no record, but objects in {self._context.objects.url}: restore its record with "
                "`quire rescue metadata`"
            )
        for name in list(self.index):
            self.index.remove(name)
        self.is_final = True

    async def _read_data(self, end_seq: int | None, lost: Collection[int]) -> None:
        """Read the rows of data objects up to the end of the WAL; for an open one, up to the first missing object."""
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
                        "there is a fence before the end: a late close put it in place of a trimmed object"
                    )
                self.index.add(found.table)
                self.deleted.update(found.deleted)
                self._next_seq = found.seq + 1
            self._next_seq = seqs.stop

    async def _read_one(self, seq: int) -> _Data | None:
        """Read the rows of a data object; None for a fence."""
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
