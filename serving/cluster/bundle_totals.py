"""What the topics of each bundle did, for metrics and for balance: counted by the topics, added up here."""

from __future__ import annotations

from collections.abc import Mapping

from quire.runtime.clock import Clock
from quire.serving.cluster.balance import load_of
from quire.serving.cluster.port import BundleLoad
from quire.serving.model.rates import Rate, Totals


class BundleTotals:
    """A bundle that went keeps its counters: what metrics show never falls."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._totals: dict[str, Totals] = {}
        self._rates: dict[str, Rate] = {}

    def of(self, bundle: str) -> Totals:
        """Where the bundle's topics count."""
        return self._totals.setdefault(bundle, Totals())

    def rename(self, bundle: str, new: str) -> None:
        """A part of it goes on under its own name, and the rest counts as this one: see `Splits`."""
        if bundle in self._totals:
            self._totals[new] = self._totals.pop(bundle)
        self._rates.pop(bundle, None)

    def sum(self) -> Totals:
        """What all topics did since the start."""
        total = Totals()
        for one in self._totals.values():
            total.add(one)
        return total

    def incoming(self) -> tuple[int, int]:
        """Messages and bytes of all that topics took since the start; without what `sum` costs for each bundle."""
        every = self._totals.values()
        return sum(one.messages_in for one in every), sum(one.bytes_in for one in every)

    def by_namespace(self) -> dict[str, Totals]:
        """The same for each namespace (`tenant/namespace`) that had topics here."""
        found: dict[str, Totals] = {}
        for bundle, one in self._totals.items():
            found.setdefault(bundle.rpartition("/")[0], Totals()).add(one)
        return found

    def loads(self, topics: Mapping[str, int]) -> dict[str, BundleLoad]:
        """What bundles cost, by their numbers of loaded `topics`."""
        now = self._clock.monotonic()
        return {bundle: BundleLoad(self._load(bundle, count, now), count) for bundle, count in topics.items()}

    def _load(self, bundle: str, topic_count: int, now: float) -> float:
        totals = self._totals.get(bundle, Totals())
        rate = self._rates.setdefault(bundle, Rate())
        messages_per_s, bytes_per_s = rate.per_second(now, totals.messages_in, totals.bytes_in)
        return load_of(topic_count, messages_per_s, bytes_per_s)
