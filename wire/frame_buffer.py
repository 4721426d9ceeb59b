"""The read buffer of one connection whose frames begin with their size: u32 big-endian, bytes that follow.

Shaped for asyncio's `BufferedProtocol`: `get_buffer` gives the room to read into, `received(n)` hands over what
n more bytes complete. A subclass's `_cut` takes whole frames off the front (`_start` .. `_end`).

Memory: one buffer, small for a quiet connection and larger each time a read fills it, up to `size_max` (what suits the
protocol's frames, or what whoever weighs it allows now); `rest` gives it back. A frame larger than it is assembled in a
buffer that doubles up to the frame's exact size: a peer must send half of what it makes us allocate, each byte is moved
a few times at most, and the frame's limit (checked by `_cut` as soon as the size is here) bounds it all.
"""

from abc import abstractmethod
from struct import Struct
from typing import Final, Generic, TypeVar

from quire.runtime.limits import KIB, MIB

READ_BUFFER_BYTES_MIN: Final = 16 * KIB
READ_BUFFER_BYTES_MAX: Final = 1 * MIB

_U32: Final = Struct(">I")
_Cut = TypeVar("_Cut")


class FrameBuffer(Generic[_Cut]):
    """The part that both cutters share (`quire.wire.frame`, `quire.wire.bookie_codec`)."""

    __slots__ = ("_buffer", "_end", "_size", "_start", "_view", "is_behind", "is_short", "size_max")

    def __init__(self, buffer_bytes_max: int = READ_BUFFER_BYTES_MAX) -> None:
        self.size_max = buffer_bytes_max
        self.is_short = False
        """A read has filled the largest buffer that it may have."""
        self.is_behind = False
        """`_cut` left whole frames: `received(0)` goes on with them, before more is read."""
        self._size = READ_BUFFER_BYTES_MIN
        self._buffer = bytearray(self._size)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0

    @abstractmethod
    def _cut(self) -> list[_Cut]:
        """Take every whole frame off the front and move `_start` behind it; or one at least, and set `is_behind`.

        Raises a `ProtocolError`, at the latest when the four bytes of a size that is too large are here.
        """

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return self._end - self._start

    @property
    def pending_frame_bytes(self) -> int:
        """What the frame will take that is not complete yet; 0 when its size is not here yet."""
        if self._end - self._start < 4:
            return 0
        return 4 + int(_U32.unpack_from(self._buffer, self._start)[0])

    @property
    def buffer_bytes(self) -> int:
        return len(self._buffer)

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Where to read to: never empty, valid until the next `received`."""
        return self._view[self._end :]

    def received(self, count: int) -> list[_Cut]:
        """What is complete now that `count` bytes were read into `get_buffer()`, in the peer's order."""
        self._end += count
        assert self._end <= len(self._buffer)
        if count and self._end == len(self._buffer):
            if self._size < self.size_max:
                self._size *= 4
            else:
                self.is_short = True
        cuts = self._cut()
        self._make_room()
        return cuts

    def feed(self, data: bytes | bytearray | memoryview) -> list[_Cut]:
        """`received` for bytes that were read elsewhere (tests, simulations)."""
        cuts: list[_Cut] = []
        rest = memoryview(data)
        while rest:
            room = self.get_buffer()
            taken = min(len(room), len(rest))
            room[:taken] = rest[:taken]
            cuts += self.received(taken)
            while self.is_behind:
                cuts += self.received(0)
            rest = rest[taken:]
        return cuts

    def rest(self) -> None:
        """The connection is quiet: give back a large buffer (the keep-alive timer asks for it)."""
        self._size = READ_BUFFER_BYTES_MIN
        self.is_short = False
        self._make_room()

    def _make_room(self) -> None:
        """Have room for more, and for the whole pending frame once half of it is here."""
        pending = self._end - self._start
        wanted = self._size
        if pending > wanted // 2:
            wanted = max(wanted, min(4 + _U32.unpack_from(self._buffer, self._start)[0], 2 * pending))
        if self.is_behind and pending >= wanted:
            wanted = pending + READ_BUFFER_BYTES_MIN  # whole frames that fill it all
        capacity = len(self._buffer)
        if capacity < wanted or (capacity > wanted and not pending):
            fresh = bytearray(wanted)
            fresh[:pending] = self._view[self._start : self._end]
            self._buffer, self._view = fresh, memoryview(fresh)
        elif not pending or (self._start and capacity - self._end < capacity // 2):
            # Each byte is moved here at most once: its frame then lies at the front until it is complete.
            self._view[:pending] = self._view[self._start : self._end]
        else:
            return
        self._start, self._end = 0, pending
