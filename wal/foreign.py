"""`BookiePort` to a WAL that this process does not write: another broker's WAL, or an ended one of its own.

It reads from a `view`: the index of the WAL's objects as of the last refresh. The view of an open WAL may be outdated:
all its entries exist, but entries that it lacks may exist as well.

| request | answer of a closed WAL | answer of an open WAL |
|---|---|---|
| read | the blocks; else NO_SUCH_ENTRY | the blocks, after a refresh if necessary; else UNREACHABLE |
| read with a fence | the same | close the WAL first, which ends all its ledgers; its writer begins another WAL |
| find a time or a hole, ledger info | from the view | the same, after a refresh |
| delete | OK; the tombstone is recorded for the WAL's keeper (`tombstones`) | the same |
| add by a recovery | OK if the same bytes are stored, else UNREACHABLE | UNREACHABLE |
| add, write LAC | UNREACHABLE, so that the ledger's writer changes its ensemble | the same |

A recovery first claims the ledger in the ledger's metadata record, and then reads with a fence. From a closed WAL it
receives the ledger's last entry as the LAC: blocks are uploaded in the order of their adds, so all blocks before the
end are durable. The recovery reads no block, so the takeover of a thousand ledgers reads only the rows of one WAL.
Other readers receive the greatest LAC of the blocks that they read, because the ledger's writer may be alive, and may
have continued from an earlier entry in another WAL.
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
from quire.wal.patience import as_quire_error
from quire.wal.proof import prove_missing
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
"""Seconds after which a caller that waits for a close gets UNREACHABLE; the close itself continues."""


class ForeignWal:
    """`BookiePort` of one WAL; the module's table lists its responses."""

    def __init__(self, context: WalContext, uuid: str) -> None:
        self._context = context
        self._uuid = uuid
        self._tasks = Tasks(f"foreign wal {uuid[:8]}")
        self.view = View(context, uuid)
        self._runs = RunReader(context.objects, self.view.index, context.cache)
        self._looked = False
        self._closing: asyncio.Task[QuireError | None] | None = None
        self._asking = 0
        self._asked_at_s = context.clock.monotonic()

    async def stop(self) -> None:
        await self._tasks.stop()

    @property
    def idle_s(self) -> float:
        """Seconds since the last request; 0 while a request is in progress."""
        if self._asking or len(self._tasks):
            return 0.0
        return self._context.clock.monotonic() - self._asked_at_s

    # -- the port ----------------------------------------------------------------------------------------
    def add(self, request: AddRequest, done: AddDone) -> None:
        self._asked_at_s = self._context.clock.monotonic()
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
        except Exception as error:
            return failed(as_quire_error(error, f"the comparison of a block of ledger {header.ledger_id}"))
        return Status.OK if found and same_bytes(found[0], block) else Status.UNREACHABLE

    async def ask(self, request: Request[R]) -> R:
        self._asking += 1
        try:
            answer: R = await self._answer_to(request)
        except QuireError as error:
            _log.warning("cannot answer a request for a block of wal-%s: %s", self._uuid, error)
            return request.refused(failed(error))
        finally:
            self._asking -= 1
            self._asked_at_s = self._context.clock.monotonic()
        return answer

    async def _answer_to(self, request: object) -> Any:
        match request:
            case ReadRequest():
                return await self._read(request)
            case DeleteRequest():
                return await self._delete(request)
            case FindTimeRequest():
                await self._look()
                return self._found_entry(
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
                await self.view.refresh()  # the WAL's record was removed
            except TimeoutError:
                return ReadResponse(Status.UNREACHABLE, detail=f"wal-{self._uuid} is still being closed")
        for look in range(LOOKS_MAX):
            try:
                blocks = await self._find(request, again=look > 0)
            except NotFound as error:
                if look < LOOKS_MAX - 1:
                    continue  # the object's blocks were copied into a set
                raise await prove_missing(
                    self._context.place, error, self._uuid, self.view.version
                ) from error
            except CorruptionError:
                if look == LOOKS_MAX - 1:
                    raise
                continue  # the blocks were copied into a set, and a late close has put a fence in the object's place
            lac = self._confirmed(request, blocks)
            if blocks and not self.view.is_deleted(request.ledger_id):
                return ReadResponse(Status.OK, lac, blocks)
            return ReadResponse(self._absent(request.ledger_id), lac)
        return ReadResponse(
            Status.UNREACHABLE, detail=f"wal-{self._uuid} changes faster than it can be read; try again"
        )

    def _confirmed(self, request: ReadRequest, blocks: Sequence[Buffer]) -> int:
        """Return the LAC: the ledger's last entry for a recovery, else the greatest LAC of the blocks."""
        if request.fence and self.view.is_final:
            return self.view.index.last_entry(request.ledger_id)
        return max((peek(block).lac for block in blocks), default=-1)

    async def _close(self) -> None:
        """Close the WAL. Concurrent callers share one close, which continues after a caller's `TimeoutError`."""
        if self._closing is None:
            self._closing = self._tasks.start(self._close_and_look(), "close")
        closing = self._closing
        done, _ = await asyncio.wait([closing], timeout=CLOSE_S)
        if not done:
            raise TimeoutError
        error = await closing
        if error is not None:
            raise error

    async def _close_and_look(self) -> QuireError | None:
        """Close the WAL and refresh the view. Return the error if that fails, else None."""
        try:
            await close_wal(self._context, self._uuid)
            await self.view.refresh()
            assert self.view.is_final
        except QuireError as error:
            return error
        finally:
            self._closing = None
        return None

    async def _find(self, request: ReadRequest, *, again: bool) -> list[Buffer]:
        """Return the requested blocks. If the view of an open WAL lacks them, refresh it first."""
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

    def _found_entry(self, ledger_id: int, entry: int) -> SimpleResponse:
        if self.view.is_deleted(ledger_id):
            return SimpleResponse(Status.DELETED)
        return SimpleResponse(Status.OK, entry)

    async def _find_hole(self, request: FindHoleRequest) -> SimpleResponse:
        await self._look(again=not self.view.is_final)
        entry = find_hole(self.view.index, (), request.ledger_id, request.first_entry, request.last_entry)
        if entry <= request.last_entry and not self.view.is_final:
            return SimpleResponse(Status.UNREACHABLE)
        return self._found_entry(request.ledger_id, entry)

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
