"""Flow control of one consumer: the permits granted to its broker. No I/O.

Permits count messages. *Outstanding* permits are those whose messages the application has not taken: the messages are
on their way, or wait here undecoded. When at most half of the window is outstanding, new permits fill the window. The
window is limited by number and, with the average message size so far, by bytes. Before the first message it is small,
because messages may be large.
"""

from __future__ import annotations

from typing import Final

FIRST_WINDOW_MESSAGES: Final = 100
"""Window in messages while the size of the topic's messages is unknown."""

_WEIGHT: Final = 8
"""The newest entry has a weight of 1/`_WEIGHT` in the average size."""


class Permits:
    """Permits of one consumer on its current connection."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._outstanding = 0
        self._message_bytes = 0.0

    def begin(self) -> None:
        """Start on a new connection without granted permits; the average message size is kept."""
        self._outstanding = 0

    def take(self, messages: int, size: int) -> None:
        """Count `messages` with `size` bytes in total (0: unknown) as taken."""
        self._outstanding -= messages
        if messages and size:
            each = size / messages
            last = self._message_bytes or each
            self._message_bytes = last + (each - last) / _WEIGHT

    def due(self) -> int:
        """Return the number of permits to grant now, and count them as granted."""
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
