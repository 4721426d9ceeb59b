"""Read side of one connection: splits bytes from the socket into frames, and passes them to the session.

    socket ─▶ FrameCutter ─▶ runs of SENDs and commands ─▶ Session.carry_out

The socket is not read while there is a reason not to (`Stop`):

    BUDGET    the connection has producers, and the byte budget of the process is used up
    HELD      too many bytes of SENDs and commands of this connection wait in lanes
    ANSWERS   the client sends requests and does not read the responses
    REQUESTS  too many requests of the client are in progress
    ROOM      a large frame is incomplete, and other connections use all memory for large frames (`frame_room`)
    RATE      the client makes more requests per second than allowed
    TURN      the client sent more than one event loop iteration may process; the rest is executed in time slices
              (`runtime.slices`), so that other connections wait for at most one slice

A connection whose frame is not complete within `FRAME_S_MAX` is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Sized
from enum import Flag, auto
from math import inf
from typing import Final, Protocol
from weakref import ref

from quire.runtime.errors import ProtocolError
from quire.runtime.limits import FRAME_SLACK_BYTES, HANDSHAKE_BYTES_MAX, KIB, READ_ROOM_BYTES
from quire.serving.session.context import READ_WEIGHT_MAX, SessionContext
from quire.serving.topic.runs import PublishRun
from quire.wire.frame import Cut, FrameCutter
from quire.wire.frame_buffer import READ_BUFFER_BYTES_MAX

FRAME_S_MAX: Final = 60.0
"""Time limit, in seconds, for one frame; the largest frame takes less, even over a link of one Mbit/s."""

COMMANDS_A_TURN: Final = 50
"""Maximum number of commands of one connection per event loop iteration; a command takes some 30 µs.

SENDs do not count, and eight acknowledgements count as one command.
"""

LARGE_COMMAND_BYTES: Final = 16 * KIB
"""Size, in bytes, from which a command is large.

Only one large command is parsed per event loop iteration, because parsing a megabyte of ids takes 10 ms.
"""

SMALL_READ_BYTES: Final = 4 * KIB
"""Size, in bytes, below which a read does not count in the iteration's share (`read_share`).

Once the share is used up, reads are limited to this size.
"""

GROWTH_WEIGHT: Final = 4
"""Weight of a byte by which a buffer grows: allocating new pages costs more than reading into them."""

READERS_A_TURN: Final = 8
"""Number of connections paused by `read_share` that are read in a later event loop iteration."""

ENTRY_WEIGHT: Final = 2 * KIB
"""Weight of an entry in addition to its bytes: an entry takes 3 µs, or 20 µs if each is for a different topic.

With four times this weight the latter case would cost a tenth more, because fewer entries would be processed together.
"""

ENTRIES_BEFORE_LARGE_READS_MAX: Final = READ_ROOM_BYTES // 512
"""Maximum number of entries in a full small buffer for which a large buffer is requested.

If the entries are smaller, a large read takes many ms without a gain.
"""

_NOTHING: Final[list[Cut]] = []


class Stop(Flag):
    """Reasons why a connection is not read; see the module's docstring."""

    BUDGET = auto()
    HELD = auto()
    ANSWERS = auto()
    ROOM = auto()
    REQUESTS = auto()
    RATE = auto()
    TURN = auto()


READING: Final = Stop(0)


class Receiver(Protocol):
    """Port from `Inbound` to its session, implemented by `session.Session`."""

    @property
    def is_closed(self) -> bool: ...

    @property
    def producers(self) -> Sized: ...

    def carry_out(self, cuts: Sequence[Cut]) -> None:
        """Execute commands in order. If it raises, the connection is closed."""
        ...

    def acknowledge_gathered(self) -> None:
        """Execute the acknowledgements that were collected from one read of the socket."""
        ...

    def fail(self, error: Exception) -> None:
        """Close the connection after any error; log an error that is not a `QuireError`, because it is a bug."""
        ...

    def refuse(self, error: BaseException) -> None:
        """Send an ERROR and close the connection, because the client violated the protocol."""
        ...


