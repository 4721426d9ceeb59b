"""Mutations of bookies: durability, checkpoints, replay, fences, tombstones and identity."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

from quire.bookie import checkpoint, flusher, identity, journal_replay, membership, recovery, registration
from quire.bookie.checkpoint import Checkpoint, encode_mark
from quire.bookie.entry_log import EntryLogs
from quire.bookie.intake import DUPLICATE, Intake, _InEntryLog
from quire.bookie.journal import Journal
from quire.bookie.journal_core import (
    GROUP_HEADER_BYTES,
    Chain,
    FoundGroup,
    GroupQueue,
    SegmentHeader,
    _group_at,
)
from quire.bookie.journal_replay import JournalReplay
from quire.bookie.ledgers import LedgerState
from quire.bookie.reads import Reads
from quire.bookie.requests import Requests
from quire.bookie.segment_pool import SegmentPool
from quire.ledger.recovery_core import RecoveryCore
from quire.runtime.disk import PAGE_BYTES, pages_up
from quire.wire.block import read_header
from quire.wire.bookie import AddDone, ReadRequest, ReadResponse, Status

from .registry import mutation


# -- responses before data are durable -------------------------------------------------------------------
@mutation("17", "ledger")
def blocks_are_acknowledged_before_they_are_synced() -> Iterator[None]:
    """Acknowledge blocks after writing the journal, without syncing it."""
    begin = Journal.__init__

    def without_sync(self: Journal, *args: Any, **how: Any) -> None:
        begin(self, *args, **{**how, "durable": False})

    with patch.object(Journal, "__init__", without_sync):
        yield


@mutation("10", "ledger")
def fences_are_not_journalled() -> Iterator[None]:
    """Confirm a fence that is only in memory."""

    async def fence(self: Requests, state: LedgerState) -> Status:
        state.fence()
        return Status.OK

    with patch.object(Requests, "_fence", fence):
        yield


@mutation("6", "ledger")
def a_duplicate_is_answered_before_its_first_copy_is_durable() -> Iterator[None]:
    """Acknowledge a block that is in the memtable already, although its journal group is not durable yet."""
    answer = Intake._answer_mixed

    def answer_at_once(self: Intake, blocks: Any, verdicts: Any, done: AddDone) -> None:
        waits = any(verdict is Status.OK or isinstance(verdict, _InEntryLog) for verdict in verdicts)
        if waits or DUPLICATE not in verdicts:
            answer(self, blocks, verdicts, done)
        else:
            statuses = [Status.OK if verdict is DUPLICATE else verdict for verdict in verdicts]
            asyncio.get_running_loop().call_soon(done, statuses)

    with patch.object(Intake, "_answer_mixed", answer_at_once):
        yield


# -- checkpoints -----------------------------------------------------------------------------------------
@mutation("21", "ledger")
def rows_are_committed_before_the_entry_log_is_synced() -> Iterator[None]:
    """Commit the index and the mark before the entry log is synced, so that a power cut can lose indexed blocks."""
    with patch.object(EntryLogs, "sync", lambda self: None):
        yield


@mutation("21", "ledger")
def the_mark_is_ahead_of_the_flush() -> Iterator[None]:
    """Commit the mark before the entry log is written."""

    def perform(work: Checkpoint, logs: Any, index: Any) -> None:
        index.commit((), {}, encode_mark(work.mark))
        checkpoint.perform(work, logs, index)

    with patch.object(flusher, "perform", perform), patch.object(recovery, "perform", perform):
        yield


@mutation("21", "ledger")
def a_journal_group_spans_two_memtables() -> Iterator[None]:
    """Continue the open journal group after a switch of memtables, so that the mark covers unflushed blocks."""

    def seal(self: GroupQueue) -> int:
        return self._next_number - 1

    with patch.object(GroupQueue, "seal", seal):
        yield


@mutation("21", "ledger")
def a_checkpoint_leaves_fences_out() -> Iterator[None]:
    """Omit fences from the ledger states that a checkpoint commits with the mark."""
    encode = LedgerState.encode

    def unfenced(self: LedgerState) -> bytes:
        was, self.is_fenced = self.is_fenced, False
        try:
            return encode(self)
        finally:
            self.is_fenced = was

    with patch.object(LedgerState, "encode", unfenced):
        yield


# -- replay ----------------------------------------------------------------------------------------------
@mutation("23", "ledger")
def a_rotten_group_is_taken_for_the_torn_tail() -> Iterator[None]:
    """End the replay at the first invalid group, even if valid groups follow it."""

    def group(self: Chain, file: str, found: FoundGroup, end_number: int | None) -> bool:
        if found.number != self.last_number + 1:
            return False
        self.last_number = found.number
        return True

    with patch.object(Chain, "group", group), patch.object(Chain, "_missing", lambda *args: None):
        yield


@mutation("19, 23", "ledger")
def an_unreadable_page_is_taken_for_the_torn_tail() -> Iterator[None]:
    """Replay unreadable pages of the journal as zeros, without reporting them."""
    read_image = JournalReplay._read_image

    def read_zeros(self: JournalReplay, segment: Any) -> tuple[memoryview, dict[int, str]]:
        return read_image(self, segment)[0], {}

    with patch.object(JournalReplay, "_read_image", read_zeros):
        yield


@mutation("23", "ledger")
def the_stale_tail_of_a_recycled_segment_is_replayed() -> Iterator[None]:
    """Replay groups of a recycled segment's earlier use, which follow the last group of its current use.

    Salt, epoch and group number each prevent this, so all three are disabled. The blocks of these groups do no harm,
    because the index contains them. The harm is that the journal continues with group numbers that the mark has passed.
    """
    begin_epoch = SegmentPool._begin_epoch

    def begin_without_salt(self: SegmentPool, segment: Any, first_number: int) -> None:
        begin_epoch(self, segment, first_number)
        segment.header = segment.header._replace(salt=0)

    def scan_all(image: memoryview, header: SegmentHeader) -> Iterator[FoundGroup]:
        position = PAGE_BYTES
        while position + GROUP_HEADER_BYTES <= len(image):
            epoch = int.from_bytes(image[position + 16 : position + 24], "big")
            found = _group_at(image, position, header._replace(epoch=epoch))
            if found is not None:
                yield found
            position += PAGE_BYTES if found is None else pages_up(found.length)

    def group(self: Chain, file: str, found: FoundGroup, end_number: int | None) -> bool:
        self.last_number = found.number
        return found.number > self.mark

    with (
        patch.object(SegmentPool, "_begin_epoch", begin_without_salt),
        patch.object(journal_replay, "scan_segment", scan_all),
        patch.object(Chain, "group", group),
        patch.object(Chain, "segment", lambda *args: None),
    ):
        yield


# -- fences, tombstones, refusals, absence ---------------------------------------------------------------
@mutation("20", "ledger")
def a_tombstone_does_not_fence() -> Iterator[None]:
    """Accept a writer's block for a deleted ledger."""

    def lay_tombstone(self: LedgerState, version: int) -> None:
        self.tombstone_version = version

    with patch.object(LedgerState, "lay_tombstone", lay_tombstone):
        yield


