"""Client of one bookie: a `BookiePort` over one TCP connection, with pipelined requests.

The client connects at the first request, and again at the first request after the connection was lost. Requests that
arrive while it connects wait. If the connection fails, is lost or times out, all requests in flight return
`UNREACHABLE`, because their outcome is unknown. After a failure, reconnecting backs off exponentially until a request
is answered. During the back-off, requests return `UNREACHABLE` at once, so a dead bookie does not cost a time-out per
request. (The kernel of a hanging process still accepts connections, so only an answer ends the back-off.)

Time-outs follow the observed latency of this bookie (`rtt`), separately for adds and other requests. An overdue add
closes the connection, because reconnecting distinguishes a slow bookie from a dead one. Any other overdue request
closes the connection only if nothing was received since the request was sent; otherwise, only this request fails. One
timer serves all requests. If the timer fires late, this process itself was delayed, and all deadlines are extended. TCP
keep-alive detects a dead peer while no request is in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, cast

from quire.ledger.rtt import RttEstimator
from quire.metadata.records import BookieRecord
from quire.runtime import slow
from quire.runtime.errors import ConfigurationError
from quire.runtime.network import keep_alive, peer_address
from quire.runtime.tasks import Tasks
from quire.runtime.tls import why_failed
from quire.security.tls import BetweenProcesses, FollowedContext
from quire.wire.bookie import AddDone, AddRequest, ReadRequest, Request, Status
from quire.wire.bookie_codec import (
    AddResponse,
    AnyRequest,
    BookieFrameCutter,
    BookieFrameError,
    Response,
    encode,
)
from quire.wire.ledger_ids import entry_to_tell

_log = logging.getLogger(__name__)

TIMEOUT_S: Final = (1.5, 10.0)
"""Bounds of the time-out of an add, in seconds. A low lower bound limits how long a hanging bookie delays a publish,
but a time-out of a live bookie costs an ensemble change. The upper bound allows for an fdatasync that takes seconds.
"""

OTHER_TIMEOUT_FACTOR: Final = 2
"""Factor on the lower bound for requests other than adds: reads from a cold disk take longer, and the caller can ask
another replica.
"""

USUAL_FACTOR: Final = 8.0
"""A request is overdue after this multiple of the usual response time."""

CONNECT_TIMEOUT_S: Final = 1.5
"""Time-out of the TCP and TLS handshakes: several round trips and one lost packet."""

RECONNECT_S: Final = (0.2, 3.0)
"""Back-off after the first failure, and its maximum, in seconds."""

TICK_S: Final = 0.1
"""Interval of the check for overdue requests while any are in flight."""

Answer = Callable[[Response | None], None]
"""Callback for one response; None means an unknown outcome."""


class _InFlight(NamedTuple):
    """Request in flight; times are those of the event loop."""

    sent_at: float
    deadline: float
    is_add: bool
    answer: Answer
    body: AnyRequest


def _log_slow(transport: asyncio.Transport | None, body: AnyRequest, took_s: float) -> None:
    """Log a response that took longer than `slow.BOUND`."""
    bookie = peer_address(transport).removeprefix("/")
    if isinstance(body, AddRequest):
        ledger, entry = entry_to_tell(body.blocks)
        what = f"{bookie} with {len(body.blocks)} blocks from entry {ledger}:{entry} on"
        slow.tell("answer of a bookie", what, took_s, bookie=bookie, ledger=ledger, entry=entry)
    elif isinstance(body, ReadRequest):
        ledger, entry = body.ledger_id, body.first_entry
        what = f"{bookie} reading from entry {ledger}:{entry} on"
        slow.tell("answer of a bookie", what, took_s, bookie=bookie, ledger=ledger, entry=entry)
    else:
        slow.tell("answer of a bookie", f"{bookie} to {type(body).__name__}", took_s, bookie=bookie)


class _Timeouts:
    """Time-outs of requests to one bookie, estimated over all connections to it."""

    def __init__(self, least_s: float, most_s: float) -> None:
        self._bounds = (least_s, most_s)
        self._adds = RttEstimator()
        self._others = RttEstimator()

    def observe(self, asked: _InFlight, now: float) -> None:
        (self._adds if asked.is_add else self._others).observe(now - asked.sent_at)

    def seconds(self, is_add: bool) -> float:
        least, most = self._bounds
        if is_add:
            return self._adds.timeout(USUAL_FACTOR, least, most)
        return self._others.timeout(USUAL_FACTOR, OTHER_TIMEOUT_FACTOR * least, most)


R = TypeVar("R")


class _Connection(asyncio.BufferedProtocol):
    """One TCP connection to the bookie: sends requests, and passes each response to its request's callback."""

    def __init__(self, lost: Callable[[_Connection, str], None], timeouts: _Timeouts) -> None:
        self._lost = lost
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._cutter = BookieFrameCutter()
        self._transport: asyncio.Transport | None = None
        self._in_flight: dict[int, _InFlight] = {}
        self._given_up: set[int] = set()
        """Ids of requests that timed out; late responses to them are ignored."""
        self._next_id = 1
        self._timer: asyncio.TimerHandle | None = None
        self._tick_at = 0.0
        self._received_at = 0.0
        self._reason = "the connection was closed"
        self.is_open = False
        self.has_answered = False

    def send(self, body: AnyRequest, answer: Answer) -> None:
        assert self._transport is not None and self.is_open
        now, is_add = self._loop.time(), isinstance(body, AddRequest)
        deadline = now + self._timeouts.seconds(is_add)
        self._in_flight[self._next_id] = _InFlight(now, deadline, is_add, answer, body)
        self._transport.writelines(encode(self._next_id, body))
        self._next_id += 1
        if self._timer is None:
            self._arm(now)

    def close(self, reason: str) -> None:
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio ---------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        keep_alive(transport)
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._cutter.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._cutter.received(nbytes)
        except BookieFrameError as error:
            return self.close(f"invalid frame: {error}")
        now = self._received_at = self._loop.time()
        for request_id, body in frames:
            asked = self._in_flight.pop(request_id, None)
            if asked is not None and isinstance(body, Response):
                self.has_answered = True
                self._timeouts.observe(asked, now)
                if now - asked.sent_at > slow.BOUND.s:
                    _log_slow(self._transport, asked.body, now - asked.sent_at)
                asked.answer(body)
            elif request_id in self._given_up:
                self._given_up.discard(request_id)
            else:
                return self.close("the bookie sent a response without a request")
        return None

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
        in_flight, self._in_flight = self._in_flight, {}
        self._lost(self, str(error) if error is not None else self._reason)
        for asked in in_flight.values():
            asked.answer(None)

    # -- time-outs -------------------------------------------------------------------------------------
    def _arm(self, now: float) -> None:
        self._tick_at = now + TICK_S
        self._timer = self._loop.call_at(self._tick_at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self._in_flight:
            return
        now = self._loop.time()
        late_s = now - self._tick_at
        self._arm(now)
        if late_s > TICK_S:
            self._extend_deadlines(late_s)
        else:
            self._expire_overdue(now)

    def _extend_deadlines(self, late_s: float) -> None:
        """Extend all deadlines by this process's delay, because responses that arrived during it are not read yet."""
        self._in_flight = {
            request_id: asked._replace(deadline=asked.deadline + late_s)
            for request_id, asked in self._in_flight.items()
        }

    def _expire_overdue(self, now: float) -> None:
        """Fail overdue requests.

        Close the connection if one of them is an add, or if nothing was received since one of them was sent.
        """
        overdue = [(each, asked) for each, asked in self._in_flight.items() if asked.deadline <= now]
        for _, asked in overdue:
            if asked.is_add or self._received_at < asked.sent_at:
                self.close(f"a request was not answered within {now - asked.sent_at:.1f} s")
                return
        for request_id, asked in overdue:
            del self._in_flight[request_id]
            self._given_up.add(request_id)
            asked.answer(None)


class BookieClient:
    """Client of the bookie at `address` (`host:port`), with TLS if `tls` is given.

    `timeout_s` and `reconnect_s` are (minimum, maximum) in seconds.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: FollowedContext | None = None,
        timeout_s: tuple[float, float] = TIMEOUT_S,
        reconnect_s: tuple[float, float] = RECONNECT_S,
    ) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigurationError(f"{address!r} is not a bookie's address; expected host:port")
        self.address = address
        self._host, self._port = host.strip("[]"), int(port)
        self._tls = tls
        self._timeouts = _Timeouts(*timeout_s)
        self._reconnect_first_s, self._reconnect_most_s = reconnect_s
        self._reconnect_s = self._reconnect_first_s
        self._connection: _Connection | None = None
        self._waiting: list[tuple[AnyRequest, Answer]] = []
        self._connecting: asyncio.Task[None] | None = None
        self._refuse_until = 0.0
        self._is_closed = False
        self._tasks = Tasks("bookie client")

    @classmethod
    def of(cls, record: BookieRecord, inside: BetweenProcesses | None = None) -> BookieClient:
        """Create a client of the bookie in `record`, with TLS if both sides support it or this process requires it."""
        by_tls = inside is not None and (record.tls or inside.required)
        return cls(record.address, tls=inside.client if inside is not None and by_tls else None)

    async def close(self) -> None:
        """Close the connection; all requests in flight return `UNREACHABLE`."""
        self._is_closed = True
        if self._connection is not None:
            self._connection.close("closed by this process")
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

    async def ask(self, request: Request[R]) -> R:
        answered: asyncio.Future[Response | None] = asyncio.get_running_loop().create_future()

        def answer(response: Response | None) -> None:
            if not answered.done():
                answered.set_result(response)

        self._send(request, answer)
        response: Any = await answered
        return response if isinstance(response, request.response) else request.refused(Status.UNREACHABLE)

    # -- inside ----------------------------------------------------------------------------------------
    def _send(self, request: AnyRequest, answer: Answer) -> None:
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
            context = None if self._tls is None else self._tls.current()
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._on_lost, self._timeouts), self._host, self._port, ssl=context
                )
        except Exception as error:  # also UnicodeError for an invalid host name
            self._back_off()
            why = "time-out" if isinstance(error, TimeoutError) else why_failed(error)
            _log.info("cannot connect to bookie at %s: %s", self.address, why)
            self._refuse_waiting()
        else:
            self._connection = connection
            waiting, self._waiting = self._waiting, []
            for request, answer in waiting:
                self._send_or_refuse(connection, request, answer)
        finally:
            self._connecting = None

    def _send_or_refuse(self, connection: _Connection, request: AnyRequest, answer: Answer) -> None:
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
            if connection.has_answered:
                self._reconnect_s = self._reconnect_first_s
            self._back_off()
        if not self._is_closed:
            _log.info("lost the connection to bookie at %s: %s", self.address, reason)

    def _back_off(self) -> None:
        self._refuse_until = asyncio.get_running_loop().time() + self._reconnect_s
        self._reconnect_s = min(2 * self._reconnect_s, self._reconnect_most_s)
