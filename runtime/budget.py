"""Byte budgets of a process: `ByteBudget` for backpressure, `OwnerBudget` for admission control.

`ByteBudget` counts bytes that were accepted from sockets and are not in the entry log yet. They are first pending or in
flight in the broker (`held_bytes`), then in the storage node's memtables, whose size a *gauge* returns on request. When
the sum reaches the limit, the budget `is_spent`: readers of sockets stop until `when_free` calls them back. Nothing is
refused or dropped: TCP carries the backpressure to the client.

The limit is exceeded by at most one read of each connection, because a read that has begun is accepted whole. Reading
resumes below three quarters of the limit (hysteresis), in the order in which the readers stopped.

`OwnerBudget` refuses bytes instead of delaying them. Owners, such as roles or addresses, share it.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from quire.runtime.limits import BYTES_IN_FLIGHT_MAX
from quire.runtime.waiting import UNBOUNDED, WaitingQueue

Gauge = Callable[[], int]

RESUME_SHARE: Final = 0.75
FREE_PER_OWNED: Final = 4


class ByteBudget:
    """Bytes in flight of one process. Use it on the event loop's thread only."""

    __slots__ = ("_free_bytes", "_gauges", "_waiting", "has_waiters", "held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int = BYTES_IN_FLIGHT_MAX, resume_share: float = RESUME_SHARE) -> None:
        assert limit_bytes > 0
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._free_bytes = int(limit_bytes * resume_share)
        self._gauges: list[Gauge] = []
        self._waiting = WaitingQueue(UNBOUNDED)
        self.has_waiters = False
        """True while callers wait. It is an attribute because it is read for each confirmed block."""

    def add_gauge(self, gauge: Gauge) -> None:
        """Add a gauge: the budget includes the bytes that it returns."""
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
        if self.has_waiters:
            self.look_again()

    def when_free(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, as soon as enough bytes were released."""
        self._waiting.join(callback)
        self.has_waiters = True

    def look_again(self) -> None:
        """Compute the used bytes again. If they have fallen enough, resume readers until the budget is spent again."""
        if self.has_waiters and self.used_bytes <= self._free_bytes:
            self._waiting.serve(lambda _: not self.is_spent)
            self.has_waiters = len(self._waiting) > 0


class OwnerBudget:
    """Budget with a dynamic threshold: an owner may have a quarter of the free bytes (Choudhury and Hahne 1998).

    So one owner gets at most a fifth of the limit, and some bytes are always left for other owners.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0
        self._by_owner: Counter[str] = Counter()

    def has_room(self, owner: str, byte_count: int) -> bool:
        """Return whether the owner may have `byte_count` more bytes."""
        free = self._limit_bytes - self.used_bytes - byte_count
        return byte_count <= 0 or FREE_PER_OWNED * (self._by_owner[owner] + byte_count) <= free

    def take(self, owner: str, byte_count: int) -> None:
        """Add bytes to the owner's count; a negative number releases them."""
        self.used_bytes += byte_count
        self._by_owner[owner] += byte_count
        assert self.used_bytes >= 0 and self._by_owner[owner] >= 0
        if not self._by_owner[owner]:
            del self._by_owner[owner]
