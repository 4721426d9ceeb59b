"""Questions that a client asks of the cluster, put to brokers on its behalf.

A client without a broker asks: how many partitions, which broker, which topics, which schema. Any broker may
be asked. The gateway follows redirects itself, for the client could not, and answers a LOOKUP with the owner's
URL and `proxy_through_service_url`: the client then connects to the gateway again and names that URL.

"Try again" from a broker that cannot answer now (its session is in doubt, it stops) is tried at another one, for as
long as a client would wait. Nothing here changes anything, so asking twice is harmless.
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
"""What may be asked, and the type of its answer. Request ids are unique only together with that."""

RETRY_S_MAX: Final = 20.0
"""Below the 30 s of stock clients; beyond a session, for whose end a broker waits when an owner is dead."""

CONNECT_S: Final = 3.0
ANSWER_S: Final = 5.0
"""Then another broker is asked: this one may hang."""

RETRY_S: Final = 0.1
REDIRECTS_MAX: Final = 8


def whole(command: Command) -> bytes:
    """A command that was parsed, as a frame again."""
    made = pb.BaseCommand(type=command.kind)  # type: ignore[arg-type]
    field = _Type.DESCRIPTOR.fields_by_number[command.kind].name
    getattr(made, field).CopyFrom(command.body)
    getattr(made, field).SetInParent()
    return commands.frame(made)


class Upstream(asyncio.Protocol):
    """A connection to one broker, for one client's questions, opened with that client's own CONNECT."""

    def __init__(self, address: str, connect_frame: bytes) -> None:
        self.address = address
        self._hello = connect_frame
        self._cutter = CommandCutter()
        self._pending: dict[tuple[int, int], asyncio.Future[Command]] = {}
        self._transport: asyncio.Transport | None = None
        self.welcome: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        """The broker's answer to CONNECT: CONNECTED, or the ERROR that refuses the client."""
        self.is_lost = False

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
        lost = Unavailable(f"the connection to the broker {self.address} is lost")
        for waiting in (self.welcome, *self._pending.values()):
            if not waiting.done():
                waiting.set_exception(lost)
                waiting.exception()  # it may be that nobody waits any more
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
        """The broker's answer. Raises `Unavailable`."""
        if self.is_lost:
            raise Unavailable(f"the connection to the broker {self.address} is lost")
        body: Any = question.body
        key = (ANSWER_OF[question.kind], body.request_id)
        waiting: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._pending[key] = waiting
        self._write(whole(question))
        try:
            async with asyncio.timeout(ANSWER_S):
                return await waiting
        except TimeoutError:
            raise Unavailable(f"the broker {self.address} does not answer") from None
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
    """A connection to the broker at `url`; `tls` when that is `pulsar+ssl://`. Raises `Unavailable`."""
    loop, parts = asyncio.get_running_loop(), urlsplit(url)
    try:
        context = tls.current() if tls is not None and parts.scheme == "pulsar+ssl" else None
        host, port = parts.hostname or "", parts.port or 0
        async with asyncio.timeout(CONNECT_S):
            transport, _made = await loop.create_connection(protocol, host, port, ssl=context)
    except (OSError, TimeoutError, ValueError) as error:
        why = "no answer" if isinstance(error, TimeoutError) else why_failed(error)
        raise Unavailable(f"cannot reach the broker {url}: {why}") from None
    return transport


class Lookups:
    """The questions of one client."""

    def __init__(self, brokers: Brokers, hello: Callable[[], bytes]) -> None:
        """`hello` makes the CONNECT that begins a connection to a broker."""
        self._brokers = brokers
        self._hello = hello
        self._upstreams: dict[str, Upstream] = {}
        self._was_let_in = False
        self._last = ""
        """Where the last question went; the next one goes there as well, while that works."""

    async def begin(self) -> Command:
        """A broker's answer to the client's CONNECT. Raises `Unavailable`."""
        welcome = (await self._retry_until_deadline(self._reach)).welcome.result()
        self._was_let_in = welcome.kind == _Type.CONNECTED
        return welcome

    async def answer(self, question: Command) -> bytes:
        """The frame that answers the client; a failure is told in the words of the question's own answer.

        Raises `NotAuthenticated` when the client's credentials are no longer taken: it must connect anew.
        """

        async def ask(address: str) -> Command:
            asked = question
            for _ in range(REDIRECTS_MAX):
                answer = await (await self._reach(address)).ask(asked)
                address = self._redirect(answer)
                if not address:
                    return self._or_try_again(answer)
                asked = _authoritative(question, answer)
            raise Unavailable("brokers redirect to one another; the topic's owner is about to change")

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
        """`attempt` at one broker after another, until it works or too long has passed."""
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
            upstream = Upstream(address, self._hello())
            await dial(address, lambda: upstream, self._brokers.tls)
            self._upstreams[address] = upstream
        try:
            async with asyncio.timeout(ANSWER_S):
                await asyncio.shield(upstream.welcome)
        except TimeoutError:
            upstream.close()
            raise Unavailable(f"the broker {address} does not answer") from None
        if self._was_let_in and upstream.welcome.result().kind != _Type.CONNECTED:
            raise NotAuthenticated("brokers no longer take these credentials; connect with new ones")
        return upstream

    def _redirect(self, answer: Command) -> str:
        """Where to ask instead; nothing when this is the answer. Raises `Unavailable` for a stranger."""
        body: Any = answer.body
        if answer.kind != _Type.LOOKUP_RESPONSE or body.response != _Redirect:
            return ""
        url = body.brokerServiceUrl or body.brokerServiceUrlTls
        address = self._brokers.address(url)
        if not address:
            raise Unavailable(f"{url}, which a broker redirects to, is not registered")
        return address

    @staticmethod
    def _or_try_again(answer: Command) -> Command:
        body: Any = answer.body
        if getattr(body, "error", None) == pb.ServiceNotReady and body.HasField("error"):
            raise Unavailable(body.message)
        return answer


def _authoritative(question: Command, redirect: Command) -> Command:
    """The question as it is put to the broker that a redirect names."""
    asked, told = question.body, redirect.body
    assert isinstance(asked, pb.CommandLookupTopic) and isinstance(told, pb.CommandLookupTopicResponse)
    body = pb.CommandLookupTopic()
    body.CopyFrom(asked)
    body.authoritative = told.authoritative
    return Command(question.kind, body)


def _through_gateway(answer: Command) -> bytes:
    """A client takes the URL of its own kind, plain or TLS, to name the broker by, however the gateway reaches it."""
    body = answer.body
    if isinstance(body, pb.CommandLookupTopicResponse) and body.response != _Failed:
        plain, tls = body.brokerServiceUrl, body.brokerServiceUrlTls
        body.brokerServiceUrl, body.brokerServiceUrlTls = plain or tls, tls or plain
        body.proxy_through_service_url = True
    return whole(answer)


def _failure(question: Command, error: QuireError) -> bytes:
    body: Any = question.body
    code, text = pb.ServiceNotReady, str(error)
    if question.kind == _Type.LOOKUP:
        return commands.lookup_failed(body.request_id, code, text)
    if question.kind == _Type.PARTITIONED_METADATA:
        return commands.partitions_failed(body.request_id, code, text)
    return commands.error(body.request_id, code, text)
