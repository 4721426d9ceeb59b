"""Rates of a broker over the last hours, in memory, for graphs.

A sample is taken every `STEP_S` from counters that the data path keeps anyway. The newest `SAMPLES_MAX` samples are
kept, in a fixed number of bytes. They are lost when the process ends.

Steps are numbered from 1970 on, so that the samples of several brokers can be added up.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from quire.serving.registry.registry import Registry
from quire.serving.topic.services import Services

STEP_S: Final = 10
SAMPLES_MAX: Final = 8 * 3600 // STEP_S
POINTS: Final = 240
"""Number of points of a graph: more could not be seen."""

SERIES: Final = ("messagesIn", "bytesIn", "messagesOut", "bytesOut")


class Series(Struct, rename="camel"):
    """Rates per second, by their names in `SERIES`, oldest first; `end_ms` is the time of the newest one."""

    end_ms: int
    step_s: int
    rates: dict[str, list[float]]


class History:
    """Samples of one broker."""

    def __init__(self, registry: Registry, services: Services) -> None:
        self._registry = registry
        self._services = services
        self._rates = {name: array("d") for name in SERIES}
        self._last: tuple[float, Sequence[int]] | None = None
        self._end = 0
        """Number of the newest sample's step."""

    def start(self) -> None:
        """Take samples until the broker's tasks end."""
        self._services.tasks.start_every(STEP_S, self.sample, "sample rates")

    async def sample(self) -> None:
        """Take a sample; a missing step, after the process was paused, repeats the rates."""
        clock, totals = self._services.clock, self._registry.totals
        now_s, counts = clock.monotonic(), totals.traffic()
        before, self._last = self._last, (now_s, counts)
        step = clock.now_ms() // (1000 * STEP_S)
        if before is None or now_s <= before[0] or step <= self._end:
            self._end = max(self._end, step)
            return
        rates = [max(0, new - old) / (now_s - before[0]) for new, old in zip(counts, before[1], strict=True)]
        missed = min(step - self._end, SAMPLES_MAX) if self._rates[SERIES[0]] else 1
        for name, rate in zip(SERIES, rates, strict=True):
            kept = self._rates[name]
            kept.extend([rate] * missed)
            del kept[:-SAMPLES_MAX]
        self._end = step

    def series(self, minutes: int) -> Series:
        """Return the averages of the last `minutes`, in about `POINTS` points."""
        count, width = _samples(minutes)
        end = self._end // width * width
        skipped = self._end - end
        rates = {name: _averages(kept, count, width, skipped) for name, kept in self._rates.items()}
        return Series(end * STEP_S * 1000, width * STEP_S, rates)


def _samples(minutes: int) -> tuple[int, int]:
    """Return the number of samples in the last `minutes`, and the number of samples of each point."""
    count = min(SAMPLES_MAX, minutes * 60 // STEP_S)
    return count, max(1, count // POINTS)


def _averages(kept: array[float], count: int, width: int, skipped: int) -> list[float]:
    """Return averages of `width` samples each, whose groups end `skipped` samples before the newest one."""
    some = kept[-count - skipped : len(kept) - skipped]
    start = len(some) % width
    return [sum(some[at : at + width]) / width for at in range(start, len(some), width)]


def added(every: Iterable[Series], minutes: int) -> Series:
    """Add up the rates of brokers over the last `minutes` before the newest sample of any of them.

    The brokers' steps have equal widths. A broker without samples of a step adds nothing: for example, a broker that
    has just started, or a broker with a late clock.
    """
    answers = list(every)
    some = [one for one in answers if any(one.rates.values())]
    if not some:
        return answers[0]
    count, width = _samples(minutes)
    end_ms, step_s = max(one.end_ms for one in some), some[0].step_s
    late = [(end_ms - one.end_ms) // (1000 * step_s) for one in some]
    total: dict[str, list[float]] = {}
    for name in SERIES:
        values = [one.rates[name] for one in some]
        length = min(count // width, max(map(sum, zip(map(len, values), late, strict=True))))
        total[name] = [0.0] * length
        for rates, steps in zip(values, late, strict=True):
            for at, rate in enumerate(rates, length - steps - len(rates)):
                if at >= 0:
                    total[name][at] += rate
    return Series(end_ms, step_s, total)
