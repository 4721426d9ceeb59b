"""The record of a WAL in the metadata store, as its keeper changes it: its writer while it is open, else the collector.

Every change is by version: a conflict means that somebody else is at it (`Fenced`), and then one trims nothing more.
A put whose outcome is unknown is looked at. A store that does not answer is waited for: what a record lacks costs
nothing but old objects.
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
    """Those of all WALs by their UUIDs. Raises `Unavailable`."""
    found: dict[str, WalRecord] = {}
    for uuid in await metadata.children(paths.WALS):
        try:
            found[uuid] = (await OwnRecord.read(metadata, uuid)).record
        except NotFound:
            continue
    return found


class OwnRecord:
    """`record` as it was read or written last, and its version."""

    def __init__(self, store: MetadataStore, record: WalRecord, version: int) -> None:
        self._store = store
        self.record = record
        self._version = version
        self._path = paths.wal(record.uuid)

    @classmethod
    async def begin(cls, context: WalContext) -> OwnRecord:
        """Register a new WAL of this process. Raises `Unavailable`, `OutcomeUnknown`: begin another one."""
        store = context.metadata
        record = WalRecord(
            uuid=str(uuid4()),
            broker=context.broker,
            store=context.objects.url,
            created_ms=context.clock.now_ms(),
        )
        await store.create(paths.wal(record.uuid), encode(record))
        return cls(store, record, 0)

    @classmethod
    async def read(cls, store: MetadataStore, uuid: str) -> OwnRecord:
        """Raises `NotFound`, `Unavailable`."""
        path = paths.wal(uuid)
        node = await store.get(path)
        return cls(store, decode(WalRecord, node.value, path), node.version)

    async def change(self, **changes: Any) -> None:
        """Write the record with `changes`, however long the store takes. Raises `Fenced`."""
        wanted = replace(self.record, **changes)
        in_doubt = False
        while True:
            try:
                self._version = await self._store.put(self._path, encode(wanted), self._version)
                break
            except (VersionConflict, NotFound) as conflict:
                if in_doubt and await self._is_written(wanted):
                    break
                raise Fenced(f"WAL {wanted.uuid} was taken over: {conflict}") from conflict
            except OutcomeUnknown:
                in_doubt = True
            except Unavailable:
                pass
            await asyncio.sleep(RETRY_S)
        self.record = wanted

    async def remove(self) -> None:
        """Raises `Fenced` when it was changed, `Unavailable`, `OutcomeUnknown`."""
        try:
            await self._store.delete(self._path, self._version)
        except VersionConflict as conflict:
            raise Fenced(f"WAL {self.record.uuid} was changed: {conflict}") from conflict
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
