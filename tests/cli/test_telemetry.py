"""Metrics and traces at a collector of OpenTelemetry, sent by the exporters of its own SDK."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pulsar
import pytest
from aiohttp import web

from quire.process.settings import Given
from quire.process.standalone import Standalone, load, standalone
from quire.runtime.errors import ConfigurationError
from quire.runtime.metric_table import BY_NAME
from quire.runtime.telemetry import TelemetrySettings
from quire.serving.model import tracing

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

ANY = "127.0.0.1:0"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
SOON_S = 20.0


class Collector:
    """An OTLP receiver: the spans and metrics that it was sent."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Any] = []
        self.metrics: dict[str, Any] = {}
        self.resources: list[dict[str, str]] = []

    async def take_spans(self, request: web.Request) -> web.Response:
        sent = ExportTraceServiceRequest.FromString(await body_of(request))
        for of_resource in sent.resource_spans:
            self.resources.append(texts(of_resource.resource.attributes))
            self.spans += [span for scope in of_resource.scope_spans for span in scope.spans]
        return web.Response()

    async def take_metrics(self, request: web.Request) -> web.Response:
        sent = ExportMetricsServiceRequest.FromString(await body_of(request))
        for of_resource in sent.resource_metrics:
            self.resources.append(texts(of_resource.resource.attributes))
            for scope in of_resource.scope_metrics:
                self.metrics |= {metric.name: metric for metric in scope.metrics}
        return web.Response()

    def spans_of(self, operation: str) -> list[dict[str, str]]:
        """Attributes of spans, with `trace` and `parent`, by the ids of messages."""
        found = [
            {
                **texts(span.attributes),
                "trace": span.trace_id.hex(),
                "parent": span.parent_span_id.hex(),
                "name": span.name,
            }
            for span in self.spans
        ]
        chosen = [one for one in found if one["messaging.operation.name"] == operation]
        return sorted(chosen, key=lambda one: one["messaging.message.id"])


def texts(attributes: Any) -> dict[str, str]:
    return {one.key: one.value.string_value or str(one.value.int_value) for one in attributes}


async def body_of(request: web.Request) -> bytes:
    raw = await request.read()
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    taking = Collector()
    application = web.Application(client_max_size=1 << 26)
    application.add_routes(
        [web.post("/v1/traces", taking.take_spans), web.post("/v1/metrics", taking.take_metrics)]
    )
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    taking.url = "http://{}:{}".format(*runner.addresses[0][:2])
    yield taking
    await runner.cleanup()


@asynccontextmanager
async def server(folder: Path, collector: Collector, **flags: str) -> AsyncIterator[Standalone]:
    given = {"data": str(folder), "listen": ANY, "http": ANY, "archive_sidecars": "false", **flags}
    async with standalone(load(Given({"otel_endpoint": collector.url, **given}, None))) as running:
        yield running


