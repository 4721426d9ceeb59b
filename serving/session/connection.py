"""One client connection: its commands and their handlers, and who of its peer's producers and consumers there is.

    socket ─▶ Inbound ─▶ runs of SENDs ─▶ the producer's topic        (the hot path: one call per run)
                     └▶ other commands ─▶ table[kind](connection, body)
    write(…), write_many(…) ─▶ Outbound ─▶ socket

What asyncio tells goes to the parts: `inbound` reads and knows why it does not, `outbound` writes, `peer` knows who is
at the other end and whether it is still there, `requests` counts what takes time, `held` what waits.

Handlers are plain functions. What takes time goes into a *lane* (`lane`): the commands for one producer or consumer id
are carried out in the client's order, and while an asynchronous one is under way later ones of the same id wait.
Commands of different ids and plain requests do not wait for one another; each request is answered once.

What the peer does wrong costs this connection and no other: it gets an ERROR and is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from quire.runtime.errors import ProtocolError, QuireError, TooMany
from quire.runtime.limits import HANDSHAKE_S
from quire.runtime.network import peer_address
from quire.serving.session.inbound import Inbound
from quire.serving.session.lane import HeldBytes, Lane
from quire.serving.session.outbound import Outbound
from quire.serving.session.peer import Peer
from quire.serving.session.requests import Requests
from quire.serving.topic.runs import PublishRun
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer
from quire.wire.commands import Command
from quire.wire.error_codes import code_of
from quire.wire.frame import Cut, Send

if TYPE_CHECKING:
    from quire.serving.session.consume import ConsumerEnd
    from quire.serving.session.produce import ProducerEnd
    from quire.serving.session.sessions import Sessions
    from quire.serving.session.topic_watch import TopicWatcher

Handler = Callable[["Connection", Any], None]

_log = logging.getLogger(__name__)

_OF_CONSUMERS: Final = frozenset(
    (
        pb.BaseCommand.FLOW,
        pb.BaseCommand.ACK,
        pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        pb.BaseCommand.CLOSE_CONSUMER,
        pb.BaseCommand.UNSUBSCRIBE,
        pb.BaseCommand.SEEK,
        pb.BaseCommand.GET_LAST_MESSAGE_ID,
    )
)
_NOT_COUNTED: Final = frozenset((pb.BaseCommand.ACK, pb.BaseCommand.FLOW))
"""What has no part in the rate of requests; SENDs are no commands here."""

_OF_WATCHERS: Final = frozenset((pb.BaseCommand.WATCH_TOPIC_LIST, pb.BaseCommand.WATCH_TOPIC_LIST_CLOSE))
"""What goes through the lane of the consumer, or the watcher, that it names."""


class Connection(asyncio.BufferedProtocol):
    """`table` maps the kinds of commands to their handlers. The parts are made when the connection is."""

    def __init__(self, host: Sessions, table: Mapping[int, Handler]) -> None:
        self.host = host
        self._table = table
        self.inbound: Inbound
        self.outbound: Outbound
        self.peer: Peer
        self.requests: Requests
        self.held: HeldBytes
        self._acks: dict[int, list[pb.MessageIdData]] = {}
        """Individual acknowledgements of this read, by consumer id."""
        self.producers: dict[int, ProducerEnd] = {}
        self.consumers: dict[int, ConsumerEnd] = {}
        self.watchers: dict[int, TopicWatcher] = {}
        self.lists: Lane | None = None
        """Questions for the topics of a namespace, which are much work: one after the other. Made for the first one."""

    @property
    def is_closed(self) -> bool:
        return self.outbound.is_closed

    # -- what asyncio calls ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # One of uvloop is an `asyncio.Transport` by its methods alone.
        self._begin(transport)  # type: ignore[arg-type]

    def _begin(self, transport: asyncio.Transport) -> None:
        address = peer_address(transport)
        expected = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._expect_connect)
        self.peer = Peer(address, self.host.connections.total + 1, expected)
        self.inbound = Inbound(self, transport)
        self.outbound = Outbound(transport, self.inbound, self.host.at_end_of_turn)
        self.requests = Requests(self.host, self.inbound)
        self.held = HeldBytes(self.host, self.inbound)
        try:
            self.host.opened(self, address)
        except TooMany as error:
            self.refuse(error)

    def _expect_connect(self) -> None:
        self.refuse(ProtocolError(f"no CONNECT came within {HANDSHAKE_S:g} s"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.inbound.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.peer.was_heard = True
        self.inbound.received(nbytes)

    def eof_received(self) -> None:
        """The peer is done; asyncio closes the transport."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.outbound.lost()
        self.peer.lost()
        for producer in list(self.producers.values()):
            producer.detach()
        for consumer in list(self.consumers.values()):
            consumer.detach()
        for watcher in list(self.watchers.values()):
            watcher.detach()
        # They know this connection: circles would stay until the collector comes, which it hardly ever does.
        self.producers.clear()
        self.consumers.clear()
        self.watchers.clear()
        self.lists = None
        self.held.release_all()
        self.requests.close()
        self.inbound.close()
        self.host.closed(self)

    def pause_writing(self) -> None:
        self.outbound.is_writable = False

    def resume_writing(self) -> None:
        self.outbound.resumed()
        for consumer in list(self.consumers.values()):
            consumer.resumed()
        for watcher in self.watchers.values():
            watcher.resumed()

    # -- commands --------------------------------------------------------------------------------------

    def carry_out(self, cuts: Sequence[Cut]) -> None:
        """What came just now, or has waited in its lane.

        A producer that was closed from here may have sent on; the client will send it again elsewhere.
        """
        producers = self.producers
        for cut in cuts:
            if type(cut) is PublishRun:
                if (producer := producers.get(cut.producer_id)) is not None:
                    producer.publish(cut)
            elif isinstance(cut, Command):
                self._command(cut)
            elif isinstance(cut, Send):
                if (producer := producers.get(cut.producer_id)) is not None:
                    producer.publish_special(cut)
            else:
                raise ProtocolError("a client sent a MESSAGE")

    def _command(self, command: Command) -> None:
        handler = self._table.get(command.kind)
        if handler is None:
            raise ProtocolError(f"a client sent {pb.BaseCommand.Type.Name(command.kind)}")
        if not self.peer.is_connected and command.kind != pb.BaseCommand.CONNECT:
            raise ProtocolError("the first command must be CONNECT")
        lane = self._lane_of(command)
        if lane is not None and lane.is_busy:
            lane.put_off(command)
            return
        if command.kind != pb.BaseCommand.ACK:
            self.acknowledge_gathered()
        if (rate := self.requests.rate) is not None and command.kind not in _NOT_COUNTED:
            rate.count()
        handler(self, command.body)

    def _lane_of(self, command: Command) -> Lane | None:
        """The lane that a command goes through; None for one that waits for nothing."""
        body: Any = command.body
        end: ConsumerEnd | ProducerEnd | TopicWatcher | None = None
        if command.kind in _OF_CONSUMERS:
            end = self.consumers.get(body.consumer_id)
        elif command.kind == pb.BaseCommand.CLOSE_PRODUCER:
            end = self.producers.get(body.producer_id)
        elif command.kind in _OF_WATCHERS:
            end = self.watchers.get(body.watcher_id)
        elif command.kind == pb.BaseCommand.GET_TOPICS_OF_NAMESPACE:
            return self.lists
        return None if end is None else end.lane

    def gather_acks(self, consumer_id: int, ids: Iterable[pb.MessageIdData]) -> None:
        """Acknowledgements that nobody awaits: those of one read are told as one, before any other command."""
        self._acks.setdefault(consumer_id, []).extend(ids)

    def acknowledge_gathered(self) -> None:
        """Tell what was gathered; what came for a consumer that is gone is dropped."""
        if not self._acks:
            return
        acks, self._acks = self._acks, {}
        for consumer_id, ids in acks.items():
            end = self.consumers.get(consumer_id)
            if end is not None:
                end.acknowledge(ids)

    # -- answers ---------------------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """As `Outbound.write`."""
        self.outbound.write(data)

    async def answer(
        self, what: str, work: Callable[[], Awaitable[bytes]], refusal: Callable[[pb.ServerError, str], bytes]
    ) -> None:
        """Write the answer that `work` makes, or the `refusal` that such a request has."""
        try:
            self.write(await work())
        except QuireError as error:
            self.write(refusal(*self.why_refused(what, error)))

    def refuse_request(self, what: str, request_id: int, error: QuireError) -> None:
        """Answer a request with the ERROR that says why it is refused."""
        self.write(commands.error(request_id, *self.why_refused(what, error)))

    def why_refused(self, what: str, error: QuireError) -> tuple[pb.ServerError, str]:
        """Code and text for the answer; who debugs a client finds both in the log."""
        code, text = code_of(error), str(error)
        self._count(error)
        if _log.isEnabledFor(logging.DEBUG):
            name = pb.ServerError.Name(code)
            _log.debug("%s: %s is refused (%s): %s", self.peer.name, what, name, text)
        return code, text

    def _count(self, error: BaseException) -> None:
        if isinstance(error, TooMany):
            self.host.limits_met[error.limit] += 1

    # -- end -------------------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """As `refuse`; a bug is logged."""
        if not isinstance(error, QuireError):
            _log.error("connection %s failed", self.peer.name, exc_info=error)
        self.refuse(error)

    def refuse(self, error: BaseException) -> None:
        """Say what is wrong and close: the peer broke the protocol, or we cannot go on with it."""
        if self.is_closed:
            return
        self._count(error)
        _log.info("closing connection %s: %s", self.peer.name, error)
        text = str(error) if isinstance(error, QuireError) else "internal error"
        self.write(commands.error(commands.NO_REQUEST, code_of(error), text))
        self.close()

    def close(self) -> None:
        """Send what is queued and close."""
        self.outbound.close()

    def keep_alive(self) -> None:
        """To be called once per keep-alive interval; see `Peer.keep_alive`."""
        self.peer.keep_alive(self.inbound, self.outbound)
