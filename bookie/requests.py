"""Requests of a bookie: each kind is checked, and journalled where necessary, before it is answered.

| request | accepted from | answered |
|---|---|---|
| add | this incarnation's writers; a recovery also for an earlier one | see `intake` |
| write LAC | this incarnation's writers | when the LAC is in the journal |
| delete | any client, for this or an earlier incarnation | when the tombstone is in the journal |
| read with a fence | like delete | when the fence, and every earlier block, is in the journal |
| read, find a time or a hole, get a ledger's info | like delete | see `reads` |
| list ledgers | like delete | immediately |

Fences, LACs and tombstones are effective in memory immediately.
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
    """Handler of all requests to one node. A `BookiePort`."""

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
        """Add blocks; see `BookiePort.add` and `intake`.

        A request that names an earlier incarnation is refused, except in a recovery.
        """
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
        """Answer any other request; see `BookiePort.ask`."""
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
        raise AssertionError(f"unhandled request {request!r}")

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
        """Append a change to the journal that is already effective in memory; return its status when it is durable."""
        self._cache.changed.add(ledger_id)
        control = Control(kind, ledger_id, value)
        return await _answer(lambda done: self._journal.control(control, done))

    # -- reading -----------------------------------------------------------------------------------------
    async def _read(self, request: ReadRequest) -> ReadResponse:
        """Fence the ledger if requested, then read. Only the status `NO_SUCH_ENTRY` means that the entry is absent.

        If the fence cannot be stored, the status is `READ_ONLY`: the blocks still exist, and are readable after a
        restart.
        """
        if request.fence:
            state = self._cache.state(request.ledger_id)
            if state.tombstone_version is None and await self._fence(state) is not Status.OK:
                why = self._health.failure or "the bookie is stopping"
                return ReadResponse(Status.READ_ONLY, detail=f"cannot store the fence: {why}")
        return await self._reads.read(request)

    async def _fence(self, state: LedgerState) -> Status:
        """Fence the ledger in memory; return when the fence and all earlier blocks are durable.

        A fence of a fenced ledger is journalled again, which is cheaper than tracking whether the first fence is
        durable.
        """
        state.fence()
        return await self._control(ControlKind.FENCE, state.ledger_id)

    async def _find_hole(self, request: FindHoleRequest) -> SimpleResponse:
        answer = await self._reads.find_hole(request)
        if answer.status is Status.OK and await self._barrier() is not Status.OK:
            return SimpleResponse(Status.IO_ERROR, detail=self._health.failure)
        return answer

    async def _barrier(self) -> Status:
        """Wait until every earlier block is durable; return OK, or the journal's error status."""
        return await _answer(lambda done: self._journal.barrier(done, (Status.OK,)))

    async def _ledger_info(self, request: LedgerInfoRequest) -> LedgerInfo:
        """Return the ledger's info. If it has unflushed blocks, schedule a checkpoint: the caller may wait for it."""
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
    """Call `ask` with a callback, and wait for the journal's status of one record or barrier."""
    answer: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

    def done(statuses: Sequence[Status]) -> None:
        if not answer.done():
            answer.set_result(statuses[0])

    ask(done)
    return await answer
