"""Health checks of a cluster, over REST through any broker, or from the metadata store if no broker answers.

    each member       the problems that it reports of itself (`member_checks`, `runtime/machine`), or that it does not
                      respond
    the cluster       versions, clock differences, absent or full bookies, repair, ledgers that lost entries
    metadata store    each ZooKeeper server, whether a cluster was created there, which members are registered

Each finding names the place that was checked. A check that could not run is listed as a note.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from ssl import SSLContext
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from quire.ledger.retiring import known_bookies
from quire.metadata import paths
from quire.metadata.cluster import find_cluster
from quire.metadata.open import open_store as open_metadata
from quire.metadata.zookeeper_servers import look as look_at_servers
from quire.objects.open import open_store as open_objects
from quire.objects.store import ObjectStore
from quire.process.member_checks import of_object_store, of_servers
from quire.runtime.credentials import NOBODY, Credentials
from quire.runtime.errors import ConfigurationError, NotFound, QuireError, Unavailable
from quire.runtime.findings import Finding, error, warning
from quire.runtime.member import DOCTOR
from quire.runtime.rest import Admin
from quire.wal.probe import probe

OVERVIEW: Final = "/quire/v1/overview"
LOST: Final = "/quire/v1/ledgers/lost"
CLOCKS_MS_MAX: Final = 2_000
FREE_SHARE_MIN: Final = 0.1
CLUSTER: Final = "the cluster"


@dataclass
class Looked:
    """Findings by place, the places that were checked, and the checks that could not run."""

    found: list[tuple[str, Finding]] = field(default_factory=list)
    at: list[str] = field(default_factory=list)
    not_at: list[str] = field(default_factory=list)

    def add(self, where: str, findings: Iterable[Finding]) -> None:
        self.at.append(where)
        self.found += [(where, one) for one in findings]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The findings as JSON, the worst first."""
        rows = [{"where": where, **one.to_json()} for where, one in self.found]
        return sorted(rows, key=lambda row: str(row["level"]))


def look_at_cluster(admin: Admin, looked: Looked) -> None:
    """Check the cluster through REST. Raises `NotAuthorized` or `NotAuthenticated`."""
    try:
        said, asked_ms, answered_ms = _members(admin, looked)
    except (Unavailable, ConfigurationError) as problem:
        looked.add(CLUSTER, [error(str(problem), "start a broker, or set --admin-url to another address")])
        return
    for member in said["members"]:
        own = [Finding(**one) for one in member["findings"]]
        looked.add(f"{member['kind']} {member['name']}", [*own, *_clock(member, asked_ms, answered_ms)])
    looked.not_at += said["unasked"]
    looked.add(
        CLUSTER, [error(one, "check that it is running, and the end of its log") for one in said["silent"]]
    )
    try:
        looked.add(CLUSTER, [*_of_overview(admin.get(OVERVIEW), said), *_lost(admin.get(LOST))])
    except NotFound:
        told = f"the server at {admin.url} is not a broker of this version"
        looked.add(
            CLUSTER,
            [error(told, "check which process listens there (ss -ltnp), or set --admin-url to a broker")],
        )
    except Unavailable as problem:
        looked.add(CLUSTER, [error(str(problem), "check whether its brokers reach the metadata store")])


def asked_of_all(admin: Admin, path: str) -> dict[str, Any]:
    """Return the reports of all registered members. Raises `NotFound`.

    If `admin` connects to a gateway, its report is added, because gateways are not registered.
    """
    said: dict[str, Any] = admin.get(path)
    for one in admin.get(f"{path}?here=true")["members"]:
        if one["kind"] == "gateway":
            said["members"].append(one)
    return said


def _members(admin: Admin, looked: Looked) -> tuple[Mapping[str, Any], int, int]:
    """Return the members' reports, and the times in ms of request and response by this machine's clock."""
    asked_ms = time.time_ns() // 1_000_000
    try:
        said = asked_of_all(admin, DOCTOR)
    except NotFound:  # an older broker
        looked.not_at.append(f"processes one by one: the broker at {admin.url} has no {DOCTOR}")
        said = {"members": [], "silent": [], "unasked": []}
    return said, asked_ms, time.time_ns() // 1_000_000


def _clock(member: Mapping[str, Any], asked_ms: int, answered_ms: int) -> Iterator[Finding]:
    """Check the member's clock, which it has read between this machine's request and the response."""
    off_ms = max(asked_ms - member["nowMs"], member["nowMs"] - answered_ms)
    if off_ms > CLOCKS_MS_MAX:
        side = "behind" if member["nowMs"] < asked_ms else "ahead of"
        yield warning(
            f"its clock is {off_ms / 1000:.1f} s {side} that of this machine",
            "synchronize all clocks by NTP: retention, delayed delivery and tokens depend on them",
        )


def _of_overview(overview: Mapping[str, Any], said: Mapping[str, Any]) -> Iterator[Finding]:
    for broker in overview["brokers"]:
        now = broker.get("now") or {}
        for why in now.get("whyNotReady", ()):
            yield error(f"broker {broker['broker']} is not ready: {why}", "see its log")
        for what in now.get("warnings", ()):
            yield warning(f"broker {broker['broker']}: {what}", "see `quire ledgers lost`")
    yield from _bookies(overview["bookies"])
    yield from _versions([*said["members"], *overview["brokers"], *overview["bookies"]])
    yield from _repair(overview["repair"])


