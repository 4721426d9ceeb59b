"""OpenTelemetry export: metrics and traces by OTLP over HTTP (optional: the extra `otel`).

    --otel-endpoint URL ─┬─▶ metrics: all of /metrics, every minute                 URL/v1/metrics
                         └─▶ a tracer, for spans of messages                         URL/v1/traces

The metrics are those of the table (`metric_table`), without OpenTelemetry's instruments: the values of a scrape are
converted to OTLP. Names have no `_total`, because the kind implies it, and units are OTLP's.

OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_HEADERS` and others) set headers, certificates, compression, and
attributes of the resource. Without an endpoint, OpenTelemetry is not imported.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from quire import __version__
from quire.runtime.errors import ConfigurationError
from quire.runtime.installation import pip_install
from quire.runtime.metric_table import BY_NAME
from quire.runtime.metrics import Histogram, Kind, Labels, Value, Values
from quire.runtime.settings import MILLISECONDS, setting
from quire.runtime.tasks import Tasks
from quire.runtime.threads import DaemonThreads

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import export as otlp
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    from quire.runtime.probes import Scrapes

_UNITS: Final = {"seconds": "s", "bytes": "By", "messages": "{message}", "ratio": "1"}
_END_S: Final = 2.0
"""Seconds that a stopping process waits for pending exports."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TelemetrySettings:
    """Settings of the OpenTelemetry export."""

    otel_endpoint: str = setting(
        "",
        "Collector that metrics and traces are sent to by OTLP over HTTP, such as http://127.0.0.1:4318; empty: none.",
    )
    otel_metrics_ms: int = setting(
        60_000, "How often metrics are sent to otel_endpoint; 0: never.", unit=MILLISECONDS
    )
    otel_trace_one_in: int = setting(
        1, "Of the messages that their sender traces, one in so many gets spans of the broker; 0: none."
    )

    def validate(self) -> None:
        """Check the values. Raises `ConfigurationError`."""
        if self.otel_metrics_ms < 0 or self.otel_trace_one_in < 0:
            raise ConfigurationError("otel_metrics_ms and otel_trace_one_in must not be negative")
        if not self.otel_endpoint:
            return
        parts = urlsplit(self.otel_endpoint)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigurationError(
                f"otel_endpoint {self.otel_endpoint!r} is not a URL such as http://HOST:4318"
            )
        try:
            import opentelemetry.exporter.otlp.proto.http  # noqa: F401
        except ImportError:
            raise ConfigurationError(f"otel_endpoint needs OpenTelemetry: {pip_install('otel')}") from None

    def url(self, signal: str) -> str:
        return f"{self.otel_endpoint.rstrip('/')}/v1/{signal}"


def resource(service: str, instance: str) -> Resource:
    """Return the resource of metrics and spans; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override it."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    own = {"service.name": service, "service.instance.id": instance, "service.version": __version__}
    return Resource.create(own).merge(OTELResourceDetector().detect())


def tracer_provider(settings: TelemetrySettings, of: Resource) -> TracerProvider:
    """Create a tracer provider for children of sampled spans, which exports in the background.

    The caller shuts it down at the end.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased

    sampler = ParentBased(
        root=ALWAYS_OFF, remote_parent_sampled=TraceIdRatioBased(1 / settings.otel_trace_one_in)
    )
    provider = TracerProvider(sampler=sampler, resource=of, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(settings.url("traces"))))
    return provider


class MetricsSender:
    """Exporter of the metrics of `scrapes`, at an interval, from `start` to `stop`."""

    def __init__(self, settings: TelemetrySettings, of: Resource, scrapes: Scrapes) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        self._interval_s = settings.otel_metrics_ms / 1000
        self._resource = of
        self._scrapes = scrapes
        self._exporter = OTLPMetricExporter(settings.url("metrics"))
        self._began_ns = time.time_ns()
        self._threads = DaemonThreads(1, "quire-otel")  # the exporter blocks, and retries
        self._tasks = Tasks("otel")

    def start(self) -> None:
        self._tasks.start(self._run(), "metrics")

    async def stop(self) -> None:
        await self._tasks.stop()
        self._exporter.shutdown(0)
        await asyncio.to_thread(self._threads.close, _END_S)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            values = await self._scrapes.values()
            try:
                await self._threads.run(lambda values=values: self._send(values))  # type: ignore[misc]
            except Exception:
                _log.exception("metrics export failed; trying again at the next interval")

    def _send(self, values: Values) -> None:
        """Export the metrics; the exporter itself logs failures."""
        from opentelemetry.sdk.metrics import export as otlp
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        metrics = list(in_otlp(values, self._began_ns, time.time_ns()))
        of_scope = otlp.ScopeMetrics(InstrumentationScope("quire", __version__), metrics, "")
        self._exporter.export(otlp.MetricsData([otlp.ResourceMetrics(self._resource, [of_scope], "")]))


def in_otlp(values: Values, began_ns: int, now_ns: int) -> Iterator[otlp.Metric]:
    """Yield each metric in OTLP, in the order of the table."""
    from opentelemetry.sdk.metrics import export as otlp

    none: Any = None  # minimum and maximum are not recorded; the exporter omits None
    for name, metric in BY_NAME.items():
        if name not in values:
            continue
        value = values[name]
        rows: Mapping[Labels, Value] = value if isinstance(value, Mapping) else {(): value}
        numbers: list[otlp.NumberDataPoint] = []
        histograms: list[otlp.HistogramDataPoint] = []
        for labels, one in rows.items():
            of = dict(zip(metric.labels, labels, strict=True)), began_ns, now_ns
            if isinstance(one, Histogram):
                counts = tuple(one.counts)
                histograms.append(
                    otlp.HistogramDataPoint(*of, sum(counts), one.sum, counts, one.bounds, none, none)
                )
            else:
                numbers.append(
                    otlp.NumberDataPoint(*of, int(one) if isinstance(one, int) else one)
                )  # OTLP has no bool
        cumulative = otlp.AggregationTemporality.CUMULATIVE
        data: otlp.Sum | otlp.Gauge | otlp.Histogram = otlp.Gauge(numbers)
        if metric.kind is Kind.COUNTER:
            data = otlp.Sum(numbers, cumulative, is_monotonic=True)
        elif metric.kind is Kind.HISTOGRAM:
            data = otlp.Histogram(histograms, cumulative)
        yield otlp.Metric(metric.family, metric.help, _UNITS.get(metric.unit, ""), data)
