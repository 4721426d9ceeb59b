"""What processes with a broker have beside what every process has (`parts`): archive, write-ahead logs, sidecars."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from ssl import SSLContext
from typing import TYPE_CHECKING, Final

from quire.cli import member_checks
from quire.cli.parts import Parts
from quire.ledger.directory import BookieDirectory
from quire.metadata.store import MetadataStore
from quire.objects.open import open_for_log, open_store
from quire.runtime.clock import SystemClock
from quire.runtime.errors import Unavailable
from quire.runtime.limits import WAL_CACHE_BYTES
from quire.runtime.member import Check
from quire.runtime.metrics import MetricSource
from quire.spark_source.sidecar.process import SidecarBuilder, is_possible
from quire.tiering.archive import Archive
from quire.tiering.offload import Offloader
from quire.wal.settings import WalSettings

if TYPE_CHECKING:
    from quire.serving.broker import Broker  # a standalone process imports it beside its bookie
    from quire.wal.directory import WalDirectory

log = logging.getLogger(__name__)

ARCHIVE_ANSWERS_S: Final = 10.0


async def start_archive(parts: Parts, url: str) -> Archive:
    """Refuses one that can never work; one that does not answer now is only told of, for brokers must start."""
    archive = Archive(open_store(url), SystemClock())
    parts.push_async_callback(archive.close)
    try:
        async with asyncio.timeout(ARCHIVE_ANSWERS_S):
            await archive.store.prepare()
    except Unavailable as error:
        log.warning("the archive does not answer, so nothing moves there for now: %s", error)
    except TimeoutError:
        log.warning("the archive at %s hangs, so nothing moves there for now", url)
    return archive


async def start_wals(
    parts: Parts, settings: WalSettings, metadata: MetadataStore, broker: str, bookies: BookieDirectory
) -> WalDirectory:
    """Where `broker` keeps what is published, and finds what others kept. Refuses a store that cannot hold it."""
    from quire.wal.context import WalContext  # who has bookies starts without
    from quire.wal.directory import WalDirectory
    from quire.wal.run_reader import run_cache

    objects = open_for_log(settings.wal, settings.threads)
    parts.push_async_callback(objects.close)
    cache = run_cache(WAL_CACHE_BYTES)
    parts.push_async_callback(cache.close)
    context = WalContext(objects, metadata, cache, SystemClock(), settings, broker)
    return await parts.start(WalDirectory(context, bookies))


async def start_sidecars(parts: Parts, archive_url: str, offloader: Offloader) -> Sequence[MetricSource]:
    """Have sidecars of archived segments built, in a process of its own; returns what it counts."""
    if not is_possible():
        log.info(
            "sidecars of archived segments are not built here, for pyarrow is not installed: pip install "
            "'quire[spark]', or let `quire archive sidecars build` do it elsewhere"
        )
        return ()
    builder = await parts.start(SidecarBuilder(archive_url))
    offloader.on_archived(builder.look)
    return (builder.metrics,)


def broker_checks(
    broker: Broker,
    metadata_url: str,
    counted: Sequence[MetricSource],
    archive: Archive | None,
    wal_url: str,
    tls: Callable[[], SSLContext] | None = None,
) -> dict[str, Check]:
    """`wal_url` is empty where bookies keep what is published."""
    checks = {
        "the metadata store": member_checks.metadata(broker.services.store, metadata_url, tls),
        "its counters": member_checks.counters(broker.metrics, *counted),
        "subscriptions": member_checks.subscriptions(broker.admin.metrics.collect),
    }
    if archive is not None:
        checks["the archive"] = member_checks.archive(archive.store)
    if wal_url:
        checks["the write-ahead log's store"] = member_checks.write_ahead_log(wal_url)
    return checks