def _bookies(bookies: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    for one in bookies:
        name = f"bookie {one['address'] or one['uuid'][:8]}"
        note = one["note"] or "see `quire bookies show`"
        if one["state"] in ("absent", "lost", "draining, absent"):
            yield error(f"{name} is down ({one['state']})", note)
        elif one["state"] == "read-only":
            yield warning(f"{name} accepts no new entries", note)
        if one["totalBytes"] and one["freeBytes"] < FREE_SHARE_MIN * one["totalBytes"]:
            free = f"{one['freeBytes'] >> 20} of {one['totalBytes'] >> 20} MiB free"
            yield warning(
                f"{name} has {free}", "add bookies, shorten retention, or see `quire archive status`"
            )
        if one["damagedCopies"]:
            yield warning(
                f"{name} has damaged copies of {one['damagedCopies']} ledgers",
                "repair replaces them automatically (`quire bookies repair`); check the disk (smartctl)",
            )


def _versions(members: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    by_version: dict[str, set[str]] = {}
    for one in members:
        name = str(one.get("name") or one.get("broker") or one.get("address") or "this process")
        by_version.setdefault(one.get("version") or "an older one", set()).add(name)
    if len(by_version) > 1:
        told = "; ".join(
            f"{version}: {', '.join(sorted(names))}" for version, names in sorted(by_version.items())
        )
        yield warning(
            f"several versions run: {told}",
            "finish the upgrade, or roll it back: two successive versions work together only for an upgrade",
        )


def _repair(repair: Mapping[str, Any]) -> Iterator[Finding]:
    if repair["failed"]:
        yield warning(
            f"repair could not copy {repair['failed']} ledgers: {repair['error']}",
            "see `quire bookies repair`; it retries automatically",
        )


def _lost(ledgers: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    for one in ledgers:
        yield error(
            f"ledger {one['ledgerId']} of {one['purpose']} lost entries: {one['what']}",
            "restore all bookies and disks that were removed; delete no data before that",
        )


# -- without a broker ---------------------------------------------------------------------------------------


async def look_at_metadata(
    url: str, looked: Looked, tls: Callable[[], SSLContext] | None = None, login: Credentials = NOBODY
) -> None:
    """Check the metadata store at `url`: its servers, and the registered members."""
    where = url.partition("?")[0]
    if not url.startswith("sqlite:"):
        looked.add(where, of_servers(await look_at_servers(url, tls)))
    try:
        store = await open_metadata(url, tls, login, create=False)
    except QuireError as problem:
        unreachable = "check that ZooKeeper is running, and reachable from this machine"
        todo = "correct --metadata" if isinstance(problem, ConfigurationError) else unreachable
        looked.add(where, [error(str(problem), todo)])
        return
    try:
        looked.add(where, await _registered(store, url))
    except QuireError as problem:
        looked.add(
            where, [error(str(problem), "use the address and chroot with which the bookies were started")]
        )
    finally:
        await store.close()


async def _registered(store: Any, url: str) -> list[Finding]:
    if url.startswith("sqlite:"):
        return []  # a standalone process registers no member
    await find_cluster(store, url)
    found = []
    up = set(await store.children(paths.BOOKIES_AVAILABLE))
    for uuid, record in (await known_bookies(store)).items():
        if uuid not in up:
            found.append(
                error(
                    f"bookie {record.address or uuid} is not up", "start it, or run `quire bookies recover`"
                )
            )
    if not await store.children(paths.BROKERS):
        found.append(error("no broker is registered", "start one with this --metadata"))
    return found


async def look_at_object_store(url: str, looked: Looked) -> None:
    """Check that the object store supports the operations of archiving and write-ahead logs.

    A directory is checked in a temporary one inside it, so that no empty directories of the probe are left.
    """
    store = open_objects(url)
    parts = urlsplit(url)
    if parts.scheme == "file":
        await store.close()
        looked.add(store.url, await _of_directory(Path(unquote(parts.path))))
        return
    try:
        found = list(await of_object_store(store, "the object store"))
        looked.add(store.url, found or await _of_probe(store))
    finally:
        await store.close()


async def _of_directory(root: Path) -> Sequence[Finding]:
    if not root.is_dir():
        what = "is not a directory" if root.exists() else "does not exist"
        return [
            error(f"{root} {what}", "correct the URL; the first process that uses it creates the directory")
        ]
    try:
        with TemporaryDirectory(prefix=".doctor-", dir=root) as inside:
            store = open_objects(f"file://{quote(inside)}")
            try:
                return list(await of_object_store(store, "the object store")) or await _of_probe(store)
            finally:
                await store.close()
    except OSError as problem:
        return [error(f"directory {root} cannot be written to: {problem.strerror}", "change its permissions")]


async def _of_probe(store: ObjectStore) -> list[Finding]:
    try:
        await probe(store)
    except ConfigurationError as problem:
        return [warning(str(problem), "archiving works, but a write-ahead log there does not")]
    except QuireError as problem:
        return [error(str(problem), "check whether it is overloaded, and try again")]
    return []
