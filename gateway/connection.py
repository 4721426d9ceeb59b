"""One client connection. Its CONNECT decides what it is.

    CONNECT with proxy_to_broker_url   a relay: the CONNECT goes on to that broker, then bytes both ways as they are
    CONNECT without                    questions only, which are put to brokers; see `lookups`

Only registered brokers are ever connected to, whatever a client names: a gateway is no door into their network.
Where clients log in here (`login`), the CONNECT that goes on has the gateway's credentials and the client's role;
elsewhere the client's own travel in it to the broker, which judges them.

A client is not read (`Stop`) while its CONNECT is being answered, while it does not read its answers, while many of
its questions are open, and for a moment when it asks more in a second than it may; long answers are fetched one after
the other, and only for a client that reads. One that does not say CONNECT in time, or no longer answers a PING, is
gone. Along a relay it is the broker that pings.
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
from quire.gateway.lookups import ANSWER_OF, Lookups, dial, whole
from quire.gateway.relay import keep_tcp_alive, splice
from quire.runtime.errors import ProtocolError, QuireError, TooMany, Unavailable
from quire.runtime.limits import HANDSHAKE_S, KIB
from quire.runtime.network import peer_address
from quire.runtime.request_rate import RequestRate
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
"""Open questions of one client."""

LONG: Final = frozenset((pb.BaseCommand.GET_TOPICS_OF_NAMESPACE, pb.BaseCommand.GET_SCHEMA))
"""What has long answers. All others are short, also together."""

WRITE_HIGH_BYTES: Final = 256 * KIB

DIAL_S_MAX: Final = 8.0
"""Below the 10 s after which stock clients give a connection up."""

RETRY_S: Final = 0.1

LOOK_S_MAX: Final = 86_400.0
"""A connection whose credentials hold longer is closed once a day: a timer is not for years."""


def _hello(body: pb.CommandConnect) -> bytes:
    return whole(Command(pb.BaseCommand.CONNECT, body))


def _hello_for(proxy: Proxy, body: pb.CommandConnect, identity: Identity) -> bytes:
    return _hello(proxy.connect(body, identity))


class Stop(Flag):
    """Why a client is not read; see the top of the file."""

    CONNECTING = auto()
    UNREAD = auto()
    QUESTIONS = auto()
    RATE = auto()


class Host(Protocol):
    """The gateway, as its connections see it."""

    brokers: Brokers
    proxy: Proxy | None
    tasks: Tasks
    connections: Connections[Connection]
    requests_per_s: int
    """That a client may make; 0: any number."""

    def opened(self, connection: Connection, address: str) -> None:
        """Raises `TooMany`."""
        ...

    def too_fast(self) -> None:
        """A client makes more requests than it may. Count it."""
        ...

    def refused(self, error: TooMany) -> None:
        """Count it."""
        ...

    def closed(self, connection: Connection) -> None: ...

    def relay_begins(
        self, connection: Connection, address: str, client: asyncio.Transport, broker: asyncio.Transport
    ) -> Callable[[], None]:
        """Returns what to call when it ends."""
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
        """None where nobody logs in, and until CONNECT comes."""
        self._was_heard = True
        self._was_pinged = False
        self._unsent_bytes = 0
        """What the write buffer held when we last looked whether the client reads."""

    @property
    def address(self) -> str:
        """`/host:port` of the client."""
        return peer_address(self._transport)

    # -- what asyncio calls ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        keep_tcp_alive(self._transport)
        self._handshake = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._expect_connect)
        try:
            self._host.opened(self, self.address)
        except TooMany as error:
            self.refuse(error)

    def _expect_connect(self) -> None:
        self.refuse(ProtocolError(f"no CONNECT came within {HANDSHAKE_S:g} s"))

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
        """To be called once per interval: ping after a silent one, end after two. Reading answers counts as a word."""
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
            log.info("closing a client's connection: silent since it was pinged")
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
        """What was read before comes first, and may be a reason to stop again."""
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
            raise ProtocolError(f"{name} needs a broker: look the topic up, then connect with its URL")

    def _connect(self, command: Command) -> None:
        body = command.body
        if not isinstance(body, pb.CommandConnect):
            raise ProtocolError("the first command must be CONNECT")
        target = body.proxy_to_broker_url
        body.ClearField("proxy_to_broker_url")
        address = self._host.brokers.address(target)
        if target and not address:
            raise ProtocolError(f"{target} is no registered broker; look the topic up again")
        if self._handshake is not None:
            self._handshake.cancel()
        self._stop(Stop.CONNECTING)
        self._start(self._log_in(body, address))

    async def _log_in(self, body: pb.CommandConnect, address: str) -> None:
        """Look at the credentials, where that is done here; then relay to `address`, or take questions."""
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
        """Its client comes back with new credentials when these expire."""
        if identity.expires_ms is not None:
            left_s = identity.expires_ms / 1000 - time.time()
            self._expiry = asyncio.get_running_loop().call_later(
                min(max(0.0, left_s), LOOK_S_MAX), self.close
            )

    async def _relay(self, address: str, hello: bytes) -> None:
        broker = await self._dial_until_deadline(address)
        client = self._transport
        assert client is not None
        if client.is_closing() or broker.is_closing():
            broker.close()
            client.close()
            return
        self._rate = None  # The broker counts what comes along the relay.
        # Nothing is awaited from here on, so no byte can come between.
        broker.write(hello + self._cutter.take_rest())
        ended = self._host.relay_begins(self, address, client, broker)

        def over() -> None:
            if self._expiry is not None:
                self._expiry.cancel()
            ended()

        splice(client, broker, self._host.relayed, over)
        client.resume_reading()

    async def _dial_until_deadline(self, address: str) -> asyncio.Transport:
        """Try as long as the broker is registered and a client waits. Raises `Unavailable`.

        A broker that was killed is named by lookups until its session is over. A client that is refused at once
        waits longer from time to time, and would be late when its topic is served again; one that is held here
        comes back in the same moment.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DIAL_S_MAX
        while True:
            try:
                return await dial(address, asyncio.Protocol, self._host.brokers.tls)
            except Unavailable:
                if loop.time() > deadline or not self._host.brokers.knows_service(address):
                    raise
            await asyncio.sleep(RETRY_S)

    async def _begin(self, hello: Callable[[], bytes]) -> None:
        self._lookups = Lookups(self._host.brokers, hello)
        welcome = await self._lookups.begin()
        self._write(whole(welcome))
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

    # -- out -------------------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def refuse(self, error: QuireError) -> None:
        """Say what is wrong and close."""
        if isinstance(error, TooMany):
            self._host.refused(error)
        log.info("closing a client's connection: %s", error)
        self._write(commands.error(commands.NO_REQUEST, code_of(error), str(error)))
        self.close()
