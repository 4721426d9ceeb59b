"""Fair weighted semaphore: limits concurrent work (one slot each), or memory (a slot for each byte).

A caller does not overtake the callers that wait, so a large request is not starved by small ones. `asyncio.Semaphore`
is enough for internal callers that take one slot each: it has no weights, no bound, and no fairness between addresses.
"""

from __future__ import annotations

from quire.runtime.errors import Unavailable
from quire.runtime.waiting import UNBOUNDED, WaitingQueue


class FairSemaphore:
    """Semaphore with `limit` slots. At most `waiting_max` callers wait for slots.

    `busy` is the error message for a caller that is dropped from the full queue.
    """

    def __init__(self, limit: int, *, waiting_max: int = UNBOUNDED, busy: str = "") -> None:
        assert limit > 0
        self._limit = limit
        self._busy = busy
        self._waiting = WaitingQueue(waiting_max)
        self.used = 0

    @property
    def has_waiters(self) -> bool:
        return len(self._waiting) > 0

    def try_take(self, count: int = 1) -> bool:
        """Take slots now. Return False if there are not enough, or other callers wait for them."""
        return not self._waiting and self.take_if_free(count)

    def take_if_free(self, count: int) -> bool:
        """Take slots now, even before the callers that wait. Return False if there are not enough."""
        if self.used + count > self._limit:
            return False
        self.used += count
        return True

    async def take(self, count: int = 1, address: str = "") -> None:
        """Take slots, after the callers that wait. Raises `Unavailable` if too many wait."""
        assert count <= self._limit
        if not self.try_take(count) and not await self._waiting.granted(count, self.give_back, address):
            raise Unavailable(self._busy)

    def give_back(self, count: int = 1) -> None:
        """Release slots, and grant them to the callers that wait."""
        self.used -= count
        assert self.used >= 0
        self._waiting.serve(self.take_if_free)