@mutation("24", "ledger")
def a_refused_block_is_journalled() -> Iterator[None]:
    """Journal all blocks of a request, although some of them are refused."""
    answer = Intake._answer_mixed

    def answer_and_journal(self: Intake, blocks: Sequence[Any], verdicts: Any, done: AddDone) -> None:
        refused = [
            block
            for block, verdict in zip(blocks, verdicts, strict=True)
            if isinstance(verdict, Status) and verdict is not Status.OK
        ]
        if refused:
            self._journal.append(refused, sum(map(len, refused)), lambda statuses: None, ())
        answer(self, blocks, verdicts, done)

    with patch.object(Intake, "_answer_mixed", answer_and_journal):
        yield


@mutation("25", "ledger")
def a_later_block_counts_as_a_negative() -> Iterator[None]:
    """Return a later block for an unreadable entry, and let the recovery treat that as absence of the entry."""
    read, judge = Reads.read, RecoveryCore._read

    async def read_on(self: Reads, request: ReadRequest) -> ReadResponse:
        response = await read(self, request)
        state = self._cache.ledgers.get(request.ledger_id)
        if response.status in (Status.IO_ERROR, Status.LIMBO) and state is not None:
            for entry in range(request.first_entry + 1, state.last_entry + 1):
                later = await read(self, replace(request, first_entry=entry))
                if later.status is Status.OK:
                    return later
        return response

    def judge_negative(self: RecoveryCore, bookie: Any, response: ReadResponse) -> None:
        if response.status is Status.OK and read_header(response.blocks[0]).first_entry > self._entry:
            response = ReadResponse(Status.NO_SUCH_ENTRY, response.lac)
        judge(self, bookie, response)

    with patch.object(Reads, "read", read_on), patch.object(RecoveryCore, "_read", judge_negative):
        yield


# -- identity --------------------------------------------------------------------------------------------
@mutation("18", "ledger")
def a_bookie_is_its_address() -> Iterator[None]:
    """Give empty disks at an old address the former bookie's identity. (Each machine has its own random generator.)"""
    move_in = identity._move_in
    at: dict[Random, str] = {}

    def move_in_as_before(journal: Any, entries: Any, rng: Random, uuid: str = "") -> Any:
        moved = move_in(journal, entries, rng, uuid or at.get(rng, ""))
        at[rng] = moved.bookie_id.uuid
        return moved

    with patch.object(identity, "_move_in", move_in_as_before):
        yield


@mutation("18", "ledger")
def an_older_copy_of_one_directory_is_believed() -> Iterator[None]:
    """Do not write the run's token at a start, by which two directories recognize that they belong together."""
    with patch.object(identity.Identity, "begin_run", lambda self, rng: None):
        yield


@mutation("retirement is proven", "restored")
def a_bookie_whose_drain_did_not_end_begins_anew() -> Iterator[None]:
    """Treat a cookie that records a drain as proof that all the bookie's blocks were copied to others."""

    async def whenever_it_leaves(store: Any, cookie: Any) -> bool:
        return True

    with patch.object(membership, "_was_retired", whenever_it_leaves):
        yield


@mutation("retirement is proven", "restored")
def a_bookie_that_the_store_does_not_know_is_retired() -> Iterator[None]:
    """Treat a missing record as proof that all the bookie's blocks were copied, in any metadata store."""

    async def whenever_asked(store: Any, uuid: str) -> bool:
        return True

    with (
        patch.object(registration, "is_retired", whenever_asked),
        patch.object(registration, "confirm_cluster", whenever_asked),
    ):
        yield
