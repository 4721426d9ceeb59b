"""The bookie in process: a `BookiePort` that calls the storage node directly, as standalone does.

It passes the same contract test as the port over TCP. Standalone's
broker and bookie share one loop, so a block passes from one to the other by reference.
"""

from __future__ import annotations

from quire.bookie.storage import Storage
from quire.wire.bookie import (
    AddDone,
    AddRequest,
    DeleteRequest,
    FindHoleRequest,
    FindTimeRequest,
    LedgerInfo,
    LedgerInfoRequest,
    ReadRequest,
    ReadResponse,
    SimpleResponse,
    WriteLacRequest,
)


class LocalBookie:
    """See the top of the file; `BookiePort` says what each method means."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def add(self, request: AddRequest, done: AddDone) -> None:
        self._storage.add(request, done)

    async def read(self, request: ReadRequest) -> ReadResponse:
        return await self._storage.read(request)

    async def write_lac(self, request: WriteLacRequest) -> SimpleResponse:
        return await self._storage.write_lac(request)

    async def delete(self, request: DeleteRequest) -> SimpleResponse:
        return await self._storage.delete(request)

    async def find_time(self, request: FindTimeRequest) -> SimpleResponse:
        return await self._storage.find_time(request)

    async def find_hole(self, request: FindHoleRequest) -> SimpleResponse:
        return await self._storage.find_hole(request)

    async def ledger_info(self, request: LedgerInfoRequest) -> LedgerInfo:
        return await self._storage.ledger_info(request)
