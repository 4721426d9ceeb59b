"""`/health`, `/metrics`: what every process answers orchestrators and Prometheus.

Counters are plain numbers that the rooms keep; they are turned into Prometheus' text only when somebody asks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

MetricSource = Callable[[], Mapping[str, float]]
"""Counters (`…_total`) and gauges by their full name."""


PATHS = ("/health", "/health/live", "/health/ready", "/metrics", "/metrics/")
"""What everybody may ask: it tells of the process, and of nothing that is kept in it."""


class Probed(Protocol):
    """A process that is looked at."""

    def why_not_ready(self) -> Sequence[str]:
        """Reasons why it should get no traffic now; empty when it should."""
        ...

    def warnings(self) -> Sequence[str]:
        """What a person should look at though it is ready, with what to do."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Counters and gauges by their full name."""
        ...


def routes(target: Probed, more_metrics: Sequence[MetricSource] = ()) -> list[web.RouteDef]:
    """Of a process whose metrics are its own alone."""
    sources = (target.metrics, *more_metrics)
    registry = CollectorRegistry()
    registry.register(Families(lambda: map(family, (pair for one in sources for pair in one().items()))))
    ProcessCollector(registry=registry)

    async def metrics(_: web.Request) -> web.Response:
        return exposition(registry)

    return routes_with(metrics, target.why_not_ready, target.warnings)


def routes_with(
    metrics: Callable[[web.Request], Awaitable[web.Response]],
    why_not_ready: Callable[[], Sequence[str]],
    warnings: Callable[[], Sequence[str]] = tuple,
) -> list[web.RouteDef]:
    """`metrics` answers with them; the others are as `Probed` says."""

    async def live(_: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def ready(_: web.Request) -> web.Response:
        reasons = list(why_not_ready())
        told: dict[str, Any] = {"ready": not reasons, "reasons": reasons}
        if found := list(warnings()):
            told["warnings"] = found
        return web.json_response(told, status=503 if reasons else 200)

    handlers = (ready, live, ready, metrics, metrics)
    return [web.get(path, handler) for path, handler in zip(PATHS, handlers, strict=True)]


class Families(Collector):
    """What `families` returns, whenever somebody asks."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families()

    def describe(self) -> Iterable[Metric]:
        return []


def family(metric: tuple[str, float]) -> Metric:
    """A counter (`…_total`) or a gauge, by its full name."""
    name, value = metric
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    return kind(name, name.replace("_", " "), value)


def exposition(registry: CollectorRegistry) -> web.Response:
    """Prometheus' text."""
    return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
