"""Checks of the bucket of a cluster without bookies: damaged objects, and objects that nothing refers to.

`damage` reads every byte that the records of write-ahead logs (WALs) name. `unneeded` is for a cluster whose topics are
all deleted. These objects may remain in its bucket:

- the cluster's marker, copies of the metadata, and fences;
- data objects and sets with existing ledgers, such as the state logs of bundles;
- data objects of an open WAL from its trim point to its end, until a flush combines them to a set;
- uploads to the archive that were never recorded, because their brokers were killed; a scrub (`scrubbed`) deletes them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from quire.identity import id_ranges
from quire.identity.copies import FOLDER
from quire.identity.marker import NAME
from quire.ledger import orphans
from quire.metadata.store import MetadataStore
from quire.objects.open import open_for_log
from quire.runtime.clock import SystemClock
from quire.runtime.errors import CorruptionError, NotFound
from quire.testing.place import TrustedPlace
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
        yield WalContext(
            TrustedPlace(objects, metadata), run_cache(1 << 20), SystemClock(), settings, "the test"
        )
    finally:
        await objects.close()


async def damage(context: WalContext) -> list[str]:
    """Return a line for each damaged or missing object that a WAL's record names."""
    found = []
    for record in await scrub.records(context.metadata):
        try:
            found += (await scrub.verify(context, record.uuid)).damage
        except NotFound:
            continue  # the record has just been deleted
    return found


async def archived(context: WalContext) -> set[str]:
    """Return the names of all objects that are archived segments of a topic."""
    return {one.pointer.name for one in await archive_scrub.recorded_segments(context.metadata)}


async def scrubbed(context: WalContext) -> list[str]:
    """Scrub the archive, which deletes objects that no topic refers to. Return the names of the remaining objects."""
    await archive_scrub.scrub(
        Archive(context.place, context.clock),
        context.clock,
        grace_ms=-1,
        delete_orphans=True,
    )
    return [info.name for info in await context.objects.list(PREFIX)]


async def unneeded(context: WalContext, deleted: Collection[str]) -> list[str]:
    """Return a line for each object that should not exist. Raises the errors of the stores.

    `deleted` contains the names of archived objects whose topics were deleted.
    """
    ever = context.clock.now_ms() + 2 * scrub.GRACE_MS
    strays = await scrub.strays(context, ever)
    found = [f"{info.name}: no log names it" for info in strays.deletable]
    found += strays.kept.values()
    there = [info.name for info in await context.objects.list()]
    found += [
        f"{name}: of a topic that is deleted"
        for name in there
        if not name.startswith((wal_object.FOLDER, FOLDER, PREFIX, NAME, id_ranges.FOLDER))
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
