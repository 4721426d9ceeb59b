"""How long to wait for somebody: from what is usual for him, within bounds.

The estimate is TCP's (Jacobson, Karels): a smoothed mean of the times that answers took, and a smoothed deviation from
it. What is longer than the mean and four deviations is unusual. A bookie on a slow disk is given the time that it
needs, one that answered in a millisecond all day is asked again elsewhere after a few. The bounds belong to whoever
waits: the least says how long a hiccup may be, the most how long somebody may hang.
"""

from __future__ import annotations

from typing import Final

_MEAN_GAIN: Final = 1 / 8
_DEVIATION_GAIN: Final = 1 / 4


class Patience:
    """Times in seconds."""

    __slots__ = ("_deviation", "_mean")

    def __init__(self) -> None:
        self._mean = -1.0
        self._deviation = 0.0

    def observe(self, seconds: float) -> None:
        """An answer took so long."""
        if self._mean < 0:
            self._mean, self._deviation = seconds, seconds / 2
            return
        error = seconds - self._mean
        self._mean += _MEAN_GAIN * error
        self._deviation += _DEVIATION_GAIN * (abs(error) - self._deviation)

    def bound(self, factor: float, least: float, most: float) -> float:
        """`factor` times what is the most that is usual, within the bounds; `least` while nothing is known."""
        usual = self._mean + 4 * self._deviation if self._mean >= 0 else 0.0
        return min(most, max(least, factor * usual))
