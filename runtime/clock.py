"""Clocks: wall clock for recorded times, monotonic clock for durations.

A core never reads the operating system's clock; its caller passes a `Clock`. `SystemClock` is the real one.
`ManualClock` advances only when a test calls it.
"""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Source of time."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch. NTP or an operator may step them forward or back."""
        ...

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment; they never decrease."""
        ...


class SystemClock:
    """The operating system's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """Clock for tests, which advances only by `advance_ms` and `step_ms`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._elapsed_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._elapsed_ms / 1000

    def advance_ms(self, ms: int) -> None:
        """Move both clocks forward by `ms` milliseconds."""
        assert ms >= 0
        self._now_ms += ms
        self._elapsed_ms += ms

    def step_ms(self, ms: int) -> None:
        """Step only the wall clock, forward or back, as NTP does."""
        self._now_ms += ms


def iso_time(time_ms: int) -> str:
    """Format a wall clock time in Pulsar's format (ISO 8601, UTC)."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
