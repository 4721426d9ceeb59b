"""Metrics of namespaces, topics and subscriptions, collected from the loaded topics, in time slices, on each request.

Counters of namespaces, which never decrease, are sums over their bundles (`BundleTotals`). All other metrics are
computed here without reads, so backlogs are estimates. The number of series is limited; see `runtime/metric_table`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from quire.runtime.metric_table import NAMESPACES_SHOWN_MAX
from quire.runtime.metrics import Histogram, Labels, Values
from quire.serving.model.rates import Totals
from quire.serving.operations.history import History
from quire.serving.registry.registry import Registry
from quire.serving.registry.topic_loader import subscriptions_of
from quire.serving.subscription.stats import Sample
from quire.serving.topic.services import Services
from quire.serving.topic.topic import AnyTopic, is_persistent

TOPICS_A_SLICE: Final = 50
"""Number of topics per time slice: with a few subscriptions each, they take one or two milliseconds."""

_Rows = dict[str, dict[Labels, float | Histogram]]

_OF_TOTALS: Final = {
    "messages_in_total": "messages_in",
    "bytes_in_total": "bytes_in",
    "messages_out_total": "messages_out",
    "bytes_out_total": "bytes_out",
    "messages_redelivered_total": "redelivered",
    "messages_acknowledged_total": "acked",
    "publish_latency_seconds": "publish_s",
    "dispatch_latency_seconds": "dispatch_s",
    "ack_latency_seconds": "ack_s",
}

_OF_SAMPLE: Final = {
    "consumers": "consumers",
    "messages_out_total": "messages_out",
    "bytes_out_total": "bytes_out",
    "messages_redelivered_total": "redelivered",
    "messages_acknowledged_total": "acked",
    "backlog_messages": "backlog_messages",
    "backlog_bytes": "backlog_bytes",
    "backlog_age_seconds": "backlog_age_s",
    "unacked_messages": "unacked",
    "delayed_messages": "delayed",
}


@dataclass(slots=True)
class _Namespace:
    """Sums over the loaded topics of a namespace."""

    topics: int = 0
    subscriptions: int = 0
    producers: int = 0
    consumers: int = 0
    backlog_messages: int = 0
    backlog_bytes: int = 0
    backlog_age_seconds: float = 0.0
    unacked_messages: int = 0
    storage_bytes: int = 0
    archived_bytes: int = 0
    blocked: Counter[str] = field(default_factory=Counter)

    def add_subscription(self, sample: Sample) -> None:
        self.subscriptions += 1
        self.consumers += sample.consumers
        self.backlog_messages += sample.backlog_messages
        self.backlog_bytes += sample.backlog_bytes
        self.backlog_age_seconds = max(self.backlog_age_seconds, sample.backlog_age_s)
        self.unacked_messages += sample.unacked
        if sample.blocked:
            self.blocked[sample.blocked] += 1


class TopicMetrics:
    """Metrics of topics; `/metrics` calls `collect`."""

    def __init__(self, registry: Registry, services: Services) -> None:
        self._registry = registry
        self._services = services
        self.history = History(registry, services)

    def of_broker(self) -> Values:
        """Return the counters of all topics since the broker's start."""
        totals = self._registry.totals.sum()
        return {f"quire_serving_{name}": getattr(totals, one) for name, one in _OF_TOTALS.items()}

    async def collect(self) -> Values:
        """Collect the metrics of all loaded topics."""
        topics = self._registry.all()
        shown = self._fits(topics)
        rows: _Rows = {}
        namespaces: dict[str, _Namespace] = {}
        async for some in self._services.slices.parts(topics, TOPICS_A_SLICE):
            now_ms = self._services.clock.now_ms()
            for topic in some:
                if not topic.is_closed:
                    _add_topic(topic, namespaces, now_ms, rows if shown else None)
        totals = self._registry.totals.by_namespace()
        left_out: dict[Labels, float] = {("topics",): 0 if shown else len(topics), ("namespaces",): 0}
        if len(totals) > NAMESPACES_SHOWN_MAX:
            left_out["namespaces",] = len(totals)
        else:
            _add_namespace_rows(rows, namespaces, totals)
        return {**rows, "quire_serving_left_out": left_out}

    def _fits(self, topics: list[AnyTopic]) -> bool:
        """Return whether the number of topics and of subscriptions is within the limit of per-topic metrics."""
        topics_max = self._services.settings.metrics_topics_max
        subscriptions = sum(len(topic.subscriptions) for topic in topics[: topics_max + 1])
        return 0 < topics_max >= max(len(topics), subscriptions)


def _add_topic(topic: AnyTopic, namespaces: dict[str, _Namespace], now_ms: int, rows: _Rows | None) -> None:
    name = f"{topic.topic_name.tenant}/{topic.topic_name.namespace}"
    namespace = namespaces.setdefault(name, _Namespace())
    segments, labels = topic.log.segments(), (name, topic.name)
    stored, archived = sum([one.bytes for one in segments]), 0
    if is_persistent(topic):
        sealed = topic.log.segment_list.sealed
        archived = sum([one.archive.bytes for one in sealed if one.archive is not None])
    producers = len(topic.producers.all())
    namespace.topics += 1
    namespace.producers += producers
    namespace.storage_bytes += stored
    namespace.archived_bytes += archived
    for subscription in subscriptions_of(topic):
        sample = subscription.stats.sample(segments, now_ms)
        namespace.add_subscription(sample)
        if rows is not None:
            _add_subscription_rows(rows, (*labels, subscription.name), sample)
    if rows is not None:
        found = {
            "producers": producers,
            "subscriptions": len(topic.subscriptions),
            "messages_in_total": topic.received.messages,
            "bytes_in_total": topic.received.bytes,
            "storage_bytes": stored,
            "archived_bytes": archived,
            "segments": len(segments),
        }
        for what, value in found.items():
            rows.setdefault(f"quire_topic_{what}", {})[labels] = value


def _add_subscription_rows(rows: _Rows, labels: Labels, sample: Sample) -> None:
    for what, one in _OF_SAMPLE.items():
        rows.setdefault(f"quire_subscription_{what}", {})[labels] = getattr(sample, one)
    if sample.blocked:
        rows.setdefault("quire_subscription_blocked", {})[*labels, sample.blocked] = 1


def _add_namespace_rows(
    rows: _Rows, namespaces: Mapping[str, _Namespace], totals: Mapping[str, Totals]
) -> None:
    """Add the rows of each namespace that had topics on this broker since its start."""
    for name, total in totals.items():
        namespace = namespaces.get(name, _Namespace())
        for what, one in _OF_TOTALS.items():
            rows.setdefault(f"quire_namespace_{what}", {})[name,] = getattr(total, one)
        for what in _Namespace.__slots__[:-1]:
            rows.setdefault(f"quire_namespace_{what}", {})[name,] = getattr(namespace, what)
        for reason, count in namespace.blocked.items():
            rows.setdefault("quire_namespace_subscriptions_blocked", {})[name, reason] = count
