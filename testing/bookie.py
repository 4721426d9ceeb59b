"""Bookie in memory, with the rules of a real bookie and injectable faults.

A request changes the state when it arrives, in one step. Its response is sent separately, through `deliver`, which a
test replaces to hold, delay or reorder responses. So a test can lose a request, or only its response.

    unreachable     requests do not arrive
    loses_answers   requests are applied and answered UNREACHABLE
    refuses         every add gets this status instead (IO_ERROR, READ_ONLY, BUSY, ...)
    is_full         new blocks without priority are refused (READ_ONLY)
    lists_nothing   requests to list ledgers are answered UNREACHABLE
    limbo           reads that find no block are answered LIMBO
    flip(l, e)      a byte of the block that contains e is flipped; reads are answered IO_ERROR, or with the damaged
                    block if `serves_damage` (a disk without checksums). A recovery's add repairs it, unless
                    `cannot_mend`
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from quire.metadata.records import BookieRecord
from quire.wire import block
from quire.wire.block import BlockError, BlockHeader
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
Deliver = Callable[[Callable[[], None]], None]


def deliver_soon(answer: Callable[[], None]) -> None:
    """Deliver a response in the next iteration of the event loop."""
    asyncio.get_running_loop().call_soon(answer)


@dataclass(slots=True)
class _Ledger:
    blocks: dict[int, tuple[BlockHeader, bytes]] = field(default_factory=dict)
    firsts: list[int] = field(default_factory=list)
    damaged: set[int] = field(default_factory=set)
    lac: int = -1
    is_fenced: bool = False
    is_deleted: bool = False

    def containing(self, entry: int) -> int | None:
        """Return the first entry of the block that contains `entry`; None if no block does."""
        index = bisect_right(self.firsts, entry) - 1
        if index < 0:
            return None
        first = self.firsts[index]
        return first if self.blocks[first][0].last_entry >= entry else None


class MemoryBookie:
    """Bookie in memory; a `BookiePort`."""

    def __init__(self, bookie: BookieId, deliver: Deliver = deliver_soon) -> None:
        self.bookie = bookie
        self.deliver = deliver
        self.ledgers: dict[int, _Ledger] = {}
        self.unreachable = False
        self.loses_answers = False
        self.refuses: Status | None = None
        self.is_full = False
        self.lists_nothing = False
        self.limbo = False
        self.serves_damage = False
        self.cannot_mend = False
        self.is_flushed = True
        self.requests: list[object] = []
        """All requests that arrived, in order, for tests."""

    def record(self) -> BookieRecord:
        return BookieRecord(
            uuid=self.bookie.uuid,
            incarnation=self.bookie.incarnation,
            read_only=self.refuses is Status.READ_ONLY or self.is_full,
            read_only_why="the disk is full" if self.is_full else "",
            takes_priority=self.is_full,
            short_of_space=self.is_full,
        )

    # -- the port --------------------------------------------------------------------------------------
    def add(self, request: AddRequest, done: AddDone) -> None:
        if self.unreachable:
            statuses = [Status.UNREACHABLE] * len(request.blocks)
        else:
            self.requests.append(request)
            statuses = [self._add(request, bytes(each)) for each in request.blocks]
            if self.loses_answers:
                statuses = [Status.UNREACHABLE] * len(request.blocks)
        self.deliver(lambda: done(statuses))

    async def ask(self, request: Request[R]) -> R:
        """Apply the request now, and return the response when `deliver` calls back."""
        if self.unreachable:
            answer = request.refused(Status.UNREACHABLE)
        else:
            self.requests.append(request)
            is_addressed = request.bookie == self.bookie
            answer = self._handle(request) if is_addressed else request.refused(Status.WRONG_BOOKIE)
            if self.loses_answers:
                answer = request.refused(Status.UNREACHABLE)
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.deliver(lambda: None if arrived.done() else arrived.set_result(None))
        await arrived
        return answer

    # -- faults ----------------------------------------------------------------------------------------
    def flip(self, ledger_id: int, entry: int) -> None:
        """Flip a bit in the last byte of the block that contains `entry`."""
        ledger = self.ledgers[ledger_id]
        first = ledger.containing(entry)
        assert first is not None
        header, content = ledger.blocks[first]
        ledger.blocks[first] = (header, content[:-1] + bytes([content[-1] ^ 1]))
        ledger.damaged.add(first)

    def forget(self) -> None:
        """Lose all ledgers, and become another incarnation."""
        self.ledgers.clear()
        self.bookie = BookieId(self.bookie.uuid, self.bookie.incarnation + 1)

    def holds(self, ledger_id: int, entry: int) -> bool:
        ledger = self.ledgers.get(ledger_id)
        return ledger is not None and ledger.containing(entry) is not None

    # -- inside ----------------------------------------------------------------------------------------
    def _handle(self, request: Any) -> Any:
        match request:
            case ReadRequest():
                return self._read(request)
            case WriteLacRequest():
                return self._write_lac(request)
            case DeleteRequest():
                return self._delete(request)
            case FindTimeRequest():
                return self._find_time(request)
            case FindHoleRequest():
                return self._find_hole(request)
            case LedgerInfoRequest():
                return self._info(request)
            case ListLedgersRequest():
                return self._list(request)

    def _add(self, request: AddRequest, content: bytes) -> Status:
        if request.bookie != self.bookie:
            return Status.WRONG_BOOKIE
        if self.refuses is not None:
            return self.refuses
        try:
            header = block.verify(content)
        except BlockError:
            return Status.BAD_BLOCK
        ledger = self.ledgers.setdefault(header.ledger_id, _Ledger())
        if ledger.is_deleted:
            return Status.DELETED
        if ledger.is_fenced and not request.recovery:
            return Status.FENCED
        if header.first_entry in ledger.damaged and ledger.blocks[header.first_entry][0] == header:
            if self.cannot_mend or not request.recovery:
                return Status.IO_ERROR
            ledger.damaged.discard(header.first_entry)
            ledger.blocks[header.first_entry] = (header, content)
        if self.is_full and not request.priority and header.first_entry not in ledger.blocks:
            return Status.READ_ONLY
        return self._keep(ledger, header, content)

    def _keep(self, ledger: _Ledger, header: BlockHeader, content: bytes) -> Status:
        first = header.first_entry
        if first in ledger.blocks:
            return Status.OK if ledger.blocks[first][1] == content else Status.CONFLICT
        following = next((each for each in ledger.firsts if each > first), None)
        if ledger.containing(first) is not None or (following is not None and following <= header.last_entry):
            return Status.CONFLICT
        insort(ledger.firsts, first)
        ledger.blocks[first] = (header, content)
        ledger.lac = max(ledger.lac, header.lac)
        return Status.OK

    def _read(self, request: ReadRequest) -> ReadResponse:
        ledger = self.ledgers.get(request.ledger_id)
        if ledger is None and not request.fence:
            return ReadResponse(Status.NO_SUCH_LEDGER)
        if ledger is None:
            ledger = self.ledgers[request.ledger_id] = _Ledger()
        ledger.is_fenced |= request.fence
        if ledger.is_deleted:
            return ReadResponse(Status.DELETED)
        first = ledger.containing(request.first_entry)
        if first is None:
            return ReadResponse(Status.LIMBO if self.limbo else Status.NO_SUCH_ENTRY, ledger.lac)
        if first in ledger.damaged and not self.serves_damage:
            return ReadResponse(
                Status.IO_ERROR, ledger.lac, detail=f"entry log {self.bookie.uuid} at offset {first}"
            )
        return ReadResponse(Status.OK, ledger.lac, self._run(ledger, first, request.bytes_max))

    def _run(self, ledger: _Ledger, first: int, bytes_max: int) -> list[bytes]:
        blocks: list[bytes] = []
        size = 0
        while first in ledger.blocks and (first not in ledger.damaged or self.serves_damage):
            header, content = ledger.blocks[first]
            size += len(content)
            if blocks and size > bytes_max:
                break
            blocks.append(content)
            first = header.last_entry + 1
        return blocks

    def _write_lac(self, request: WriteLacRequest) -> SimpleResponse:
        ledger = self.ledgers.setdefault(request.ledger_id, _Ledger())
        if ledger.is_deleted or ledger.is_fenced:
            return SimpleResponse(Status.DELETED if ledger.is_deleted else Status.FENCED)
        ledger.lac = max(ledger.lac, request.lac)
        return SimpleResponse(Status.OK)

    def _delete(self, request: DeleteRequest) -> SimpleResponse:
        self.ledgers[request.ledger_id] = _Ledger(is_fenced=True, is_deleted=True)
        return SimpleResponse(Status.OK)

    def _find_time(self, request: FindTimeRequest) -> SimpleResponse:
        ledger = self.ledgers.get(request.ledger_id)
        if ledger is None:
            return SimpleResponse(Status.NO_SUCH_LEDGER)
        entry = 0
        for first in ledger.firsts:
            header = ledger.blocks[first][0]
            if header.clock_ms >= request.time_ms:
                return SimpleResponse(Status.OK, first)
            entry = header.last_entry + 1
        return SimpleResponse(Status.OK, entry)

    def _find_hole(self, request: FindHoleRequest) -> SimpleResponse:
        ledger = self.ledgers.get(request.ledger_id)
        if ledger is None:
            return SimpleResponse(Status.NO_SUCH_LEDGER)
        if ledger.is_deleted:
            return SimpleResponse(Status.DELETED)
        entry = request.first_entry
        while entry <= request.last_entry and (first := ledger.containing(entry)) is not None:
            entry = ledger.blocks[first][0].last_entry + 1
        status = Status.LIMBO if self.limbo and entry <= request.last_entry else Status.OK
        return SimpleResponse(status, min(entry, request.last_entry + 1))

    def _info(self, request: LedgerInfoRequest) -> LedgerInfo:
        ledger = self.ledgers.get(request.ledger_id)
        if ledger is None:
            return LedgerInfo(Status.NO_SUCH_LEDGER)
        last = ledger.blocks[ledger.firsts[-1]][0].last_entry if ledger.firsts else -1
        size = sum(len(content) for _, content in ledger.blocks.values())
        return LedgerInfo(Status.OK, last, ledger.lac, ledger.is_fenced, self.is_flushed, size)

    def _list(self, request: ListLedgersRequest) -> LedgerList:
        if self.lists_nothing:
            return LedgerList(Status.UNREACHABLE)
        found = sorted(each for each in self.ledgers if each >= request.first_ledger)[: request.count_max]
        return LedgerList(Status.OK, found, [each for each in found if self.ledgers[each].is_deleted])
