"""One connection to a broker: the handshake, requests and their answers, pings, and who gets what else comes.

Bytes go through `quire.wire.frame`; nothing here waits for a message. What a turn of the event loop has to say leaves
in one write. Requests of every kind take their ids from one counter, so an answer is found by its id alone.

A connection ends once, with a reason; then every open request fails with it and every producer and consumer
is told, in the same turn. It never comes back: who still needs the broker asks for a new one (`lookup`).

Silence is broken with a PING after the keep-alive time; a broker that then stays silent as long again is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ssl import SSLCertVerificationError, SSLContext, SSLError
from typing import Any, Final, Protocol, TypeVar, cast
from urllib.parse import urlsplit

import quire
from quire.client.authentication import Authentication
from quire.client.errors import ConnectionLost, Moved, TimedOut, from_server
from quire.client.settings import ClientSettings
from quire.runtime.errors import ConfigurationError, ProtocolError, QuireError
from quire.runtime.limits import MESSAGE_BYTES_MAX
from quire.runtime.tls import why_failed
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.commands import Command
from quire.wire.frame import Delivery, FrameCutter

UNASKED: Final = (1 << 63) - 1
"""The request id of a request whose answer nobody waits for."""

_VERSION: Final = f"quire-{quire.__version__}"
_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651}


class ProducerEnd(Protocol):
    """A producer, as its connection sees it."""

    def receipt(self, body: pb.CommandSendReceipt) -> None: ...
    def refused(self, body: pb.CommandSendError) -> None: ...
    def detached(self, reason: QuireError) -> None: ...


class ConsumerEnd(Protocol):
    """A consumer, as its connection sees it."""

    def delivered(self, delivery: Delivery) -> None: ...
    def active_changed(self, is_active: bool) -> None: ...
    def reached_end(self) -> None: ...
    def detached(self, reason: QuireError) -> None: ...


class WatcherEnd(Protocol):
    """Who is told of topics that come and go."""

    def topics_changed(self, body: pb.CommandWatchTopicUpdate) -> None: ...
    def detached(self, reason: QuireError) -> None: ...


class _Answer(Protocol):
    """A body that answers a request."""

    request_id: int


A = TypeVar("A", bound=_Answer)


def host_and_port(url: str) -> tuple[str, int, bool]:
    """(host, port, whether it is TLS) of a `pulsar://` or `pulsar+ssl://` URL. Raises `ConfigurationError`."""
    try:
        parts = urlsplit(url)
        usual = _PORTS[parts.scheme]
        port = parts.port or usual
        if not parts.hostname:
            raise ValueError
    except (ValueError, KeyError):
        raise ConfigurationError(f"{url!r} is not a service URL, such as pulsar://127.0.0.1:6650") from None
    return parts.hostname, port, parts.scheme == "pulsar+ssl"


class Connection(asyncio.BufferedProtocol):
    """Made by `connect`. `producers` and `consumers` by their ids; they enter and leave by themselves."""

    def __init__(self, url: str, settings: ClientSettings, authentication: Authentication) -> None:
        self.url = url
        self.producers: dict[int, ProducerEnd] = {}
        self.consumers: dict[int, ConsumerEnd] = {}
        self.watchers: dict[int, WatcherEnd] = {}
        self.tells_topics = False
        """The broker tells of topics that come and go."""
        self.message_bytes_max = MESSAGE_BYTES_MAX
        self.ended: QuireError | None = None
        self.on_end: Callable[[Connection, QuireError], None] = lambda _connection, _reason: None
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._authentication = authentication
        self._cutter = FrameCutter()
        self._transport: asyncio.Transport | None = None
        self._handshake: asyncio.Future[None] = self._loop.create_future()
        self._requests: dict[int, asyncio.Future[_Answer]] = {}
        self._asked: dict[int, str] = {}
        self._timeouts: dict[int, asyncio.Timeout] = {}
        self._next_request_id = 0
        self._output: list[bytes] = []
        self._heard = False
        self._timer: asyncio.TimerHandle | None = None

    # -- For users of the connection --

    def write(self, *parts: bytes) -> None:
        """Queue bytes; they leave at the end of this turn. Nothing happens once the connection has ended."""
        if self.ended is not None:
            return
        if not self._output:
            self._loop.call_soon(self._flush)
        self._output += parts

    async def request(self, what: str, build: Callable[[int], bytes], answer: type[A]) -> A:
        """Send what `build` makes of a request id and wait for its answer.

        `what` is asked, for the message of an error. Raises the error that fits an ERROR, `ConnectionLost`,
        or `TimedOut` after the operation timeout. Cancelled, it forgets the answer.
        """
        if self.ended is not None:
            raise self.ended
        request_id = self._next_request_id
        self._next_request_id += 1
        future = self._requests[request_id] = self._loop.create_future()
        self._asked[request_id] = what
        self.write(build(request_id))
        try:
            async with asyncio.timeout(self._settings.operation_timeout_ms / 1000) as timeout:
                self._timeouts[request_id] = timeout
                body = await future
        except TimeoutError:
            raise TimedOut(f"{self.url} did not answer in time: {what}") from None
        finally:
            self._requests.pop(request_id, None)
            self._asked.pop(request_id, None)
            self._timeouts.pop(request_id, None)
        if not isinstance(body, answer):
            raise ProtocolError(f"{self.url} answered {what} with a {type(body).__name__}")
        return body

    def close(self, reason: QuireError) -> None:
        """End it now; what is queued is still sent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()
        self._end(reason)

    # -- asyncio's side --

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
                    consumer = self.consumers.get(cut.body.consumer_id)
                    if consumer is not None:
                        consumer.delivered(cut)
                elif isinstance(cut, Command):
                    self._take(cut)
                else:
                    raise ProtocolError("it sent a SEND, as only clients do")
        except ProtocolError as error:
            self._abort(f"{self.url} breaks the protocol: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ConnectionLost(f"the connection to {self.url} was lost ({exc or 'closed by the broker'})"))

    # -- What comes in --

    def _take(self, command: Command) -> None:
        body = command.body
        match body:
            case pb.CommandSendReceipt():
                if (producer := self.producers.get(body.producer_id)) is not None:
                    producer.receipt(body)
            case pb.CommandPing():
                self.write(commands.PONG)
            case pb.CommandPong():
                pass
            case pb.CommandSendError():
                if (producer := self.producers.get(body.producer_id)) is not None:
                    producer.refused(body)
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
                # It waits for its turn, which may take any time.
                if (timeout := self._timeouts.get(body.request_id)) is not None and not timeout.expired():
                    timeout.reschedule(None)
            case pb.CommandCloseProducer():
                self._unload(self.producers.pop(body.producer_id, None), body)
            case pb.CommandCloseConsumer():
                self._unload(self.consumers.pop(body.consumer_id, None), body)
            case pb.CommandActiveConsumerChange():
                if (consumer := self.consumers.get(body.consumer_id)) is not None:
                    consumer.active_changed(body.is_active)
            case pb.CommandReachedEndOfTopic():
                if (consumer := self.consumers.get(body.consumer_id)) is not None:
                    consumer.reached_end()
            case pb.CommandWatchTopicUpdate():
                if (watcher := self.watchers.get(body.watcher_id)) is not None:
                    watcher.topics_changed(body)
            case pb.CommandConnected():
                self._connected(body)
            case pb.CommandAuthChallenge():
                method, data = self._authentication.method, self._authentication.data()
                self.write(commands.auth_response(_VERSION, method, data))
            case _ if hasattr(body, "request_id"):
                self._answer(cast(_Answer, body))
            case _:
                pass  # news that this client has no use for

    def _connected(self, body: pb.CommandConnected) -> None:
        if body.max_message_size > 0:
            self.message_bytes_max = body.max_message_size
        self.tells_topics = body.feature_flags.supports_topic_watchers
        if not self._handshake.done():
            self._handshake.set_result(None)

    def _answer(self, body: _Answer) -> None:
        future = self._requests.get(body.request_id)
        if future is not None and not future.done():
            future.set_result(body)

    def _refuse(self, request_id: int, code: int, message: str) -> None:
        if not self._handshake.done() or request_id == commands.NO_REQUEST:
            self._abort_with(from_server(code, message, f"the connection to {self.url}"))
            return
        future = self._requests.get(request_id)
        if future is not None and not future.done():
            future.set_exception(from_server(code, message, self._asked[request_id]))

    def _unload(
        self, end: ProducerEnd | ConsumerEnd | None, body: pb.CommandCloseProducer | pb.CommandCloseConsumer
    ) -> None:
        """The broker no longer serves the topic here; it may say who does."""
        if end is not None:
            tls = body.assignedBrokerServiceUrlTls if self.url.startswith("pulsar+ssl") else ""
            end.detached(Moved(f"{self.url} gave the topic up", tls or body.assignedBrokerServiceUrl))

    # -- What goes out, and the end --

    def _flush(self) -> None:
        output, self._output = self._output, []
        if output and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(output)

    def _keep_alive(self, pinged: bool) -> None:
        if not self._heard and pinged:
            self._abort(f"{self.url} is silent; it did not answer a ping")
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
        waiting: list[asyncio.Future[Any]] = [self._handshake, *self._requests.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(reason)
        if not self._handshake.cancelled():
            self._handshake.exception()  # nobody waits for it any more once it was done
        self.on_end(self, reason)
        ends: list[ProducerEnd | ConsumerEnd | WatcherEnd] = [
            *self.producers.values(),
            *self.consumers.values(),
            *self.watchers.values(),
        ]
        self.producers.clear()
        self.consumers.clear()
        self.watchers.clear()
        for end in ends:
            end.detached(reason)

    # -- The beginning --

    async def shake_hands(self, proxy_to: str) -> None:
        """CONNECT and its answer. Raises `AuthenticationFailed` or `ConnectionLost`."""
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
    """A connection to the broker at `url` after its handshake; through a proxy there, to the broker `proxy_to`.

    Raises `ConnectionLost`, `AuthenticationFailed` or `ConfigurationError` (the URL).
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
            f"{url} is not trusted: {why_failed(error)}; name the authority that has signed it"
        )
        connection.close(untrusted)
        raise untrusted from None
    except (OSError, TimeoutError) as error:
        reason = ConnectionLost(f"cannot connect to {url} ({_reason(error)}); is a broker running there?")
        connection.close(reason)
        raise reason from None
    except asyncio.CancelledError:
        connection.close(ConnectionLost(f"the attempt to connect to {url} was cancelled"))
        raise
    return connection


def _reason(error: OSError | TimeoutError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return why_failed(error) if isinstance(error, SSLError) else error.strerror or why_failed(error)
