"""Waiting queue of a throttle: each caller in order gets all units that it waits for, or none.

    join ─▶ waits ─┬─▶ granted   `serve` took the units for the caller, and called it back
                   ├─▶ removed   the caller gave up
                   └─▶ dropped   the queue is full; the caller was called back without a grant

The throttles of this package share it: `semaphore`, `rate_queue`, `budget`. Callers from several addresses are served
round robin (`fair_queue`), callers without an address in the order in which they joined.

A caller that is cancelled between its grant and its next step returns the grant (`granted`), so no grant is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from quire.runtime.fair_queue import FairQueue

UNBOUNDED: Final = 1 << 62
"""Length of a queue whose callers are bounded elsewhere."""

_log = logging.getLogger(__name__)


class Waiter:
    """Caller that waits for `count` units of the resource that its throttle limits."""

    __slots__ = ("count", "is_granted", "resume")

    def __init__(self, resume: Callable[[], None], count: int) -> None:
        self.resume = resume
        self.count = count
        self.is_granted = False


class WaitingQueue(FairQueue[Waiter]):
    """Waiting callers of one throttle. Use it on the loop's thread only."""

    def join(self, resume: Callable[[], None], count: int = 1, address: str = "") -> Waiter:
        """Append a caller. `resume` is called once: when it is granted `count`, or dropped from a full queue."""
        waiter = Waiter(resume, count)
        dropped = self.put(waiter, address)
        if dropped is not None:
            dropped.resume()
        return waiter

    def serve(self, grant: Callable[[int], bool]) -> None:
        """Resume callers in order, as long as `grant` takes the units that the first one waits for and returns True."""
        while (first := self.first) is not None and grant(first.count):
            self.take()
            first.is_granted = True
            try:
                first.resume()
            except Exception:
                _log.exception(
                    "internal error in the callback of a caller that waited; the other callers continue"
                )

    async def granted(self, count: int, give_back: Callable[[int], None], address: str = "") -> bool:
        """Wait for `count`; return False if the queue was full and dropped this caller.

        If the caller is cancelled, `give_back` is called with its granted units, even with 0, because the next caller
        may now be granted its own.
        """
        resumed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = self.join(lambda: None if resumed.done() else resumed.set_result(None), count, address)
        try:
            await resumed
        except asyncio.CancelledError:
            self.remove(waiter)
            give_back(count if waiter.is_granted else 0)
            raise
        return waiter.is_granted
