"""Watchdog of the event loop, on its own thread.

One loop serves all clients: a callback that takes one second delays all of them. The loop increments a counter every
`BEAT_S`, and a thread checks it. If the counter is unchanged for `STALL_S`, the loop is *stalled*: the thread logs the
stack of the loop's thread, once for each stall and at most every `LOG_AGAIN_S`. It calls, on its own thread, each
callback of `when_standing` after a stall of the callback's duration.

A process that was stopped, or got no CPU, is not stalled. So if the watchdog's thread was delayed as well, it counts
only the CPU time of the process, for example of a library that keeps the interpreter lock.

`metrics` include the lag, which is the delay of the beats.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Final

from quire.runtime.metrics import Histogram, Values

BEAT_S: Final = 0.05
STALL_S: Final = 0.2
LOG_AGAIN_S: Final = 10.0
STACK_CALLS: Final = 15
"""Number of innermost frames in the log line."""

LATE_S: Final = 0.05
"""Longest acceptable delay of a beat in seconds; longer delays are counted."""

SPAN_S: Final = 30.0
"""Seconds over which the maximum lag is kept: it covers the last one to two spans, so that readers need no reset."""

_log = logging.getLogger("quire.watchdog")


class Watchdog:
    """Watchdog of one event loop. Call `start` and `stop` on that loop."""

    def __init__(self) -> None:
        self._beats = 0
        self._due_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop_thread = 0
        self._thread: threading.Thread | None = None
        self._is_stopped = threading.Event()
        self._listeners: list[tuple[Callable[[], float], Callable[[], None]]] = []
        self.lag_s = Histogram()
        self._lags_max = [0.0] * 2
        """Maximum lag of the current span of `SPAN_S`, and of the previous one."""
        self._span_ends_at = 0.0
        self._late_total = 0
        self._stalls_total = 0

    def start(self) -> None:
        self._loop_thread = threading.get_ident()
        self._due_at = time.monotonic()
        self._beat()
        self._thread = threading.Thread(target=self._watch, name="quire-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._is_stopped.set()

    def when_standing(self, after_s: Callable[[], float], act: Callable[[], None]) -> None:
        """Call `act` on the watchdog's thread, once for each stall that is longer than `after_s()` seconds."""
        self._listeners.append((after_s, act))

    def lag_s_max(self) -> float:
        """Return the maximum delay of a beat in the last one to two spans, in seconds."""
        return max(self._lags_max)

    def metrics(self) -> Values:
        return {
            "quire_loop_lag_seconds": self.lag_s,
            "quire_loop_lag_max_seconds": self.lag_s_max(),
            "quire_loop_late_beats_total": self._late_total,
            "quire_loop_stalls_total": self._stalls_total,
        }

    # -- on the loop -----------------------------------------------------------------------------------

    def _beat(self) -> None:
        now = time.monotonic()
        lag_s = max(0.0, now - self._due_at)
        self._beats += 1
        self.lag_s.observe(lag_s)
        if now >= self._span_ends_at:
            self._lags_max = [0.0, self._lags_max[0]]
            self._span_ends_at = now + SPAN_S
        self._lags_max[0] = max(self._lags_max[0], lag_s)
        self._late_total += lag_s > LATE_S
        self._due_at = now + BEAT_S
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    # -- on the thread ---------------------------------------------------------------------------------

    def _watch(self) -> None:
        beats, standing_s, logged_at = self._beats, 0.0, -LOG_AGAIN_S
        told: set[int] = set()
        looked_at, computed_s = time.monotonic(), time.process_time()
        while not self._is_stopped.wait(BEAT_S):
            now, computed_before_s, computed_s = time.monotonic(), computed_s, time.process_time()
            passed_s = min(now - looked_at, BEAT_S + computed_s - computed_before_s)
            looked_at = now
            if self._beats != beats:
                if standing_s >= STALL_S:
                    _log.warning("the event loop runs again after a stall of %.1f s", standing_s)
                beats, standing_s = self._beats, 0.0
                told.clear()
                continue
            was_standing, standing_s = standing_s >= STALL_S, standing_s + passed_s
            if standing_s >= STALL_S and not was_standing:
                self._stalls_total += 1
                if now - logged_at >= LOG_AGAIN_S:
                    logged_at = now
                    self._tell_stack()
            for number, (after_s, act) in enumerate(self._listeners):
                if standing_s >= after_s() and number not in told:
                    told.add(number)
                    act()

    def _tell_stack(self) -> None:
        """Log the loop's stack as the record's stack, because newlines in messages are escaped."""
        frame: FrameType | None = sys._current_frames().get(self._loop_thread)
        calls = traceback.format_stack(frame, limit=STACK_CALLS) if frame is not None else ["no Python code"]
        record = _log.makeRecord(
            _log.name, logging.WARNING, __file__, 0, "the event loop is stalled in:", (), None,
            sinfo="".join(calls).rstrip(),
        )  # fmt: skip
        _log.handle(record)
