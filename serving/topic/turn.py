"""The end of a turn of the event loop, shared by all topics of a broker: then they cut what waits."""

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
    """Who has something to cut."""

    def cut(self, now_ms: int) -> None: ...


class Turn:
    """A broker has one: the time, as of this turn, and the topics that cut when it is over."""

    def __init__(self, clock: Clock, at_end: Callable[[Callable[[], None]], object]) -> None:
        self._clock = clock
        self._at_end = at_end
        self.time_s = -1.0
        """As `now_s`, once somebody has asked; negative before. Thousands ask."""
        self.due: list[Due] = []
        """Those that cut when this turn is over, each once. Whoever adds one has asked for the time."""
        self.slow_before_s = -math.inf
        """What came before that and is answered in this turn took too long."""

    def now_s(self) -> float:
        """The monotonic time as of this turn: looked at when it is first asked for."""
        if self.time_s < 0:
            self.time_s = self._clock.monotonic()
            self.slow_before_s = self.time_s - slow.BOUND.s
            self._at_end(self._end)
        return self.time_s

    def tell_slow(self, topic: str, flight: InFlightBlock) -> None:
        """A block has the time at which it was cut: before it waited for that, after it for its bookies."""
        took_s = self.now_s() - flight.came_s
        bookies_s = min(took_s, max(0.0, (self._clock.now_ms() - flight.clock_ms) / 1000))
        ledger, entry = flight.ledger_id, flight.first_entry
        parts = {"waiting": took_s - bookies_s, "bookies": bookies_s}
        what = f"{topic} to entry {ledger}:{entry}"
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
                _log.exception("a topic could not cut its blocks; the others go on")
