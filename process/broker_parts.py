"""Parts of each process with a broker: the broker, sidecars of archived segments, the audit log's topic.

A standalone process imports this module while its bookie opens its disks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from quire.ledger.ledgers import Ledgers
from quire.process import member_checks
from quire.process.audit_topic import audit_topic
from quire.process.dynamic_settings import follow_log
from quire.process.parts import Process
from quire.process.settings import LogSettings
from quire.runtime.installation import pip_install
from quire.runtime.redaction import without_secrets
from quire.security.tls import FollowedContext
from quire.serving.broker import Broker
from quire.serving.ownership.port import Ownership
from quire.serving.settings import BrokerSettings
from quire.serving.topic.services import Services
from quire.spark_source.sidecar.process import SidecarBuilder, is_possible
from quire.tiering.archive import Archive
from quire.wal.settings import WalSettings

if TYPE_CHECKING:
    from quire.bookie.storage import Storage
    from quire.wal.directory import WalDirectory

log = logging.getLogger(__name__)


def make_broker(
    process: Process,
    settings: BrokerSettings,
    ledgers: Ledgers,
    archive: Archive | None,
    ownership: Ownership | None = None,
    to_brokers: FollowedContext | None = None,
) -> Broker:
    """Create a broker at the process's ports, with its report. `to_brokers`: TLS context for requests to brokers."""
    services = Services(
        settings,
        process.store,
        ledgers,
        archive,
        process.clock,
        to_brokers,
        tracing=process.tracing(),
        security=process.security,
    )
    broker = Broker(services, ownership)
    broker.addresses.http_url_tls = process.listeners.http_url_tls_at(settings.advertise_tls)
    checks = {"subscriptions": member_checks.subscriptions(broker.admin.metrics.collect)}
    if archive is not None:
        checks["the archive"] = member_checks.archive(archive.store)
    if wal_url := process.settings[WalSettings].wal:
        checks["the write-ahead log's store"] = member_checks.write_ahead_log(wal_url)
    broker.admin.member = process.member(broker.metrics, checks)
    broker.admin.metadata_url = without_secrets(process.metadata_url)
    follow_log(broker, process.settings[LogSettings])
    return broker


def rest_on(process: Process, broker: Broker, node: Storage | WalDirectory) -> None:
    """Let the readiness of `broker` depend on `node`, which stores its messages in this process."""
    broker.rest_on(node)
    process.metrics.append(node.metrics)


async def start_sidecars(process: Process, broker: Broker, archive_url: str) -> None:
    """Build sidecars of archived segments in a child process, unless the settings disable it."""
    if not process.settings[BrokerSettings].archive_sidecars or broker.offloading is None:
        return
    if not is_possible():
        log.debug(
            "no sidecars of archived segments are built, because pyarrow is not installed: %s, or run "
            "`quire archive sidecars build` on another machine",
            pip_install("spark"),
        )
        return
    builder = await process.start(SidecarBuilder(archive_url))
    broker.offloading.offloader.on_archived(builder.look)
    process.metrics.append(builder.metrics)


async def publish_audit(process: Process, broker: Broker) -> None:
    """Publish the audit log, if the security file has a topic for it."""
    if (publishing := audit_topic(process.security, broker.addresses)) is not None:
        await process.start(publishing)
