"""Read buffer of a connection whose frames begin with their size: u32 big-endian, then that many bytes.

It has the interface of asyncio's `BufferedProtocol`: `get_buffer` returns the space to read into, `received(n)` returns
the frames that n more bytes complete. A subclass's `_cut` removes complete frames from the front (`_start` .. `_end`).

Memory: the buffer is small for a quiet connection, and larger each time a read fills it, up to `size_max` (set for the
protocol's frames, or by admission control of memory); `rest` shrinks it. A frame larger than that is assembled in a
buffer that doubles up to the frame's exact size. So a peer must send half of the bytes that it makes the server
allocate, and each byte is moved only a few times. `_cut` checks the limit of a frame as soon as its size has arrived.
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
    """Common base of the frame cutters in `quire.wire.frame` and `quire.wire.bookie_codec`."""

    __slots__ = ("_buffer", "_end", "_size", "_start", "_view", "is_behind", "is_short", "size_max")

    def __init__(self, buffer_bytes_max: int = READ_BUFFER_BYTES_MAX) -> None:
        self.size_max = buffer_bytes_max
        self.is_short = False
        """Set when a read has filled the largest allowed buffer."""
        self.is_behind = False
        """Set when `_cut` left complete frames: `received(0)` continues with them, before more bytes are read."""
        self._size = READ_BUFFER_BYTES_MIN
        self._buffer = bytearray(self._size)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0

    @abstractmethod
    def _cut(self) -> list[_Cut]:
        """Remove all complete frames from the front and advance `_start`.

        A subclass may remove fewer frames, but at least one, and set `is_behind`. Raises a `ProtocolError`, at the
        latest when the four bytes of an excessive size have arrived.
        """

    @property
    def pending_bytes(self) -> int:
        """Number of bytes that have arrived of the incomplete frame."""
        return self._end - self._start

    @property
    def pending_frame_bytes(self) -> int:
        """Size in bytes of the incomplete frame; 0 before its size has arrived."""
        if self._end - self._start < 4:
            return 0
        return 4 + int(_U32.unpack_from(self._buffer, self._start)[0])

    @property
    def buffer_bytes(self) -> int:
        return len(self._buffer)

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Return the buffer to read into: never empty, valid until the next `received`."""
        return self._view[self._end :]

    def received(self, count: int) -> list[_Cut]:
        """Return the frames that `count` more bytes in `get_buffer()` have completed, in the peer's order."""
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
        """Copy bytes from elsewhere (tests, simulations) into the buffer.

        Return the completed frames, like `received`.
        """
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
        """Shrink the large buffer of a quiet connection; the keep-alive timer calls it."""
        self._size = READ_BUFFER_BYTES_MIN
        self.is_short = False
        self._make_room()

    def _make_room(self) -> None:
        """Ensure space for more bytes, and for the whole pending frame once half of it has arrived."""
        pending = self._end - self._start
        wanted = self._size
        if pending > wanted // 2:
            wanted = max(wanted, min(4 + _U32.unpack_from(self._buffer, self._start)[0], 2 * pending))
        if self.is_behind and pending >= wanted:
            wanted = pending + READ_BUFFER_BYTES_MIN  # complete frames fill the whole buffer
        capacity = len(self._buffer)
        if capacity < wanted or (capacity > wanted and not pending):
            fresh = bytearray(wanted)
            fresh[:pending] = self._view[self._start : self._end]
            self._buffer, self._view = fresh, memoryview(fresh)
        elif not pending or (self._start and capacity - self._end < capacity // 2):
            # Each byte is moved here at most once: its frame then stays at the front until it is complete.
            self._view[:pending] = self._view[self._start : self._end]
        else:
            return
        self._start, self._end = 0, pending
