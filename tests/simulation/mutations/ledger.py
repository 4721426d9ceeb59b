"""Mutations of ledgers: the writer, recovery, and rescue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from quire.ledger import lives, loss, recovery, states
from quire.ledger.ids import LedgerIds
from quire.ledger.ledgers import Ledgers
from quire.ledger.recovery import _Recovery, _Rewriter
from quire.ledger.recovery_core import BEYOND, RecoveryCore
from quire.ledger.recovery_core import State as Phase
from quire.ledger.writer_core import State, WriterCore
from quire.metadata import paths
from quire.metadata.records import LedgerRecord, LedgerState, decode, encode
from quire.metadata.store import ANY_VERSION
from quire.rescue import ledger_plan, rescue
from quire.runtime.errors import QuireError
from quire.wire import block
from quire.wire.bookie import ReadRequest, ReadResponse, Status

from .registry import mutation


# -- the writer ------------------------------------------------------------------------------------------
@mutation("3", "ledger")
def blocks_are_confirmed_during_an_ensemble_change() -> Iterator[None]:
    """Confirm blocks by acks of the remaining ensemble, while the ensemble change is not committed yet."""
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
    """Confirm blocks by the old ensemble's acks after an ensemble change is committed."""
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
    """Rebuild pending blocks after an ensemble change, with the current LAC, so that their bytes change."""
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
    """Fence only with a recovery's first read, and not with the later reads of other bookies."""

    async def read(self: Any, bookie: Any, first_entry: int) -> None:
        core: RecoveryCore = self.core
        is_first = first_entry == BEYOND
        if is_first and bookie not in core._ensemble[: core._coverage]:
            await asyncio.sleep(1.0)  # read other bookies only if the first ones do not respond
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
    """Treat a bookie's I/O error in a recovery as absence of the entry."""
    judge = RecoveryCore._read

    def judge_error(self: RecoveryCore, bookie: Any, response: ReadResponse) -> None:
        if response.status is Status.IO_ERROR:
            response = ReadResponse(Status.NO_SUCH_ENTRY, response.lac)
        judge(self, bookie, response)

    with patch.object(RecoveryCore, "_read", judge_error):
        yield


@mutation("12", "ledger")
def one_negative_fewer_proves_absence() -> Iterator[None]:
    """Treat negative responses of Qw - Qa bookies, one too few, as proof that an entry was not acknowledged."""
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
    """Write a recovery's ensemble change to the metadata at once, where another recovery may read it."""

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
    """Close a ledger with its former ensembles, without the bookies that replaced failed ones in the recovery."""
    closed = states.closed

    def as_found(record: LedgerRecord, fragments: Any, *rest: Any, **more: Any) -> LedgerRecord:
        is_recovery = record.state is LedgerState.IN_RECOVERY
        return closed(record, record.fragments if is_recovery else fragments, *rest, **more)

    with patch.object(states, "closed", as_found):
        yield


@mutation("15", "ledger")
def a_recovery_closes_whatever_the_version() -> Iterator[None]:
    """Close a ledger with an unconditional put, even if the record has changed."""
    close = recovery._close

    async def close_anyway(parts: Any, path: str, version: int, end: LedgerRecord) -> LedgerRecord:
        return await close(parts, path, ANY_VERSION, end)

    with patch.object(recovery, "_close", close_anyway):
        yield


# -- accepted losses -------------------------------------------------------------------------------------
@mutation("26", "ledger")
def a_bookie_that_is_away_counts_as_gone() -> Iterator[None]:
    """Treat all bookies that are down as lost, although the operator gave up only one."""

    async def gone(parts: Any, record: LedgerRecord) -> set[str]:
        up = {each.uuid for each in parts.bookies.available()}
        return {bookie.uuid for bookie in states.holders(record)} - up

    with patch.object(loss, "_gone", gone):
        yield


# -- a metadata store that is older than the bookies' data -------------------------------------------------
@mutation("12", "restored")
def labels_are_not_asked_for_newer_ensembles() -> Iterator[None]:
    """Recover a ledger by its record alone, without asking the bookies for labels of newer ensembles."""

    async def as_recorded(
        bookies: Any, record: LedgerRecord, version: int, strangers: Any = ()
    ) -> lives.Known:
        return lives.Known(record, version, frozenset(strangers))

    with patch.object(lives, "newest", as_recorded):
        yield


@mutation("end", "restored")
def a_rescue_takes_the_oldest_label() -> Iterator[None]:
    """Rebuild a ledger's record from the label with the lowest version, instead of the highest."""

    def plan_by_oldest(bookies: Any, copied: Any, known: Any) -> Any:
        plan = ledger_plan.plan_ledgers(bookies, copied, known)
        for ledger_id in plan.ledgers:
            found = [each.labels[ledger_id] for each in bookies if ledger_id in each.labels]
            plan.ledgers[ledger_id] = min((*found, plan.ledgers[ledger_id]), key=lambda told: told.version)
        return plan

    with patch.object(rescue, "plan_ledgers", plan_by_oldest):
        yield


@mutation("end", "restored")
def a_rescue_does_not_recover_ledgers() -> Iterator[None]:
    """Close an open ledger at the beginning of its last fragment, without reading the bookies."""

    async def close_as_told(self: Any, plan: Any) -> dict[int, LedgerRecord]:
        closed = {}
        for ledger_id, told in plan.ledgers.items():
            record = told.record
            if record.state is not LedgerState.CLOSED:
                last = record.fragments[-1].first_entry - 1
                record = replace(record, state=LedgerState.CLOSED, last_entry=last)
            await self._write_ledger(told._replace(record=record))
            closed[ledger_id] = record
        return closed

    with patch.object(rescue.Rescue, "_close_all", close_as_told):
        yield


@mutation("an id is used once", "restored")
def a_ledger_whose_id_was_used_before_is_recovered() -> Iterator[None]:
    """Treat a conflict on a new ledger as any other failure, although its id was used before.

    Asking the bookies for used ids, and distinguishing ledgers by labels, would each prevent the harm; both are
    disabled.
    """
    recover = Ledgers.recover

    async def recover_whatever(self: Ledgers, ledger_id: int, failed: Any = None) -> LedgerRecord:
        return await recover(self, ledger_id)

    async def none_used(self: LedgerIds, first: int, last: int) -> int:
        return -1

    async def no_strangers(bookies: Any, record: LedgerRecord, infos: Any) -> frozenset[str]:
        return frozenset()

    with (
        patch.object(Ledgers, "recover", recover_whatever),
        patch.object(LedgerIds, "_greatest_used", none_used),
        patch.object(lives, "_strangers", no_strangers),
    ):
        yield
