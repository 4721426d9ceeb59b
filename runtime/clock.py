"""Time, as cores see it: wall clock for what is written down, monotonic for what is measured.

A core never asks the operating system; it is handed a `Clock`. `SystemClock` is the real one, `ManualClock`
stands still until a test moves it.
"""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch. May jump."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment. Never goes back."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told: `advance_ms`."""

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


def iso_time(time_ms: int) -> str:
    """Wall clock ms as Pulsar writes times."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
