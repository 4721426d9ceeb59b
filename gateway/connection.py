"""A client's connection to the gateway. Its CONNECT selects between a relay and lookups.

    CONNECT with proxy_to_broker_url   relay: forward the CONNECT to that broker, then all bytes in both directions
    CONNECT without                    lookups only, which the gateway forwards to brokers; see `lookups`

The gateway connects only to registered brokers, so clients cannot use it to reach other hosts of the brokers' network.
If clients log in at the gateway (`login`), the forwarded CONNECT has the gateway's credentials and the client's role;
otherwise it carries the client's own credentials to the broker, which verifies them.

The gateway pauses reading from a client (`Stop`) while its CONNECT is processed, while it does not read its responses,
while too many of its requests are open, and briefly when it exceeds its request rate. Long responses are fetched one at
a time, and only while the client reads. A client that does not send CONNECT in time, or no longer answers a PING, is
disconnected. In a relay, the broker sends the pings.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from enum import Flag, auto
from functools import partial
from typing import Any, Final, Protocol, cast

from quire.gateway.brokers import Brokers
from quire.gateway.frames import QUESTION_BYTES_MAX, CommandCutter
from quire.gateway.login import Proxy
from quire.gateway.lookups import ANSWER_OF, Lookups, dial_until_deadline
from quire.gateway.relay import keep_tcp_alive, splice
from quire.runtime.errors import ProtocolError, QuireError, TooMany
from quire.runtime.limits import HANDSHAKE_S, KIB
from quire.runtime.network import peer_address
from quire.runtime.rate_queue import RequestRate
from quire.runtime.tasks import Tasks
from quire.runtime.tls import peer_certificate
from quire.security.connections import Connections
from quire.security.identity import Identity, Presented
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.commands import Command
from quire.wire.error_codes import code_of

log = logging.getLogger(__name__)

QUESTIONS_MAX: Final = 1_000
"""Maximum number of open requests of one client."""

LONG: Final = frozenset((pb.BaseCommand.GET_TOPICS_OF_NAMESPACE, pb.BaseCommand.GET_SCHEMA))
"""Requests whose responses may be long. Responses to a client's other requests are short, even together."""

WRITE_HIGH_BYTES: Final = 256 * KIB

LOOK_S_MAX: Final = 86_400.0
"""Maximum seconds after which a connection with expiring credentials is closed, even if they expire later."""


def _hello(body: pb.CommandConnect) -> bytes:
    return commands.whole(pb.BaseCommand.CONNECT, body)


def _hello_for(proxy: Proxy, body: pb.CommandConnect, identity: Identity) -> bytes:
    return _hello(proxy.connect(body, identity))


class Stop(Flag):
    """Reason to pause reading from a client; see the top of the file."""

    CONNECTING = auto()
    UNREAD = auto()
    QUESTIONS = auto()
    RATE = auto()


class Host(Protocol):
    """Interface of the gateway to its connections."""

    brokers: Brokers
    proxy: Proxy | None
    tasks: Tasks
    connections: Connections[Connection]
    requests_per_s: int
    """Maximum requests per second of one client; 0: no limit."""

    def opened(self, connection: Connection, address: str) -> None:
        """Count a new connection. Raises `TooMany`."""
        ...

    def too_fast(self) -> None:
        """Count a client that exceeds its request rate."""
        ...

    def refused(self, error: TooMany) -> None:
        """Count a connection refused because of a limit."""
        ...

    def closed(self, connection: Connection) -> None: ...

    def relay_begins(
        self, connection: Connection, address: str, client: asyncio.Transport, broker: asyncio.Transport
    ) -> Callable[[], None]:
        """Count a relay between `client` and `broker`; return the function to call when the relay ends."""
        ...

    def relayed(self, size_bytes: int) -> None: ...

    def looked_up(self) -> None: ...


