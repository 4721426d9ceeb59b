"""Whether a bookie may start: its directories and the metadata store must speak of the same cluster.

Asked before anything in the directories is opened:

| directories | the store | then |
|---|---|---|
| of cluster C | holds C | go on |
| of cluster C | holds another cluster, or none | refuse: the address or the chroot is wrong |
| of cluster C | holds C, whose metadata is being rebuilt | go on; the bookie need not be known |
| of no cluster yet | holds one | go on; the cluster is remembered when the bookie was registered |
| of no cluster yet | holds none | begin one when told to (`--new-cluster`), else refuse |
| of C, leaving | holds C, which knows this bookie | go on: not all was copied, so it is a member as before |
| of C, leaving | holds C, which does not know it any more | all was copied: empty the directories, be a new bookie |

The last line is why `leaving` is written into the cookie before a drain begins: whenever the process ends, with or
without having seen the end of the drain, the next start finds out. A bookie that is unknown and was not leaving is
refused by `registration`: it may hold the only copies, and a person must look.
"""

from __future__ import annotations

import logging
from random import Random, SystemRandom

from quire.bookie.disks import BookieDisks
from quire.bookie.identity import Cookie, peek, reset_directories
from quire.bookie.ledger_storage import DIRECTORIES
from quire.metadata import paths
from quire.metadata.cluster import begin_cluster, find_cluster
from quire.metadata.records import ClusterRecord
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
    """The id of the cluster at `url`; see the table. Raises `ConfigurationError`, and what the store raises."""
    cookie = peek(disks.journal, disks.entries)
    if new_cluster and (cookie is None or not cookie.cluster):
        cluster = (await begin_cluster(store, clock.now_ms())).uuid
    else:
        cluster = (await _find_cluster(store, url, cookie)).uuid
    if cookie is None:
        return cluster
    if cookie.cluster and cookie.cluster != cluster:
        raise ConfigurationError(
            f"bookie {cookie.uuid} in {disks.journal.root} belongs to cluster {cookie.cluster}, but {url} holds "
            f"cluster {cluster}: name the right address and chroot, or start with empty directories"
        )
    if cookie.cluster and cookie.leaving and not await _is_known(store, cookie):
        _reset_directories(disks, cookie, rng or SystemRandom())
    return cluster


async def _find_cluster(store: MetadataStore, url: str, cookie: Cookie | None) -> ClusterRecord:
    """Raises `ConfigurationError`, which says whose this bookie is where no cluster was begun."""
    try:
        return await find_cluster(store, url, even_rescued=True)
    except ConfigurationError as error:
        if cookie is None or not cookie.cluster:
            raise
        raise ConfigurationError(
            f"{error}; this bookie belongs to cluster {cookie.cluster}: if its metadata is lost for good, see "
            "`quire rescue metadata`"
        ) from None


async def _is_known(store: MetadataStore, cookie: Cookie) -> bool:
    await store.sync()  # directories begin anew on this word: no follower's old view may give it
    try:
        await store.get(paths.bookie(cookie.uuid))
    except NotFound:
        return False
    return True


def _reset_directories(disks: BookieDisks, cookie: Cookie, rng: Random) -> None:
    log.warning("bookie %s was drained and retired; its directories begin anew as another one", cookie.uuid)
    disks.journal.lock()
    try:
        disks.entries.lock()
        reset_directories(disks.journal, disks.entries, DIRECTORIES, rng)
    finally:
        disks.entries.close()
        disks.journal.close()
