"""`/health`, `/metrics`: for orchestrators and Prometheus.

Counters are plain numbers that the rooms keep; they are turned into Prometheus' text only when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

MetricSource = Callable[[], Mapping[str, float]]
"""Counters (`…_total`) and gauges by their full name."""


class Probed(Protocol):
    """A process that is looked at: a broker, or a bookie of its own."""

    def why_not_ready(self) -> Sequence[str]:
        """Reasons why it should get no traffic now; empty when it should."""
        ...

    def warnings(self) -> Sequence[str]:
        """What a person should look at though it is ready, with what to do."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Counters and gauges by their full name."""
        ...


class _Collector(Collector):
    def __init__(self, sources: Sequence[MetricSource]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        for name, value in (pair for source in self._sources for pair in source().items()):
            if name.endswith("_total"):
                yield CounterMetricFamily(name, name.replace("_", " "), value)
            else:
                yield GaugeMetricFamily(name, name.replace("_", " "), value)

    def describe(self) -> Iterable[Metric]:
        return []


def routes(target: Probed, more_metrics: Sequence[MetricSource] = ()) -> list[web.RouteDef]:
    registry = CollectorRegistry()
    registry.register(_Collector((target.metrics, *more_metrics)))
    ProcessCollector(registry=registry)

    async def live(_: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def ready(_: web.Request) -> web.Response:
        reasons = list(target.why_not_ready())
        told: dict[str, Any] = {"ready": not reasons, "reasons": reasons}
        if warnings := list(target.warnings()):
            told["warnings"] = warnings
        return web.json_response(told, status=503 if reasons else 200)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return [
        web.get("/health", ready),
        web.get("/health/live", live),
        web.get("/health/ready", ready),
        web.get("/metrics", metrics),
        web.get("/metrics/", metrics),
    ]
