"""Mistakes of a ledger's writer and of its recoveries."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from quire.ledger import loss, recovery, states
from quire.ledger.recovery import _Recovery, _Rewriter
from quire.ledger.recovery_core import BEYOND, RecoveryCore
from quire.ledger.recovery_core import State as Phase
from quire.ledger.writer_core import State, WriterCore
from quire.metadata import paths
from quire.metadata.records import LedgerRecord, LedgerState, decode, encode
from quire.metadata.store import ANY_VERSION
from quire.runtime.errors import QuireError
from quire.wire import block
from quire.wire.bookie import ReadRequest, ReadResponse, Status

from .registry import mutation


# -- the writer ------------------------------------------------------------------------------------------
@mutation("3", "ledger")
def blocks_are_confirmed_during_an_ensemble_change() -> Iterator[None]:
    """Answers that come while the change is on its way to the metadata confirm, on the ensemble that is left."""
    advance = WriterCore.advance

    def advance_always(self: WriterCore) -> None:
        changing, self.state = self.state is State.CHANGING, _steady(self.state)
        advance(self)
        if changing and self.state is State.STEADY:
            self.state = State.CHANGING

    with patch.object(WriterCore, "advance", advance_always):
        yield


@mutation("3", "ledger")
def callbacks_run_before_acks_are_reset() -> Iterator[None]:
    """When a change is committed, what the old ensemble's acks suffice for is confirmed first."""
    change_committed = WriterCore.change_committed

    def confirm_first(self: WriterCore) -> None:
        if self.state is State.CHANGING:
            self.state = State.STEADY
            self.advance()
            if self.state is State.STEADY:
                self.state = State.CHANGING
        change_committed(self)

    with patch.object(WriterCore, "change_committed", confirm_first):
        yield


def _steady(state: State) -> State:
    return State.STEADY if state is State.CHANGING else state


@mutation("6", "ledger")
def a_block_is_resent_with_other_bytes() -> Iterator[None]:
    """What is pending after an ensemble change is cut anew, with the LAC of that moment."""
    change_committed = WriterCore.change_committed

    def cut_anew(self: WriterCore) -> None:
        for pending in self._unconfirmed:
            header = block.read_header(pending.block)
            entries = [bytes(entry) for entry in block.entries(pending.block, header)]
            pending.block = block.cut(
                self.ledger_id,
                header.first_entry,
                self.last_confirmed,
                header.clock_ms,
                header.first_index,
                entries,
            )
        change_committed(self)

    with patch.object(WriterCore, "change_committed", cut_anew):
        yield


# -- recovery --------------------------------------------------------------------------------------------
@mutation("9", "ledger")
def only_the_first_read_of_a_recovery_fences() -> Iterator[None]:
    """The first read fences as many bookies as it needs, and the reads that follow do not fence the others."""

    async def read(self: Any, bookie: Any, first_entry: int) -> None:
        core: RecoveryCore = self.core
        is_first = first_entry == BEYOND
        if is_first and bookie not in core._ensemble[: core._coverage]:
            await asyncio.sleep(1.0)  # only if those before it do not answer
            if core.state is not Phase.FENCING:
                return
        request = ReadRequest(bookie, self._record.ledger_id, first_entry, 3_000, is_first)
        response = await self._parts.bookies.port(bookie).ask(request)
        if response.status is Status.NO_SUCH_LEDGER:
            response.status = Status.NO_SUCH_ENTRY
        core.answered(bookie, first_entry, response)

    with patch.object(_Recovery, "_read", read):
        yield


@mutation("12, 19", "ledger")
def an_io_error_counts_as_absence() -> Iterator[None]:
    """A recovery takes a bookie that cannot read an entry for one that never had it."""
    judge = RecoveryCore._read

    def judge_error(self: RecoveryCore, bookie: Any, response: ReadResponse) -> None:
        if response.status is Status.IO_ERROR:
            response = ReadResponse(Status.NO_SUCH_ENTRY, response.lac)
        judge(self, bookie, response)

    with patch.object(RecoveryCore, "_read", judge_error):
        yield


@mutation("12", "ledger")
def one_negative_fewer_proves_absence() -> Iterator[None]:
    """Qw - Qa bookies that deny an entry are enough."""
    judge = RecoveryCore._read

    def judge_soon(self: RecoveryCore, bookie: Any, response: ReadResponse) -> None:
        coverage, self._coverage = self._coverage, max(1, self._coverage - 1)
        try:
            judge(self, bookie, response)
        finally:
            self._coverage = coverage

    with patch.object(RecoveryCore, "_read", judge_soon):
        yield


@mutation("14", "ledger")
def a_recovery_publishes_its_ensembles_early() -> Iterator[None]:
    """An ensemble change of a recovery goes into the metadata at once, where the next recovery reads it."""

    async def publish(self: _Rewriter, fragments: Any) -> None:
        path = paths.ledger(self.core.ledger_id)
        try:
            node = await self._parts.store.get(path)
            record = decode(LedgerRecord, node.value, path)
            if record.state is LedgerState.IN_RECOVERY:
                await self._parts.store.put(path, encode(replace(record, fragments=fragments)), node.version)
        except QuireError as error:
            self.core.fail(error)
        else:
            self.core.change_committed()

    def commit(self: _Rewriter, fragments: Any) -> None:
        self.tried += fragments[-1].bookies
        self._parts.tasks.start(publish(self, fragments), "publish")

    with patch.object(_Rewriter, "commit", commit):
        yield


@mutation("14, 15", "ledger")
def a_recovery_closes_with_the_ensembles_that_it_found() -> Iterator[None]:
    """A bookie that a recovery took for one that failed is not named when the ledger is closed."""
    closed = states.closed

    def as_found(record: LedgerRecord, fragments: Any, *rest: Any, **more: Any) -> LedgerRecord:
        is_recovery = record.state is LedgerState.IN_RECOVERY
        return closed(record, record.fragments if is_recovery else fragments, *rest, **more)

    with patch.object(states, "closed", as_found):
        yield


@mutation("15", "ledger")
def a_recovery_closes_whatever_the_version() -> Iterator[None]:
    """The closing put does not look whether somebody else was faster."""
    close = recovery._close

    async def close_anyway(parts: Any, path: str, version: int, end: LedgerRecord) -> LedgerRecord:
        return await close(parts, path, ANY_VERSION, end)

    with patch.object(recovery, "_close", close_anyway):
        yield


# -- what an operator gives up ---------------------------------------------------------------------------
@mutation("26", "ledger")
def a_bookie_that_is_away_counts_as_gone() -> Iterator[None]:
    """An operator's word for one bookie is taken for all that are not up."""

    async def gone(parts: Any, record: LedgerRecord) -> set[str]:
        up = {each.uuid for each in parts.bookies.available()}
        return {bookie.uuid for bookie in states.holders(record)} - up

    with patch.object(loss, "_gone", gone):
        yield
