"""Lookup requests of a client, which the gateway forwards to brokers.

Before a client connects to a topic's broker, it requests the number of partitions, the owner of a topic, the topics of
a namespace, or a schema. Any broker can answer. The gateway follows redirects itself, because the client might not
reach the other broker. It answers a LOOKUP with the owner's URL and `proxy_through_service_url`: the client then
connects to the gateway again, with that URL in its CONNECT.

Request ids, responses and errors pass unchanged between the client and the broker. So the connections of `quire.client`
are not used here: they number requests, authenticate by themselves, and raise a broker's errors.

If a broker answers ServiceNotReady (its session is in doubt, or it is stopping), the gateway retries at another broker,
for as long as a client would wait. The requests are idempotent, so retries are harmless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from quire.gateway.brokers import Brokers
from quire.gateway.frames import CommandCutter
from quire.runtime.errors import NotAuthenticated, ProtocolError, QuireError, Unavailable
from quire.runtime.tls import why_failed
from quire.security.tls import FollowedContext
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.commands import Command

T = TypeVar("T")
_Type = pb.BaseCommand
_Failed = pb.CommandLookupTopicResponse.Failed
_Redirect = pb.CommandLookupTopicResponse.Redirect

ANSWER_OF: Final[dict[int, int]] = {
    _Type.PARTITIONED_METADATA: _Type.PARTITIONED_METADATA_RESPONSE,
    _Type.LOOKUP: _Type.LOOKUP_RESPONSE,
    _Type.GET_TOPICS_OF_NAMESPACE: _Type.GET_TOPICS_OF_NAMESPACE_RESPONSE,
    _Type.GET_SCHEMA: _Type.GET_SCHEMA_RESPONSE,
}
"""Forwarded requests, and the types of their responses. Request ids are unique only within a type."""

RETRY_S_MAX: Final = 20.0
"""Maximum seconds of retries: below the 30 s timeout of stock clients, but above a broker's session timeout."""

DIAL_S_MAX: Final = 8.0
"""Maximum seconds to connect for a relay: less than the 10 s connect timeout of stock clients."""

CONNECT_S: Final = 3.0
ANSWER_S: Final = 5.0
"""Seconds to wait for a broker's answer; then another broker is tried."""

RETRY_S: Final = 0.1
REDIRECTS_MAX: Final = 8


