"""How many messages a broker may send to one consumer. No I/O.

Permits count messages. What was granted and is not taken yet is on its way, or waits here undecoded; when that falls to
half of the window, the window is filled up. The window is what is allowed by number and, with the average size
seen so far, by bytes: before the first message it is small, because a message may be large.
"""

from __future__ import annotations

from typing import Final

FIRST_WINDOW_MESSAGES: Final = 100
"""Permits before the size of this topic's messages is known."""

_WEIGHT: Final = 8
"""The newest entry counts for one part in so many of the average size."""


class Permits:
    """The permits of one consumer on one connection; `begin` starts over on the next."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._outstanding = 0
        self._message_bytes = 0.0

    def begin(self) -> None:
        """Nothing is granted any more; the sizes seen are kept."""
        self._outstanding = 0

    def take(self, messages: int, size: int) -> None:
        """The user has come to so many messages of `size` bytes together (0: unknown)."""
        self._outstanding -= messages
        if messages and size:
            each = size / messages
            last = self._message_bytes or each
            self._message_bytes = last + (each - last) / _WEIGHT

    def due(self) -> int:
        """How many to grant now; they count as granted."""
        window = self._window()
        if 2 * self._outstanding > window:
            return 0
        more = window - self._outstanding
        self._outstanding = window
        return more

    def _window(self) -> int:
        if not self._message_bytes:
            return min(self._messages_max, FIRST_WINDOW_MESSAGES)
        return max(1, min(self._messages_max, int(self._bytes_max / self._message_bytes)))
