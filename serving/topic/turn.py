"""End of an iteration (*turn*) of the event loop: all topics of a broker then cut their waiting runs into blocks."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Protocol

from quire.runtime import slow
from quire.runtime.clock import Clock
from quire.serving.topic.runs import InFlightBlock

_log = logging.getLogger(__name__)


class Due(Protocol):
    """Publisher with waiting runs, implemented by `publish.Publisher`."""

    def cut(self, now_ms: int) -> None: ...


class Turn:
    """Current turn of a broker's event loop: its time, and the publishers that cut blocks at its end."""

    def __init__(self, clock: Clock, at_end: Callable[[Callable[[], None]], object]) -> None:
        self._clock = clock
        self._at_end = at_end
        self.time_s = -1.0
        """Cached result of `now_s`, which thousands of callers need in one turn; negative before the first call."""
        self.due: list[Due] = []
        """Publishers that cut blocks at the end of this turn, each listed once.

        A publisher calls `now_s` before it adds itself, because `now_s` schedules the call of `_end`.
        """
        self.slow_before_s = -math.inf
        """Monotonic time, in seconds: a block confirmed in this turn is slow if it arrived before this time."""

    def now_s(self) -> float:
        """Return the monotonic time of this turn, in seconds; the first call in a turn reads the clock."""
        if self.time_s < 0:
            self.time_s = self._clock.monotonic()
            self.slow_before_s = self.time_s - slow.BOUND.s
            self._at_end(self._end)
        return self.time_s

    def report_slow(self, topic: str, flight: InFlightBlock) -> None:
        """Log a slow block, with the time that it waited in the publisher and the time that the bookies took."""
        took_s = self.now_s() - flight.came_s
        bookies_s = min(took_s, max(0.0, (self._clock.now_ms() - flight.clock_ms) / 1000))
        ledger, entry = flight.ledger_id, flight.first_entry
        parts = {"waiting": took_s - bookies_s, "bookies": bookies_s}
        what = f"topic {topic}, entry {ledger}:{entry}"
        slow.tell("publish", what, took_s, parts, topic=topic, ledger=ledger, entry=entry)

    def _end(self) -> None:
        self.time_s = -1.0
        due, self.due = self.due, []
        if not due:
            return
        now_ms = self._clock.now_ms()
        for publisher in due:
            try:
                publisher.cut(now_ms)
            except Exception:
                _log.exception("internal error while cutting a topic's blocks; the other topics continue")