class Upstream(asyncio.Protocol):
    """Connection to one broker for the lookups of one client, opened with that client's CONNECT."""

    def __init__(self, address: str, connect_frame: bytes) -> None:
        self.address = address
        self._hello = connect_frame
        self._cutter = CommandCutter()
        self._pending: dict[tuple[int, int], asyncio.Future[Command]] = {}
        self._transport: asyncio.Transport | None = None
        self.welcome: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        """The broker's response to CONNECT: CONNECTED, or the ERROR that refuses the client."""
        self.is_lost = False

    async def open(self, tls: FollowedContext | None) -> None:
        """Connect. Concurrent requests to this broker wait for `welcome`. Raises `Unavailable`."""
        try:
            await dial(self.address, lambda: self, tls)
        except BaseException:
            self.connection_lost(None)
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        transport.write(self._hello)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._cutter.feed(data)
        try:
            while (command := self._cutter.next()) is not None:
                self._take(command)
        except ProtocolError:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        lost = Unavailable(f"the connection to the broker {self.address} was lost")
        for waiting in (self.welcome, *self._pending.values()):
            if not waiting.done():
                waiting.set_exception(lost)
                waiting.exception()  # mark it as retrieved, because the caller may have given up
        self._pending.clear()

    def _take(self, command: Command) -> None:
        body: Any = command.body
        if not self.welcome.done():
            self.welcome.set_result(command)
        elif command.kind == _Type.PING:
            self._write(commands.PONG)
        elif command.kind == _Type.ERROR:
            self._answer(body.request_id, command, ANSWER_OF.values())
        elif command.kind in ANSWER_OF.values():
            self._answer(body.request_id, command, (command.kind,))

    def _answer(self, request_id: int, command: Command, kinds: Any) -> None:
        for kind in kinds:
            waiting = self._pending.pop((kind, request_id), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(command)
                return

    async def ask(self, question: Command) -> Command:
        """Send a request and return the broker's response. Raises `Unavailable`."""
        if self.is_lost:
            raise Unavailable(f"the connection to the broker {self.address} was lost")
        body: Any = question.body
        key = (ANSWER_OF[question.kind], body.request_id)
        waiting: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._pending[key] = waiting
        self._write(commands.whole(*question))
        try:
            async with asyncio.timeout(ANSWER_S):
                return await waiting
        except TimeoutError:
            raise Unavailable(f"the broker {self.address} did not answer within 5 s") from None
        finally:
            self._pending.pop(key, None)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def dial(
    url: str, protocol: Callable[[], asyncio.Protocol], tls: FollowedContext | None
) -> asyncio.Transport:
    """Connect to the broker at `url`, with `tls` for `pulsar+ssl://`. Raises `Unavailable`."""
    loop, parts = asyncio.get_running_loop(), urlsplit(url)
    try:
        context = tls.current() if tls is not None and parts.scheme == "pulsar+ssl" else None
        host, port = parts.hostname or "", parts.port or 0
        async with asyncio.timeout(CONNECT_S):
            transport, _made = await loop.create_connection(protocol, host, port, ssl=context)
    except (OSError, TimeoutError, ValueError) as error:
        why = "no answer" if isinstance(error, TimeoutError) else why_failed(error)
        raise Unavailable(f"cannot connect to the broker {url}: {why}") from None
    return transport


async def dial_until_deadline(address: str, brokers: Brokers) -> asyncio.Transport:
    """Connect to a broker for a relay; retry while the broker is registered and the client waits. Raises `Unavailable`.

    Lookups return a killed broker until its session has expired. A client that is refused at once backs off, and would
    reconnect late when its topic is served again; a connection that waits here continues at once.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DIAL_S_MAX
    while True:
        try:
            return await dial(address, asyncio.Protocol, brokers.tls)
        except Unavailable:
            if loop.time() > deadline or not brokers.knows_service(address):
                raise
        await asyncio.sleep(RETRY_S)


class Lookups:
    """Forwarded lookups of one client."""

    def __init__(self, brokers: Brokers, hello: Callable[[], bytes]) -> None:
        """Create it. `hello` returns the CONNECT for a broker."""
        self._brokers = brokers
        self._hello = hello
        self._upstreams: dict[str, Upstream] = {}
        self._was_let_in = False
        self._last = ""
        """Address of the broker that got the last request. It also gets the next one, unless it fails."""

    async def begin(self) -> Command:
        """Return a broker's response to the client's CONNECT. Raises `Unavailable`."""
        welcome = (await self._retry_until_deadline(self._reach)).welcome.result()
        self._was_let_in = welcome.kind == _Type.CONNECTED
        return welcome

    async def answer(self, question: Command) -> bytes:
        """Return the response for the client as a frame; a failure has the request's own response type.

        Raises `NotAuthenticated` if the client's credentials are no longer valid, so that it must reconnect.
        """

        async def ask(address: str) -> Command:
            asked = question
            for _ in range(REDIRECTS_MAX):
                answer = await (await self._reach(address)).ask(asked)
                address = self._redirect(answer)
                if not address:
                    return self._or_try_again(answer)
                asked = _authoritative(question, answer)
            raise Unavailable(
                "more than 8 redirects between brokers, because the topic's owner is changing; try again"
            )

        try:
            return _through_gateway(await self._retry_until_deadline(ask))
        except NotAuthenticated:
            raise
        except QuireError as error:
            return _failure(question, error)

    def close(self) -> None:
        for upstream in self._upstreams.values():
            upstream.close()

    async def _retry_until_deadline(self, attempt: Callable[[str], Awaitable[T]]) -> T:
        """Call `attempt` with one broker after another, until it succeeds or the deadline passes."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RETRY_S_MAX
        failed = ""
        while True:
            try:
                self._last = failed = self._address(failed)
                return await attempt(self._last)
            except Unavailable:
                if loop.time() + RETRY_S > deadline:
                    raise
            await asyncio.sleep(RETRY_S)

    def _address(self, failed: str) -> str:
        if self._last and self._last != failed and self._brokers.knows_service(self._last):
            return self._last
        return self._brokers.address_of(self._brokers.choose(but=failed))

    async def _reach(self, address: str) -> Upstream:
        upstream = self._upstreams.get(address)
        if upstream is None or upstream.is_lost:
            upstream = self._upstreams[address] = Upstream(address, self._hello())
            await upstream.open(self._brokers.tls)
        try:
            async with asyncio.timeout(ANSWER_S):
                await asyncio.shield(upstream.welcome)
        except TimeoutError:
            upstream.close()
            raise Unavailable(f"the broker {address} did not answer within 5 s") from None
        if self._was_let_in and upstream.welcome.result().kind != _Type.CONNECTED:
            raise NotAuthenticated("brokers no longer accept these credentials; reconnect with new ones")
        return upstream

    def _redirect(self, answer: Command) -> str:
        """Return the address in a redirect, or "" for other responses.

        Raises `Unavailable` for an unregistered broker.
        """
        body: Any = answer.body
        if answer.kind != _Type.LOOKUP_RESPONSE or body.response != _Redirect:
            return ""
        url = body.brokerServiceUrl or body.brokerServiceUrlTls
        address = self._brokers.address(url)
        if not address:
            raise Unavailable(f"a broker redirected to {url}, which is not a registered broker")
        return address

    @staticmethod
    def _or_try_again(answer: Command) -> Command:
        body: Any = answer.body
        if getattr(body, "error", None) == pb.ServiceNotReady and body.HasField("error"):
            raise Unavailable(body.message)
        return answer


def _authoritative(question: Command, redirect: Command) -> Command:
    """Return the LOOKUP to send to the broker that a redirect names."""
    asked, told = question.body, redirect.body
    assert isinstance(asked, pb.CommandLookupTopic) and isinstance(told, pb.CommandLookupTopicResponse)
    body = pb.CommandLookupTopic()
    body.CopyFrom(asked)
    body.authoritative = told.authoritative
    return Command(question.kind, body)


def _through_gateway(answer: Command) -> bytes:
    """Set the URLs in a lookup's response, so that the client connects through the gateway, with or without TLS."""
    body = answer.body
    if isinstance(body, pb.CommandLookupTopicResponse) and body.response != _Failed:
        plain, tls = body.brokerServiceUrl, body.brokerServiceUrlTls
        body.brokerServiceUrl, body.brokerServiceUrlTls = plain or tls, tls or plain
        body.proxy_through_service_url = True
    return commands.whole(*answer)


def _failure(question: Command, error: QuireError) -> bytes:
    body: Any = question.body
    code, text = pb.ServiceNotReady, str(error)
    if question.kind == _Type.LOOKUP:
        return commands.lookup_failed(body.request_id, code, text)
    if question.kind == _Type.PARTITIONED_METADATA:
        return commands.partitions_failed(body.request_id, code, text)
    return commands.error(body.request_id, code, text)
