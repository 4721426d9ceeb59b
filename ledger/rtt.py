"""RTT estimator (Jacobson/Karels): time-outs from observed latency.

It estimates like TCP ([RFC 6298](https://www.rfc-editor.org/rfc/rfc6298)): by a smoothed mean of the response times,
and their smoothed mean deviation. A response that takes longer than the mean plus four deviations is unusual. So a
bookie with a slow disk gets a long time-out, while a read from a fast bookie is repeated on another one after a few
milliseconds. The caller passes the bounds of the time-out.
"""

from __future__ import annotations

from typing import Final

_MEAN_GAIN: Final = 1 / 8
"""RFC 6298's alpha."""

_DEVIATION_GAIN: Final = 1 / 4
"""RFC 6298's beta."""


class RttEstimator:
    """Smoothed response time of one peer, in seconds."""

    __slots__ = ("_deviation", "_mean")

    def __init__(self) -> None:
        self._mean = -1.0
        self._deviation = 0.0

    def observe(self, seconds: float) -> None:
        """Add the response time of one request."""
        if self._mean < 0:
            self._mean, self._deviation = seconds, seconds / 2
            return
        error = seconds - self._mean
        self._mean += _MEAN_GAIN * error
        self._deviation += _DEVIATION_GAIN * (abs(error) - self._deviation)

    def timeout(self, factor: float, least: float, most: float) -> float:
        """Return `factor` times the longest usual response time, at least `least` and at most `most` seconds.

        Before the first response, return `least`.
        """
        usual = self._mean + 4 * self._deviation if self._mean >= 0 else 0.0
        return min(most, max(least, factor * usual))
