"""One connection to a broker: handshake, requests with their responses, pings, and dispatch of all other commands.

`quire.wire.frame` splits the received bytes into commands, which are dispatched without an `await`. All output of one
event loop iteration is sent in one write. Requests of all kinds share one id counter, so a response is matched by its
request id alone.

A connection ends once, with a reason. Then all open requests fail with that reason, and `detached` of each producer and
consumer is called in the same event loop iteration. It is never reopened: `lookup` creates a new one.

If no data arrives during the keep-alive time, a PING is sent. If no data arrives during the same time again, the
connection is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from ssl import SSLCertVerificationError, SSLContext, SSLError
from typing import Final, Protocol, TypeVar, cast
from urllib.parse import urlsplit

import quire
from quire.client.authentication import Authentication
from quire.client.errors import ConnectionLost, TimedOut, from_server
from quire.client.members import Members
from quire.client.settings import ClientSettings
from quire.runtime.errors import ConfigurationError, ProtocolError, QuireError
from quire.runtime.limits import MESSAGE_BYTES_MAX
from quire.runtime.tls import why_failed
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.commands import Command
from quire.wire.frame import Delivery, FrameCutter

UNASKED: Final = (1 << 63) - 1
"""The request id of a request whose response is ignored."""

_VERSION: Final = f"quire-{quire.__version__}"
_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651}


def host_and_port(url: str) -> tuple[str, int, bool]:
    """Split a `pulsar://` or `pulsar+ssl://` URL into host, port and whether it uses TLS.

    Raises `ConfigurationError`.
    """
    try:
        parts = urlsplit(url)
        usual = _PORTS[parts.scheme]
        port = parts.port or usual
        if not parts.hostname:
            raise ValueError
    except (ValueError, KeyError):
        raise ConfigurationError(f"{url!r} is not a service URL such as pulsar://127.0.0.1:6650") from None
    return parts.hostname, port, parts.scheme == "pulsar+ssl"


class Answer(Protocol):
    """Command that answers a request."""

    request_id: int


A = TypeVar("A", bound=Answer)


@dataclass
class _Request:
    what: str
    answer: asyncio.Future[Answer]
    timeout: asyncio.Timeout


class Requests:
    """Requests by their ids, each with a time-out."""

    def __init__(self, url: str, timeout_s: float, write: Callable[[bytes], None]) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._write = write
        self._ids = count()
        self._waiting: dict[int, _Request] = {}

    async def send(self, what: str, build: Callable[[int], bytes], answer: type[A]) -> A:
        """Send a request and wait for its answer; see `Connection.request`."""
        request_id = next(self._ids)
        timeout = asyncio.timeout(self._timeout_s)
        future = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = _Request(what, future, timeout)
        try:
            self._write(build(request_id))
            async with timeout:
                body = await future
        except TimeoutError:
            raise TimedOut(f"{self._url} did not answer in time: {what}") from None
        finally:
            del self._waiting[request_id]
        if not isinstance(body, answer):
            raise ProtocolError(f"{self._url} answered {what} with a {type(body).__name__}")
        return body

    def answered(self, body: Answer) -> None:
        request = self._waiting.get(body.request_id)
        if request is not None and not request.answer.done():
            request.answer.set_result(body)

    def refused(self, request_id: int, code: int, message: str) -> None:
        request = self._waiting.get(request_id)
        if request is not None and not request.answer.done():
            request.answer.set_exception(from_server(code, message, request.what))

    def queued(self, request_id: int) -> None:
        """Remove a request's time-out, because the broker has queued the producer until it can get exclusive access."""
        request = self._waiting.get(request_id)
        if request is not None and not request.timeout.expired():
            request.timeout.reschedule(None)

    def fail_all(self, reason: QuireError) -> None:
        for request in self._waiting.values():
            if not request.answer.done():
                request.answer.set_exception(reason)