class Connection(asyncio.Protocol):
    def __init__(self, host: Host) -> None:
        self._host = host
        self._cutter = CommandCutter(QUESTION_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._lookups: Lookups | None = None
        self._stops = Stop(0)
        self._pending: set[asyncio.Task[None]] = set()
        self._one_long = asyncio.Lock()
        self._is_read = asyncio.Event()
        self._is_read.set()
        per_s = host.requests_per_s
        self._rate = RequestRate(per_s, self._too_fast, partial(self._resume, Stop.RATE)) if per_s else None
        self._handshake: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self.identity: Identity | None = None
        """Identity of the client; None without authentication, and before CONNECT."""
        self._was_heard = True
        self._was_pinged = False
        self._unsent_bytes = 0
        """Bytes in the write buffer at the last check of whether the client reads."""

    @property
    def address(self) -> str:
        """`/host:port` of the client."""
        return peer_address(self._transport)

    # -- callbacks of asyncio ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from it
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        keep_tcp_alive(self._transport)
        late = ProtocolError(f"no CONNECT was received within {HANDSHAKE_S:g} s")
        self._handshake = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.refuse, late)
        try:
            self._host.opened(self, self.address)
        except TooMany as error:
            self.refuse(error)

    def data_received(self, data: bytes) -> None:
        self._was_heard = True
        self._cutter.feed(data)
        self._go_on()

    def pause_writing(self) -> None:
        self._is_read.clear()
        self._stop(Stop.UNREAD)

    def resume_writing(self) -> None:
        self._is_read.set()
        self._resume(Stop.UNREAD)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        for task in self._pending:
            task.cancel()
        if self._lookups is not None:
            self._lookups.close()
        if self._rate is not None:
            self._rate.close()
            self._rate = None
        self._host.closed(self)

    def keep_alive(self) -> None:
        """Send a ping after an interval without activity, and disconnect after another one.

        Reading responses also counts as activity.
        """
        transport = self._transport
        if self._lookups is None or transport is None or Stop.CONNECTING in self._stops:
            return
        unsent = transport.get_write_buffer_size()
        if self._was_heard or unsent < self._unsent_bytes:
            self._was_heard = self._was_pinged = False
        elif not self._was_pinged:
            self._was_pinged = True
            self._write(commands.PING)
            unsent = transport.get_write_buffer_size()
        else:
            log.info("closing the connection of %s, which did not answer a ping", self.address)
            transport.abort()
        self._unsent_bytes = unsent

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # -- commands --------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        try:
            while not self._stops and (command := self._cutter.next()) is not None:
                self._take(command)
        except QuireError as error:
            self.refuse(error)

    def _stop(self, why: Stop) -> None:
        self._stops |= why
        if self._transport is not None:
            self._transport.pause_reading()

    def _resume(self, why: Stop) -> None:
        """Remove a reason to pause. Buffered commands are processed first, which may pause reading again."""
        if why not in self._stops:
            return
        self._stops &= ~why
        self._go_on()
        if not self._stops and self._transport is not None:
            self._transport.resume_reading()

    def _take(self, command: Command) -> None:
        if self._lookups is None:
            self._connect(command)
        elif command.kind in ANSWER_OF:
            if self._rate is not None:
                self._rate.count()
            self._start(self._answer(self._lookups, command))
        elif command.kind == pb.BaseCommand.PING:
            self._write(commands.PONG)
        elif command.kind not in (pb.BaseCommand.PONG, pb.BaseCommand.AUTH_RESPONSE):
            name = pb.BaseCommand.Type.Name(command.kind)
            raise ProtocolError(
                f"{name} is not allowed on a lookup connection: look the topic up, then connect with the broker's URL"
            )

    def _connect(self, command: Command) -> None:
        body = command.body
        if not isinstance(body, pb.CommandConnect):
            raise ProtocolError("the first command must be CONNECT")
        target = body.proxy_to_broker_url
        body.ClearField("proxy_to_broker_url")
        address = self._host.brokers.address(target)
        if target and not address:
            raise ProtocolError(f"{target} is not a registered broker; look the topic up again")
        if self._handshake is not None:
            self._handshake.cancel()
        self._stop(Stop.CONNECTING)
        self._start(self._log_in(body, address))

    async def _log_in(self, body: pb.CommandConnect, address: str) -> None:
        """Authenticate the client, if the gateway is configured to; then relay to `address`, or answer lookups."""
        proxy, transport = self._host.proxy, self._transport
        hello: Callable[[], bytes] = partial(_hello, body)
        identity = None
        if proxy is not None and transport is not None:
            certificate = peer_certificate(transport)
            presented = Presented(body.auth_method_name, body.auth_data, certificate, self.address)
            identity = await proxy.log_in(presented, body.original_principal)
            self.identity = identity
            self._end_with(identity)
            hello = partial(_hello_for, proxy, body, identity)
        self._host.connections.logged_in(self, identity)
        await (self._relay(address, hello()) if address else self._begin(hello))

    def _end_with(self, identity: Identity) -> None:
        """Close the connection when its credentials expire; the client reconnects with new ones."""
        if identity.expires_ms is not None:
            left_s = identity.expires_ms / 1000 - time.time()
            self._expiry = asyncio.get_running_loop().call_later(
                min(max(0.0, left_s), LOOK_S_MAX), self.close
            )

    async def _relay(self, address: str, hello: bytes) -> None:
        broker = await dial_until_deadline(address, self._host.brokers)
        client = self._transport
        assert client is not None
        if client.is_closing() or broker.is_closing():
            broker.close()
            client.close()
            return
        self._rate = None  # the broker limits the request rate of relayed commands
        # No `await` from here on, so that no bytes can arrive in between.
        broker.write(hello + self._cutter.take_rest())
        ended = self._host.relay_begins(self, address, client, broker)

        def over() -> None:
            if self._expiry is not None:
                self._expiry.cancel()
            ended()

        splice(client, broker, self._host.relayed, over)
        client.resume_reading()

    async def _begin(self, hello: Callable[[], bytes]) -> None:
        self._lookups = Lookups(self._host.brokers, hello)
        welcome = await self._lookups.begin()
        self._write(commands.whole(*welcome))
        if welcome.kind != pb.BaseCommand.CONNECTED:
            self.close()
            return
        self._resume(Stop.CONNECTING)

    async def _answer(self, lookups: Lookups, question: Command) -> None:
        self._host.looked_up()
        async with self._one_long if question.kind in LONG else nullcontext():
            await self._is_read.wait()
            self._write(await lookups.answer(question))

    def _too_fast(self) -> None:
        self._host.too_fast()
        self._stop(Stop.RATE)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._host.tasks.start(self._or_refuse(work), "answer a client")
        self._pending.add(task)
        task.add_done_callback(self._ended)
        if len(self._pending) >= QUESTIONS_MAX:
            self._stop(Stop.QUESTIONS)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._pending.discard(task)
        self._resume(Stop.QUESTIONS)

    async def _or_refuse(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except QuireError as error:
            self.refuse(error)

    # -- output ----------------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def refuse(self, error: QuireError) -> None:
        """Send the error to the client, and close its connection."""
        if isinstance(error, TooMany):
            self._host.refused(error)
        log.info("closing a client's connection: %s", error)
        self._write(commands.error(commands.NO_REQUEST, code_of(error), str(error)))
        self.close()
