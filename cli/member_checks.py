"""What a process looks at when it is asked whether it is well: the checks of a `Member`, beside those of its machine.

Counters that say that something is wrong are rows (`COUNTED`), as an alert's are: above which value, how bad, what to
do. The rest is tried out: the metadata store is read, the archive is written to.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from ssl import SSLContext
from typing import Final, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

from quire.metadata import paths
from quire.metadata.store import MetadataStore
from quire.metadata.zookeeper_servers import ServerState
from quire.metadata.zookeeper_servers import look as look_at_servers
from quire.objects.open import open_store as open_objects
from quire.objects.store import ObjectStore
from quire.runtime.errors import NotFound, QuireError
from quire.runtime.findings import ERROR, WARNING, Finding, error, warning
from quire.runtime.limits import GIB
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
    """A finding while `metric` is above `above`. `what` may name the value as {value}."""

    metric: str
    above: float
    level: str
    what: str
    todo: str


COUNTED: Final = (
    Counted("quire_bookie_failed", 0, ERROR, "its journal or its checkpoints failed, so it takes nothing",
            "its log has the disk's error: check the disk (dmesg, smartctl), and start it again"),
    Counted("quire_bookie_scrub_damaged_total", 0, WARNING, "its scrub found {value:g} damaged blocks",
            "repair copies them from others by itself; replace the disk when this comes again (smartctl)"),
    Counted("quire_serving_bundles_damaged", 0, ERROR,
            "the state of {value:g} bundles cannot be read: their topics are not served",
            "its log names them, and what cannot be read: bring back every bookie that is away"),
    Counted("quire_serving_cannot_write", 0, ERROR, "it reaches too few bookies to write",
            "`quire brokers list` says why: look at the network between it and the bookies, and at its certificates"),
    Counted("quire_ledger_lost_ledgers", 0, ERROR, "it met {value:g} ledgers with entries that no bookie can give",
            "`quire ledgers lost` names them: bring back every bookie and disk that was ever taken away"),
    Counted("quire_loop_lag_max_seconds", 2.0, WARNING, "its event loop stood for {value:.1f} s in the last minute",
            "its log has the stack; else the machine has too little CPU: move bundles away, or add brokers"),
    Counted("quire_repair_ledgers_underreplicated", 0, WARNING, "{value:g} ledgers are below their copies",
            "`quire bookies repair` shows whether copying goes on, and what holds it up"),
    Counted("quire_repair_ledgers_unplaced", 0, ERROR, "no bookie can take the missing copies of {value:g} ledgers",
            "add bookies, or bring back those that are away: there are fewer than copies are wanted"),
    Counted("quire_tiering_segments_failing", 0, WARNING, "{value:g} segments could not be archived or released",
            "`quire archive status` says why: credentials, bucket, network. Meanwhile bookies' disks fill"),
    Counted("quire_tiering_objects_damaged", 0, ERROR, "{value:g} objects of the archive are damaged or missing",
            "`quire archive verify` lists them, `quire archive repair` uploads again what bookies still have"),
)  # fmt: skip


def counters(*sources: MetricSource) -> Check:
    """Of what the process counts."""

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
            "no bookie takes new blocks: nothing can be published",
            "`quire bookies list` shows which are up and which are read-only: start them, or make room",
        )
    used, most = (
        values.get("quire_serving_bytes_in_flight", 0),
        values.get("quire_serving_bytes_in_flight_max"),
    )
    if isinstance(used, int | float) and isinstance(most, int | float) and used > BUDGET_SHARE_MAX * most > 0:
        yield warning(
            f"its budget of bytes in flight is used up ({used:.0f} of {most:.0f}): producers wait",
            "bookies are slower than producers: look at journals' sync times, or add brokers or bookies",
        )


def subscriptions(collect: Callable[[], Awaitable[Values]]) -> Check:
    """Those that get nothing though they have a backlog, and have had for a while."""

    async def check() -> Iterable[Finding]:
        return _of_subscriptions(await collect())

    return check


HARMLESS: Final = ("no_consumer", "rate_limited", "delayed", "reading")
"""Nobody asks, somebody wanted it so, or it goes on in a moment."""


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
            f"subscription {subscription} of {topic} has a backlog and gets nothing: {reason}",
            f"`quire subscriptions stats {topic} {subscription}` shows what each consumer lacks",
        )
    if len(found) > SUBSCRIPTIONS_TOLD_MAX:
        yield warning(f"and {len(found) - SUBSCRIPTIONS_TOLD_MAX} subscriptions more", "look at these first")


def _labelled(values: Values, name: str) -> Mapping[Labels, float]:
    found = values.get(name, {})
    return (
        {key: one for key, one in found.items() if isinstance(one, int | float)}
        if isinstance(found, Mapping)
        else {}
    )


def metadata(store: MetadataStore, url: str, tls: Callable[[], SSLContext] | None = None) -> Check:
    """A read of the store that is behind nobody, and each of its servers."""

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
            "start it, and read its log; with half of the servers away nothing can be changed in the cluster",
        )
    for one in servers:
        if one.latency_ms > ZOOKEEPER_MS_MAX or one.waiting > ZOOKEEPER_WAITING_MAX:
            yield warning(
                f"ZooKeeper's server {one.server} takes {one.latency_ms:.0f} ms for a request, and {one.waiting} wait",
                "give its log (dataLogDir) a disk of its own, and see its heap and garbage collection",
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
            error(f"the metadata store cannot be read: {problem}", "look at ZooKeeper and the network to it")
        ]
    took_s = time.monotonic() - begun
    if took_s <= METADATA_S_MAX:
        return []
    return [
        warning(
            f"reading the metadata store takes {took_s * 1000:.0f} ms",
            "look at ZooKeeper's disks and load, at the network to it, and at this process's event loop",
        )
    ]


def certificates(configuration: Configuration) -> Check:
    thread = DaemonThreads(1, "quire-certificates")

    async def check() -> Iterable[Finding]:
        return await thread.run(lambda: list(ending(configuration)))

    return check


def archive(store: ObjectStore) -> Check:
    """What archiving does: put, list, read and delete, with a small object."""
    return partial(of_object_store, store, "the archive")


def write_ahead_log(url: str) -> Check:
    """The same of the store that keeps what is published; asked beside the log, whose calls have no patience."""

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
                "see its address, the credentials and what they allow; meanwhile nothing moves there",
            )
        ]
    if (found, names) != (content, [name]):
        return [error(f"{what} {store.url} does not give back what was put", "take another object store")]
    if room is None or room > ROOM_BYTES_MIN:
        return []
    says = f"{what} {store.url} has room for {max(0, room) >> 20} MiB more"
    return [(warning if room > 0 else error)(says, "make room on its disk, or shorten retention")]
