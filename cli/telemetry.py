"""What a process sends to a collector of OpenTelemetry, where its settings name one (`runtime/telemetry`)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from quire import __version__
from quire.cli.parts import Parts
from quire.runtime.clock import Clock
from quire.runtime.telemetry import MetricsSender, TelemetrySettings, resource, tracer_provider
from quire.runtime.threads import DaemonThreads

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from quire.runtime.probes import Scrapes
    from quire.serving.model.tracing import Tracing

LAST_SPANS_S: Final = 2.0
"""How long a process that ends waits for a collector to take its last spans."""


async def send_metrics(
    parts: Parts, settings: TelemetrySettings, service: str, instance: str, scrapes: Scrapes
) -> None:
    """Of this process, `quire-SERVICE` by name, while it runs."""
    if settings.otel_endpoint and settings.otel_metrics_ms:
        await parts.start(MetricsSender(settings, resource(f"quire-{service}", instance), scrapes))


def tracing(
    parts: Parts, settings: TelemetrySettings, service: str, instance: str, clock: Clock
) -> Tracing | None:
    """What makes spans of messages that their senders trace; None where nobody asks for them."""
    if not settings.otel_endpoint or not settings.otel_trace_one_in:
        return None
    from quire.serving.model.tracing import Tracing

    provider = tracer_provider(settings, resource(f"quire-{service}", instance))
    made = Tracing(provider.get_tracer("quire", __version__), clock)
    parts.push_async_callback(_send_the_last, made, provider)
    return made


async def _send_the_last(made: Tracing, provider: TracerProvider) -> None:
    await asyncio.to_thread(made.close, LAST_SPANS_S)
    with suppress(TimeoutError):
        async with asyncio.timeout(LAST_SPANS_S):
            await DaemonThreads(1, "quire-otel-end").run(provider.shutdown)
