"""How a bookie answers: each kind of request judged, and journalled where it must be, before the answer.

| request | by whom | answered |
|---|---|---|
| add | this incarnation's writers; a recovery also by an earlier one | see `intake` |
| write LAC | this incarnation's writers | when the LAC is in the journal |
| delete | anyone who knows this bookie, by this or an earlier incarnation | when the tombstone is in the journal |
| read with a fence | the same | when the fence, and all that was taken before it, is in the journal |
| read, find a time or a hole, tell of a ledger | the same | see `reads` |
| list ledgers | the same | at once |

Fences, LACs and tombstones hold in memory at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from heapq import nsmallest
from typing import Any, TypeVar

from quire.bookie.intake import Intake
from quire.bookie.journal_core import Control, ControlKind
from quire.bookie.ledgers import LedgerState
from quire.bookie.neighbours import Flushing, Identified, Journaling, Reading, Standing
from quire.bookie.write_cache import WriteCache
from quire.runtime.limits import LEDGERS_LISTED_MAX
from quire.wire.bookie import (
    AddDone,
    AddRequest,
    BookieId,
    DeleteRequest,
    FindHoleRequest,
    FindTimeRequest,
    LedgerInfo,
    LedgerInfoRequest,
    LedgerList,
    ListLedgersRequest,
    ReadRequest,
    ReadResponse,
    Request,
    SimpleResponse,
    Status,
    WriteLacRequest,
)

R = TypeVar("R")


class Requests:
    """A `BookiePort`."""

    def __init__(
        self,
        identity: Identified,
        cache: WriteCache,
        journal: Journaling,
        health: Standing,
        flusher: Flushing,
        reads: Reading,
        intake: Intake,
    ) -> None:
        self._identity = identity
        self._cache = cache
        self._journal = journal
        self._health = health
        self._flusher = flusher
        self._reads = reads
        self._intake = intake

    def add(self, request: AddRequest, done: AddDone) -> None:
        """See `BookiePort.add` and `intake`. A writer of an earlier incarnation is refused, a recovery is not."""
        if request.bookie != self._identity.bookie_id and not (
            request.recovery and self._is_for_me(request.bookie)
        ):
            refused = (Status.WRONG_BOOKIE,) * len(request.blocks)
            asyncio.get_running_loop().call_soon(done, refused)
            return
        self._intake.add(request, done)

    def _is_for_me(self, bookie: BookieId) -> bool:
        mine = self._identity.bookie_id
        return bookie.uuid == mine.uuid and bookie.incarnation <= mine.incarnation

    async def ask(self, request: Request[R]) -> R:
        """The answer to any other request; see `BookiePort.ask`."""
        if not self._is_for_me(request.bookie):
            return request.refused(Status.WRONG_BOOKIE)
        answer: R = await self._answer_to(request)
        return answer

    def _answer_to(self, request: object) -> Awaitable[Any]:
        match request:
            case ReadRequest():
                return self._read(request)
            case WriteLacRequest():
                return self._write_lac(request)
            case DeleteRequest():
                return self._delete(request)
            case FindTimeRequest():
                return self._reads.find_time(request)
            case FindHoleRequest():
                return self._find_hole(request)
            case LedgerInfoRequest():
                return self._ledger_info(request)
            case ListLedgersRequest():
                return self._list(request)
        raise AssertionError(f"no answer is known to {request!r}")

    async def _write_lac(self, request: WriteLacRequest) -> SimpleResponse:
        if request.bookie != self._identity.bookie_id:
            return SimpleResponse(Status.WRONG_BOOKIE)
        state = self._cache.state(request.ledger_id)
        if state.tombstone_version is not None:
            return SimpleResponse(Status.DELETED)
        if state.is_fenced:
            return SimpleResponse(Status.FENCED)
        state.lac = max(state.lac, request.lac)
        return SimpleResponse(await self._control(ControlKind.LAC, request.ledger_id, request.lac))

    async def _delete(self, request: DeleteRequest) -> SimpleResponse:
        state = self._cache.state(request.ledger_id)
        if state.tombstone_version is None:
            state.lay_tombstone(request.version)
            self._reads.forget(request.ledger_id)
            if self._health.is_short_of_space:
                self._flusher.soon()
        return SimpleResponse(await self._control(ControlKind.TOMBSTONE, request.ledger_id, request.version))

    async def _control(self, kind: ControlKind, ledger_id: int, value: int = 0) -> Status:
        """Journal a change that memory has already; the status when it is durable."""
        self._cache.changed.add(ledger_id)
        control = Control(kind, ledger_id, value)
        return await _answer(lambda done: self._journal.control(control, done))

    # -- reading -----------------------------------------------------------------------------------------
    async def _read(self, request: ReadRequest) -> ReadResponse:
        """Only `NO_SUCH_ENTRY` denies that the entry exists.

        Who cannot keep a fence has the blocks all the same, after a restart: `READ_ONLY` is no damage.
        """
        if request.fence:
            state = self._cache.state(request.ledger_id)
            if state.tombstone_version is None and await self._fence(state) is not Status.OK:
                why = self._health.failure or "it is being stopped"
                return ReadResponse(Status.READ_ONLY, detail=f"cannot keep the fence: {why}")
        return await self._reads.read(request)

    async def _fence(self, state: LedgerState) -> Status:
        """Fence at once in memory; answer when every block taken before and the fence are durable.

        A ledger that is fenced already is fenced in the journal again: it costs a few bytes of a group, and
        whether the first fence is durable yet need not be remembered.
        """
        state.fence()
        return await self._control(ControlKind.FENCE, state.ledger_id)

    async def _find_hole(self, request: FindHoleRequest) -> SimpleResponse:
        answer = await self._reads.find_hole(request)
        if answer.status is Status.OK and await self._barrier() is not Status.OK:
            return SimpleResponse(Status.IO_ERROR, detail=self._health.failure)
        return answer

    async def _barrier(self) -> Status:
        """OK when everything that was taken before is durable."""
        return await _answer(lambda done: self._journal.barrier(done, (Status.OK,)))

    async def _ledger_info(self, request: LedgerInfoRequest) -> LedgerInfo:
        """Who asks whether a ledger is flushed wants it to be: a checkpoint follows soon."""
        state = self._cache.ledgers.get(request.ledger_id)
        if state is None:
            return LedgerInfo(Status.NO_SUCH_LEDGER)
        if state.tombstone_version is not None:
            return LedgerInfo(Status.DELETED, fenced=True)
        kept = [found for table in self._cache.tables if (found := table.ledgers.get(request.ledger_id))]
        if kept and self._flusher.is_awaited:
            self._flusher.soon()
        return LedgerInfo(
            Status.OK,
            last_entry=state.last_entry,
            lac=state.lac,
            fenced=state.is_fenced,
            flushed=not (kept and self._flusher.is_awaited),
            bytes=state.flushed_bytes + sum(found.size_bytes for found in kept),
        )

    async def _list(self, request: ListLedgersRequest) -> LedgerList:
        ledgers = self._cache.ledgers
        wanted = (ledger_id for ledger_id in ledgers if ledger_id >= request.first_ledger)
        found = nsmallest(min(request.count_max, LEDGERS_LISTED_MAX), wanted)
        deleted = [each for each in found if ledgers[each].tombstone_version is not None]
        return LedgerList(Status.OK, found, deleted)


async def _answer(ask: Callable[[AddDone], None]) -> Status:
    """What the journal answers to one record, or to a barrier."""
    answer: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

    def done(statuses: Sequence[Status]) -> None:
        if not answer.done():
            answer.set_result(statuses[0])

    ask(done)
    return await answer
