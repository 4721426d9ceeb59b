"""A bookie across the network: a `BookiePort` over one TCP connection, with requests in flight side by side.

The connection is made when it is first needed and again when a request finds it lost. Requests that arrive meanwhile
wait for it. When it cannot be made, or is lost, or the oldest request is not answered in time, everything in flight is
answered `UNREACHABLE`: the outcome is unknown, and what to do about that is the asker's matter. After a failure the
next attempt waits a little, and requests are refused at once until then, so that a dead bookie costs nobody a time-out
per request.

A time-out closes the connection: an answer that comes later has no one to go to, and a fresh connection tells a slow
bookie from a dead one. One timer serves all requests of a connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeVar, cast

from quire.metadata.records import BookieRecord
from quire.runtime.errors import ConfigurationError
from quire.runtime.tasks import Tasks
from quire.wire.bookie import (
    AddDone,
    AddRequest,
    DeleteRequest,
    FindTimeRequest,
    LedgerInfo,
    LedgerInfoRequest,
    ReadRequest,
    ReadResponse,
    SimpleResponse,
    Status,
    WriteLacRequest,
)
from quire.wire.bookie_codec import (
    AddResponse,
    BookieFrameCutter,
    BookieFrameError,
    Request,
    Response,
    encode,
)

_log = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
"""For an answer: an fdatasync on a busy disk may take seconds, and a false alarm costs an ensemble change."""

CONNECT_TIMEOUT_S: Final = 3.0
RECONNECT_S: Final = 0.2
"""After a failure; until then requests are refused at once."""

Answer = Callable[[Response | None], None]
"""Called once, with None when the outcome is unknown."""

R = TypeVar("R", ReadResponse, SimpleResponse, LedgerInfo)


class _Connection(asyncio.BufferedProtocol):
    """One TCP connection: frames out, answers in, until it is lost."""

    def __init__(self, lost: Callable[[_Connection, str], None], timeout_s: float) -> None:
        self._lost = lost
        self._timeout_s = timeout_s
        self._cutter = BookieFrameCutter()
        self._transport: asyncio.Transport | None = None
        self._in_flight: dict[int, tuple[float, Answer]] = {}
        self._next_id = 1
        self._timer: asyncio.TimerHandle | None = None
        self._reason = "the connection was closed"
        self.is_open = False

    def send(self, body: Request, answer: Answer) -> None:
        assert self._transport is not None and self.is_open
        now = asyncio.get_running_loop().time()
        self._in_flight[self._next_id] = (now + self._timeout_s, answer)
        self._transport.writelines(encode(self._next_id, body))
        self._next_id += 1
        if self._timer is None:
            self._arm(self._timeout_s)

    def close(self, reason: str) -> None:
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio ---------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not one by inheritance
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._cutter.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._cutter.received(nbytes)
        except BookieFrameError as error:
            return self.close(f"it does not speak our protocol: {error}")
        for frame in frames:
            waiting = self._in_flight.pop(frame.request_id, None)
            if waiting is None or isinstance(frame.body, Request):
                return self.close("it answered what nobody asked")
            waiting[1](frame.body)
        return None

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
        in_flight, self._in_flight = self._in_flight, {}
        self._lost(self, str(error) if error is not None else self._reason)
        for _, answer in in_flight.values():
            answer(None)

    # -- time-outs -------------------------------------------------------------------------------------
    def _arm(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._check)

    def _check(self) -> None:
        """Requests are in the order of their deadlines: look at the oldest."""
        self._timer = None
        oldest = next(iter(self._in_flight.values()), None)
        if oldest is None:
            return
        left_s = oldest[0] - asyncio.get_running_loop().time()
        if left_s <= 0:
            self.close(f"a request was not answered within {self._timeout_s:g} s")
        else:
            self._arm(left_s)


class BookieClient:
    """See the top of the file. `address` is `host:port`."""

    def __init__(
        self, address: str, *, timeout_s: float = TIMEOUT_S, reconnect_s: float = RECONNECT_S
    ) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigurationError(f"{address!r} is not the address of a bookie (host:port)")
        self.address = address
        self._host, self._port = host.strip("[]"), int(port)
        self._timeout_s = timeout_s
        self._reconnect_s = reconnect_s
        self._connection: _Connection | None = None
        self._waiting: list[tuple[Request, Answer]] = []
        self._connecting: asyncio.Task[None] | None = None
        self._refuse_until = 0.0
        self._is_closed = False
        self._tasks = Tasks("bookie client")

    @classmethod
    def of(cls, record: BookieRecord) -> BookieClient:
        """For `ClusterDirectory(store, BookieClient.of)`."""
        return cls(record.address)

    async def close(self) -> None:
        """Everything in flight is answered `UNREACHABLE`."""
        self._is_closed = True
        if self._connection is not None:
            self._connection.close("this side closed it")
        await self._tasks.stop()
        self._refuse_waiting()

    # -- the port --------------------------------------------------------------------------------------
    def add(self, request: AddRequest, done: AddDone) -> None:
        def answer(response: Response | None) -> None:
            if isinstance(response, AddResponse) and len(response.statuses) == len(request.blocks):
                done(response.statuses)
            else:
                done([Status.UNREACHABLE] * len(request.blocks))

        self._send(request, answer)

    async def read(self, request: ReadRequest) -> ReadResponse:
        return await self._ask(request, ReadResponse)

    async def write_lac(self, request: WriteLacRequest) -> SimpleResponse:
        return await self._ask(request, SimpleResponse)

    async def delete(self, request: DeleteRequest) -> SimpleResponse:
        return await self._ask(request, SimpleResponse)

    async def find_time(self, request: FindTimeRequest) -> SimpleResponse:
        return await self._ask(request, SimpleResponse)

    async def ledger_info(self, request: LedgerInfoRequest) -> LedgerInfo:
        return await self._ask(request, LedgerInfo)

    # -- inside ----------------------------------------------------------------------------------------
    async def _ask(self, request: Request, kind: type[R]) -> R:
        answered: asyncio.Future[Response | None] = asyncio.get_running_loop().create_future()

        def answer(response: Response | None) -> None:
            if not answered.done():
                answered.set_result(response)

        self._send(request, answer)
        response = await answered
        return response if isinstance(response, kind) else kind(Status.UNREACHABLE)

    def _send(self, request: Request, answer: Answer) -> None:
        if self._connection is not None and self._connection.is_open:
            self._connection.send(request, answer)
            return
        loop = asyncio.get_running_loop()
        if self._is_closed or loop.time() < self._refuse_until:
            loop.call_soon(answer, None)
            return
        self._waiting.append((request, answer))
        if self._connecting is None:
            self._connecting = self._tasks.start(self._connect(), f"connect to {self.address}")

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._on_lost, self._timeout_s), self._host, self._port
                )
        except (OSError, TimeoutError) as error:
            self._refuse_until = loop.time() + self._reconnect_s
            _log.info("bookie at %s cannot be reached: %s", self.address, str(error) or "time-out")
            self._refuse_waiting()
        else:
            self._connection = connection
            waiting, self._waiting = self._waiting, []
            for request, answer in waiting:
                self._send_or_refuse(connection, request, answer)
        finally:
            self._connecting = None

    def _send_or_refuse(self, connection: _Connection, request: Request, answer: Answer) -> None:
        if connection.is_open:
            connection.send(request, answer)
        else:
            answer(None)

    def _refuse_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for _, answer in waiting:
            answer(None)

    def _on_lost(self, connection: _Connection, reason: str) -> None:
        if self._connection is connection:
            self._connection = None
            self._refuse_until = asyncio.get_running_loop().time() + self._reconnect_s
        if not self._is_closed:
            _log.info("the connection to the bookie at %s was lost: %s", self.address, reason)
