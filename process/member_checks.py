"""Health checks of a process for its `Member`, and the requirements of a bookie on its machine.

Checks of counters are rows of `COUNTED`, each with a bound, a level and a remedy, like an alert. The other checks
perform operations: they read the metadata store, and write to the archive.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from ssl import SSLContext
from typing import Final, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

from quire.bookie.settings import BookieSettings
from quire.metadata import paths
from quire.metadata.store import MetadataStore
from quire.metadata.zookeeper_servers import ServerState
from quire.metadata.zookeeper_servers import look as look_at_servers
from quire.objects.open import open_store as open_objects
from quire.objects.store import ObjectStore
from quire.runtime.errors import NotFound, QuireError
from quire.runtime.findings import ERROR, WARNING, Finding, error, warning
from quire.runtime.limits import GIB
from quire.runtime.machine import Machine, Place
from quire.runtime.member import Check
from quire.runtime.metrics import Labels, MetricSource, Values, all_of
from quire.runtime.threads import DaemonThreads
from quire.security.configuration import Configuration
from quire.security.ending import ending

METADATA_S_MAX: Final = 0.5
ZOOKEEPER_MS_MAX: Final = 100.0
ZOOKEEPER_WAITING_MAX: Final = 1_000
BUDGET_SHARE_MAX: Final = 0.9
BLOCKED_AGE_S: Final = 300.0
ROOM_BYTES_MIN: Final = GIB
SUBSCRIPTIONS_TOLD_MAX: Final = 20


class Counted(NamedTuple):
    """Finding that applies while `metric` is greater than `above`. `what` may contain the value as {value}."""

    metric: str
    above: float
    level: str
    what: str
    todo: str


COUNTED: Final = (
    Counted("quire_bookie_failed", 0, ERROR, "its journal or its checkpoints failed, so it rejects writes",
            "its log has the disk's error: check the disk (dmesg, smartctl), and restart the bookie"),
    Counted("quire_bookie_scrub_damaged_total", 0, WARNING, "its scrub found {value:g} damaged blocks",
            "repair copies them from other bookies automatically; replace the disk if this happens again (smartctl)"),
    Counted("quire_serving_bundles_damaged", 0, ERROR,
            "the state of {value:g} bundles cannot be read: their topics are not served",
            "its log has the bundles and the errors: start every bookie that is down"),
    Counted("quire_serving_cannot_write", 0, ERROR, "it reaches too few bookies to write",
            "`quire brokers list` shows the reason: check the network to the bookies, and its certificates"),
    Counted("quire_ledger_lost_ledgers", 0, ERROR, "it found {value:g} ledgers with entries that no bookie can return",
            "`quire ledgers lost` lists them: bring back every bookie and disk that was ever removed"),
    Counted("quire_loop_lag_max_seconds", 2.0, WARNING, "its event loop stalled for {value:.1f} s in the last minute",
            "its log has the stack; without one, the machine lacks CPU: move bundles away, or add brokers"),
    Counted("quire_repair_ledgers_underreplicated", 0, WARNING, "{value:g} ledgers are under-replicated",
            "`quire bookies repair` shows the progress of replication, and its obstacles"),
    Counted("quire_repair_ledgers_unplaced", 0, ERROR, "no bookie can store the missing replicas of {value:g} ledgers",
            "add bookies, or restart those that are down: there are fewer than replicas"),
    Counted("quire_tiering_segments_failing", 0, WARNING, "{value:g} segments could not be archived or released",
            "`quire archive status` shows the reason: credentials, bucket, network. Until then, bookies fill up"),
    Counted("quire_tiering_objects_damaged", 0, ERROR, "{value:g} objects of the archive are damaged or missing",
            "`quire archive verify` lists them, `quire archive repair` uploads those again that bookies still have"),
)  # fmt: skip


def counters(*sources: MetricSource) -> Check:
    """Create the check of the process's counters."""

    async def check() -> Iterable[Finding]:
        return _of_counters(all_of(sources))

    return check


def _of_counters(values: Values) -> Iterator[Finding]:
    for metric, above, level, what, todo in COUNTED:
        value = values.get(metric, 0)
        if isinstance(value, int | float) and value > above:
            yield Finding(level, what.format(value=value), todo)
    if values.get("quire_ledger_bookies_writable", 1) == 0 and "quire_wal_open" not in values:
        yield error(
            "no bookie takes new blocks: publishing is impossible",
            "`quire bookies list` shows which are up and which are read-only: start them, or free disk space",
        )
    used, most = (
        values.get("quire_serving_bytes_in_flight", 0),
        values.get("quire_serving_bytes_in_flight_max"),
    )
    if isinstance(used, int | float) and isinstance(most, int | float) and used > BUDGET_SHARE_MAX * most > 0:
        yield warning(
            f"its budget of bytes in flight is used up ({used:.0f} of {most:.0f}): producers wait",
            "bookies are slower than producers: check the sync latency of their journals, or add brokers or bookies",
        )


def subscriptions(collect: Callable[[], Awaitable[Values]]) -> Check:
    """Create the check for subscriptions with a backlog that have received no messages for some time."""

    async def check() -> Iterable[Finding]:
        return _of_subscriptions(await collect())

    return check


HARMLESS: Final = ("no_consumer", "rate_limited", "delayed", "reading")
"""Reasons of an idle subscription that need no action: no consumer, a configured delay or limit, or a short wait."""


