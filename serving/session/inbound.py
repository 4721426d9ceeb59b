"""What comes in over one connection: bytes from the socket, cut into frames, and carried out by the connection.

    socket ─▶ FrameCutter ─▶ runs of SENDs and commands ─▶ Connection.carry_out

The socket is not read while there is a reason (`Stop`):

    BUDGET    it has producers, and the byte budget of the process is spent
    HELD      SENDs or commands must wait in their lanes, and too much was sent meanwhile
    ANSWERS   the peer asks and does not read the answers
    REQUESTS  many of its requests are being worked on
    ROOM      a large frame is on its way, and other connections' frames have all the room (`frame_room`)
    RATE      it makes more requests per second than it may
    TURN      it sent more than fits a turn of the loop; the rest of what was read is done in slices (`runtime.slices`),
              so that who sends much waits for its like, and everybody else for one slice at most

A connection whose frame does not come to its end in time is closed.
"""

from __future__ import annotations

import asyncio
from enum import Flag, auto
from math import inf
from typing import TYPE_CHECKING, Final
from weakref import ref

from quire.runtime.errors import ProtocolError
from quire.runtime.limits import FRAME_SLACK_BYTES, HANDSHAKE_BYTES_MAX, KIB, MIB, READ_ROOM_BYTES
from quire.serving.topic.runs import PublishRun
from quire.wire.frame import Cut, FrameCutter
from quire.wire.frame_buffer import READ_BUFFER_BYTES_MAX

if TYPE_CHECKING:
    from quire.serving.session.connection import Connection

FRAME_S_MAX: Final = 60.0
"""How long a frame may be on its way: the largest one, over a connection of less than a megabit a second."""

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

_NOTHING: Final[list[Cut]] = []


class Stop(Flag):
    """Why a connection is not read."""

    BUDGET = auto()
    HELD = auto()
    ANSWERS = auto()
    ROOM = auto()
    REQUESTS = auto()
    RATE = auto()
    TURN = auto()


READING: Final = Stop(0)


