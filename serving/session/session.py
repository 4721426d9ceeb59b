"""Client session: the commands of one connection and their handlers, its producers, consumers and topic watchers.

    socket ─▶ Inbound ─▶ runs of SENDs ─▶ the producer's topic        (the hot path: one call per run)
                     └▶ other commands ─▶ table[kind](session, body)
    write(…), write_many(…) ─▶ Outbound ─▶ socket

Handlers are plain functions. Asynchronous commands go through a *lane* (`lane`): the commands for one producer or
consumer id are executed in the client's order, each after the previous one is finished. Commands for different ids, and
requests without such an id, do not wait for each other. Each request is answered once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from quire.runtime.errors import ProtocolError, TooMany
from quire.runtime.limits import HANDSHAKE_S
from quire.runtime.network import peer_address
from quire.security.connections import Connections, too_slow
from quire.serving.session.connection import Connection
from quire.serving.session.consumer_end import ConsumerEnd
from quire.serving.session.context import SessionContext
from quire.serving.session.lane import Lane
from quire.serving.session.login import Login
from quire.serving.session.peer import Peer
from quire.serving.session.producer_end import ProducerEnd
from quire.serving.session.topic_watch import TopicWatcher
from quire.serving.topic.runs import PublishRun
from quire.wire import pulsar_pb2 as pb
from quire.wire.commands import Command
from quire.wire.frame import Cut, Send

Handler = Callable[["Session", Any], None]

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
"""Commands that do not count in the request rate; SENDs do not count, either."""

_OF_WATCHERS: Final = frozenset((pb.BaseCommand.WATCH_TOPIC_LIST, pb.BaseCommand.WATCH_TOPIC_LIST_CLOSE))
"""Commands executed in the lane of a watcher; those in `_OF_CONSUMERS` are executed in the lane of a consumer."""


class Session(Connection, asyncio.BufferedProtocol):
    """Connection that executes commands: `table` maps their kinds to handlers."""

    def __init__(
        self, context: SessionContext, connections: Connections[Session], table: Mapping[int, Handler]
    ) -> None:
        super().__init__(context)
        self.connections = connections
        """All sessions of the broker."""
        self._table = table
        self.login: Login | None = None
        """Login of the client; None without authentication, and until CONNECT is answered."""
        self._acks: dict[int, list[pb.MessageIdData]] = {}
        """Individual acknowledgements collected from the current read of the socket, by consumer id."""
        self.producers: dict[int, ProducerEnd] = {}
        self.consumers: dict[int, ConsumerEnd] = {}
        self.watchers: dict[int, TopicWatcher] = {}
        self.lists: Lane | None = None
        """Lane for GET_TOPICS_OF_NAMESPACE requests, which are expensive and therefore run one after another."""

    # -- what asyncio calls ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the methods of `asyncio.Transport`, but is not a subclass
        self._begin(transport)  # type: ignore[arg-type]

    def _begin(self, transport: asyncio.Transport) -> None:
        address = peer_address(transport)
        expected = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._expect_connect)
        self.begin(transport, self, Peer(address, self.connections.total + 1, expected))
        try:
            dropped = self.connections.came(self, address)
        except TooMany as error:
            self.refuse(error)
        else:
            if dropped is not None:
                dropped.refuse(too_slow())

    def _expect_connect(self) -> None:
        self.refuse(ProtocolError(f"no CONNECT was received within {HANDSHAKE_S:g} s"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.inbound.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.peer.was_heard = True
        self.inbound.received(nbytes)

    def eof_received(self) -> None:
        """Let asyncio close the transport, because the client has closed its side."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.outbound.lost()
        self.peer.lost()
        if self.login is not None:
            self.login.end()
        for producer in list(self.producers.values()):
            producer.detach()
        for consumer in list(self.consumers.values()):
            consumer.detach()
        for watcher in list(self.watchers.values()):
            watcher.detach()
        # These objects reference this session: reference cycles would stay until the garbage collector runs, which is
        # rare.
        self.producers.clear()
        self.consumers.clear()
        self.watchers.clear()
        self.lists = None
        self.held.release_all()
        self.requests.close()
        self.inbound.close()
        self.connections.left(self)
        self.context.sends_of_closed.fast += self.inbound.fast_sends
        self.context.sends_of_closed.slow += self.inbound.slow_sends

    def pause_writing(self) -> None:
        self.outbound.is_writable = False

    def resume_writing(self) -> None:
        self.outbound.resumed()
        for consumer in list(self.consumers.values()):
            consumer.resumed()
        for watcher in self.watchers.values():
            watcher.resumed()

    def forget_producer(self, producer_id: int, end: object) -> None:
        if self.producers.get(producer_id) is end:
            del self.producers[producer_id]

    def forget_consumer(self, consumer_id: int, end: object) -> None:
        if self.consumers.get(consumer_id) is end:
            del self.consumers[consumer_id]

    def forget_watcher(self, watcher_id: int) -> None:
        self.watchers.pop(watcher_id, None)

    # -- commands --------------------------------------------------------------------------------------

    def carry_out(self, cuts: Sequence[Cut]) -> None:
        """Execute commands that were just read, or that waited in a lane.

        SENDs for a producer that the broker has closed are dropped: the client sends them again after reconnecting.
        """
        producers = self.producers
        for cut in cuts:
            if type(cut) is PublishRun:
                if (producer := producers.get(cut.producer_id)) is not None:
                    producer.publish(cut)
                else:
                    _drop_send(self)
            elif isinstance(cut, Command):
                self._command(cut)
            elif isinstance(cut, Send):
                if (producer := producers.get(cut.producer_id)) is not None:
                    producer.publish_special(cut)
                else:
                    _drop_send(self)
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
        """Return the lane of a command; None if it is executed without a lane."""
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
        """Collect acknowledgements that need no response; they are executed together before any other command."""
        self._acks.setdefault(consumer_id, []).extend(ids)

    def acknowledge_gathered(self) -> None:
        """Execute the collected acknowledgements, except those of closed consumers."""
        if not self._acks:
            return
        acks, self._acks = self._acks, {}
        for consumer_id, ids in acks.items():
            end = self.consumers.get(consumer_id)
            if end is not None:
                end.acknowledge(ids)


def _drop_send(session: Session) -> None:
    """Drop a SEND for a closed producer. Raises `ProtocolError` before CONNECT was answered."""
    if not session.peer.is_connected:
        raise ProtocolError("the first command must be CONNECT")