def _of_subscriptions(values: Values) -> Iterator[Finding]:
    blocked, ages = (
        _labelled(values, f"quire_subscription_{name}") for name in ("blocked", "backlog_age_seconds")
    )
    found = [
        (labels, reason)
        for (*labels, reason) in blocked
        if reason == "read_error" or (reason not in HARMLESS and ages.get(tuple(labels), 0) > BLOCKED_AGE_S)
    ]
    for (_, topic, subscription), reason in found[:SUBSCRIPTIONS_TOLD_MAX]:
        yield (error if reason == "read_error" else warning)(
            f"subscription {subscription} of {topic} has a backlog, but is sent no messages: {reason}",
            f"`quire subscriptions stats {topic} {subscription}` shows the state of each consumer",
        )
    if len(found) > SUBSCRIPTIONS_TOLD_MAX:
        yield warning(
            f"{len(found) - SUBSCRIPTIONS_TOLD_MAX} more subscriptions are sent no messages",
            "fix the listed ones first",
        )


def _labelled(values: Values, name: str) -> Mapping[Labels, float]:
    found = values.get(name, {})
    return (
        {key: one for key, one in found.items() if isinstance(one, int | float)}
        if isinstance(found, Mapping)
        else {}
    )


def metadata(store: MetadataStore, url: str, tls: Callable[[], SSLContext] | None = None) -> Check:
    """Create the check of the metadata store: the latency of a read, and the state of each server."""

    async def check() -> Iterable[Finding]:
        servers = await look_at_servers(url, tls) if urlsplit(url).scheme != "sqlite" else ()
        return [*of_servers(servers), *await _of_reading(store)]

    return check


def of_servers(servers: Iterable[ServerState]) -> Iterator[Finding]:
    servers = list(servers)
    down = [one for one in servers if one.problem]
    is_majority = 2 * len(down) >= len(servers)
    for one in down:
        yield (error if is_majority else warning)(
            f"ZooKeeper's server {one.server}: {one.problem}",
            "start it, and read its log; without a majority of the servers, the cluster's metadata cannot be changed",
        )
    for one in servers:
        if one.latency_ms > ZOOKEEPER_MS_MAX or one.waiting > ZOOKEEPER_WAITING_MAX:
            yield warning(
                (
                    f"ZooKeeper's server {one.server} has a latency of {one.latency_ms:.0f} ms, and {one.waiting} "
                    "outstanding requests"
                ),
                "use a dedicated disk for its log (dataLogDir), and check its heap and garbage collection",
            )


async def _of_reading(store: MetadataStore) -> Iterable[Finding]:
    begun = time.monotonic()
    try:
        await store.sync()
        await store.get(paths.CLUSTER)
    except NotFound:
        pass
    except QuireError as problem:
        return [
            error(f"the metadata store cannot be read: {problem}", "check ZooKeeper, and the network to it")
        ]
    took_s = time.monotonic() - begun
    if took_s <= METADATA_S_MAX:
        return []
    return [
        warning(
            f"reading the metadata store takes {took_s * 1000:.0f} ms",
            "check ZooKeeper's disks and load, the network to it, and this process's event loop",
        )
    ]


def certificates(configuration: Configuration) -> Check:
    thread = DaemonThreads(1, "quire-certificates")

    async def check() -> Iterable[Finding]:
        return await thread.run(lambda: list(ending(configuration)))

    return check


def archive(store: ObjectStore) -> Check:
    """Create the check of the archive's store: put, list, read and delete a small object."""
    return partial(of_object_store, store, "the archive")


def write_ahead_log(url: str) -> Check:
    """Create the check of the write-ahead log's store, like `archive`, through a separate connection."""

    async def check() -> Iterable[Finding]:
        store = open_objects(url)
        try:
            return await of_object_store(store, "the store of the write-ahead log,")
        finally:
            await store.close()

    return check


async def of_object_store(store: ObjectStore, what: str) -> Iterable[Finding]:
    name, content = f"doctor/{uuid4().hex}", b"quire doctor was here; this may be deleted"
    step = "be prepared"
    try:
        await store.prepare()
        step = "be written to"
        await store.put_whole(name, (content,))
        step = "be read"
        found = bytes(await store.get_range(name, 0, len(content)))
        step = "be listed"
        names = [one.name for one in await store.list(name)]
        step = "have objects deleted"
        await store.delete(name)
        room = await store.room_bytes()
    except QuireError as problem:
        return [
            error(
                f"{what} {store.url} cannot {step}: {problem}",
                "check its address, the credentials and their permissions; until then it is not written to",
            )
        ]
    if (found, names) != (content, [name]):
        return [
            error(f"{what} {store.url} does not return the content that was put", "use another object store")
        ]
    if room is None or room > ROOM_BYTES_MIN:
        return []
    says = f"{what} {store.url} has only {max(0, room) >> 20} MiB of free space"
    return [(warning if room > 0 else error)(says, "free space on its disk, or shorten retention")]


def bookie_machine(settings: BookieSettings) -> Machine:
    """Return the requirements of a bookie on its machine: its directories, and the space that each needs."""
    journal, entries = (_disk_bytes(Path(each)) for each in (settings.journal, settings.entry_log))
    fitted = settings.fitted(journal, entries)
    places = (
        Place("journal", settings.journal, 2 * fitted.journal_segment_bytes, is_synced=True),
        Place("entry log", settings.entry_log, fitted.disk_reserve_bytes + fitted.memtable_bytes),
    )
    return Machine(places, is_bookie=True)


def _disk_bytes(path: Path) -> int:
    path = path.absolute()
    return shutil.disk_usage(next(one for one in (path, *path.parents) if one.exists())).total
