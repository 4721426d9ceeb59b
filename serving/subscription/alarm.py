"""One timer of a subscription on the wall clock: it rings when the next of what is delayed is due.

What is due later than an hour is looked for again in between: wall clocks are set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from quire.runtime.clock import Clock

ALARM_S_MAX: Final = 3600.0


class Alarm:
    """`ring` is called once for each `ring_at`, or sooner; then it is set anew."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._tell = ring
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0

    def ring_at(self, due_ms: int | None) -> None:
        """Ring at that time since 1970 instead of when it was set to; None leaves it as it is."""
        if due_ms is None or due_ms == self._due_ms:
            return
        self.stop()
        delay_s = min(max(0, due_ms - self._clock.now_ms()) / 1000, ALARM_S_MAX)
        self._due_ms = due_ms
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._due_ms = 0
        self._tell()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def end(self) -> None:
        """Ring no more, whoever sets it."""
        self.stop()
        self._tell = _nobody


def _nobody() -> None:
    """Whom an alarm tells that has ended."""
