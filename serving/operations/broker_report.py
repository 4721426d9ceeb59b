"""One broker's own report in Pulsar's forms: its loaded topics by bundle, its load, and its metrics.

All numbers are from counters, without reads, so backlogs are estimates. Loaded topics are visited in time slices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from quire import __version__
from quire.runtime.metric_table import METRICS
from quire.runtime.metrics import Histogram, Values
from quire.serving.model.rates import Rate
from quire.serving.ownership.port import Addresses
from quire.serving.registry.registry import Registry
from quire.serving.registry.topic_loader import subscriptions_of
from quire.serving.topic.services import Services
from quire.serving.topic.topic import AnyTopic

TOPICS_A_SLICE: Final = 50
_LABELS: Final = {metric.name: metric.labels for metric in METRICS}


class LoadedSubscription(Struct, rename="camel"):
    consumer_count: int
    msg_backlog: int
    msg_rate_out: float
    msg_throughput_out: float


class LoadedTopic(Struct, rename="camel"):
    producer_count: int
    msg_rate_in: float
    msg_throughput_in: float
    msg_rate_out: float
    msg_throughput_out: float
    storage_size: int
    subscriptions: dict[str, LoadedSubscription]


LoadedTopics = dict[str, dict[str, dict[str, dict[str, LoadedTopic]]]]
"""Loaded topics by namespace, bundle, domain and full name."""


class MetricsRow(Struct):
    """Values of one object in the form of Pulsar's broker-stats: `dimensions` name the object."""

    metrics: dict[str, float]
    dimensions: dict[str, str]


class BundleLoadReport(Struct, rename="camel"):
    topics: int


class LoadReport(Struct, rename="camel", kw_only=True):
    """Pulsar's load report (`LocalBrokerData`), with the fields that Quire has; rates are per second."""

    web_service_url: str
    web_service_url_tls: str
    pulsar_service_url: str
    pulsar_service_url_tls: str
    persistent_topics_enabled: bool = True
    non_persistent_topics_enabled: bool = True
    msg_rate_in: float
    msg_throughput_in: float
    msg_rate_out: float
    msg_throughput_out: float
    last_update: int
    """Time of this report, in ms since 1970."""
    last_stats: dict[str, BundleLoadReport]
    num_topics: int
    num_bundles: int
    num_consumers: int
    num_producers: int
    bundles: list[str]
    broker_version_string: str = __version__
    load_report_type: str = "LocalBrokerData"


class BrokerReport:
    def __init__(self, registry: Registry, services: Services, addresses: Addresses) -> None:
        self._registry = registry
        self._services = services
        self._addresses = addresses
        self._incoming = Rate()
        self._outgoing = Rate()

    async def topics(self) -> LoadedTopics:
        """Return the topics that this broker has loaded."""
        found: LoadedTopics = {}
        services, now_s = self._services, self._services.clock.monotonic()
        async for some in services.slices.parts(self._registry.all(), TOPICS_A_SLICE):
            for topic in some:
                bundle = self._registry.bundle_of(topic.topic_name)
                if bundle is None:
                    continue  # it was unloaded meanwhile
                namespace, _, _ = bundle.rpartition("/")
                domains = found.setdefault(namespace, {}).setdefault(_range(bundle), {})
                domains.setdefault(topic.topic_name.domain, {})[topic.name] = _loaded(topic, now_s)
        return found

    async def load(self) -> LoadReport:
        """Return this broker's load report."""
        services, addresses, totals = self._services, self._addresses, self._registry.totals.sum()
        now_s = services.clock.monotonic()
        rate_in, throughput_in = self._incoming.per_second(now_s, totals.messages_in, totals.bytes_in)
        rate_out, throughput_out = self._outgoing.per_second(now_s, totals.messages_out, totals.bytes_out)
        producers = consumers = 0
        async for some in services.slices.parts(self._registry.all(), TOPICS_A_SLICE):
            producers += sum(len(one.producers.all()) for one in some)
            consumers += sum(len(each.consumers) for one in some for each in one.subscriptions)
        loads = self._registry.bundle_loads()
        return LoadReport(
            web_service_url=addresses.http_url,
            web_service_url_tls=addresses.http_url_tls,
            pulsar_service_url=addresses.service_url,
            pulsar_service_url_tls=addresses.service_url_tls,
            msg_rate_in=rate_in,
            msg_throughput_in=throughput_in,
            msg_rate_out=rate_out,
            msg_throughput_out=throughput_out,
            last_update=services.clock.now_ms(),
            last_stats={bundle: BundleLoadReport(one.topics) for bundle, one in sorted(loads.items())},
            num_topics=len(self._registry),
            num_bundles=len(loads),
            num_consumers=consumers,
            num_producers=producers,
            bundles=sorted(loads),
        )

    def metrics(self, values: Values) -> list[MetricsRow]:
        """Return metrics as rows: one of the broker, and one of each namespace, topic and subscription with metrics."""
        mine = {"cluster": self._services.settings.cluster, "broker": self._addresses.name}
        rows: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
        for name, value in values.items():
            every = value if isinstance(value, Mapping) else {(): value}
            for labels, one in every.items():
                row = rows.setdefault(tuple(zip(_LABELS[name], labels, strict=True)), {})
                if isinstance(one, Histogram):
                    row |= {f"{name}_count": one.count, f"{name}_sum": one.sum}
                else:
                    row[name] = one
        return [MetricsRow(metrics, {**mine, **dict(of)}) for of, metrics in rows.items()]


def _range(bundle: str) -> str:
    low, _, high = bundle.rpartition("/")[2].partition("_")
    return f"0x{low}_0x{high}"


def _loaded(topic: AnyTopic, now_s: float) -> LoadedTopic:
    summaries = {one.name: one.stats.summary() for one in subscriptions_of(topic)}
    rate, throughput = topic.received.per_second(now_s)
    return LoadedTopic(
        producer_count=len(topic.producers.all()),
        msg_rate_in=rate,
        msg_throughput_in=throughput,
        msg_rate_out=sum(one.msg_rate_out for one in summaries.values()),
        msg_throughput_out=sum(one.msg_throughput_out for one in summaries.values()),
        storage_size=sum(view.bytes for view in topic.log.segments()),
        subscriptions={
            name: LoadedSubscription(one.consumers, one.backlog, one.msg_rate_out, one.msg_throughput_out)
            for name, one in summaries.items()
        },
    )
