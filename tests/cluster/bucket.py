"""The bucket of a cluster without bookies: whether all that was kept is whole, and what lies there that nobody needs.

`damage` reads every byte that the records of write-ahead logs name. `unneeded` is for a cluster whose topics are all
deleted. Then may stay: copies of the metadata; fences; data objects and sets with ledgers that live, as state logs of
bundles do; and the data objects of an open log between its trim point and its end, dead or not, until they become a
set. And what uploads to the archive left that never were recorded, as of brokers that were killed: that is for a scrub
(`scrubbed`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from quire.ledger import orphans
from quire.metadata.store import MetadataStore
from quire.objects.open import open_for_log
from quire.runtime.clock import SystemClock
from quire.runtime.errors import CorruptionError, NotFound
from quire.tiering import metadata_copy
from quire.tiering import scrub as archive_scrub
from quire.tiering.archive import PREFIX, Archive, object_of
from quire.wal import scrub, wal_object
from quire.wal.context import WalContext
from quire.wal.run_reader import run_cache
from quire.wal.settings import WalSettings
from quire.wal.view import View


@asynccontextmanager
async def looking_into(url: str, metadata: MetadataStore) -> AsyncIterator[WalContext]:
    settings = WalSettings(wal=url)
    objects = open_for_log(url, settings.threads)
    try:
        yield WalContext(objects, metadata, run_cache(1 << 20), SystemClock(), settings, "the test")
    finally:
        await objects.close()


async def damage(context: WalContext) -> list[str]:
    """A line for each object that a log's record names and that is not whole."""
    found = []
    for record in await scrub.records(context.metadata):
        try:
            found += (await scrub.verify(context, record.uuid)).damage
        except NotFound:
            continue  # it has just gone
    return found


async def archived(context: WalContext) -> set[str]:
    """Names of all objects that are segments of some topic."""
    return {one.pointer.name for one in await archive_scrub.recorded_segments(context.metadata)}


async def scrubbed(context: WalContext) -> list[str]:
    """Have a scrub of the archive take away what no topic names; what it leaves."""
    await archive_scrub.scrub(
        Archive(context.objects, context.clock),
        lambda: archive_scrub.recorded_segments(context.metadata),
        context.clock,
        grace_ms=-1,
        delete_orphans=True,
    )
    return [info.name for info in await context.objects.list(PREFIX)]


async def unneeded(context: WalContext, deleted: Collection[str]) -> list[str]:
    """A line for each object that should go, as do those `deleted`, of the archive. Raises what the stores do."""
    ever = context.clock.now_ms() + 2 * scrub.GRACE_MS
    found = [f"{info.name}: no log names it" for info in await scrub.strays(context, ever)]
    there = [info.name for info in await context.objects.list()]
    found += [
        f"{name}: of a topic that is deleted"
        for name in there
        if not name.startswith((wal_object.FOLDER, metadata_copy.PREFIX, PREFIX))
        or object_of(name) in deleted
    ]
    living = {ledger_id async for ledger_id in orphans.ledger_ids(context.metadata)}
    for record in await scrub.records(context.metadata):
        view = View(context, record.uuid)
        try:
            await view.refresh()
        except (NotFound, CorruptionError):
            found.append(f"wal-{record.uuid}: it is just being changed")
            continue
        for name in view.index:
            of = {run.ledger_id for run in view.index.runs_of(name)}
            if wal_object.seq_of(name) is None and not of & living:
                found.append(f"{name}: all of its ledgers are deleted")
    return found
