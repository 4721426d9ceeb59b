"""The shell of a close: the record in the metadata store; a listing, headers and a fence in the object store.

A store that does not answer is asked again, for as long as it takes: a takeover waits for no batch and no rate, but for
proof it waits. Whoever cannot puts a time-out around it: what is done is in the stores, and the next close goes on from
there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from quire.metadata import paths
from quire.metadata.records import WalRecord, decode, encode
from quire.metadata.store import MetadataStore
from quire.objects.store import ObjectStore
from quire.runtime.clock import Clock
from quire.runtime.errors import AlreadyExists, CorruptionError, NotFound, VersionConflict
from quire.runtime.tasks import Tasks
from quire.wal import wal_object
from quire.wal.closing_core import ClosingCore, WalDamaged
from quire.wal.patience import UNANSWERED, until_answered
from quire.wal.wal_object import HEADER_BYTES, Header, data_name

log = logging.getLogger(__name__)


async def close_wal(
    objects: ObjectStore,
    metadata: MetadataStore,
    clock: Clock,
    wal: str,
    closer: str,
    *,
    accept_loss: bool = False,
) -> WalRecord:
    """The WAL's record when it is closed, by us or by another. `closer` stands in the fence, for people.

    Raises `NotFound` when it has no record, `WalDamaged`, and `ConfigurationError` when the store bars us.
    """
    closing = _Closing(objects, metadata, clock, wal, closer, accept_loss)
    try:
        closing.core.start()
        return await closing.ended
    finally:
        await closing.tasks.stop()


class _Closing:
    """See `ClosingEffects`."""

    def __init__(
        self,
        objects: ObjectStore,
        metadata: MetadataStore,
        clock: Clock,
        wal: str,
        closer: str,
        accept_loss: bool,
    ) -> None:
        self.core = ClosingCore(self, accept_loss=accept_loss)
        self.ended: asyncio.Future[WalRecord] = asyncio.get_running_loop().create_future()
        self.tasks = Tasks(f"close of wal {wal[:8]}")
        self._objects = objects
        self._metadata = metadata
        self._clock = clock
        self._wal = wal
        self._path = paths.wal(wal)
        self._closer = closer

    # -- the record --------------------------------------------------------------------------------------
    def read_record(self) -> None:
        """See `ClosingEffects`."""

        async def read() -> None:
            node = await until_answered(lambda: self._metadata.get(self._path), f"close of WAL {self._wal}")
            self.core.record_read(decode(WalRecord, node.value, self._path), node.version)

        self._start(read(), "read the record")

    def write_record(self, record: WalRecord, version: int) -> None:
        """See `ClosingEffects`."""

        async def write() -> None:
            try:
                written = await self._metadata.put(self._path, encode(record), version)
            except (VersionConflict, *UNANSWERED):
                self.core.record_doubtful()
            else:
                self.core.record_written(record, written)

        self._start(write(), "write the record")

    # -- the objects -------------------------------------------------------------------------------------
    def list_objects(self) -> None:
        """See `ClosingEffects`."""
        folder = wal_object.folder(self._wal)

        async def look() -> None:
            found = await until_answered(lambda: self._objects.list(folder), f"listing of {folder}")
            seqs = (wal_object.seq_of(info.name) for info in found)
            self.core.listed(max((seq for seq in seqs if seq is not None), default=-1))

        self._start(look(), "list the objects")

    def read_header(self, seq: int) -> None:
        """See `ClosingEffects`."""

        async def read() -> None:
            found: Header | CorruptionError | None
            try:
                found = await self._header(seq)
            except NotFound:
                found = None
            except CorruptionError as damage:
                found = damage
            self.core.header_read(seq, found)

        self._start(read(), f"read object {seq}")

    async def _header(self, seq: int) -> Header:
        name = data_name(self._wal, seq)
        content = await until_answered(
            lambda: self._objects.get_range(name, 0, HEADER_BYTES), f"look at {name}"
        )
        return wal_object.header_of(content, self._wal, seq)

    def put_fence(self, seq: int) -> None:
        """See `ClosingEffects`."""
        name = data_name(self._wal, seq)
        fence = wal_object.encode_fence(self._wal, seq, self._clock.now_ms(), self._closer)

        async def put() -> None:
            try:
                await until_answered(
                    lambda: self._objects.put_whole(name, (fence,)), f"upload of the fence {name}"
                )
            except AlreadyExists:
                self.core.fence_refused()
            else:
                self.core.fenced()

        self._start(put(), f"put a fence at {seq}")

    # -- the end -----------------------------------------------------------------------------------------
    def closed(self, record: WalRecord) -> None:
        """See `ClosingEffects`."""
        log.info(
            "WAL %s of %s is closed and ends before object %d", record.uuid, record.broker, record.end_seq
        )
        self.ended.set_result(record)

    def damaged(self, error: WalDamaged) -> None:
        """See `ClosingEffects`."""
        self.ended.set_exception(error)

    def _start(self, work: Coroutine[Any, Any, None], what: str) -> None:
        async def run() -> None:
            try:
                await work
            except Exception as error:
                if not self.ended.done():
                    self.ended.set_exception(error)

        self.tasks.start(run(), what)