class Connection(asyncio.BufferedProtocol):
    """Connection to one broker, created by `connect`."""

    def __init__(self, url: str, settings: ClientSettings, authentication: Authentication) -> None:
        self.url = url
        self.members = Members(url)
        self.ended: QuireError | None = None
        self.on_end: Callable[[Connection, QuireError], None] = lambda _connection, _reason: None
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._authentication = authentication
        self._cutter = FrameCutter()
        self._transport: asyncio.Transport | None = None
        self._handshake: asyncio.Future[pb.CommandConnected] = self._loop.create_future()
        self._requests = Requests(url, settings.operation_timeout_ms / 1000, self.write)
        self._output: list[bytes] = []
        self._heard = False
        self._timer: asyncio.TimerHandle | None = None

    # -- Interface for producers, consumers and lookups --

    @property
    def message_bytes_max(self) -> int:
        announced = self._handshake.result().max_message_size
        return announced if announced > 0 else MESSAGE_BYTES_MAX

    @property
    def tells_topics(self) -> bool:
        """True if the broker supports watching created and deleted topics."""
        return self._handshake.result().feature_flags.supports_topic_watchers

    def write(self, *parts: bytes) -> None:
        """Queue bytes, to be sent at the end of this event loop iteration; ignored after the connection has ended."""
        if self.ended is not None:
            return
        if not self._output:
            self._loop.call_soon(self._flush)
        self._output += parts

    async def request(self, what: str, build: Callable[[int], bytes], answer: type[A]) -> A:
        """Send the command that `build` returns for a new request id, and wait for its response.

        `what` names the request in error texts. Raises the error for the broker's error code, `ConnectionLost`, or
        `TimedOut` after the operation timeout. If the caller is cancelled, the response is ignored.
        """
        if self.ended is not None:
            raise self.ended
        return await self._requests.send(what, build, answer)

    def close(self, reason: QuireError) -> None:
        """Close the connection now; queued bytes are still sent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()
        self._end(reason)

    # -- Callbacks of asyncio --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = self._loop.call_later(self._settings.keep_alive_ms / 1000, self._keep_alive, False)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._cutter.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = True
        try:
            cuts = self._cutter.received(nbytes)
            for cut in cuts:
                if isinstance(cut, Delivery):
                    self.members.deliver(cut)
                elif isinstance(cut, Command):
                    self._take(cut)
                else:
                    raise ProtocolError("it sent a SEND, which only clients may send")
        except ProtocolError as error:
            self._abort(f"{self.url} violated the protocol: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ConnectionLost(f"the connection to {self.url} was lost ({exc or 'closed by the broker'})"))

    # -- Received commands --

    def _take(self, command: Command) -> None:
        body = command.body
        if self.members.dispatch(body):
            return
        match body:
            case pb.CommandPing():
                self.write(commands.PONG)
            case pb.CommandPong():
                pass
            case pb.CommandError():
                self._refuse(body.request_id, body.error, body.message)
            case pb.CommandAckResponse() if body.HasField("error"):
                self._refuse(body.request_id, body.error, body.message)
            case pb.CommandGetSchemaResponse() | pb.CommandConsumerStatsResponse() if body.HasField(
                "error_code"
            ):
                self._refuse(body.request_id, body.error_code, body.error_message)
            case pb.CommandPartitionedTopicMetadataResponse() | pb.CommandLookupTopicResponse() if (
                body.HasField("error")
            ):
                self._refuse(body.request_id, body.error, body.message)
            case pb.CommandProducerSuccess() if not body.producer_ready:
                self._requests.queued(body.request_id)
            case pb.CommandConnected():
                if not self._handshake.done():
                    self._handshake.set_result(body)
            case pb.CommandAuthChallenge():
                method, data = self._authentication.method, self._authentication.data()
                self.write(commands.auth_response(_VERSION, method, data))
            case _ if hasattr(body, "request_id"):
                self._requests.answered(cast(Answer, body))
            case _:
                pass  # a notification that this client does not use

    def _refuse(self, request_id: int, code: int, message: str) -> None:
        if not self._handshake.done() or request_id == commands.NO_REQUEST:
            self._abort_with(from_server(code, message, f"the connection to {self.url}"))
            return
        self._requests.refused(request_id, code, message)

    # -- Output and closing --

    def _flush(self) -> None:
        output, self._output = self._output, []
        if output and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(output)

    def _keep_alive(self, pinged: bool) -> None:
        if not self._heard and pinged:
            self._abort(f"{self.url} did not answer a ping")
            return
        quiet = not self._heard
        if quiet:
            self.write(commands.PING)
            self._cutter.rest()
        self._heard = False
        self._timer = self._loop.call_later(self._settings.keep_alive_ms / 1000, self._keep_alive, quiet)

    def _abort(self, sentence: str) -> None:
        self._abort_with(ConnectionLost(sentence))

    def _abort_with(self, reason: QuireError) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end(reason)

    def _end(self, reason: QuireError) -> None:
        if self.ended is not None:
            return
        self.ended = reason
        if self._timer is not None:
            self._timer.cancel()
        if not self._handshake.done():
            self._handshake.set_exception(reason)
        if not self._handshake.cancelled():
            self._handshake.exception()  # so that asyncio does not log it as never retrieved
        self._requests.fail_all(reason)
        self.on_end(self, reason)
        self.members.detach_all(reason)

    # -- Connecting --

    async def shake_hands(self, proxy_to: str) -> None:
        """Send CONNECT and wait for the response. Raises `AuthenticationFailed` or `ConnectionLost`."""
        method = self._authentication.method
        self.write(commands.connect(_VERSION, method, self._authentication.data(), proxy_to))
        await asyncio.shield(self._handshake)


async def connect(
    url: str,
    settings: ClientSettings,
    authentication: Authentication,
    tls: SSLContext | None = None,
    proxy_to: str = "",
) -> Connection:
    """Connect to the broker at `url` and do the handshake. If `url` is a proxy, `proxy_to` is the broker behind it.

    Raises `ConnectionLost`, `AuthenticationFailed`, or `ConfigurationError` for a bad URL or an untrusted certificate.
    """
    host, port, is_tls = host_and_port(url)
    loop = asyncio.get_running_loop()
    connection = Connection(url, settings, authentication)
    context = (tls or True) if is_tls else None
    try:
        async with asyncio.timeout(settings.connect_timeout_ms / 1000):
            await loop.create_connection(lambda: connection, host, port, ssl=context)
            await connection.shake_hands(proxy_to.partition("://")[2])
    except SSLCertVerificationError as error:
        untrusted = ConfigurationError(
            f"the certificate of {url} is not trusted: {why_failed(error)}; "
            "configure the certificate authority that signed it"
        )
        connection.close(untrusted)
        raise untrusted from None
    except (OSError, TimeoutError) as error:
        reason = ConnectionLost(
            f"cannot connect to {url} ({_reason(error)}); check that a broker is running there"
        )
        connection.close(reason)
        raise reason from None
    except asyncio.CancelledError:
        connection.close(ConnectionLost(f"the attempt to connect to {url} was cancelled"))
        raise
    return connection


def _reason(error: OSError | TimeoutError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer within the connect timeout"
    return why_failed(error) if isinstance(error, SSLError) else error.strerror or why_failed(error)
