"""Mutations of brokers: ownership, acknowledgements, the archive, sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from quire.identity import guard
from quire.identity.place import Place
from quire.metadata.lease import LeaseCore
from quire.metadata.records import ArchivePointer, ClusterRecord, SegmentRecord
from quire.metadata.store import SessionEvent
from quire.objects.store import ObjectStore
from quire.runtime.limits import READ_BYTES_MAX
from quire.serving.session import inbound
from quire.serving.subscription.cursor.cursor_store import CursorStore
from quire.serving.topic.segments import Active
from quire.serving.topic.writing import Writing
from quire.tiering import metadata_copy
from quire.tiering.archive import Archive
from quire.tiering.metadata_copy import TakenCopy
from quire.tiering.offload import Offloader, OffloadReport
from quire.wire import block, frame

from .registry import mutation


# -- ownership -------------------------------------------------------------------------------------------
@mutation("16", "cluster")
def a_new_owner_serves_before_the_old_ledger_is_closed() -> Iterator[None]:
    """Seal the last segment at its visible end, without closing the ledger against the former owner's writes."""

    async def look(self: Writing, left: SegmentRecord) -> SegmentRecord:
        active = Active(left.ledger_id, left.first_index, left.created_ms)
        reader = await self._services.ledgers.open(left.ledger_id)
        while found := await reader.read(active.last_entry + 1, READ_BYTES_MAX):
            for each in found:
                header = block.peek(each)
                active.last_entry, active.last_clock_ms = header.last_entry, header.clock_ms
                active.messages += sum(block.message_counts(each, header))
                active.bytes += len(each)
        return active.sealed(self._services.clock.now_ms())

    with patch.object(Writing, "_recover_left", look):
        yield


@mutation("leases", "cluster")
def a_lease_is_trusted_in_doubt() -> Iterator[None]:
    """Keep the lease while the metadata store is unreachable, until the session is reported as lost."""
    session = LeaseCore.session

    def hear_the_end_only(self: LeaseCore, event: SessionEvent, now: float) -> None:
        if event is SessionEvent.LOST:
            session(self, event, now)

    with patch.object(LeaseCore, "session", hear_the_end_only):
        yield


# -- acknowledgements ------------------------------------------------------------------------------------
@mutation("acks", "cluster")
def an_ack_is_answered_before_it_is_durable() -> Iterator[None]:
    """Confirm an acknowledgement when the cursor's record is queued, before it is durable."""

    def append(self: CursorStore, record: bytes, done: Any) -> None:
        assert self._log is not None
        self._log.append(record, None)
        if done is not None:
            asyncio.get_running_loop().call_soon(done, None)

    with patch.object(CursorStore, "_append", append):
        yield


# -- the archive -----------------------------------------------------------------------------------------
@mutation("archive", "cluster")
def a_pointer_is_recorded_before_the_upload_is_verified() -> Iterator[None]:
    """Do not verify an uploaded object before its pointer is recorded."""

    async def believe(self: Archive, pointer: ArchivePointer) -> None:
        pass

    with patch.object(Archive, "verify", believe):
        yield


@mutation("archive", "cluster")
def the_bookies_copy_goes_before_the_pointer() -> Iterator[None]:
    """Delete an archived segment from the bookies before it is recorded as archived."""

    async def upload(self: Offloader, job: Any, report: OffloadReport, **_: bool) -> None:
        reader = await self._target.open_reader(job.segment.ledger_id)
        archived = await self._archive.offload(job.topic, job.segment, reader)
        await self._target.delete_copy(job.topic, job.segment.ledger_id)
        await self._target.record_archived(job.topic, archived)
        report.archived += 1

    with patch.object(Offloader, "_upload", upload):
        yield


# -- identity of stores ----------------------------------------------------------------------------------
@mutation("absence", "cluster")
def a_scrub_believes_any_metadata_store() -> Iterator[None]:
    """Delete objects that the metadata store does not name, without checking that it is the cluster's store."""

    async def believe(self: Place, found: str = "") -> ClusterRecord:
        return ClusterRecord(uuid=self.cluster)

    with patch.object(Place, "confirm_absence", believe), patch.object(Place, "confirm", believe):
        yield


@mutation("absence", "cluster")
def an_older_metadata_store_is_believed() -> Iterator[None]:
    """Treat a metadata store as current, although a copy of the metadata is newer."""
    with patch.object(guard, "greatest_number", lambda _: 0):
        yield


@mutation("copies", "cluster")
def copies_are_ordered_by_clocks() -> Iterator[None]:
    """Number the copies of the metadata by brokers' clocks, instead of by the counter in the cluster's record."""
    put = metadata_copy.put

    async def put_by_time(objects: ObjectStore, copy: TakenCopy, record: ClusterRecord) -> str:
        return await put(objects, copy, replace(record, copies=copy.taken_ms, outdated_by=0))

    with patch.object(metadata_copy, "put", put_by_time):
        yield


# -- sessions --------------------------------------------------------------------------------------------
@mutation("sessions", "cluster")
def a_checksum_is_not_verified() -> Iterator[None]:
    """Store entries without verifying their checksums."""
    with patch.object(frame, "_entry", lambda tail: (bytes(tail), True)):
        yield


@mutation("sessions", "cluster")
def all_that_was_read_is_carried_out_at_once() -> Iterator[None]:
    """Execute all commands of one read at once, without yielding to other connections."""
    with patch.object(inbound, "COMMANDS_A_TURN", 1 << 30):
        yield
