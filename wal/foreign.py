"""A WAL that this process does not write, as a `BookiePort`: of another broker, or an own one that has ended.

What it knows of the WAL is a `view`. Of an open WAL that may be old: a look that finds an entry is good, and one that
does not says nothing.

| request | the WAL is closed | it is open |
|---|---|---|
| read | the blocks; else NO_SUCH_ENTRY | the blocks, after another look if need be; else UNREACHABLE |
| read with a fence | the same | it is closed first, and with it all its ledgers: its writer begins another one |
| find a time, a hole, tell of a ledger | as far as the view goes | the same, after a look |
| delete | the tombstone waits for the WAL's keeper (`tombstones`) | the same |
| add by a recovery | OK when the same bytes are there, else UNREACHABLE | UNREACHABLE |
| add, write LAC | UNREACHABLE: go on elsewhere | the same |

To a recovery, which has claimed the ledger and reads with a fence, the LAC of a ledger in a closed WAL is its last
entry: blocks are uploaded in the order in which they were added, and what lies before the end is durable with all
before it. So a recovery reads no block, and the takeover of a thousand ledgers costs the rows of one WAL. Others hear
only what the blocks tell: the ledger's writer may live, and have gone on from an earlier entry with another WAL.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from quire.bookie.index import find_hole
from quire.metadata import paths
from quire.runtime.errors import CorruptionError, NotFound, QuireError
from quire.runtime.limits import READ_BYTES_MAX
from quire.runtime.tasks import Tasks
from quire.wal import tombstones
from quire.wal.closing import close_wal
from quire.wal.context import WalContext
from quire.wal.reads import failed
from quire.wal.run_reader import RunReader
from quire.wal.view import LOOKS_MAX, View
from quire.wire.block import Buffer, peek, same_bytes
from quire.wire.bookie import (
    AddDone,
    AddRequest,
    DeleteRequest,
    FindHoleRequest,
    FindTimeRequest,
    LedgerInfo,
    LedgerInfoRequest,
    ListLedgersRequest,
    ReadRequest,
    ReadResponse,
    Request,
    SimpleResponse,
    Status,
)

R = TypeVar("R")
_log = logging.getLogger(__name__)

CLOSE_S: Final = 30.0
"""A close that takes longer goes on with the next who asks; who waits is told that the WAL does not answer."""


class ForeignWal:
    """A `BookiePort`."""

    def __init__(self, context: WalContext, uuid: str) -> None:
        self._context = context
        self._uuid = uuid
        self._tasks = Tasks(f"wal {uuid[:8]} of others")
        self.view = View(context, uuid)
        self._runs = RunReader(context.objects, self.view.index, context.cache)
        self._looked = False
        self._closing = asyncio.Lock()

    async def stop(self) -> None:
        await self._tasks.stop()

    # -- the port ----------------------------------------------------------------------------------------
    def add(self, request: AddRequest, done: AddDone) -> None:
        self._tasks.start(self._compare_all(request, done), "compare blocks")

    async def _compare_all(self, request: AddRequest, done: AddDone) -> None:
        if not request.recovery or not self.view.is_final:
            done([Status.UNREACHABLE] * len(request.blocks))
            return
        done([await self._compare(block) for block in request.blocks])

    async def _compare(self, block: Buffer) -> Status:
        header = peek(block)
        if self.view.is_deleted(header.ledger_id):
            return Status.DELETED
        try:
            found = await self._runs.read(header.ledger_id, header.first_entry, 1)
        except QuireError as error:
            return failed(error)
        return Status.OK if found and same_bytes(found[0], block) else Status.UNREACHABLE

    async def ask(self, request: Request[R]) -> R:
        try:
            answer: R = await self._answer_to(request)
        except QuireError as error:
            _log.warning("wal-%s cannot answer: %s", self._uuid, error)
            return request.refused(failed(error))
        return answer

    async def _answer_to(self, request: object) -> Any:
        match request:
            case ReadRequest():
                return await self._read(request)
            case DeleteRequest():
                return await self._delete(request)
            case FindTimeRequest():
                await self._look()
                return self._told(
                    request.ledger_id, self.view.index.find_time(request.ledger_id, request.time_ms)
                )
            case FindHoleRequest():
                return await self._find_hole(request)
            case LedgerInfoRequest():
                return await self._info(request.ledger_id)
            case ListLedgersRequest():
                return request.refused(Status.BAD_REQUEST)
        return SimpleResponse(Status.UNREACHABLE)

    async def _delete(self, request: DeleteRequest) -> SimpleResponse:
        metadata = self._context.metadata
        try:
            await metadata.get(paths.wal(self._uuid))
        except NotFound:
            return SimpleResponse(Status.NO_SUCH_LEDGER)
        await tombstones.lay(metadata, self._uuid, request.ledger_id, request.version)
        return SimpleResponse(Status.OK)

    # -- reading -----------------------------------------------------------------------------------------
    async def _read(self, request: ReadRequest) -> ReadResponse:
        if request.fence and not self.view.is_final:
            try:
                await self._close()
            except NotFound:
                await self.view.refresh()  # the WAL has no record any more
            except TimeoutError:
                return ReadResponse(Status.UNREACHABLE, detail=f"wal-{self._uuid} could not be closed yet")
        for look in range(LOOKS_MAX):
            try:
                blocks = await self._find(request, again=look > 0)
            except NotFound:
                continue  # a set was made of it
            except CorruptionError:
                if look == LOOKS_MAX - 1:
                    raise
                continue  # the same, and somebody who was late has put a fence there
            lac = self._confirmed(request, blocks)
            if blocks and not self.view.is_deleted(request.ledger_id):
                return ReadResponse(Status.OK, lac, blocks)
            return ReadResponse(self._absent(request.ledger_id), lac)
        return ReadResponse(Status.UNREACHABLE, detail=f"wal-{self._uuid} changes while it is read")

    def _confirmed(self, request: ReadRequest, blocks: Sequence[Buffer]) -> int:
        """To a recovery, which has claimed the ledger, all that is here; to others what the blocks tell."""
        if request.fence and self.view.is_final:
            return self.view.index.last_entry(request.ledger_id)
        return max((peek(block).lac for block in blocks), default=-1)

    async def _close(self) -> None:
        """Once for all who ask meanwhile."""
        async with self._closing:
            if self.view.is_final:
                return
            context = self._context
            async with asyncio.timeout(CLOSE_S):
                await close_wal(context.objects, context.metadata, context.clock, self._uuid, context.broker)
            await self.view.refresh()
            assert self.view.is_final

    async def _find(self, request: ReadRequest, *, again: bool) -> list[Buffer]:
        """The blocks; a view that may have become old is made newer before they are said not to be there."""
        ledger_id, entry = request.ledger_id, request.first_entry
        await self._look(again=again)
        if self.view.index.find(ledger_id, entry) is None and not self.view.is_final:
            await self._look(again=True)
        return await self._runs.read(ledger_id, entry, min(request.bytes_max, READ_BYTES_MAX))

    async def _look(self, *, again: bool = False) -> None:
        if again or not self._looked:
            await self.view.refresh()
            self._looked = True

    def _absent(self, ledger_id: int) -> Status:
        if self.view.is_deleted(ledger_id):
            return Status.DELETED
        return Status.NO_SUCH_ENTRY if self.view.is_final else Status.UNREACHABLE

    def _told(self, ledger_id: int, entry: int) -> SimpleResponse:
        if self.view.is_deleted(ledger_id):
            return SimpleResponse(Status.DELETED)
        return SimpleResponse(Status.OK, entry)

    async def _find_hole(self, request: FindHoleRequest) -> SimpleResponse:
        await self._look(again=not self.view.is_final)
        entry = find_hole(self.view.index, (), request.ledger_id, request.first_entry, request.last_entry)
        if entry <= request.last_entry and not self.view.is_final:
            return SimpleResponse(Status.UNREACHABLE)
        return self._told(request.ledger_id, entry)

    async def _info(self, ledger_id: int) -> LedgerInfo:
        await self._look(again=not self.view.is_final)
        if self.view.is_deleted(ledger_id):
            return LedgerInfo(Status.DELETED, fenced=True)
        last_entry = self.view.index.last_entry(ledger_id)
        return LedgerInfo(
            Status.OK,
            last_entry=last_entry,
            lac=-1,
            fenced=self.view.is_final,
            flushed=True,
            bytes=self.view.index.bytes_of(ledger_id),
        )
