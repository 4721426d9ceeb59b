"""`/admin/v2/broker-stats`: reports of the broker that serves the request, about itself only, as in Pulsar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quire.runtime.limits import MIB
from quire.security.authorization import Action
from quire.serving.admin.route import Route
from quire.serving.broker import Broker
from quire.serving.operations.broker_report import BrokerReport, MetricsRow

STATS: Final = "/admin/v2/broker-stats"
TOPICS_HOLD: Final = 32 * MIB
"""Memory, in bytes, for the report of ten thousand topics with several subscriptions each."""


def routes(broker: Broker) -> Sequence[Route]:
    report, may = BrokerReport(broker.registry, broker.services, broker.addresses), Action.SUPERUSER

    async def metrics() -> list[MetricsRow]:
        """Return the metrics of this broker, and of its namespaces, topics and subscriptions, as in /metrics."""
        return report.metrics({**broker.metrics(), **await broker.admin.metrics.collect()})

    def mbeans() -> list[MetricsRow]:
        """Return an empty list: MBeans are objects of the Java virtual machine."""
        return []

    return (
        Route("GET", f"{STATS}/metrics", metrics, may=may),
        Route("GET", f"{STATS}/mbeans", mbeans, may=may),
        Route("GET", f"{STATS}/topics", report.topics, may=may, holds=TOPICS_HOLD),
        Route("GET", f"{STATS}/load-report", report.load, may=may),
    )
