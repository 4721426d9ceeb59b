"""Generator of `alerts.yml` and `quire.json` from the table of metrics: `make monitoring`.

    ALERTS of alerts.py, each with its `runbook_url`     ─▶ alerts.yml    Prometheus' rules
    ROWS below, then all the rest of metric_table.py     ─▶ quire.json    a dashboard of Grafana

A counter is charted as its rate, a gauge as its value, a histogram as quantiles or as a heatmap. The metric's row has
the unit, and the panel's description. ROWS are the panels at the top; every other metric has a panel in a folded row of
its room.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from deploy.monitoring.alerts import ALERTS, OURS
from quire.runtime.metric_docs import room_of
from quire.runtime.metric_table import BY_NAME, METRICS
from quire.runtime.metrics import Kind, Metric

HERE: Final = Path(__file__).parent
RUNBOOK: Final = os.environ.get("RUNBOOK", "docs/runbook.md#%s")
"""URL of an alert's entry in the runbook; `%s` is its name in lower case, as in Prometheus' mixins."""
MADE: Final = "Made by deploy/monitoring/generate.py: change that, and run `make monitoring`."
RATE: Final = "[$__rate_interval]"
CHOSEN: Final = '{namespace=~"$namespace"}'
QUANTILES: Final = (0.5, 0.99)
TOP: Final = 10
UNITS: Final = {"seconds": "s", "bytes": "bytes", "messages": "short", "": "short"}
RATES: Final = {"seconds": "percentunit", "bytes": "Bps", "messages": "cps", "": "cps"}
PANEL_WIDTH, PANEL_HEIGHT, GRID = 8, 8, 24
SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


def rules() -> str:
    """`alerts.yml`."""
    groups = [
        {
            "name": name,
            "rules": [
                {
                    "alert": one.name,
                    "expr": one.expr,
                    "for": one.lasts,
                    "labels": {"severity": one.severity},
                    "annotations": {
                        "summary": one.summary,
                        "description": one.todo,
                        "runbook_url": RUNBOOK.replace("%s", one.name.lower()),
                    },
                }
                for one in alerts
            ],
        }
        for name, alerts in ALERTS.items()
    ]
    text: str = yaml.safe_dump({"groups": groups}, sort_keys=False, width=110)
    return f"# {MADE}\n{text}"


# -- the dashboard


class Query(NamedTuple):
    expr: str
    legend: str


class Panel(NamedTuple):
    title: str
    unit: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    description: str = ""


def chart(title: str, *names: str, by: Sequence[str] = ("instance",)) -> Panel:
    """Metrics of one kind over time, added up `by` labels; only the greatest of topics and subscriptions."""
    rows = [BY_NAME[name] for name in names]
    units = {RATES[one.unit] if one.kind is Kind.COUNTER else UNITS[one.unit] for one in rows}
    assert len(units) == 1, f"{title}: one unit a panel"
    queries = [query for one in rows for query in queries_of(one, by, named=len(rows) > 1)]
    return Panel(title, units.pop(), queries, description=" ".join(one.help for one in rows))


def queries_of(metric: Metric, by: Sequence[str], *, named: bool) -> Iterator[Query]:
    legend = " ".join(
        ([metric.family.removeprefix("quire_")] if named else []) + [f"{{{{{one}}}}}" for one in by]
    )
    chosen = CHOSEN if "namespace" in metric.labels else OURS if metric.name.startswith("process_") else ""
    if metric.kind is Kind.HISTOGRAM:
        inner = f"sum by ({', '.join((*by, 'le'))}) (rate({metric.name}_bucket{chosen}{RATE}))"
        for share in QUANTILES:
            yield Query(f"histogram_quantile({share}, {inner})", f"p{share * 100:g} {legend}")
        return
    value = f"rate({metric.name}{chosen}{RATE})" if metric.kind is Kind.COUNTER else f"{metric.name}{chosen}"
    added = f"{'max' if metric.name.endswith('_age_seconds') else 'sum'} by ({', '.join(by)}) ({value})"
    yield Query(f"topk({TOP}, {added})" if "topic" in by else added, legend)


def heatmap(title: str, name: str) -> Panel:
    expr = f"sum by (le) (increase({name}_bucket{RATE}))"
    return Panel(title, "s", [Query(expr, "{{le}}")], "heatmap", BY_NAME[name].help)


def share(title: str, part: str, whole: str) -> Panel:
    return Panel(title, "percentunit", [Query(f"{part} / {whole}", "{{instance}}")])


HITS, MISSES = (f"rate(quire_bookie_read_cache_{what}_total{RATE})" for what in ("hits", "misses"))
NAMESPACE, TOPIC, SUBSCRIPTION = ("namespace",), ("topic",), ("topic", "subscription")

ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Cluster": (
        Panel("Processes that answer", "short", [Query(f"sum by (job) (up{OURS})", "{{job}}")], "stat"),
        Panel("Versions", "short", [Query("count by (version) (quire_build_info)", "{{version}}")], "stat"),
        chart(
            "Ledgers below their copies", "quire_repair_ledgers_underreplicated", "quire_repair_ledgers_lost"
        ),
        chart("Messages", "quire_serving_messages_in_total", "quire_serving_messages_out_total"),
        chart("Bytes", "quire_serving_bytes_in_total", "quire_serving_bytes_out_total"),
        chart("Connections", "quire_serving_connections", "quire_gateway_connections"),
        chart("Bookies", "quire_ledger_bookies_available", "quire_ledger_bookies_writable"),
        share("Budget used", "quire_serving_bytes_in_flight", "quire_serving_bytes_in_flight_max"),
        chart("Refused by limits", "quire_serving_limits_met_total", by=("limit",)),
    ),
    "Namespaces and topics": (
        chart("Messages in", "quire_namespace_messages_in_total", by=NAMESPACE),
        chart("Messages out", "quire_namespace_messages_out_total", by=NAMESPACE),
        chart("Storage", "quire_namespace_storage_bytes", "quire_namespace_archived_bytes", by=NAMESPACE),
        chart("Messages in, the greatest topics", "quire_topic_messages_in_total", by=TOPIC),
        chart("Bytes in, the greatest topics", "quire_topic_bytes_in_total", by=TOPIC),
        chart("Storage, the greatest topics", "quire_topic_storage_bytes", by=TOPIC),
    ),
    "Subscriptions": (
        chart("Blocked, by reason", "quire_namespace_subscriptions_blocked", by=("namespace", "reason")),
        chart("Which are blocked", "quire_subscription_blocked", by=(*SUBSCRIPTION, "reason")),
        chart("Redelivered", "quire_subscription_messages_redelivered_total", by=SUBSCRIPTION),
        chart("Backlog", "quire_subscription_backlog_messages", by=SUBSCRIPTION),
        chart("Backlog in bytes", "quire_subscription_backlog_bytes", by=SUBSCRIPTION),
        chart("Age of the backlog", "quire_subscription_backlog_age_seconds", by=SUBSCRIPTION),
    ),
    "Latencies": (
        heatmap("Publish", "quire_serving_publish_latency_seconds"),
        heatmap("Dispatch", "quire_serving_dispatch_latency_seconds"),
        heatmap("Acknowledgement", "quire_serving_ack_latency_seconds"),
        chart("Publish, by namespace", "quire_namespace_publish_latency_seconds", by=NAMESPACE),
        chart("Dispatch, by namespace", "quire_namespace_dispatch_latency_seconds", by=NAMESPACE),
        chart("Acknowledgement, by namespace", "quire_namespace_ack_latency_seconds", by=NAMESPACE),
    ),
    "Bookies": (
        heatmap("Journal sync", "quire_bookie_journal_sync_latency_seconds"),
        chart("Journal sync, by bookie", "quire_bookie_journal_sync_latency_seconds"),
        chart("Journal", "quire_bookie_journal_bytes_total"),
        share("Free disk", "quire_bookie_disk_free_bytes", "quire_bookie_disk_size_bytes"),
        share("Read cache hits", HITS, f"({HITS} + {MISSES})"),
        chart("Reads", "quire_bookie_read_latency_seconds"),
    ),
    "Write-ahead logs on object storage": (
        heatmap("Uploads", "quire_wal_upload_latency_seconds"),
        chart("Uploads, by broker", "quire_wal_upload_latency_seconds"),
        chart("Objects", "quire_wal_objects_written_total", "quire_wal_uploads_hedged_total"),
        chart("Bytes uploaded", "quire_wal_bytes_written_total"),
        chart("Not yet in sets", "quire_wal_unflushed_bytes"),
        chart("Open", "quire_wal_open"),
    ),
    "Archive": (
        chart("Archived", "quire_tiering_bytes_archived_total"),
        chart("Segments", "quire_tiering_segments_waiting", "quire_tiering_segments_failing"),
        chart("Uploads", "quire_tiering_upload_latency_seconds"),
    ),
    "Processes": (
        chart("CPU", "process_cpu_seconds_total"),
        chart("Memory", "process_resident_memory_bytes"),
        chart("Event-loop lag", "quire_loop_lag_seconds"),
    ),
}


def names_in(panels: Iterable[Panel]) -> set[str]:
    words = {word for panel in panels for query in panel.queries for word in re.findall(r"\w+", query.expr)}
    return {name for name in BY_NAME if name in words or f"{name}_bucket" in words}


def the_rest() -> Iterator[tuple[str, list[Panel]]]:
    """A panel for each metric that no row above has, by rooms."""
    charted = names_in(panel for panels in ROWS.values() for panel in panels)
    for room, metrics in groupby((one for one in METRICS if one.name not in charted), key=room_of):
        yield f"More: {room}", [chart(one.name, one.name, by=one.labels or ("instance",)) for one in metrics]


def drawn(panel: Panel, identity: int, place: int, top: int) -> dict[str, Any]:
    line, column = divmod(place, GRID // PANEL_WIDTH)
    options = {"heatmap": {"yAxis": {"unit": "s"}}, "stat": {"graphMode": "none"}}.get(panel.kind, {})
    return {
        "id": identity,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": {
            "x": column * PANEL_WIDTH,
            "y": top + line * PANEL_HEIGHT,
            "w": PANEL_WIDTH,
            "h": PANEL_HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
                "format": "heatmap" if panel.kind == "heatmap" else "time_series",
            }
            for number, query in enumerate(panel.queries)
        ],
    }


def panels() -> Iterator[dict[str, Any]]:
    """Open rows with their panels after them; folded ones with theirs within."""
    identities, top = count(1), 0
    for title, inside, folded in (
        *((title, list(row), False) for title, row in ROWS.items()),
        *((title, row, True) for title, row in the_rest()),
    ):
        place = {"x": 0, "y": top, "w": GRID, "h": 1}
        row = {"id": next(identities), "type": "row", "title": title, "collapsed": folded, "gridPos": place}
        drawings = [drawn(panel, next(identities), number, top + 1) for number, panel in enumerate(inside)]
        yield row | {"panels": drawings if folded else []}
        yield from () if folded else drawings
        top += 1 if folded else 1 + -(-len(inside) * PANEL_WIDTH // GRID) * PANEL_HEIGHT


def dashboard() -> str:
    """Return the content of `quire.json`, the Grafana dashboard."""
    names = {"query": "label_values(quire_namespace_topics, namespace)", "refId": "names"}
    choices = [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {"name": "namespace", "type": "query", "datasource": SOURCE, "query": names, "refresh": 2}
        | {
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    whole = {
        "uid": "quire",
        "title": "Quire",
        "description": MADE,
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": choices},
        "panels": list(panels()),
    }
    return json.dumps(whole, indent=1) + "\n"


if __name__ == "__main__":
    (HERE / "alerts.yml").write_text(rules())
    (HERE / "quire.json").write_text(dashboard())
