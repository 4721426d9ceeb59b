"""Mistakes of brokers: ownership, acknowledgements, the archive, sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from quire.metadata.lease import LeaseCore
from quire.metadata.records import ArchivePointer, SegmentRecord
from quire.metadata.store import SessionEvent
from quire.runtime.limits import READ_BYTES_MAX
from quire.serving.session import inbound
from quire.serving.subscription.cursor.cursor_store import CursorStore
from quire.serving.topic.segments import Active
from quire.serving.topic.writing import Writing
from quire.tiering.archive import Archive
from quire.tiering.offload import Offloader, OffloadReport
from quire.wire import block, frame

from .registry import mutation


# -- ownership -------------------------------------------------------------------------------------------
@mutation("16", "cluster")
def a_new_owner_serves_before_the_old_ledger_is_closed() -> Iterator[None]:
    """A new owner seals the last segment where it sees its end, and leaves the ledger open to the former owner."""

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
    """A broker that hears nothing from the metadata store believes in its lease until it is told otherwise."""
    session = LeaseCore.session

    def hear_the_end_only(self: LeaseCore, event: SessionEvent, now: float) -> None:
        if event is SessionEvent.LOST:
            session(self, event, now)

    with patch.object(LeaseCore, "session", hear_the_end_only):
        yield


# -- acknowledgements ------------------------------------------------------------------------------------
@mutation("acks", "cluster")
def an_ack_is_answered_before_it_is_durable() -> Iterator[None]:
    """Who acknowledges is answered when the cursor's record is queued."""

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
    """What the object store was given is believed to be there."""

    async def believe(self: Archive, pointer: ArchivePointer) -> None:
        pass

    with patch.object(Archive, "verify", believe):
        yield


@mutation("archive", "cluster")
def the_bookies_copy_goes_before_the_pointer() -> Iterator[None]:
    """An archived segment is deleted from the bookies, and then recorded as archived."""

    async def upload(self: Offloader, job: Any, report: OffloadReport, **_: bool) -> None:
        reader = await self._target.open_reader(job.segment.ledger_id)
        pointer = await self._archive.offload(job.topic, job.segment, reader)
        await self._target.delete_copy(job.topic, job.segment.ledger_id)
        await self._target.record_archived(job.topic, job.segment.ledger_id, pointer)
        report.archived += 1

    with patch.object(Offloader, "_upload", upload):
        yield


# -- sessions --------------------------------------------------------------------------------------------
@mutation("sessions", "cluster")
def a_checksum_is_not_verified() -> Iterator[None]:
    """An entry is stored whatever its checksum says."""
    with patch.object(frame, "_entry", lambda tail: (bytes(tail), True)):
        yield


@mutation("sessions", "cluster")
def all_that_was_read_is_carried_out_at_once() -> Iterator[None]:
    """A connection carries out every command that one read brought, before anybody else has a turn."""
    with patch.object(inbound, "COMMANDS_A_TURN", 1 << 30):
        yield