class Inbound:
    """Read side of one connection.

    It references its session weakly, because a reference cycle stays in memory until the garbage collector runs, which
    is rare.
    """

    def __init__(self, context: SessionContext, session: Receiver, transport: asyncio.Transport) -> None:
        self._session = ref(session)
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._cutter = FrameCutter(
            HANDSHAKE_BYTES_MAX, READ_ROOM_BYTES, COMMANDS_A_TURN, LARGE_COMMAND_BYTES, PublishRun
        )
        self._room_bytes = READ_ROOM_BYTES
        self._frame_since = 0.0
        """Event loop time (s) at which the incomplete frame began or reading resumed; 0.0 if no frame is incomplete."""
        self._asked_for_slice = False
        self.stops = READING

    @property
    def fast_sends(self) -> int:
        """Number of SENDs that the fast path parsed, by offsets only; see `quire.wire.frame`."""
        return self._cutter.fast_sends

    @property
    def slow_sends(self) -> int:
        return self._cutter.slow_sends

    @property
    def _is_closed(self) -> bool:
        session = self._session()
        return session is None or session.is_closed

    def allow_messages(self) -> None:
        """Accept frames of the maximum message size, because CONNECT was answered."""
        self._cutter.frame_bytes_max = self._context.settings.message_bytes_max + FRAME_SLACK_BYTES

    def close(self) -> None:
        self._context.frame_room.give_back(self)

    # -- reading ---------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._cutter.get_buffer(sizehint)
        return room[:SMALL_READ_BYTES] if self._context.read_share.is_spent else room

    def received(self, nbytes: int) -> None:
        """Execute commands completed by `nbytes` more bytes, but no more than one event loop iteration may process."""
        session = self._session()
        if session is None or session.is_closed:
            return
        cutter, cuts = self._cutter, _NOTHING
        buffer_bytes, sends = cutter.buffer_bytes, cutter.sends
        try:
            try:
                cuts = cutter.received(nbytes)
                if self._frame_since or cutter.pending_bytes or cutter.is_short:
                    self._weigh_frame(len(cuts), cutter.sends - sends, has_producers=bool(session.producers))
                session.carry_out(cuts)
            finally:
                session.acknowledge_gathered()
        except Exception as error:
            session.fail(error)
        if cutter.is_behind:
            self.stop(Stop.TURN)
            self._ask_for_slice()
        if nbytes >= SMALL_READ_BYTES:
            grown = max(0, cutter.buffer_bytes - buffer_bytes)
            self._weigh_read(nbytes + GROWTH_WEIGHT * grown + ENTRY_WEIGHT * (cutter.sends - sends))
        if session.producers and self._context.budget.is_spent and Stop.BUDGET not in self.stops:
            self.stop(Stop.BUDGET)
            self._context.budget.when_free(lambda: self.go_on(Stop.BUDGET))

    def _take_slice(self) -> None:
        """Execute the commands that were read already; then read the socket again."""
        self._asked_for_slice = False
        if self.stops != Stop.TURN or self._is_closed:
            return  # `go_on` requests a slice again when the other reason ends
        if self._cutter.is_behind:
            self.received(0)
        if not self._asked_for_slice:
            self.go_on(Stop.TURN)

    def _ask_for_slice(self) -> None:
        if not self._asked_for_slice:
            self._asked_for_slice = True
            self._context.slices.put(self._take_slice)

    def _weigh_read(self, weight: int) -> None:
        """Count a read of this weight.

        If the iteration's share is used up, pause the socket until a later iteration.
        """
        share = self._context.read_share
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
        """True while the broker does not read the socket, unless the client leaves responses unread.

        Meanwhile the client's silence does not count.
        """
        return bool(self.stops & ~Stop.ANSWERS)

    def rest(self) -> None:
        """Shrink the read buffer, because the client is silent."""
        self._cutter.rest()

    # -- the incomplete frame --------------------------------------------------------------------------

    def _weigh_frame(self, cuts: int, sends: int, *, has_producers: bool) -> None:
        """Request memory, after a read, for an incomplete frame or a larger buffer."""
        cutter, room = self._cutter, self._context.frame_room
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
        """Return memory; see `frame_room.Reader`."""
        cutter = self._cutter
        if cutter.pending_frame_bytes <= READ_ROOM_BYTES:
            self._room_bytes = cutter.size_max = READ_ROOM_BYTES
            cutter.rest()
            self._context.frame_room.give_back(self)

    def close_if_slow(self, seconds: float = inf) -> None:
        """Close a slow connection; see `frame_room.Reader`.

        While the socket is not read, the limit is `FRAME_S_MAX`.
        """
        patience_s = FRAME_S_MAX if self.is_deaf else min(seconds, FRAME_S_MAX)
        if self._frame_since and self._loop.time() - self._frame_since >= patience_s:
            session = self._session()
            if session is not None:
                session.refuse(ProtocolError(f"a frame was still incomplete after {patience_s:g} s"))
            self._context.frame_room.give_back(self)
