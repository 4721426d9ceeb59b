"""Memory for reading large frames, over all connections of a process.

    own buffer           READ_ROOM_BYTES for each connection, always available: enough for commands and most batches
    memory for a frame   requested for the whole frame, so that a frame that is being read can always be completed
    spare memory         granted to busy connections for larger reads, while half of the memory is free

A connection that gets no memory is not read until enough is free; requests are served in order. Meanwhile other
connections return memory that they do not need. Connections whose frame has been incomplete for `PRESSED_S` seconds are
closed, because only a hostile or very slow client takes that long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from quire.runtime.limits import FRAME_ROOM_BYTES_MAX

PRESSED_S: Final = 1.0
LOOK_AGAIN_S: Final = 0.25


class Reader(Protocol):
    """Port to a connection that reads frames into this memory."""

    def give_back_room(self) -> None:
        """Call `give_back`, unless a large frame is being read, because other connections need the memory."""
        ...

    def close_if_slow(self, seconds: float) -> None:
        """Close the connection and call `give_back`, if its frame has been incomplete for `seconds` of reading time."""
        ...


class FrameRoom:
    """Memory for large frames of one process, and the connections that wait for it."""

    def __init__(self, limit_bytes: int = FRAME_ROOM_BYTES_MAX) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._held: dict[Reader, int] = {}
        """Bytes granted to each connection, in the order of the connections' first requests."""
        self._waiting: deque[tuple[Reader, int, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, reader: Reader, byte_count: int, granted: Callable[[], None]) -> bool:
        """Request `byte_count` bytes in total for `reader`.

        Return False if the reader must wait until `granted` is called.
        """
        if not self._waiting and self._take(reader, byte_count):
            return True
        self._waiting.append((reader, byte_count, granted))
        self._press()
        return self._held.get(reader, 0) >= byte_count

    def ask_spare(self, reader: Reader, byte_count: int) -> bool:
        """Request memory for larger reads; it is granted while half of the memory is free."""
        half = self.limit_bytes // 2
        return not self._waiting and self.used_bytes + byte_count <= half and self._take(reader, byte_count)

    def give_back(self, reader: Reader) -> None:
        """Take back all memory of `reader`, and cancel its requests."""
        self.used_bytes -= self._held.pop(reader, 0)
        if self._waiting:
            self._waiting = deque(one for one in self._waiting if one[0] is not reader)
            self._hand_out()

    def _take(self, reader: Reader, byte_count: int) -> bool:
        more = byte_count - self._held.get(reader, 0)
        if self.used_bytes + more > self.limit_bytes:
            return False
        self._held[reader] = byte_count
        self.used_bytes += more
        return True

    def _hand_out(self) -> None:
        while self._waiting and self._take(*self._waiting[0][:2]):
            self._waiting.popleft()[2]()

    def _press(self) -> None:
        """Free memory for waiting connections; if that is not enough, try again after `LOOK_AGAIN_S` seconds."""
        for reader in list(self._held):
            reader.give_back_room()
        for reader in list(self._held):
            if not self._waiting:
                break
            reader.close_if_slow(PRESSED_S)
        self._hand_out()
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._press()
