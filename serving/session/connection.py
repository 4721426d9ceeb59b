"""One client connection: bytes in, commands to their handlers, everything of a turn out in one write.

    socket ─▶ FrameCutter ─▶ runs of SENDs ─▶ the producer's topic        (the hot path: one call per run)
                          └▶ other commands ─▶ table[kind](connection, body)
    write(…), write_many(…) ─▶ one list ─▶ one writelines when the turn is over

Handlers are plain functions. What takes time goes into a *lane* (`lane`): the commands for one producer or consumer id
are carried out in the client's order, and while an asynchronous one is under way later ones of the same id wait.
Commands of different ids and plain requests do not wait for one another; each request is answered once.

What the peer does wrong costs this connection and no other: it gets an ERROR and is closed. A connection whose
peer does not read is told to its consumers as not writable, so that they are dealt nothing more. The socket is not read
while there is a reason (`Stop`):

    BUDGET    it has producers, and the byte budget of the process is spent
    HELD      SENDs or commands must wait in their lanes, and too much was sent meanwhile
    ANSWERS   the peer asks and does not read the answers
    REQUESTS  many of its requests are being worked on
    ROOM      a large frame is on its way, and other connections' frames have all the room (`frame_room`)
    TURN      it sent more than fits a turn of the loop; the rest of what was read is done in slices (`runtime.slices`),
              so that who sends much waits for its like, and everybody else for one slice at most

A connection that does not say CONNECT in time is closed, and so is one whose frame does not come to its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from enum import Flag, auto
from typing import TYPE_CHECKING, Any, Final, TypeVar

from quire.runtime.errors import LimitExceeded, ProtocolError, QuireError
from quire.runtime.limits import (
    FRAME_SLACK_BYTES,
    HANDSHAKE_BYTES_MAX,
    HANDSHAKE_S,
    HELD_BYTES_PER_CONNECTION_MAX,
    KIB,
    MIB,
    READ_ROOM_BYTES,
    REQUESTS_PENDING_PER_CONNECTION_MAX,
    UNREAD_ANSWERS_BYTES_MAX,
)
from quire.serving.cluster.port import NotOwner
from quire.serving.session.lane import Lane
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer
from quire.wire.commands import Command
from quire.wire.error_codes import code_of
from quire.wire.frame import Cut, FrameCutter, Send, SendRun
from quire.wire.frame_buffer import READ_BUFFER_BYTES_MAX

if TYPE_CHECKING:
    from quire.serving.session.consume import ConsumerEnd
    from quire.serving.session.produce import ProducerEnd
    from quire.serving.session.sessions import Sessions
    from quire.serving.session.topic_watch import TopicWatcher

Handler = Callable[["Connection", Any], None]
T = TypeVar("T")

WRITE_HIGH_BYTES: Final = 1 * MIB
"""Unsent bytes at which consumers of the connection are dealt nothing more."""

PATIENCE_S: Final = 10.0
PATIENCE_STEP_S: Final = 0.05

WRITE_LOW_BYTES: Final = 256 * KIB

FRAME_S_MAX: Final = 60.0
"""How long a frame may be on its way: the largest one, over a connection of less than a megabit a second."""

_log = logging.getLogger(__name__)

COMMANDS_A_TURN: Final = 50
"""Of one connection. One takes some 30 µs in all; SENDs are not counted, and acknowledgements eight for one."""

LARGE_COMMAND_BYTES: Final = 16 * KIB
"""Of which only one is parsed in a turn of the loop, over all connections: a megabyte of ids takes ten milliseconds."""

SMALL_READ_BYTES: Final = 4 * KIB
"""A read of less is not weighed; nor does one take more when the turn's share is spent."""

READ_WEIGHT_MAX: Final = 4 * MIB
"""Read in one turn of the loop, over all connections: some milliseconds, or thirty of entries for as many topics. The
loop itself reads on and on from a socket that fills the buffer, and from every other one that has something."""

GROWTH_WEIGHT: Final = 4
"""What a byte by which a buffer grows counts of that: pages that are new take longer than what is read into them."""

READERS_A_TURN: Final = 8
"""Of those that wait for one."""

