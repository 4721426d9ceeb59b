"""One client connection. Its CONNECT decides what it is.

    CONNECT with proxy_to_broker_url   a relay: the CONNECT goes on to that broker, then bytes both ways as they are
    CONNECT without                    questions only, which are put to brokers; see `lookups`

Only registered brokers are ever connected to, whatever a client names: a gateway is no door into the network behind.
The gateway authenticates nobody; a client's credentials travel in its CONNECT to the broker, which judges them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from quire.runtime.errors import LimitExceeded, ProtocolError, QuireError, Unavailable
from quire.runtime.limits import REQUESTS_PENDING_PER_CONNECTION_MAX
from quire.runtime.tasks import Tasks
from quire.serving.gateway.brokers import Brokers, host_and_port
from quire.serving.gateway.frames import CommandCutter
from quire.serving.gateway.lookups import ANSWER_OF, Lookups, dial, whole
from quire.serving.gateway.relay import splice
from quire.serving.session.errors import code_of
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.commands import Command

log = logging.getLogger(__name__)

PATIENCE_S: Final = 8.0
"""Below the 10 s after which stock clients give a connection up."""

RETRY_S: Final = 0.1


class Host(Protocol):
    """The gateway, as its connections see it."""

    brokers: Brokers
    tasks: Tasks

    def opened(self, connection: Connection) -> bool:
        """False when there are too many connections already."""
        ...

    def closed(self, connection: Connection) -> None: ...

    def relay_begins(
        self, connection: Connection, address: str, client: asyncio.Transport, broker: asyncio.Transport
    ) -> Callable[[], None]:
        """Answers what to call when it ends."""
        ...

    def relayed(self, size_bytes: int) -> None: ...

    def looked_up(self) -> None: ...


class Connection(asyncio.Protocol):
    """See the top of the file."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._cutter = CommandCutter()
        self._transport: asyncio.Transport | None = None
        self._lookups: Lookups | None = None
        self._is_connecting = False
        self._pending: set[asyncio.Task[None]] = set()

    # -- what asyncio calls ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        if not self._host.opened(self):
            self._refuse(LimitExceeded("this gateway has too many connections; try again later"))

    def data_received(self, data: bytes) -> None:
        self._cutter.feed(data)
        try:
            self._go_on()
        except QuireError as error:
            self._refuse(error)

    def connection_lost(self, exc: Exception | None) -> None:
        for task in self._pending:
            task.cancel()
        if self._lookups is not None:
            self._lookups.close()
        self._host.closed(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # -- commands --------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        while not self._is_connecting and (command := self._cutter.next()) is not None:
            self._take(command)

    def _take(self, command: Command) -> None:
        if self._lookups is None:
            self._connect(command)
        elif command.kind in ANSWER_OF:
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
        if target and not self._host.brokers.knows_service(target):
            raise ProtocolError(f"{target} is no registered broker; look the topic up again")
        self._is_connecting = True
        assert self._transport is not None
        self._transport.pause_reading()
        self._start(
            self._relay(host_and_port(target), whole(command)) if target else self._begin(whole(command))
        )

    async def _relay(self, address: str, hello: bytes) -> None:
        broker = await self._dial_patiently(address)
        client = self._transport
        assert client is not None
        if client.is_closing() or broker.is_closing():
            broker.close()
            client.close()
            return
        # Nothing is awaited from here on, so no byte can come between.
        broker.write(hello + self._cutter.take_rest())
        splice(client, broker, self._host.relayed, self._host.relay_begins(self, address, client, broker))
        client.resume_reading()

    async def _dial_patiently(self, address: str) -> asyncio.Transport:
        """Try as long as the broker is registered and a client waits. Raises `Unavailable`.

        A broker that was killed is named by lookups until its session is over. A client that is refused at once
        waits longer from time to time, and would be late when its topic is served again; one that is held here
        comes back in the same moment.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while True:
            try:
                return await dial(address, asyncio.Protocol)
            except Unavailable:
                if loop.time() > deadline or not self._host.brokers.knows_service(address):
                    raise
            await asyncio.sleep(RETRY_S)

    async def _begin(self, hello: bytes) -> None:
        self._lookups = Lookups(self._host.brokers, hello)
        welcome = await self._lookups.begin()
        self._write(whole(welcome))
        if welcome.kind != pb.BaseCommand.CONNECTED:
            self.close()
            return
        self._is_connecting = False
        assert self._transport is not None
        self._transport.resume_reading()
        self._go_on()

    async def _answer(self, lookups: Lookups, question: Command) -> None:
        self._host.looked_up()
        self._write(await lookups.answer(question))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        if len(self._pending) >= REQUESTS_PENDING_PER_CONNECTION_MAX:
            work.close()
            raise LimitExceeded("too many requests of this connection are unanswered")
        task = self._host.tasks.start(self._or_refuse(work), "answer a client")
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _or_refuse(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except QuireError as error:
            self._refuse(error)

    # -- out -------------------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _refuse(self, error: QuireError) -> None:
        log.info("closing a client's connection: %s", error)
        self._write(commands.error(commands.NO_REQUEST, code_of(error), str(error)))
        self.close()
