"""A bookie across the network: a `BookiePort` over one TCP connection, with requests in flight side by side.

The connection is made when it is first needed and again when a request finds it lost. Requests that arrive meanwhile
wait for it. When it cannot be made, or is lost, or does not answer in time, what is in flight is answered
`UNREACHABLE`: the outcome is unknown, and what to do about that is the asker's matter. After a failure the next attempt
waits, longer each time until a request was answered, and requests are refused at once until then, so that a dead bookie
costs nobody a time-out per request. (A stopped process still accepts connections: being connected proves nothing.)

The time-out follows what is usual for this bookie (`Patience`), adds and other requests apart. An overdue add closes
the connection, for a fresh one tells a slow bookie from a dead one, and a later answer would have no one to go
to. So does any overdue request when nothing at all has come since it was sent; else it alone is given up. One timer
serves all requests; when it fires late, this process was held up and judges nobody. Keep-alive probes find out about a
peer that is gone while there is nothing to ask it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, cast

from quire.ledger.patience import Patience
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
"""Least and most for an answer to an add. The least bounds how long a publish may wait for a bookie that hangs; a false
alarm costs an ensemble change. An fdatasync on a busy disk may take seconds."""

OTHER_TIMEOUT_FACTOR: Final = 2
"""Reads from a cold disk take longer, and somebody else can be asked meanwhile."""

USUAL_FACTOR: Final = 8.0
"""So many times what is usual is too long."""

CONNECT_TIMEOUT_S: Final = 1.5
RECONNECT_S: Final = (0.2, 3.0)
"""Wait after a first failure, and after many; until then requests are refused at once."""

TICK_S: Final = 0.1
"""How often is looked for overdue requests while there are any."""

Answer = Callable[[Response | None], None]
"""Called once, with None when the outcome is unknown."""


class _Asked(NamedTuple):
    """A request in flight; times are the loop's."""

    sent_at: float
    deadline: float
    is_add: bool
    answer: Answer
    body: AnyRequest


def _tell_slow(transport: asyncio.Transport | None, body: AnyRequest, took_s: float) -> None:
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
        slow.tell("answer of a bookie", f"{bookie} to a {type(body).__name__}", took_s, bookie=bookie)


class _Timeouts:
    """What this bookie is given: learnt over all its connections."""

    def __init__(self, least_s: float, most_s: float) -> None:
        self._bounds = (least_s, most_s)
        self._adds = Patience()
        self._others = Patience()

    def observe(self, asked: _Asked, now: float) -> None:
        (self._adds if asked.is_add else self._others).observe(now - asked.sent_at)

    def seconds(self, is_add: bool) -> float:
        least, most = self._bounds
        if is_add:
            return self._adds.bound(USUAL_FACTOR, least, most)
        return self._others.bound(USUAL_FACTOR, OTHER_TIMEOUT_FACTOR * least, most)


R = TypeVar("R")


class _Connection(asyncio.BufferedProtocol):
    """One TCP connection: frames out, answers in, until it is lost."""

    def __init__(self, lost: Callable[[_Connection, str], None], timeouts: _Timeouts) -> None:
        self._lost = lost
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._cutter = BookieFrameCutter()
        self._transport: asyncio.Transport | None = None
        self._in_flight: dict[int, _Asked] = {}
        self._given_up: set[int] = set()
        """Requests whose answers nobody waits for any more."""
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
        self._in_flight[self._next_id] = _Asked(now, deadline, is_add, answer, body)
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
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not one by inheritance
        keep_alive(transport)
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._cutter.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._cutter.received(nbytes)
        except BookieFrameError as error:
            return self.close(f"it does not speak our protocol: {error}")
        now = self._received_at = self._loop.time()
        for request_id, body in frames:
            asked = self._in_flight.pop(request_id, None)
            if asked is not None and isinstance(body, Response):
                self.has_answered = True
                self._timeouts.observe(asked, now)
                if now - asked.sent_at > slow.BOUND.s:
                    _tell_slow(self._transport, asked.body, now - asked.sent_at)
                asked.answer(body)
            elif request_id in self._given_up:
                self._given_up.discard(request_id)
            else:
                return self.close("it answered what nobody asked")
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
            self._excuse(late_s)
        else:
            self._check(now)

    def _excuse(self, late_s: float) -> None:
        """This process was held up: what came meanwhile is not read yet, so everybody gets that time again."""
        self._in_flight = {
            request_id: asked._replace(deadline=asked.deadline + late_s)
            for request_id, asked in self._in_flight.items()
        }

    def _check(self, now: float) -> None:
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
    """`address` is `host:port`; time-outs and waits are given as (least, most); `tls`: it is called by TLS."""

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
            raise ConfigurationError(f"{address!r} is not the address of a bookie (host:port)")
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
        """By TLS where both sides can, and whatever the bookie says where it is required."""
        by_tls = inside is not None and (record.tls or inside.required)
        return cls(record.address, tls=inside.client if inside is not None and by_tls else None)

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
        except Exception as error:  # a UnicodeError for a name that no host can have; all must be answered
            self._back_off()
            why = "time-out" if isinstance(error, TimeoutError) else why_failed(error)
            _log.info("bookie at %s cannot be reached: %s", self.address, why)
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
            _log.info("the connection to the bookie at %s was lost: %s", self.address, reason)

    def _back_off(self) -> None:
        self._refuse_until = asyncio.get_running_loop().time() + self._reconnect_s
        self._reconnect_s = min(2 * self._reconnect_s, self._reconnect_most_s)
