"""Fair executor for slow work that unauthenticated peers may request, such as checking a password.

A few requests run at once; others wait in a fair queue by address (`runtime/semaphore`). So a flood delays itself: a
request from another network waits for at most one request of each network. When the queue is full, the flood's requests
are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from quire.runtime.semaphore import FairSemaphore

T = TypeVar("T")

AT_ONCE_MAX: Final = 2
WAITING_MAX: Final = 200
"""Maximum queue length. At 0.1 s per check, two at a time, the wait is ten seconds, the time limit of a login."""


class FairExecutor:
    """Executor with a fair queue. `what` names the waiting work in the error text."""

    def __init__(self, what: str) -> None:
        self._slots = FairSemaphore(AT_ONCE_MAX, waiting_max=WAITING_MAX, busy=f"too many {what}; try again")

    async def run(self, address: str, work: Callable[[], T]) -> T:
        """Run `work` in a thread, after waiting in the queue; return its result. Raises `Unavailable` if refused."""
        await self._slots.take(1, address)
        done = asyncio.ensure_future(asyncio.to_thread(work))
        # A cancelled caller does not stop the thread: its slot is free when the work ends.
        done.add_done_callback(self._over)
        return await asyncio.shield(done)

    def _over(self, done: asyncio.Future[T]) -> None:
        if not done.cancelled():
            done.exception()  # mark it as retrieved, because the caller may be cancelled
        self._slots.give_back()
