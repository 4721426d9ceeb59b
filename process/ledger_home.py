"""Ledgers of a process with a broker, and their `Home`: rack, cluster, guard, and claims of ledger ids.

The guard checks the object stores before a command gives something up (`quire.identity.guard`). A claim in the object
stores ensures that a range of ledger ids is allocated only once (`quire.identity.id_ranges`).
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING, Final

from quire.identity.guard import confirm_absence
from quire.identity.id_ranges import claim_range
from quire.ledger.directory import BookieDirectory
from quire.ledger.ids import Claim
from quire.ledger.ledgers import Ledgers
from quire.ledger.parts import Guard, Home
from quire.ledger.settings import LedgerSettings, RepairSettings
from quire.metadata.store import MetadataStore
from quire.metadata.underreplicated import Reports
from quire.process.parts import Process
from quire.runtime.errors import QuireError, Unavailable
from quire.tiering.archive import Archive

if TYPE_CHECKING:
    from quire.wal.directory import WalDirectory

log = logging.getLogger(__name__)

CLAIM_S: Final = 3.0
"""Time-out in seconds of a claim of ledger ids in the archive, for which new ledgers wait."""


def claim_of(archive: Archive | None, wals: WalDirectory | None) -> Claim:
    """Return the function that claims ranges of ledger ids in the process's object stores.

    A failed claim in the store for write-ahead logs fails the allocation, because publishing needs that store anyway. A
    failed claim in the archive is only logged.
    """

    async def claim(number: int) -> int:
        claimed = 0
        if wals is not None:
            if wals.own_wal() is None:
                raise Unavailable(wals.why_not_ready)  # the store's cluster may not be verified yet
            try:
                claimed = await claim_range(wals.context.place, number)
            except QuireError as error:
                url = wals.context.objects.url
                raise Unavailable(f"cannot claim ledger ids in {url}: {error}") from error
        if archive is not None:
            try:
                async with asyncio.timeout(CLAIM_S):
                    await archive.place.enter()
                    claimed = max(claimed, await claim_range(archive.place, number))
            except (QuireError, TimeoutError) as error:
                why = str(error) or f"it has not answered within {CLAIM_S:g} s"
                log.warning("cannot claim ledger ids in the archive %s: %s", archive.store.url, why)
        return claimed

    return claim


def home_of(
    rack: str, metadata: MetadataStore, cluster: str, archive: Archive | None, wals: WalDirectory | None
) -> Home:
    """Return the `Home` of a process's ledgers."""
    return Home(rack, cluster, guard_of(metadata, cluster, archive, wals), claim_of(archive, wals))


def guard_of(
    metadata: MetadataStore, cluster: str, archive: Archive | None, wals: WalDirectory | None
) -> Guard:
    """Return the guard of commands that accept loss.

    The guard checks copies of the metadata in the archive, or in the store of write-ahead logs.
    """
    if archive is not None:
        return archive.place.confirm_absence
    if wals is not None:
        return wals.context.place.confirm_absence
    return partial(confirm_absence, metadata, cluster, None)


async def start_ledgers(process: Process, home: Home, directory: BookieDirectory) -> Ledgers:
    """Start a broker's ledgers, which report copies that they find damaged."""
    ledgers = Ledgers(
        process.store,
        directory,
        process.clock,
        SystemRandom(),
        process.settings[LedgerSettings],
        home=home,
        lost_after_s=process.settings[RepairSettings].repair_delay_ms / 1000,
    )
    process.push_async_callback(ledgers.stop)
    reports = await process.start(Reports(process.store, process.clock))
    ledgers.on_damage(lambda bookie, *what: reports.met(str(bookie), *what))
    return ledgers
