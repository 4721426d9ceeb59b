"""How much slower this machine is now than the one for which bounds of time are meant: they differ tenfold."""

from __future__ import annotations

from bench.calibration import calibration

LOOP_NS = 12.0
"""A turn of an empty loop there."""


def times_slower() -> float:
    """1.0 at least."""
    return max(1.0, calibration()["loop_ns"] / LOOP_NS)