ENTRY_WEIGHT: Final = 2 * KIB
"""What an entry counts of that beside its bytes: 3 µs, and twenty where each is for another topic. Were it four times
as much, those would cost a tenth more, for then each turn is a smaller group."""

ENTRIES_BEFORE_LARGE_READS_MAX: Final = READ_ROOM_BYTES // 512
"""In a read that filled the small buffer: with more of them a large one is many milliseconds, and gains nothing."""


class Stop(Flag):
    """Why a connection is not read; see the top of the file."""

    BUDGET = auto()
    HELD = auto()
    ANSWERS = auto()
    ROOM = auto()
    REQUESTS = auto()
    TURN = auto()


READING: Final = Stop(0)
_NOTHING: Final[list[Cut]] = []

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
_OF_WATCHERS: Final = frozenset((pb.BaseCommand.WATCH_TOPIC_LIST, pb.BaseCommand.WATCH_TOPIC_LIST_CLOSE))
"""What goes through the lane of the consumer, or the watcher, that it names."""


def _entries(cuts: Iterable[Cut]) -> int:
    return sum(len(cut) for cut in cuts if type(cut) is SendRun)


class Connection(asyncio.BufferedProtocol):
    """`table` maps the kinds of commands to their handlers."""

    def __init__(self, host: Sessions, table: Mapping[int, Handler]) -> None:
        self.host = host
        self._table = table
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._handshake: asyncio.TimerHandle | None = None
        self._cutter = FrameCutter(HANDSHAKE_BYTES_MAX, READ_ROOM_BYTES, COMMANDS_A_TURN, LARGE_COMMAND_BYTES)
        self._room_bytes = READ_ROOM_BYTES
        self._frame_since = 0.0
        """When the frame began that is not complete yet, or is read again; 0.0 when there is none."""
        self._out: list[Buffer] = []
        self._out_bytes = 0
        """Of `_out`, what consumers were dealt in this turn."""
        self._asked_for_slice = False
        self._pending = 0
        self._acks: dict[int, list[pb.MessageIdData]] = {}
        """Individual acknowledgements of this read, by consumer id."""
        self._stops = READING
        self._held_bytes = 0
        self._unread_bytes = 0
        """Answers queued since the write buffer is full."""
        self._unsent_bytes = 0
        """What the write buffer held when we last looked whether the peer reads."""
        self._was_heard = True
        self._was_pinged = False
        self.is_closed = False
        self.is_writable = True
        self.is_connected = False
        """CONNECT was answered."""
        self.address = ""
        self.client_version = ""
        self.wants_index = False
        """The client takes entries with broker entry metadata, and the settings allow it."""
        self.connected_ms = 0
        self.producers: dict[int, ProducerEnd] = {}
        self.consumers: dict[int, ConsumerEnd] = {}
        self.watchers: dict[int, TopicWatcher] = {}
        self.lists: Lane | None = None
        """Questions for the topics of a namespace, which are much work: one after the other. Made for the first one."""

    @property
    def fast_sends(self) -> int:
        """SENDs that were cut by their offsets alone; see `quire.wire.frame`."""
        return self._cutter.fast_sends

    @property
    def slow_sends(self) -> int:
        return self._cutter.slow_sends

    @property
    def has_unanswered(self) -> bool:
        """Requests that are being worked on."""
        return self._pending > 0

    @property
    def knows_end_of_topic(self) -> bool:
        """Whether REACHED_END_OF_TOPIC may be sent: other clients close the connection when they meet it."""
        version = self.client_version.lower()
        return "java" in version or version.startswith("quire")

    # -- what asyncio calls ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment]
        peer = transport.get_extra_info("peername")
        self.address = f"/{peer[0]}:{peer[1]}" if peer else ""
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)  # type: ignore[attr-defined]
        self._handshake = self._loop.call_later(HANDSHAKE_S, self._expect_connect)
        if not self.host.opened(self):
            self.refuse(LimitExceeded("this broker has too many connections; try another one"))

    def _expect_connect(self) -> None:
        self.refuse(ProtocolError(f"no CONNECT came within {HANDSHAKE_S:g} s"))

    def connected(self, client_version: str) -> None:
        """CONNECT came: from now on any frame may."""
        if self._handshake is not None:
            self._handshake.cancel()
        self.is_connected = True
        self.client_version = client_version
        self.connected_ms = self.host.clock.now_ms()
        self._cutter.frame_bytes_max = self.host.settings.message_bytes_max + FRAME_SLACK_BYTES

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._cutter.get_buffer(sizehint)
        return room[:SMALL_READ_BYTES] if self.host.read_share.is_spent else room

    def buffer_updated(self, nbytes: int) -> None:
        self._was_heard = True
        if self.is_closed:
            return
        self._take_read(nbytes)

    def _take_read(self, nbytes: int) -> None:
        """Carry out what is complete with so many bytes more, as much of it as fits a turn of the loop."""
        cutter, cuts = self._cutter, _NOTHING
        buffer_bytes = cutter.buffer_bytes
        try:
            try:
                cuts = cutter.received(nbytes)
                if self._frame_since or cutter.pending_bytes or cutter.is_short:
                    self._weigh_frame(cuts)
                for cut in cuts:
                    self.take(cut)
            finally:
                self.acknowledge_gathered()
        except Exception as error:
            self.fail(error)
        if cutter.is_behind:
            self._stop_reading(Stop.TURN)
            self._ask_for_slice()
        if nbytes >= SMALL_READ_BYTES:
            grown = max(0, cutter.buffer_bytes - buffer_bytes)
            self._weigh_read(nbytes + GROWTH_WEIGHT * grown + ENTRY_WEIGHT * _entries(cuts))
        if self.producers and self.host.budget.is_spent and Stop.BUDGET not in self._stops:
            self._stop_reading(Stop.BUDGET)
            self.host.budget.when_free(lambda: self._read_on(Stop.BUDGET))

    def _take_slice(self) -> None:
        """Go on with what was read; behind all of it the socket is read again."""
        self._asked_for_slice = False
        if self._stops != Stop.TURN or self.is_closed:
            return  # whoever ends the other reason asks again
        if self._cutter.is_behind:
            self._take_read(0)
        if not self._asked_for_slice:
            self._read_on(Stop.TURN)

    def _ask_for_slice(self) -> None:
        if not self._asked_for_slice:
            self._asked_for_slice = True
            self.host.slices.put(self._take_slice)

    def _weigh_read(self, weight: int) -> None:
        """When a turn's share was read, the socket waits for a later turn, behind those that wait already."""
        share = self.host.read_share
        share.spend(weight)
        if share.is_spent and Stop.TURN not in self._stops:
            self._stop_reading(Stop.TURN)
            share.wait(max(weight, READ_WEIGHT_MAX // READERS_A_TURN), self._new_turn)

    def _new_turn(self) -> None:
        if not self._asked_for_slice:
            self._read_on(Stop.TURN)

    def eof_received(self) -> None:
        """The peer is done; asyncio closes the transport."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        if self._handshake is not None:
            self._handshake.cancel()
        self._out.clear()
        for producer in list(self.producers.values()):
            producer.abandon()
        for consumer in list(self.consumers.values()):
            consumer.abandon()
        for watcher in list(self.watchers.values()):
            watcher.abandon()
        # They know this connection: circles would stay until the collector comes, which it hardly ever does.
        self.producers.clear()
        self.consumers.clear()
        self.watchers.clear()
        self.lists = None
        self.host.held.give_back(self._held_bytes)
        self._held_bytes = 0
        self.host.frame_room.give_back(self)
        self.host.closed(self)

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        self._unread_bytes = 0
        self._read_on(Stop.ANSWERS)
        for consumer in list(self.consumers.values()):
            consumer.resumed()
        for watcher in self.watchers.values():
            watcher.resumed()

    # -- in --------------------------------------------------------------------------------------------

    def take(self, cut: Cut) -> None:
        """Carry out what came just now, or has waited in its lane."""
        if type(cut) is SendRun:
            producer = self.producers.get(cut.producer_id)
            # A producer that was closed from here may have sent on; the client will send it again elsewhere.
            if producer is not None:
                producer.publish(cut)
        elif isinstance(cut, Command):
            self._command(cut)
        elif isinstance(cut, Send):
            producer = self.producers.get(cut.producer_id)
            if producer is not None:
                producer.publish_special(cut)
        else:
            raise ProtocolError("a client sent a MESSAGE")

    def _command(self, command: Command) -> None:
        handler = self._table.get(command.kind)
        if handler is None:
            raise ProtocolError(f"a client sent {pb.BaseCommand.Type.Name(command.kind)}")
        if not self.is_connected and command.kind != pb.BaseCommand.CONNECT:
            raise ProtocolError("the first command must be CONNECT")
        lane = self._lane_of(command)
        if lane is not None and lane.is_busy:
            lane.put_off(command)
            return
        if command.kind != pb.BaseCommand.ACK:
            self.acknowledge_gathered()
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

    def start(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        """Carry out an asynchronous command."""
        self._pending += 1
        if self._pending >= REQUESTS_PENDING_PER_CONNECTION_MAX:
            self._stop_reading(Stop.REQUESTS)
        task = self.host.tasks.start(work, what)
        task.add_done_callback(self._started_ended)
        return task

    def _started_ended(self, _: asyncio.Task[None]) -> None:
        self._pending -= 1
        if 2 * self._pending <= REQUESTS_PENDING_PER_CONNECTION_MAX:
            self._read_on(Stop.REQUESTS)

    async def patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try again for a while what fails with "try again": the answer to a PRODUCER or a SUBSCRIBE.

        Told to try again on a connection that stays open, C++ clients never do, and the call hangs until its own
        time-out. So the trying is done here; but not for what another broker has: the client must look that up again.
        """
        deadline, delay_s = self._loop.time() + PATIENCE_S, PATIENCE_STEP_S
        while True:
            try:
                return await attempt()
            except QuireError as error:
                late = self._loop.time() + delay_s > deadline or isinstance(error, NotOwner)
                if code_of(error) != pb.ServiceNotReady or self.is_closed or late:
                    raise
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, 1.0)

    # -- out -------------------------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Queue bytes; all of a turn leave in one write. Nothing once the connection is closed."""
        if self.is_closed:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)
        if not self.is_writable:
            self._unread_bytes += len(data)
            if self._unread_bytes >= UNREAD_ANSWERS_BYTES_MAX:
                self._stop_reading(Stop.ANSWERS)

    def refuse_request(self, what: str, request_id: int, error: QuireError) -> None:
        """Answer a request with the ERROR that says why it is refused."""
        self.write(commands.error(request_id, *self.why_refused(what, error)))

    def why_refused(self, what: str, error: QuireError) -> tuple[pb.ServerError, str]:
        """Code and text for the answer; who debugs a client finds both in the log."""
        code, text = code_of(error), str(error)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s: %s is refused (%s): %s", self.address, what, pb.ServerError.Name(code), text)
        return code, text

    def write_many(self, parts: Sequence[Buffer]) -> None:
        if self.is_closed:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += parts
        self._out_bytes += sum(map(len, parts))
        if self._out_bytes >= WRITE_HIGH_BYTES:
            # Now, so that `pause_writing` is called before any other consumer of this connection is dealt more.
            self._flush()

    def _flush(self) -> None:
        out, self._out = self._out, []
        self._out_bytes = 0
        if not out or self._transport is None:
            return
        if len(out) == 1:
            self._transport.write(out[0])
        else:
            self._transport.writelines(out)

    # -- end -------------------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """As `refuse`; a mistake of ours is logged."""
        if not isinstance(error, QuireError):
            _log.error("connection %s failed", self.address, exc_info=error)
        self.refuse(error)

    def refuse(self, error: BaseException) -> None:
        """Say what is wrong and close: the peer broke the protocol, or we cannot go on with it."""
        if self.is_closed:
            return
        _log.info("closing connection %s: %s", self.address, error)
        text = str(error) if isinstance(error, QuireError) else "internal error"
        self.write(commands.error(commands.NO_REQUEST, code_of(error), text))
        self.close()

    def close(self) -> None:
        """Send what is queued and close."""
        if self._transport is not None and not self.is_closed:
            self._flush()
            self.is_closed = True
            self._transport.close()

    def keep_alive(self) -> None:
        """To be called once per keep-alive interval: ping after one silent interval, close after two.

        One that is not read cannot be heard. It is pinged, and nothing is awaited: that its peer is gone is seen when
        something is sent to it, while nobody looks at the socket otherwise.
        """
        if Stop.ANSWERS in self._stops:
            unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
            self._was_heard, self._unsent_bytes = unsent != self._unsent_bytes, unsent
        if not self._stops & ~Stop.ANSWERS:
            self.close_if_slow(FRAME_S_MAX)
        if self._stops & ~Stop.ANSWERS:
            self._was_heard = self._was_pinged = False
            if self.is_connected and self.is_writable:
                self.write(commands.PING)
        elif self._was_heard:
            self._was_heard = self._was_pinged = False
        elif not self._was_pinged:
            self._was_pinged = True
            self._cutter.rest()
            self.write(commands.PING)
        else:
            _log.info("closing connection %s: silent since it was pinged", self.address)
            self.is_closed = True
            if self._transport is not None:
                self._transport.abort()

    # -- the frame that is on its way ------------------------------------------------------------------

    def _weigh_frame(self, cuts: Sequence[Cut]) -> None:
        """After a read: a frame is not complete, or was not before, or the buffer could be larger."""
        cutter, room = self._cutter, self.host.frame_room
        if cutter.is_behind:
            self._frame_since = 0.0
            return
        if not cutter.pending_bytes:
            self._frame_since = 0.0
        elif cuts or not self._frame_since:
            self._frame_since = self._loop.time()
        wanted = cutter.pending_frame_bytes
        if wanted > self._room_bytes:
            self._room_bytes = wanted
            if not room.ask(self, wanted, self._room_given):
                self._stop_reading(Stop.ROOM)
        elif (
            cutter.is_short
            and self.producers
            and _entries(cuts) <= ENTRIES_BEFORE_LARGE_READS_MAX
            and room.ask_spare(self, max(self._room_bytes, READ_BUFFER_BYTES_MAX))
        ):
            self._room_bytes = max(self._room_bytes, READ_BUFFER_BYTES_MAX)
            cutter.size_max = READ_BUFFER_BYTES_MAX
        cutter.is_short = False

    def _room_given(self) -> None:
        self._read_on(Stop.ROOM)

    def give_back_room(self) -> None:
        """As `frame_room.Reader`."""
        cutter = self._cutter
        if cutter.pending_frame_bytes <= READ_ROOM_BYTES:
            self._room_bytes = cutter.size_max = READ_ROOM_BYTES
            cutter.rest()
            self.host.frame_room.give_back(self)

    def close_if_slow(self, seconds: float) -> None:
        """As `frame_room.Reader`. One that we do not read cannot go on, and has longer."""
        patience_s = FRAME_S_MAX if self._stops & ~Stop.ANSWERS else seconds
        if self._frame_since and self._loop.time() - self._frame_since >= patience_s:
            self.refuse(ProtocolError(f"a frame did not come to its end within {patience_s:g} s"))
            self.host.frame_room.give_back(self)

    # -- back-pressure ---------------------------------------------------------------------------------

    def hold_bytes(self, byte_count: int) -> None:
        """So much waits in a lane for its turn.

        It has a budget of its own, so that many who must wait stop each other and not everybody else.
        """
        self._held_bytes += byte_count
        self.host.held.take(byte_count)
        if self._holds_too_much():
            self._stop_reading(Stop.HELD)

    def release_bytes(self, byte_count: int) -> None:
        """It waits no longer."""
        self._held_bytes -= byte_count
        self.host.held.give_back(byte_count)
        self.host.budget.look_again()
        if not self._holds_too_much():
            self._read_on(Stop.HELD)

    def _holds_too_much(self) -> bool:
        held = self._held_bytes
        return held >= HELD_BYTES_PER_CONNECTION_MAX or (held > 0 and self.host.held.is_spent)

    def _stop_reading(self, why: Stop) -> None:
        if self._stops == READING and not self.is_closed and self._transport is not None:
            self._transport.pause_reading()
        self._stops |= why

    def _read_on(self, why: Stop) -> None:
        if why not in self._stops:
            return
        self._stops &= ~why
        if self._stops == Stop.TURN:
            self._ask_for_slice()
        elif self._stops == READING and not self.is_closed and self._transport is not None:
            if self._frame_since:
                self._frame_since = self._loop.time()
            self._transport.resume_reading()