class Inbound:
    """It refers to its connection weakly: a circle would stay until the collector comes, which it hardly ever does."""

    def __init__(self, connection: Connection, transport: asyncio.Transport) -> None:
        self._connection = ref(connection)
        self._host = connection.host
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._cutter = FrameCutter(
            HANDSHAKE_BYTES_MAX, READ_ROOM_BYTES, COMMANDS_A_TURN, LARGE_COMMAND_BYTES, PublishRun
        )
        self._room_bytes = READ_ROOM_BYTES
        self._frame_since = 0.0
        """When the frame began that is not complete yet, or is read again; 0.0 when there is none."""
        self._asked_for_slice = False
        self.stops = READING

    @property
    def fast_sends(self) -> int:
        """SENDs that were cut by their offsets alone; see `quire.wire.frame`."""
        return self._cutter.fast_sends

    @property
    def slow_sends(self) -> int:
        return self._cutter.slow_sends

    @property
    def _is_closed(self) -> bool:
        connection = self._connection()
        return connection is None or connection.is_closed

    def allow_messages(self) -> None:
        """CONNECT came: from now on any frame may."""
        self._cutter.frame_bytes_max = self._host.settings.message_bytes_max + FRAME_SLACK_BYTES

    def close(self) -> None:
        self._host.frame_room.give_back(self)

    # -- reading ---------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._cutter.get_buffer(sizehint)
        return room[:SMALL_READ_BYTES] if self._host.read_share.is_spent else room

    def received(self, nbytes: int) -> None:
        """Carry out what is complete with so many bytes more, as much of it as fits a turn of the loop."""
        connection = self._connection()
        if connection is None or connection.is_closed:
            return
        cutter, cuts = self._cutter, _NOTHING
        buffer_bytes, sends = cutter.buffer_bytes, cutter.sends
        try:
            try:
                cuts = cutter.received(nbytes)
                if self._frame_since or cutter.pending_bytes or cutter.is_short:
                    self._weigh_frame(
                        len(cuts), cutter.sends - sends, has_producers=bool(connection.producers)
                    )
                connection.carry_out(cuts)
            finally:
                connection.acknowledge_gathered()
        except Exception as error:
            connection.fail(error)
        if cutter.is_behind:
            self.stop(Stop.TURN)
            self._ask_for_slice()
        if nbytes >= SMALL_READ_BYTES:
            grown = max(0, cutter.buffer_bytes - buffer_bytes)
            self._weigh_read(nbytes + GROWTH_WEIGHT * grown + ENTRY_WEIGHT * (cutter.sends - sends))
        if connection.producers and self._host.budget.is_spent and Stop.BUDGET not in self.stops:
            self.stop(Stop.BUDGET)
            self._host.budget.when_free(lambda: self.go_on(Stop.BUDGET))

    def _take_slice(self) -> None:
        """Go on with what was read; after all of it the socket is read again."""
        self._asked_for_slice = False
        if self.stops != Stop.TURN or self._is_closed:
            return  # whoever ends the other reason asks again
        if self._cutter.is_behind:
            self.received(0)
        if not self._asked_for_slice:
            self.go_on(Stop.TURN)

    def _ask_for_slice(self) -> None:
        if not self._asked_for_slice:
            self._asked_for_slice = True
            self._host.slices.put(self._take_slice)

    def _weigh_read(self, weight: int) -> None:
        """When a turn's share was read, the socket waits for a later turn, after those that wait already."""
        share = self._host.read_share
        share.spend(weight)
        if share.is_spent and Stop.TURN not in self.stops:
            self.stop(Stop.TURN)
            share.wait(max(weight, READ_WEIGHT_MAX // READERS_A_TURN), self._new_turn)

    def _new_turn(self) -> None:
        if not self._asked_for_slice:
            self.go_on(Stop.TURN)

    # -- whether the socket is read ----------------------------------------------------------------------

    def stop(self, why: Stop) -> None:
        if self.stops == READING and not self._is_closed:
            self._transport.pause_reading()
        self.stops |= why

    def go_on(self, why: Stop) -> None:
        if why not in self.stops:
            return
        self.stops &= ~why
        if self.stops == Stop.TURN:
            self._ask_for_slice()
        elif self.stops == READING and not self._is_closed:
            if self._frame_since:
                self._frame_since = self._loop.time()
            self._transport.resume_reading()

    @property
    def is_deaf(self) -> bool:
        """It is not read, and not because of its peer: nothing of it can be heard."""
        return bool(self.stops & ~Stop.ANSWERS)

    def rest(self) -> None:
        """The peer is quiet: a small buffer does."""
        self._cutter.rest()

    # -- the frame that is on its way ------------------------------------------------------------------

    def _weigh_frame(self, cuts: int, sends: int, *, has_producers: bool) -> None:
        """After a read: a frame is not complete, or was not before, or the buffer could be larger."""
        cutter, room = self._cutter, self._host.frame_room
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
                self.stop(Stop.ROOM)
        elif (
            cutter.is_short
            and has_producers
            and sends <= ENTRIES_BEFORE_LARGE_READS_MAX
            and room.ask_spare(self, max(self._room_bytes, READ_BUFFER_BYTES_MAX))
        ):
            self._room_bytes = max(self._room_bytes, READ_BUFFER_BYTES_MAX)
            cutter.size_max = READ_BUFFER_BYTES_MAX
        cutter.is_short = False

    def _room_given(self) -> None:
        self.go_on(Stop.ROOM)

    def give_back_room(self) -> None:
        """As `frame_room.Reader`."""
        cutter = self._cutter
        if cutter.pending_frame_bytes <= READ_ROOM_BYTES:
            self._room_bytes = cutter.size_max = READ_ROOM_BYTES
            cutter.rest()
            self._host.frame_room.give_back(self)

    def close_if_slow(self, seconds: float = inf) -> None:
        """As `frame_room.Reader`. One that we do not read cannot go on, and has longer."""
        patience_s = FRAME_S_MAX if self.is_deaf else min(seconds, FRAME_S_MAX)
        if self._frame_since and self._loop.time() - self._frame_since >= patience_s:
            connection = self._connection()
            if connection is not None:
                connection.refuse(ProtocolError(f"a frame did not come to its end within {patience_s:g} s"))
            self._host.frame_room.give_back(self)
