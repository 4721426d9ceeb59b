"""The bucket of a cluster without bookies: whether all that was kept is whole, and what lies there that nobody needs.

`damage` reads every byte that the records of write-ahead logs name. `unneeded` is for a cluster whose topics are all
deleted. Then may stay: copies of the metadata; fences; data objects and sets with ledgers that live, as state logs of
bundles do; and the data objects of an open log between its trim point and its end, dead or not, until they become a
set.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from quire.ledger import orphans
from quire.metadata.store import MetadataStore
from quire.objects.open import open_for_log
from quire.runtime.clock import SystemClock
from quire.runtime.errors import CorruptionError, NotFound
from quire.tiering import metadata_copy
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


async def unneeded(context: WalContext) -> list[str]:
    """A line for each object that should go: raises what the stores do."""
    ever = context.clock.now_ms() + 2 * scrub.GRACE_MS
    found = [f"{info.name}: no log names it" for info in await scrub.strays(context, ever)]
    there = [info.name for info in await context.objects.list()]
    found += [
        f"{name}: of a topic that is deleted"
        for name in there
        if not name.startswith((wal_object.FOLDER, metadata_copy.PREFIX))
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
