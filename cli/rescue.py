"""`quire rescue`: what is left to do when the metadata store is lost for good.

It asks no broker, for there is none: it reads the archive, closes and reads write-ahead logs, talks to the bookies, and
writes the metadata store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from random import SystemRandom
from tempfile import TemporaryDirectory
from typing import Final

import click

from quire.cli.noun import json_option
from quire.cli.output import Answer, Found, Shown
from quire.cli.progress import phases
from quire.ledger.bookie_client import BookieClient
from quire.ledger.directory import BookieDirectory, ClusterDirectory
from quire.ledger.ledgers import Ledgers
from quire.ledger.settings import LedgerSettings
from quire.metadata.open import open_store
from quire.metadata.store import MetadataStore
from quire.objects.open import open_for_log
from quire.objects.open import open_store as open_archive
from quire.rescue.facts import CopyFacts
from quire.rescue.rescue import Report, Rescue, begin, find_begun, look_for_copy
from quire.rescue.wals import Wals
from quire.runtime.clock import SystemClock, iso_time
from quire.runtime.errors import ConfigurationError, Unavailable
from quire.runtime.limits import WAL_CACHE_BYTES
from quire.security.configuration import load as load_security
from quire.security.tls import BetweenProcesses, between_processes
from quire.wal.context import WalContext
from quire.wal.directory import WalDirectory
from quire.wal.run_reader import run_cache
from quire.wal.settings import WalSettings

SHOWN_MAX: Final = 20
"""Sentences of one kind that people are shown; `--json` has all."""


@click.group("rescue")
def command() -> None:
    """Rebuild what the metadata store knew, from the bookies, the write-ahead logs and the archive.

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
    help="The archive, as brokers have it; else where --wal is.",
)
@click.option(
    "--wal", default="", envvar="QUIRE_WAL", help="Where brokers keep write-ahead logs, as they have it."
)
@click.option("--cluster", default="", help="Id of the cluster, where no copy in the archive tells it.")
@click.option("--security", default="", help="The security file, as brokers have it.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; fence and write nothing.")
@click.option(
    "--accept-loss", is_flag=True, help="Go on without what is lost or cannot be seen. Not to be taken back."
)
@json_option
def metadata_(
    metadata: str,
    archive: str,
    wal: str,
    cluster: str,
    security: str,
    dry_run: bool,
    accept_loss: bool,
    as_json: bool,
) -> None:
    """Rebuild the metadata of a cluster whose ZooKeeper is lost for good.

    Run it once with everything stopped and an empty ZooKeeper: it begins. Start all bookies, and run it again: it
    rebuilds. Where there are none, but write-ahead logs (--wal), it does so at once. It may be interrupted and run
    again. Brokers and gateways start when it is done. It exits with 4 where something is missing yet, and says what.

    A copy of ZooKeeper's directory brings back more: look for one first.
    """
    archive = archive or wal
    asyncio.run(_metadata(metadata, archive, wal, cluster, security, dry_run, accept_loss)).say(as_json)


async def _metadata(
    url: str, archive: str, wal: str, cluster: str, security: str, is_dry: bool, accept_loss: bool
) -> Answer:
    secured, clock, report = load_security(security), SystemClock(), Report()
    inside = between_processes(secured)
    store = await open_store(url, inside.client.current if inside else None, secured.metadata.login)
    objects = open_archive(archive) if archive else None
    try:
        begun = await find_begun(store, url)
        copy = await look_for_copy(objects, cluster or (begun.uuid if begun is not None else ""), report)
        if copy.wals and not wal:
            raise ConfigurationError(
                f"the copy in {archive.partition('?')[0]} names {len(copy.wals)} write-ahead logs on object storage: "
                "name their store with --wal"
            )
        needs_bookies = not wal or bool(copy.bookies)
        if begun is None and is_dry and needs_bookies:
            return _before_begin(copy, cluster)
        report.cluster = cluster or copy.cluster
        if not is_dry:
            report.cluster = (await begin(store, url, report.cluster, clock.now_ms())).uuid
        async with _directory(store, inside, wal, is_dry) as directory, _ledgers(store, directory) as ledgers:
            if needs_bookies and not directory.available():
                return Answer(asdict(report), error=_nobody_here(report.cluster, url, copy))
            with phases() as show:
                how = {"accept_loss": accept_loss, "is_dry": is_dry}
                wals = Wals(directory, show, **how) if isinstance(directory, WalDirectory) else None
                rescue = Rescue(store, directory, ledgers, clock, show, wals, **how)
                await rescue.run(copy, objects, report)
    finally:
        if objects is not None:
            await objects.close()
        await store.close()
    return _answer(report, is_dry)


@asynccontextmanager
async def _directory(
    store: MetadataStore, inside: BetweenProcesses | None, wal: str, is_dry: bool
) -> AsyncIterator[BookieDirectory]:
    """Of bookies, and of logs where `wal` is a URL: a dry run has records of these in a store of its own."""
    bookies = ClusterDirectory(store, lambda bookie: BookieClient.of(bookie, inside))
    async with AsyncExitStack() as parts:
        await bookies.start()
        parts.push_async_callback(bookies.stop)
        if not wal:
            yield bookies
            return
        settings = WalSettings(wal=wal)
        objects = open_for_log(wal, settings.threads)
        parts.push_async_callback(objects.close)
        if is_dry:
            folder = parts.enter_context(TemporaryDirectory())
            store = await open_store(f"sqlite://{folder}/metadata.db")
            parts.push_async_callback(store.close)
        cache = run_cache(WAL_CACHE_BYTES)
        parts.push_async_callback(cache.close)
        context = WalContext(objects, store, cache, SystemClock(), settings, "quire rescue")
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


def _before_begin(copy: CopyFacts, cluster: str) -> Answer:
    named = cluster or copy.cluster
    found = {
        "cluster": named,
        "copy of the metadata": iso_time(copy.taken_ms) if copy.taken_ms else "none",
        "topics in the copy": len(copy.topics),
        "bookies in the copy": len(copy.bookies),
    }
    note = "nothing was begun yet, so no bookie can be asked: without --dry-run this begins the rescue"
    return Answer(found, found, notes=[note])


def _answer(report: Report, is_dry: bool) -> Answer:
    fields = {
        "cluster": report.cluster,
        "copy of the metadata": iso_time(report.copy_taken_ms) if report.copy_taken_ms else "none",
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
