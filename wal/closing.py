"""Shell of `closing_core`: performs the reads and writes of a close in the metadata store and the object store.

Requests to a store that does not answer are repeated without a limit, because only the stores can prove where a WAL
ends. A caller that cannot wait sets a time-out. All progress is in the stores, so the next close continues from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine
from functools import partial
from typing import Any, Final

from quire.metadata import paths
from quire.metadata.records import WalRecord, WalState, decode, encode
from quire.metadata.store import Node
from quire.runtime.errors import (
    AlreadyExists,
    CorruptionError,
    NotFound,
    QuireError,
    Unreadable,
    VersionConflict,
)
from quire.runtime.limits import WAL_UPLOADS_MAX
from quire.runtime.tasks import Tasks
from quire.wal import wal_object
from quire.wal.closing_core import ClosingCore, Found, WalDamaged
from quire.wal.context import WalContext
from quire.wal.patience import UNANSWERED, until_answered
from quire.wal.proof import RecordOutdated, check_store
from quire.wal.set_objects import newer_sets
from quire.wal.wal_object import HEADER_BYTES, Header, Kind, data_name

log = logging.getLogger(__name__)


UNREADABLE_TRIES: Final = 5
"""Attempts (about 1.5 s in total) before an object that the store lists but cannot read is reported as `Unreadable`."""


async def close_wal(context: WalContext, wal: str, *, accept_loss: bool = False) -> WalRecord:
    """Close the WAL, or finish another process's close; return the WAL's record. The fence contains `context.broker`.

    Before the process changes the record to CLOSING, and again before it records the end, it verifies that the WAL is
    in this object store, and that both stores belong to the cluster. Before it records the end, it also rereads the
    fence and the objects after the fence. If a file system was unmounted for a moment, objects may have been hidden.
    Then the fence may be in the directory below the mount point, or in the place of an object that was durable.

    Raises `NotFound` when the WAL has no record, `WalDamaged`, `Unreadable`, `RecordOutdated`, `WrongCluster`, and
    `ConfigurationError` when the store denies access.
    """
    closing = _Closing(context, wal, accept_loss)
    try:
        closing.core.start()
        return await closing.ended
    finally:
        await closing.tasks.stop()


class _Closing:
    """Implementation of `ClosingEffects` on the metadata store and the object store."""

    def __init__(self, context: WalContext, wal: str, accept_loss: bool) -> None:
        self.core = ClosingCore(self, accept_loss=accept_loss)
        self.ended: asyncio.Future[WalRecord] = asyncio.get_running_loop().create_future()
        self.tasks = Tasks(f"close of wal {wal[:8]}")
        self._place = context.place
        self._objects = context.objects
        self._metadata = context.metadata
        self._clock = context.clock
        self._wal = wal
        self._path = paths.wal(wal)
        self._closer = context.broker
        self._accept_loss = accept_loss

    # -- the record --------------------------------------------------------------------------------------
    def read_record(self) -> None:
        """See `ClosingEffects`."""

        async def read() -> None:
            self.core.record_read(*await self._record())

        self._start(read(), "read the record")

    async def _record(self) -> tuple[WalRecord, int]:
        async def read() -> Node:
            await self._metadata.sync()  # with a stale record, objects that are in sets now would seem lost
            return await self._metadata.get(self._path)

        node = await until_answered(read, f"read of the record of WAL {self._wal}")
        record = decode(WalRecord, node.value, self._path)
        check_store(record, self._objects)
        return record, node.version

    def write_record(self, record: WalRecord, version: int) -> None:
        """See `ClosingEffects`."""

        async def write() -> None:
            await until_answered(self._place.confirm, f"verification of the stores of WAL {self._wal}")
            if record.state is WalState.CLOSED and not await self._is_end(record):
                self.core.end_unproven()
                return
            try:
                written = await self._metadata.put(self._path, encode(record), version)
            except (VersionConflict, *UNANSWERED):
                self.core.record_doubtful()
            else:
                self.core.record_written(record, written)

        self._start(write(), "write the record")

    async def _is_end(self, record: WalRecord) -> bool:
        """Return whether the verified store contains the fence, and no evidence that `record` has a wrong end.

        Evidence is an intact data object that `record` lists as lost, or a witness that an object at the end was
        durable. The core may have judged the objects while a mount was missing.
        """
        try:
            if (await self._header(record.end_seq)).kind is not Kind.FENCE:
                return False
        except (NotFound, CorruptionError, Unreadable):
            return False
        lost = await asyncio.gather(*map(self._found, record.lost))
        if any(isinstance(each, Header) and each.kind is Kind.DATA for each in lost):
            return False
        return not await self._has_witness(record)

    async def _has_witness(self, record: WalRecord) -> bool:
        """Return whether the store proves that an object at the end was durable; see `closing_core`."""
        end = record.end_seq
        seqs, covered_seq = await self._listing(record)
        later = [seq for seq in seqs if seq > end]
        if covered_seq >= end or max(later, default=end) > end + WAL_UPLOADS_MAX:
            return True
        found = await asyncio.gather(*map(self._found, later))
        return any(isinstance(each, Header) and each.confirmed_seq >= end for each in found)

    # -- the objects -------------------------------------------------------------------------------------
    def list_objects(self, record: WalRecord) -> None:
        """See `ClosingEffects`."""

        async def look() -> None:
            seqs, covered_seq = await self._listing(record)
            self.core.listed(max(seqs, default=-1), covered_seq)

        self._start(look(), "list the objects")

    async def _listing(self, record: WalRecord) -> tuple[list[int], int]:
        """Return the numbers of the WAL's data objects and fences, and the `covered_seq` for `ClosingCore.listed`."""
        folder = wal_object.folder(self._wal)
        found = await until_answered(lambda: self._objects.list(folder), f"listing of {folder}")
        names = [info.name for info in found]
        await self._check_catalogue(record, names)
        seqs = [seq for name in names if (seq := wal_object.seq_of(name)) is not None]
        covered = await asyncio.gather(*map(self._last_covered, newer_sets(record, names)))
        return seqs, max(covered, default=-1)

    async def _check_catalogue(self, record: WalRecord, names: Collection[str]) -> None:
        """Raise `RecordOutdated` or `WalDamaged` if the record's catalogue is missing."""
        name = record.catalogue
        if not name or name in names:
            return
        try:
            await until_answered(lambda: self._objects.size(name), f"size query of {name}")
        except NotFound:
            now, _ = await self._record()
            if now.catalogue != name:
                return  # another process closed the WAL, and the collector wrote a newer catalogue
            await until_answered(self._place.confirm, f"verification of the stores of WAL {self._wal}")
            number = wal_object.number_of(name)
            if any(wal_object.is_catalogue(each) and wal_object.number_of(each) > number for each in names):
                raise RecordOutdated(
                    record.uuid, f"its catalogue {name} was replaced by a newer one"
                ) from None
            if not self._accept_loss:
                what = f"its catalogue {name}, which lists all its sets, is missing"
                raise WalDamaged(what, record.uuid, record.trim_seq) from None

    async def _last_covered(self, name: str) -> int:
        """Return the number of the last data object that a set covers; -1 if the set's header cannot be read."""
        try:
            content = await until_answered(
                lambda: self._objects.get_range(name, 0, HEADER_BYTES), f"read of the header of {name}"
            )
            return wal_object.read_header(content, name).trim_seq
        except (NotFound, CorruptionError):
            return -1

    def read_header(self, seq: int) -> None:
        """See `ClosingEffects`."""
        self._start(self._read_header(seq), f"read object {seq}")

    def look_again(self, seq: int) -> None:
        """See `ClosingEffects`."""

        async def look() -> None:
            await until_answered(self._place.confirm, f"verification of the stores of WAL {self._wal}")
            await self._read_header(seq)

        self._start(look(), f"look at object {seq} again")

    async def _read_header(self, seq: int) -> None:
        self.core.header_read(seq, await self._found(seq))

    async def _found(self, seq: int) -> Found:
        try:
            return await self._header(seq)
        except NotFound:
            return None
        except (CorruptionError, Unreadable) as error:
            return error

    async def _header(self, seq: int) -> Header:
        name = data_name(self._wal, seq)
        read = partial(self._objects.get_range, name, 0, HEADER_BYTES)
        content = await until_answered(
            read, f"read of the header of {name}", unreadable_tries=UNREADABLE_TRIES
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
        log.info("WAL %s of broker %s: closed before object %d", record.uuid, record.broker, record.end_seq)
        self.ended.set_result(record)

    def damaged(self, error: QuireError) -> None:
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
