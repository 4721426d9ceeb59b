"""`quire rescue`: rebuilds the metadata of a cluster whose metadata store is permanently lost.

Brokers cannot run without metadata, so the commands use no broker. They read the archive, close and read write-ahead
logs, connect to the bookies, and write the new metadata store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from random import SystemRandom
from tempfile import TemporaryDirectory
from typing import Final

import click

from quire.cli.noun import json_option
from quire.cli.output import Answer, Found, Shown
from quire.cli.progress import phases
from quire.identity import guard
from quire.identity.marker import put_marker
from quire.identity.place import Place
from quire.identity.stores import StoreRole
from quire.ledger.bookie_client import BookieClient
from quire.ledger.directory import BookieDirectory, ClusterDirectory
from quire.ledger.ledgers import Ledgers
from quire.ledger.settings import LedgerSettings
from quire.metadata.cluster import find_cluster
from quire.metadata.open import is_missing_file, open_store
from quire.metadata.store import MetadataStore
from quire.objects.open import open_for_log
from quire.objects.open import open_store as open_archive
from quire.objects.store import ObjectStore
from quire.rescue.begin import (
    begin,
    find_begun,
    greatest_copy,
    look_at_restored,
    look_for_copy,
    marked_cluster,
)
from quire.rescue.facts import CopyFacts
from quire.rescue.rescue import Report, Rescue
from quire.rescue.wals import Wals
from quire.runtime.clock import SystemClock, iso_time
from quire.runtime.errors import ConfigurationError, Unavailable, WrongCluster
from quire.runtime.limits import WAL_CACHE_BYTES
from quire.security.configuration import Configuration
from quire.security.configuration import load as load_security
from quire.security.tls import BetweenProcesses, between_processes
from quire.wal.context import WalContext
from quire.wal.directory import WalDirectory
from quire.wal.run_reader import run_cache
from quire.wal.settings import WalSettings

SHOWN_MAX: Final = 20
"""Maximum number of messages of one kind to print; `--json` prints all."""


@click.group("rescue")
def command() -> None:
    """Rebuild the contents of a lost metadata store from the bookies, the write-ahead logs and the archive.

    \b
    Example:
      quire rescue metadata --metadata zk://zookeeper:2181/quire --archive s3://bucket/prefix
      quire rescue metadata --metadata zk://zookeeper:2181/quire --wal s3://bucket/prefix
    """


@command.command("metadata")
@click.option(
    "--metadata", required=True, envvar="QUIRE_METADATA", help="The new, empty metadata store of the cluster."
)
@click.option(
    "--archive",
    default="",
    envvar="QUIRE_ARCHIVE",
    help="Archive of the brokers; by default the store of --wal.",
)
@click.option(
    "--wal",
    default="",
    envvar="QUIRE_WAL",
    help="Object store of the brokers' write-ahead logs, as in their settings.",
)
@click.option("--cluster", default="", help="Id of the cluster, if no object store has its marker.")
@click.option(
    "--copy",
    "copy_of",
    default="",
    metavar="NUMBER|URL",
    help="Number of a metadata copy in the archive, or URL of a restored metadata store; by default the newest copy.",
)
@click.option("--security", default="", help="Security file of the brokers.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, without fencing ledgers or writing.")
@click.option(
    "--accept-loss", is_flag=True, help="Continue without lost or unreachable data. This cannot be undone."
)
@json_option
def metadata_(
    metadata: str,
    archive: str,
    wal: str,
    cluster: str,
    copy_of: str,
    security: str,
    dry_run: bool,
    accept_loss: bool,
    as_json: bool,
) -> None:
    """Rebuild the metadata of a cluster whose ZooKeeper is lost.

    Run it once with everything stopped and an empty ZooKeeper: it begins. Start all bookies, and run it again: it
    rebuilds. Where there are none, but write-ahead logs (--wal), it does so at once. It may be interrupted and run
    again. Brokers and gateways start when it is done. It exits with 4 where something is missing yet, and says what.

    A backup of ZooKeeper's directory may have more records: restore it beside the new store, and name it with --copy.

    \b
    Example:
      quire rescue metadata --metadata zk://zookeeper:2181/quire --archive s3://bucket/prefix
    """
    stores = _Stores(metadata, archive or wal, wal, cluster, copy_of, load_security(security))
    asyncio.run(_metadata(stores, dry_run, accept_loss)).say(as_json)


@command.command("accept-older")
@click.option("--metadata", required=True, envvar="QUIRE_METADATA", help="Metadata store of the cluster.")
@click.option("--archive", required=True, envvar="QUIRE_ARCHIVE", help="Archive of the brokers.")
@click.option("--security", default="", help="Security file of the brokers.")
@json_option
def accept_older(metadata: str, archive: str, security: str, as_json: bool) -> None:
    """Accept metadata that are older than a copy of them in the archive. This cannot be undone.

    After an older backup of the metadata store was restored, commands refuse to delete objects without a record, and
    newer copies of the metadata are kept. `quire rescue metadata` restores the later records; this command gives them
    up.

    \b
    Example:
      quire rescue accept-older --metadata zk://zookeeper:2181/quire --archive s3://bucket/prefix
    """
    asyncio.run(_accept_older(metadata, archive, load_security(security))).say(as_json)


async def _accept_older(url: str, archive: str, security: Configuration) -> Answer:
    async with _open(url, security) as store, _archive(archive) as objects:
        assert objects is not None
        cluster = (await find_cluster(store, url)).uuid
        newer = await guard.accept_older(store, cluster, objects)
    found = {"cluster": cluster, "accepted": bool(newer), "copy": newer}
    if not newer:
        return Answer(found, "nothing to accept: no copy is newer than these metadata")
    return Answer(found, f"accepted: later records, as in copy {newer}, are given up")


@dataclass(frozen=True)
class _Stores:
    """Stores of a lost cluster, as given by the operator. `copy_of` is the number of a copy, a URL, or empty."""

    metadata: str
    archive: str
    wal: str
    cluster: str
    copy_of: str
    security: Configuration


async def _metadata(stores: _Stores, is_dry: bool, accept_loss: bool) -> Answer:
    url, clock, report = stores.metadata, SystemClock(), Report()
    async with (
        _open_target(url, stores.security, is_dry) as store,
        _archive(stores.archive) as objects,
        _logs(stores.wal) as logs,
    ):
        begun = await find_begun(store, url)
        opened = [each for each in (objects, logs) if each is not None]
        cluster = await marked_cluster(opened, stores.cluster or (begun.uuid if begun is not None else ""))
        copy = await _copy(stores, objects, cluster, report)
        if copy.wals and not stores.wal:
            raise ConfigurationError(
                f"the copy of the metadata has {len(copy.wals)} write-ahead logs on object storage: give their store "
                "with --wal"
            )
        needs_bookies = not stores.wal or bool(copy.bookies)
        if needs_bookies and url.startswith("sqlite:"):
            raise ConfigurationError(
                "bookies register in ZooKeeper, so their ledgers cannot be rebuilt into a file: pass a new ZooKeeper "
                "chroot with --metadata, then run a cluster of one bookie on the standalone's directories"
            )
        report.cluster = cluster or copy.cluster
        if begun is None and is_dry and needs_bookies:
            return _before_begin(copy, report)
        if not is_dry:
            copies = await greatest_copy(objects, report.cluster, copy)
            report.cluster = (await begin(store, url, report.cluster, clock.now_ms(), copies)).uuid
            for each in opened:
                await put_marker(each, report.cluster)
        inside = between_processes(stores.security)
        async with (
            _directory(store, inside, logs, report.cluster, is_dry) as directory,
            _ledgers(store, directory) as ledgers,
        ):
            if needs_bookies and not directory.available():
                return Answer(asdict(report), error=_nobody_here(report.cluster, url, copy))
            with phases() as show:
                how = {"accept_loss": accept_loss, "is_dry": is_dry}
                wals = Wals(directory, show, **how) if isinstance(directory, WalDirectory) else None
                rescue = Rescue(store, directory, ledgers, clock, show, wals, **how)
                await rescue.run(copy, objects, report)
    return _answer(report, is_dry)


async def _copy(stores: _Stores, objects: ObjectStore | None, cluster: str, report: Report) -> CopyFacts:
    """Return the contents of the metadata copy that `--copy` selects. Raises `ConfigurationError`."""
    if "://" not in stores.copy_of:
        if stores.copy_of and not (stores.copy_of.isdecimal() and objects is not None):
            raise ConfigurationError(
                f"--copy must be the number of a copy in --archive, or a metadata store's URL, not {stores.copy_of!r}"
            )
        return await look_for_copy(objects, cluster, report, int(stores.copy_of or 0))
    async with _open(stores.copy_of, stores.security) as restored:
        found = await look_at_restored(restored, stores.copy_of, SystemClock().now_ms(), report)
    if cluster and found.cluster != cluster:
        raise WrongCluster(
            f"{stores.copy_of} has cluster {found.cluster}, not cluster {cluster}: correct --copy"
        )
    return found


@asynccontextmanager
async def _open(url: str, security: Configuration, *, create: bool = False) -> AsyncIterator[MetadataStore]:
    inside = between_processes(security)
    tls = inside.client.current if inside else None
    store = await open_store(url, tls, security.metadata.login, create=create)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def _open_target(url: str, security: Configuration, is_dry: bool) -> AsyncIterator[MetadataStore]:
    """Open the store that is rebuilt; create it, but not in a dry run, which reads an empty file in place of none."""
    with TemporaryDirectory() as folder:
        is_missing = is_dry and is_missing_file(url)
        opened = f"sqlite://{folder}/metadata.db" if is_missing else url
        async with _open(opened, security, create=is_missing or not is_dry) as store:
            yield store


@asynccontextmanager
async def _archive(url: str) -> AsyncIterator[ObjectStore | None]:
    objects = open_archive(url) if url else None
    try:
        yield objects
    finally:
        if objects is not None:
            await objects.close()


@asynccontextmanager
async def _logs(url: str) -> AsyncIterator[ObjectStore | None]:
    objects = open_for_log(url, WalSettings(wal=url).threads) if url else None
    try:
        yield objects
    finally:
        if objects is not None:
            await objects.close()


@asynccontextmanager
async def _directory(
    store: MetadataStore,
    inside: BetweenProcesses | None,
    objects: ObjectStore | None,
    cluster: str,
    is_dry: bool,
) -> AsyncIterator[BookieDirectory]:
    """Open the directory of the bookies, and of the write-ahead logs in `objects`, if given.

    A dry run writes the logs' records to a temporary metadata store.
    """
    bookies = ClusterDirectory(store, lambda bookie: BookieClient.of(bookie, inside))
    async with AsyncExitStack() as parts:
        await bookies.start()
        parts.push_async_callback(bookies.stop)
        if objects is None:
            yield bookies
            return
        settings = WalSettings(wal=objects.url)
        if is_dry:
            folder = parts.enter_context(TemporaryDirectory())
            store = await open_store(f"sqlite://{folder}/metadata.db")
            parts.push_async_callback(store.close)
            await begin(store, "a dry run", cluster, SystemClock().now_ms())
        cache = run_cache(WAL_CACHE_BYTES)
        parts.push_async_callback(cache.close)
        place = Place(store, objects, cluster, StoreRole.LOGS, is_rescue=True)
        context = WalContext(place, cache, SystemClock(), settings, "quire rescue")
        wals = WalDirectory(context, bookies)
        parts.push_async_callback(wals.stop)
        yield wals


@asynccontextmanager
async def _ledgers(store: MetadataStore, directory: BookieDirectory) -> AsyncIterator[Ledgers]:
    ledgers = Ledgers(store, directory, SystemClock(), SystemRandom(), LedgerSettings())
    try:
        yield ledgers
    finally:
        await ledgers.stop()


def _nobody_here(cluster: str, url: str, copy: CopyFacts) -> Unavailable:
    names = ", ".join(bookie.address or bookie.uuid for bookie in copy.bookies)
    who = f"all bookies ({names})" if names else "all bookies"
    return Unavailable(
        f"the rescue of cluster {cluster} has begun in {url}, and no bookie is up: start {who} as ever, on their "
        "directories and with this --metadata, and run this again"
    )


def _before_begin(copy: CopyFacts, report: Report) -> Answer:
    found = {
        "cluster": report.cluster,
        "copy of the metadata": _shown_copy(report),
        "topics in the copy": len(copy.topics),
        "bookies in the copy": len(copy.bookies),
    }
    note = "nothing was begun yet, so no bookie can be asked: without --dry-run this begins the rescue"
    return Answer(found, found, notes=[note])


def _shown_copy(report: Report) -> str:
    return report.copy_url or (iso_time(report.copy_taken_ms) if report.copy_taken_ms else "none")


def _answer(report: Report, is_dry: bool) -> Answer:
    fields = {
        "cluster": report.cluster,
        "copy of the metadata": _shown_copy(report),
        "bookies here": len(report.bookies),
        "bookies missing": len(report.missing),
        "write-ahead logs": len(report.logs),
        "topics": report.topics,
        "segments": report.segments,
        "messages": report.messages,
        "ledgers to recover" if is_dry else "ledgers recovered": report.recovered,
        "state logs": report.state_logs,
    }
    shown: list[Shown] = [fields]
    for what, sentences in (
        ("missing bookie", report.missing),
        ("lost or not seen", report.lost),
        ("doubtful", report.doubtful),
        ("comes back empty", report.empty),
    ):
        shown += [f"{what}: {sentence}" for sentence in sentences[:SHOWN_MAX]]
        if len(sentences) > SHOWN_MAX:
            shown.append(f"{what}: {len(sentences) - SHOWN_MAX} more; --json has all")
    if report.is_done:
        shown.append("done: start brokers, then gateways; subscriptions come back with the state logs")
        return Answer(asdict(report), *shown)
    if report.lost:
        what = "this would be refused" if is_dry else "nothing was written of topics"
        error = Found(
            f"{what}, for what is named above is lost or cannot be seen: bring it back and run this again, or go on "
            "without it with --accept-loss"
        )
        return Answer(asdict(report), *shown, error=error)
    return Answer(asdict(report), *shown, "dry run: nothing was written")
