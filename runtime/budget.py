"""The byte budget of a process: what was accepted from sockets and is not yet where it stays.

Accepted bytes are first the broker's (pending, in flight), then the storage node's (memtables), then in the entry
log. `held_bytes` counts the first kind, by whoever holds them; a *gauge* tells the second kind when asked. When
both together pass the limit the budget is `spent`, and whoever reads from sockets stops reading until
`when_free` calls it back. Nothing is refused and nothing dropped: TCP carries the pressure to the client.

The limit is soft by one read of each connection, since a read that has begun is taken whole. Reading begins again
below three quarters of the limit, so that it does not flap.
"""

from collections.abc import Callable
from typing import Final

from quire.runtime.limits import BYTES_IN_FLIGHT_MAX

Gauge = Callable[[], int]

RESUME_SHARE: Final = 0.75


class ByteBudget:
    """Bytes in flight of one process. All calls on the event loop's thread."""

    __slots__ = ("_free_bytes", "_gauges", "held_bytes", "limit_bytes", "waiting")

    def __init__(self, limit_bytes: int = BYTES_IN_FLIGHT_MAX) -> None:
        assert limit_bytes > 0
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._free_bytes = int(limit_bytes * RESUME_SHARE)
        self._gauges: list[Gauge] = []
        self.waiting: list[Callable[[], None]] = []
        """Those to be called back."""

    def add_gauge(self, gauge: Gauge) -> None:
        """Count what `gauge` returns, in bytes, whenever the budget is looked at."""
        self._gauges.append(gauge)

    @property
    def used_bytes(self) -> int:
        used = self.held_bytes
        for gauge in self._gauges:
            used += gauge()
        return used

    @property
    def is_spent(self) -> bool:
        return self.used_bytes >= self.limit_bytes

    def take(self, byte_count: int) -> None:
        self.held_bytes += byte_count

    def give_back(self, byte_count: int) -> None:
        self.held_bytes -= byte_count
        assert self.held_bytes >= 0
        if self.waiting:
            self.look_again()

    def when_free(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, as soon as enough was given back."""
        self.waiting.append(callback)

    def look_again(self) -> None:
        """A gauge may have fallen: call back who waits, if so."""
        if self.waiting and self.used_bytes <= self._free_bytes:
            waiting, self.waiting = self.waiting, []
            for callback in waiting:
                callback()
