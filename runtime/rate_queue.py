"""Rates with a waiting queue: callers wait for token buckets, and one timer serves all of them.

`RateQueue` is a queue for several buckets. `RequestRate` limits the requests of one connection: beyond the rate, the
connection is not read for a moment. No request is refused or dropped, and no other connection waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from quire.runtime.token_bucket import TokenBucket
from quire.runtime.waiting import UNBOUNDED, WaitingQueue

TIMER_SLACK_S: Final = 0.001
"""Time in seconds that is added to a timer, because a timer that fires slightly too early would have to be set again.
"""

STEP_S: Final = 0.05
"""Minimum pause of a connection in seconds, so that a fast connection does not set a timer for each request."""


class RateQueue:
    """Queue of callers that wait until all `buckets` admit them. `now` returns a monotonic time in seconds."""

    def __init__(self, now: Callable[[], float], *buckets: TokenBucket) -> None:
        self._now = now
        self._buckets = buckets
        self._waiting = WaitingQueue(UNBOUNDED)
        self._timer: asyncio.TimerHandle | None = None
        """Set while callers wait, except while `release` resumes them."""
        self._is_releasing = False

    @property
    def has_waiters(self) -> bool:
        return len(self._waiting) > 0

    def is_open(self) -> bool:
        """Return whether the caller may pass now; otherwise it must `wait`."""
        return self._timer is None and self._admits()

    def _admits(self) -> bool:
        """Return `wait_s() <= 0`, but faster, because this is called for each run of messages that a rate limits."""
        now = self._now()
        for bucket in self._buckets:  # noqa: SIM110
            if bucket.wait_s(now) > 0:
                return False
        return True

    def wait_s(self) -> float:
        """Return the time until all buckets admit the next caller."""
        now = self._now()
        return max((bucket.wait_s(now) for bucket in self._buckets), default=0.0)

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` when the caller may pass, after all that waited before."""
        self._waiting.join(resume)
        self._arm()

    def _arm(self) -> None:
        if self._waiting and self._timer is None and not self._is_releasing:
            delay_s = self.wait_s() + TIMER_SLACK_S
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.release)

    def release(self) -> None:
        """Resume waiting callers in order, as far as the buckets allow."""
        self.close()
        self._is_releasing = True
        self._waiting.serve(lambda _: self._admits())
        self._is_releasing = False
        self._arm()

    def open(self) -> None:
        """Admit all callers from now on."""
        self._buckets = ()
        self.release()

    def close(self) -> None:
        """Stop the timer; callers that wait are not resumed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class RequestRate:
    """Rate of one connection's requests, with a burst of one second.

    `stop` is called when the connection must not be read any more, `go_on` when it may be again.
    """

    def __init__(self, per_s: int, stop: Callable[[], None], go_on: Callable[[], None]) -> None:
        now = asyncio.get_running_loop().time
        self._bucket = TokenBucket(per_s, now(), step=max(1.0, per_s * STEP_S))
        self._queue = RateQueue(now, self._bucket)
        self._stop = stop
        self._go_on = go_on

    def count(self) -> None:
        """Count a request, also one that was read before the connection was stopped."""
        self._bucket.take(1)
        if not self._queue.is_open() and not self._queue.has_waiters:
            self._stop()
            self._queue.wait(self._go_on)

    def close(self) -> None:
        """Cancel the timer of a closed connection."""
        self._queue.close()
