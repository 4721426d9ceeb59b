"""Record of a WAL in the metadata store, changed by its keeper: the writer of an open WAL, else the collector.

Every change is a compare-and-set. A conflict means that another process has changed the record (`Fenced`); then this
process trims nothing more. After a write with an unknown outcome, the record is read back. The process recognizes its
own write by the random `change_id`, because another process may have written the same values. A change is retried while
the store does not answer; an outdated record only delays the deletion of old objects.

The writer of a log keeps an ephemeral node beside the record, which proves to other processes that it is alive.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from uuid import uuid4

from msgspec.structs import replace

from quire.metadata import paths
from quire.metadata.records import WalRecord, decode, encode
from quire.metadata.store import MetadataStore
from quire.runtime.errors import Fenced, NotFound, OutcomeUnknown, Unavailable, VersionConflict
from quire.wal.context import WalContext

RETRY_S: Final = 0.5


async def all_records(metadata: MetadataStore) -> dict[str, WalRecord]:
    """Return the records of all WALs by UUID. Raises `Unavailable`."""
    found: dict[str, WalRecord] = {}
    for uuid in await metadata.children(paths.WALS):
        try:
            found[uuid] = (await OwnRecord.read(metadata, uuid)).record
        except NotFound:
            continue
    return found


class OwnRecord:
    """Record of one WAL with its version, as last read or written."""

    def __init__(self, store: MetadataStore, record: WalRecord, version: int) -> None:
        self._store = store
        self.record = record
        self._version = version
        self._path = paths.wal(record.uuid)
        self._changing = asyncio.Lock()

    @property
    def version(self) -> int:
        """Version of the node when it was last read or written."""
        return self._version

    @classmethod
    async def begin(cls, context: WalContext) -> OwnRecord:
        """Register a new WAL of this process.

        After `Unavailable` or `OutcomeUnknown`, the caller begins another WAL.
        """
        store, uuid = context.metadata, str(uuid4())
        record = WalRecord(
            uuid=uuid,
            broker=context.broker,
            store=context.objects.url,
            created_ms=context.clock.now_ms(),
            is_registered=True,
        )
        await store.create(paths.wal_writer(uuid), context.broker.encode(), ephemeral=True)
        await store.create(paths.wal(record.uuid), encode(record))
        return cls(store, record, 0)

    @classmethod
    async def read(cls, store: MetadataStore, uuid: str) -> OwnRecord:
        """Read the record of the WAL `uuid`. Raises `NotFound`, `Unavailable`."""
        path = paths.wal(uuid)
        node = await store.get(path)
        return cls(store, decode(WalRecord, node.value, path), node.version)

    async def change(self, **changes: Any) -> None:
        """Write the record with `changes`; retry while the store does not answer. Raises `Fenced`.

        Concurrent calls run one after another, each on the record that the previous one wrote.
        """
        async with self._changing:
            wanted = replace(self.record, **changes, change_id=uuid4().hex[:16])
            assert wanted.trim_seq >= self.record.trim_seq, "the trim point never moves back"
            await self._write(wanted)
            self.record = wanted

    async def _write(self, wanted: WalRecord) -> None:
        in_doubt = False
        while True:
            try:
                self._version = await self._store.put(self._path, encode(wanted), self._version)
                return
            except (VersionConflict, NotFound) as conflict:
                if in_doubt and await self._is_written(wanted):
                    return
                raise Fenced(f"WAL {wanted.uuid} was taken over by another process: {conflict}") from conflict
            except OutcomeUnknown:
                in_doubt = True
            except Unavailable:
                pass
            await asyncio.sleep(RETRY_S)

    async def unregister(self) -> None:
        """Remove the writer's node. If that fails, the node disappears with the session."""
        try:
            await self._store.delete(paths.wal_writer(self.record.uuid))
        except (NotFound, Unavailable, OutcomeUnknown):
            pass

    async def remove(self) -> None:
        """Remove the record. Raises `Fenced` if another process changed it, `Unavailable`, `OutcomeUnknown`."""
        try:
            await self._store.delete(self._path, self._version)
        except VersionConflict as conflict:
            raise Fenced(
                f"the record of WAL {self.record.uuid} was changed by another process: {conflict}"
            ) from conflict
        except NotFound:
            pass

    async def _is_written(self, wanted: WalRecord) -> bool:
        while True:
            try:
                node = await self._store.get(self._path)
            except NotFound:
                return False
            except Unavailable:
                await asyncio.sleep(RETRY_S)
                continue
            if node.value != encode(wanted):
                return False
            self._version = node.version
            return True
