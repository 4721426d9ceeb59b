"""Clock of a run, and waits that end within a fraction of a millisecond of their time.

Timers of event loops are exact to a millisecond, as long as a whole publish takes. `setitimer` is exact to
microseconds, and its signal wakes the loop up. A process has one such timer, which rings for the first of all waits.

**Coordinated omission.** The schedule of an open loop never waits for the server. Message n is due at begin + n / rate,
and its latency counts from that time, also if the client could only send it later, because the server stalled. A
generator that sends the next message after the answer to the last one, and measures from the sending, leaves out just
the messages that a stall would have delayed ([Tene](https://github.com/giltene/wrk2#acknowledgements)).
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Final

TICK_NS: Final = 200_000
"""Shortest wait of a schedule: messages that are due within it are sent together, at most this late."""

NS_PER_S: Final = 1_000_000_000

_EPOCH_NS: Final = time.time_ns() - time.monotonic_ns()


def now_ns() -> int:
    """Return the time in ns since 1970; it never goes back while the process runs, also if the clock is set."""
    return time.monotonic_ns() + _EPOCH_NS


@dataclass(frozen=True)
class Window:
    """Times of a run in ns since 1970. Messages due before `measured` are the warm-up."""

    begin: int
    measured: int
    end: int
    """Very late if the number of messages is the limit."""


def window(begin: int, warm_up_s: float, duration_s: float) -> Window:
    """Return the window of a run that begins at a time in ns since 1970."""
    measured = begin + round(warm_up_s * NS_PER_S)
    return Window(begin, measured, measured + round(duration_s * NS_PER_S) if duration_s else sys.maxsize)


class Pacer:
    """Exact waits of the tasks of one process; it takes the signal SIGALRM until it is closed."""

    def __init__(self) -> None:
        self._waits: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGALRM, self._ring)

    async def until(self, moment: int) -> None:
        """Wait until a time in ns since 1970."""
        done: asyncio.Future[None] = self._loop.create_future()
        heappush(self._waits, (moment, next(self._numbers), done))
        if self._waits[0][2] is done:
            self._set()
        await done

    def close(self) -> None:
        """Stop the timer, whose signal would end the process after its event loop."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._loop.remove_signal_handler(signal.SIGALRM)

    def _ring(self) -> None:
        now = now_ns()
        while self._waits and self._waits[0][0] <= now:
            done = heappop(self._waits)[2]
            if not done.done():
                done.set_result(None)
        self._set()

    def _set(self) -> None:
        if self._waits:
            wait_ns = max(1_000, self._waits[0][0] - now_ns())  # a timer of 0 s would be off
            signal.setitimer(signal.ITIMER_REAL, wait_ns / NS_PER_S)