async def until(is_so: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(SOON_S):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert is_so(), what


def through(service_url: str, sent: list[tuple[dict[str, str], bool]]) -> None:
    """Messages with properties, single and as batches (True) compressed by LZ4, go in and come out."""
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe("traced", "worker", initial_position=pulsar.InitialPosition.Earliest)
    single = client.create_producer("traced")
    batched = client.create_producer(
        "traced",
        batching_enabled=True,
        batching_max_publish_delay_ms=100,
        compression_type=pulsar.CompressionType.LZ4,
    )
    for properties, is_batched in sent:
        if not is_batched:
            single.send(b"one", properties)
    for properties, is_batched in sent:
        if is_batched:
            batched.send_async(b"of a batch", lambda *_: None, properties)
    batched.flush()
    for _ in sent:
        consumer.acknowledge(consumer.receive(10_000))
    client.close()


async def test_a_publish_and_its_delivery_are_one_trace(tmp_path: Path, collector: Collector) -> None:
    sent = [
        ({"traceparent": SAMPLED}, False),
        ({"traceparent": f"00-{TRACE}-{PARENT}-00"}, False),  # whose sender does not sample it
        ({"traceparent": "not a context"}, False),
        ({}, False),
        ({"traceparent": SAMPLED, "tracestate": "a=b"}, True),
        ({"other": "traceparent"}, True),
    ]
    async with server(tmp_path, collector, otel_metrics_ms="0") as running:
        await asyncio.to_thread(through, running.service_url, sent)
        await until(lambda: len(collector.spans) >= 4, "spans")
    published, delivered = collector.spans_of("publish"), collector.spans_of("deliver")
    assert len(published) == len(delivered) == 2, "one of the single messages, one of the batch"
    topic = "persistent://public/default/traced"
    for one in (*published, *delivered):
        assert (one["trace"], one["parent"]) == (TRACE, PARENT)
        assert one["messaging.destination.name"] == topic and one["messaging.system"] == "pulsar"
    assert [one["messaging.message.id"].count(":") for one in published] == [1, 2], "a batch's has an index"
    assert [one["messaging.message.id"] for one in delivered] == [
        one["messaging.message.id"] for one in published
    ]
    assert delivered[0]["messaging.destination.subscription.name"] == "worker"
    assert [one["name"] for one in published] == [f"publish {topic}"] * 2
    assert collector.resources[0]["service.name"] == "quire-standalone"
    span = next(one for one in collector.spans if one.name.startswith("publish"))
    assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 5_000_000_000


async def test_one_in_so_many_is_traced(tmp_path: Path, collector: Collector) -> None:
    ids = [f"{Random(7 + at).getrandbits(128):032x}" for at in range(64)]
    sent = [({"traceparent": f"00-{one}-{PARENT}-01"}, False) for one in ids]
    async with server(tmp_path, collector, otel_metrics_ms="0", otel_trace_one_in="4") as running:
        await asyncio.to_thread(through, running.service_url, sent)
    # Decided by the trace's id: so publish and delivery agree, and other services that sample so.
    traced = {one["trace"] for one in collector.spans_of("publish")}
    assert traced == {one["trace"] for one in collector.spans_of("deliver")}
    assert 4 < len(traced) < 32 and traced < set(ids)


async def test_what_is_behind_is_not_traced_and_counted(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "BEHIND_BYTES_MAX", 0)
    async with server(tmp_path, collector, otel_metrics_ms="100") as running:
        await asyncio.to_thread(through, running.service_url, [({"traceparent": SAMPLED}, False)])
        await until(lambda: value(collector, "quire_serving_untraced") == 2, "both are counted")
    assert not collector.spans


def value(collector: Collector, family: str) -> float:
    if family not in collector.metrics:
        return -1
    (point,) = collector.metrics[family].sum.data_points
    return float(point.as_int or point.as_double)


async def test_all_metrics_are_sent_as_they_are_in_the_table(tmp_path: Path, collector: Collector) -> None:
    async with server(tmp_path, collector, otel_metrics_ms="200", otel_trace_one_in="0") as running:
        await asyncio.to_thread(through, running.service_url, [({}, False)] * 3)
        await until(lambda: value(collector, "quire_serving_messages_in") == 3, "what came in")
        in_text = {
            line.split(" ")[2] for line in (await scraped(running)).splitlines() if line.startswith("# TYPE")
        }
    sent = collector.metrics
    assert {BY_NAME[name].family for name in in_text} == set(sent)
    incoming = sent["quire_serving_messages_in"]
    assert incoming.sum.is_monotonic and incoming.description
    (latency,) = sent["quire_serving_publish_latency_seconds"].histogram.data_points
    assert (
        latency.count == 3 == sum(latency.bucket_counts) and latency.sum > 0 and not latency.HasField("max")
    )
    assert sent["quire_serving_publish_latency_seconds"].unit == "s"
    assert sent["quire_serving_tail_cache_bytes"].unit == "By"
    (topic,) = sent["quire_topic_messages_in"].sum.data_points
    assert texts(topic.attributes)["topic"].endswith("traced")
    assert sent["process_resident_memory_bytes"].gauge.data_points[0].as_double > 1e6


async def scraped(running: Standalone) -> str:
    import aiohttp

    async with aiohttp.ClientSession() as session, session.get(f"{running.http_url}/metrics") as answer:
        return await answer.text()


async def test_a_collector_that_is_gone_disturbs_nobody(tmp_path: Path, collector: Collector) -> None:
    collector.url = "http://127.0.0.1:9"
    async with server(tmp_path, collector, otel_metrics_ms="50") as running:
        await asyncio.to_thread(through, running.service_url, [({"traceparent": SAMPLED}, False)])
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < SOON_S


@pytest.mark.parametrize("given", [{"otel_endpoint": "collector:4318"}, {"otel_trace_one_in": -1}])
def test_settings_that_mean_nothing_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="otel"):
        TelemetrySettings(**given).validate()
