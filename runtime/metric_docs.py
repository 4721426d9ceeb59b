"""`docs/metrics.md`, made from the table: `python -m quire.runtime.metric_docs > docs/metrics.md`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from quire.runtime.metric_table import ALL, METRICS, NAMESPACES_SHOWN_MAX
from quire.runtime.metrics import LATENCY_S, Metric

_HEAD: Final = """\
# Metrics

Generated from [`runtime/metric_table.py`](../runtime/metric_table.py) by `python -m quire.runtime.metric_docs`; a \
test checks it.

`GET /metrics` of a broker (`--http`), a bookie (`--http`) and a gateway returns Prometheus' text, or OpenMetrics \
1.0 for a request with `Accept: application/openmetrics-text`, as Prometheus sends it. `quire standalone` has the \
metrics of a broker and a bookie. A gateway's include all brokers', each sample with a label `broker`.

- **Scope**: a broker reports on itself (`quire_serving_…`), on each namespace, and on each topic and \
subscription, while it serves no more than `--metrics-topics-max` topics (1,000; 0: never). It reports on \
namespaces while there are no more than {namespaces}; `quire_serving_left_out` counts the omitted ones. Ten \
thousand topics make less than 2 MB, computed in slices between which messages proceed.
- **Access**: every client of the port. With authentication, names of namespaces, topics and subscriptions are \
shown to superusers only: give Prometheus a token (`authorization`).
- **Counters** only grow while a broker runs, those of namespaces also when topics are unloaded. Counters of \
topics and subscriptions restart with each load.
- **Latencies** are histograms with the bounds {bounds} s, kept for namespaces, not for each topic.
- **Charts and alerts** are generated from the same table: [Grafana and \
Prometheus](../deploy/README.md#grafana-and-prometheus).
- **Cost**: counters change once for each block, group or turn of the event loop, never for each message.

"""

_PULSAR: Final = (
    ("pulsar_topics_count", "quire_namespace_topics"),
    ("pulsar_subscriptions_count", "quire_namespace_subscriptions, quire_topic_subscriptions"),
    ("pulsar_producers_count", "quire_topic_producers, quire_namespace_producers"),
    ("pulsar_consumers_count", "quire_subscription_consumers, quire_namespace_consumers"),
    ("pulsar_in_messages_total, pulsar_rate_in", "quire_topic_messages_in_total, and rate() of it"),
    ("pulsar_in_bytes_total, pulsar_throughput_in", "quire_topic_bytes_in_total, and rate() of it"),
    ("pulsar_out_messages_total, pulsar_rate_out", "quire_subscription_messages_out_total, and rate() of it"),
    ("pulsar_out_bytes_total, pulsar_throughput_out", "quire_subscription_bytes_out_total, and rate() of it"),
    ("pulsar_msg_backlog, pulsar_subscription_back_log", "quire_subscription_backlog_messages"),
    ("pulsar_storage_backlog_size", "quire_subscription_backlog_bytes"),
    ("pulsar_storage_backlog_age_seconds", "quire_subscription_backlog_age_seconds"),
    ("pulsar_subscription_unacked_messages", "quire_subscription_unacked_messages"),
    ("pulsar_subscription_blocked_on_unacked_messages", 'quire_subscription_blocked{reason="unacked"}'),
    ("pulsar_subscription_delayed", "quire_subscription_delayed_messages"),
    ("pulsar_subscription_msg_rate_redeliver", "rate() of quire_subscription_messages_redelivered_total"),
    ("pulsar_storage_size", "quire_topic_storage_bytes"),
    ("pulsar_storage_offloaded_size", "quire_topic_archived_bytes"),
    ("pulsar_storage_write_latency_le_…", "quire_namespace_publish_latency_seconds"),
    (
        "pulsar_broker_lookup_…, pulsar_active_connections",
        "quire_gateway_lookups_total, quire_serving_connections",
    ),
    ("bookie_journal_JOURNAL_SYNC", "quire_bookie_journal_sync_latency_seconds"),
    ("bookkeeper_server_READ_ENTRY", "quire_bookie_read_latency_seconds"),
    ("bookie_SERVER_STATUS", "1 - quire_bookie_read_only"),
    ("bookie_ledger_dir_…_usage", "quire_bookie_disk_free_bytes / quire_bookie_disk_size_bytes"),
    ("auditor_NUM_UNDER_REPLICATED_LEDGERS", "quire_repair_ledgers_underreplicated"),
)


def document() -> Iterator[str]:
    """Yield the lines of `docs/metrics.md`."""
    bounds = ", ".join(f"{bound:g}" for bound in LATENCY_S)
    yield from _HEAD.format(namespaces=NAMESPACES_SHOWN_MAX, bounds=bounds).splitlines()
    for room, metrics in groupby(METRICS, key=room_of):
        yield from (
            "",
            f"## {room}",
            "",
            "| name | kind | unit | labels | of | |",
            "|---|---|---|---|---|---|",
        )
        for one in metrics:
            labels, of = ", ".join(one.labels), "all" if one.of == ALL else ", ".join(one.of)
            yield f"| `{one.name}` | {one.kind} | {one.unit} | {labels} | {of} | {one.help} |"
    yield from ("", "## What Pulsar's and BookKeeper's are here", "", "| there | here |", "|---|---|")
    yield from (f"| {there} | {here} |" for there, here in _PULSAR)


def room_of(metric: Metric) -> str:
    """Return the heading of a metric."""
    prefix, room = metric.name.split("_")[:2]
    return _ROOMS[room if prefix == "quire" else prefix]


_ROOMS: Final = {
    "build": "Every process",
    "loop": "Every process",
    "process": "Every process",
    "metadata": "The metadata store",
    "security": "Security",
    "serving": "Brokers",
    "namespace": "Namespaces",
    "topic": "Topics",
    "subscription": "Subscriptions",
    "ledger": "Ledgers",
    "repair": "Repair",
    "tiering": "The archive",
    "wal": "Write-ahead logs on object storage",
    "bookie": "Bookies",
    "gateway": "Gateways",
}

if __name__ == "__main__":
    print("\n".join(document()))
