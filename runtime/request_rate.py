"""How many requests per second one connection may make: beyond it the connection is not read for a moment.

Nothing is refused and nothing dropped, and no other connection waits. A second's worth may come at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from quire.runtime.token_bucket import TokenBucket

STEP_S: Final = 0.05
"""A connection that must wait waits for at least so much of the rate, else a fast one would be a timer a request."""


class RequestRate:
    """`stop` is called when the connection must not be read any more, `go_on` when it may be again."""

    def __init__(self, per_s: int, stop: Callable[[], None], go_on: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._bucket = TokenBucket(per_s, self._loop.time(), step=max(1.0, per_s * STEP_S))
        self._stop = stop
        self._go_on = go_on
        self._timer: asyncio.TimerHandle | None = None

    def count(self) -> None:
        """A request was made."""
        self._bucket.take(1)
        wait_s = self._bucket.wait_s(self._loop.time())
        if wait_s > 0 and self._timer is None:
            self._stop()
            self._timer = self._loop.call_later(wait_s, self._look_again)

    def _look_again(self) -> None:
        """What was read before the stop is carried out meanwhile, and counts too."""
        wait_s = self._bucket.wait_s(self._loop.time())
        if wait_s > 0:
            self._timer = self._loop.call_later(wait_s, self._look_again)
        else:
            self._timer = None
            self._go_on()

    def close(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
