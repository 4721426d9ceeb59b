"""Memory for what is read of large frames, over all connections of a process.

    a connection's own   READ_ROOM_BYTES, asked of nobody: enough for commands and most batches
    beyond it            asked for here, for a whole frame at once: who has begun to read one can always finish it
    spare                a busy connection may read in larger steps while half of the room is free

Who gets no room is not read until there is some, in the order of asking. Meanwhile those who have room that they do not
need give it back, and those whose frame has not come to its end for `PRESSED_S` are closed: a network takes that long
only when the peer wants it to, or is very slow, and then others go before.
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
    """A connection, as this room sees it."""

    def give_back_room(self) -> None:
        """Others need it: say `give_back` for what no frame is being read into."""
        ...

    def close_if_slow(self, seconds: float) -> None:
        """Close it, and say `give_back`, when a frame has been on its way for so long though it was read."""
        ...


class FrameRoom:
    def __init__(self, limit_bytes: int = FRAME_ROOM_BYTES_MAX) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._held: dict[Reader, int] = {}
        """In the order of asking."""
        self._waiting: deque[tuple[Reader, int, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, reader: Reader, byte_count: int, granted: Callable[[], None]) -> bool:
        """Room for `byte_count` instead of what `reader` has; if it must wait, False, and `granted` is called later."""
        if not self._waiting and self._take(reader, byte_count):
            return True
        self._waiting.append((reader, byte_count, granted))
        self._press()
        return self._held.get(reader, 0) >= byte_count

    def ask_spare(self, reader: Reader, byte_count: int) -> bool:
        """Room that would be good to have."""
        half = self.limit_bytes // 2
        return not self._waiting and self.used_bytes + byte_count <= half and self._take(reader, byte_count)

    def give_back(self, reader: Reader) -> None:
        """All that `reader` has; it asks for nothing any more."""
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
        """Make room for who waits, and look again in a moment if that does not do."""
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
