"""Cluster membership check of a starting bookie: its directories and the metadata store must name the same cluster.

It runs before any data in the directories are opened:

| directories | metadata store | result |
|---|---|---|
| of cluster C | has C | continue |
| of cluster C | has another cluster, or no cluster | refuse: the address or the chroot is wrong |
| of cluster C | has C, whose metadata are being rebuilt | continue, even if the store has no record of the bookie |
| of no cluster yet | has a cluster | continue; the directories get its id after the registration |
| of no cluster yet | has no cluster | begin one with `--new-cluster`, else refuse |
| of C, leaving | has C, with a record of this bookie | continue: the drain is incomplete, it is still a member |
| of C, leaving | has C, with a retirement record | it was drained: empty the directories, start as a new bookie |
| of C, leaving | has C, with neither record, or being rebuilt | continue; `registration` decides about the data |

`leaving` is written into the cookie before a drain begins, so that the next start checks whether the drain was
completed. A missing bookie record alone does not prove retirement, because a store that is being rebuilt, or was
restored from an older copy, also lacks records of bookies (`metadata.retirement`). `registration` refuses a bookie that
has data but neither record: it may have the only copies, and an operator must decide.

A standalone process is a separate cluster, and its bookie is never drained. `enter_standalone` refuses a metadata store
that does not match the bookie's data, because then the metadata file was lost or replaced.
"""

from __future__ import annotations

import logging
from random import Random, SystemRandom

from quire.bookie.disks import BookieDisks
from quire.bookie.identity import Cookie, peek, reset_directories
from quire.bookie.ledger_storage import DIRECTORIES
from quire.bookie.storage import Storage
from quire.metadata import paths
from quire.metadata.cluster import begin_cluster, confirm_cluster, find_cluster, read_cluster
from quire.metadata.records import ClusterRecord
from quire.metadata.retirement import forget_retirement, is_retired
from quire.metadata.store import MetadataStore
from quire.runtime.clock import Clock
from quire.runtime.errors import ConfigurationError, NotFound

log = logging.getLogger(__name__)


async def enter_cluster(
    store: MetadataStore,
    url: str,
    disks: BookieDisks,
    clock: Clock,
    *,
    new_cluster: bool,
    rng: Random | None = None,
) -> str:
    """Return the id of the cluster at `url`; see the module's table.

    Raises `ConfigurationError`, and the store's errors.
    """
    cookie = peek(disks.journal, disks.entries)
    if new_cluster and (cookie is None or not cookie.cluster):
        record = await begin_cluster(store, clock.now_ms())
    else:
        record = await _find_cluster(store, url, cookie)
    cluster = record.uuid
    if cookie is None:
        return cluster
    if cookie.cluster and cookie.cluster != cluster:
        raise ConfigurationError(
            f"bookie {cookie.uuid} in {disks.journal.root} belongs to cluster {cookie.cluster}, but {url} has "
            f"cluster {cluster}: correct the address and chroot, or start with empty directories"
        )
    if cookie.cluster and cookie.leaving and not record.rescue_begun_ms and await _was_retired(store, cookie):
        _reset_directories(disks, cookie, rng or SystemRandom())
        await forget_retirement(store, cookie.uuid)
    return cluster


async def enter_standalone(store: MetadataStore, url: str, storage: Storage, clock: Clock) -> str:
    """Return the cluster id of a standalone process, and record it in the directories; the first start creates it.

    Raises `ConfigurationError` if the bookie's data belong to another metadata store than the one at `url`.
    """
    identity = storage.identity
    try:
        found = (await read_cluster(store)).uuid
    except NotFound:
        found = ""
    is_other = identity.cluster not in ("", found)
    is_lost = not identity.cluster and storage.ledger_ids() and not await _counts_ledgers(store)
    if is_other or is_lost:
        holds = f"has cluster {found}" if found else "has no metadata of them"
        raise ConfigurationError(
            f"the directories of bookie {identity.bookie_id.uuid} contain data"
            f"{f' of cluster {identity.cluster}' if identity.cluster else ''}, but {url} {holds}: restore the metadata "
            "store that belongs to them, from a copy if necessary, or start with another data directory"
        )
    cluster = (await begin_cluster(store, clock.now_ms())).uuid
    identity.join(cluster)
    return cluster


async def _counts_ledgers(store: MetadataStore) -> bool:
    """Return whether any ledger id was allocated in the store."""
    try:
        await store.get(paths.LEDGER_IDS)
    except NotFound:
        return False
    return True


async def _find_cluster(store: MetadataStore, url: str, cookie: Cookie | None) -> ClusterRecord:
    """Return the store's cluster record. Raises `ConfigurationError` that also names the bookie's cluster."""
    try:
        return await find_cluster(store, url, even_rescued=True)
    except ConfigurationError as error:
        if cookie is None or not cookie.cluster:
            raise
        raise ConfigurationError(
            f"{error}; this bookie belongs to cluster {cookie.cluster}: if its metadata are lost, rebuild them with "
            "`quire rescue metadata`"
        ) from None


async def _was_retired(store: MetadataStore, cookie: Cookie) -> bool:
    """Return whether a complete store has a retirement record of the bookie, and no bookie record."""
    if not await is_retired(store, cookie.uuid):
        return False
    await confirm_cluster(store, cookie.cluster)
    try:
        await store.get(paths.bookie(cookie.uuid))
    except NotFound:
        return True
    return False


def _reset_directories(disks: BookieDisks, cookie: Cookie, rng: Random) -> None:
    log.warning(
        "bookie %s was drained and retired: emptying its directories, starting as a new bookie", cookie.uuid
    )
    disks.journal.lock()
    try:
        disks.entries.lock()
        reset_directories(disks.journal, disks.entries, DIRECTORIES, rng)
    finally:
        disks.entries.close()
        disks.journal.close()
