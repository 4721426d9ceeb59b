"""Cluster record of a metadata store: created once, and read by every process when it starts.

A chroot with a typing error looks like the empty store of a new cluster. So a cluster is created only on request: by a
bookie (`quire bookie --new-cluster true`), or by a broker without bookies whose object store has no logs of another
cluster (`quire broker --wal URL --new-cluster true`). All other processes refuse to start in a store without a cluster.
While the metadata are being rebuilt (`quire.rescue`) only bookies start. A bookie stores its cluster's id beside its
data (`bookie.identity`), and refuses any other cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from quire.metadata import paths
from quire.metadata.records import ClusterRecord, decode, encode
from quire.metadata.store import CHANGE_ATTEMPTS, MetadataStore
from quire.runtime.errors import (
    AlreadyExists,
    ConfigurationError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    VersionConflict,
    WrongCluster,
)


async def read_cluster(store: MetadataStore) -> ClusterRecord:
    """Return the cluster record. Raises `NotFound` if the store has no cluster."""
    return decode(ClusterRecord, (await store.get(paths.CLUSTER)).value, paths.CLUSTER)


async def find_cluster(store: MetadataStore, url: str, *, even_rescued: bool = False) -> ClusterRecord:
    """Return the cluster of the store at `url`. Raises `ConfigurationError` if the store has no cluster.

    Unless `even_rescued`, it also raises this error if the cluster's metadata are being rebuilt.
    """
    try:
        record = await read_cluster(store)
        if record.rescue_begun_ms and not even_rescued:
            raise ConfigurationError(
                f"the metadata of cluster {record.uuid} at {url} are being rebuilt: start this process after `quire "
                "rescue metadata` has completed; until then, only bookies may run"
            )
        return record
    except NotFound:
        raise ConfigurationError(
            f"there is no cluster at {url}: use the same address and chroot as the bookies, or begin a new cluster "
            "with `quire bookie --new-cluster true`"
        ) from None


async def confirm_cluster(store: MetadataStore, cluster: str, *, even_rescued: bool = False) -> ClusterRecord:
    """Verify, before anything irreversible, that the store has `cluster` now. Return its record.

    The store is synced first, because a follower may be behind. Raises `Unavailable`, and `WrongCluster` if the store
    is empty, has another cluster or, unless `even_rescued`, has a cluster whose metadata are being rebuilt.
    """
    await store.sync()
    try:
        record = await read_cluster(store)
    except NotFound:
        raise WrongCluster(
            f"the metadata store has no cluster, but this process belongs to cluster {cluster}: it is another chroot, "
            "or the store was emptied; nothing counts as deleted or retired"
        ) from None
    if record.uuid != cluster:
        raise WrongCluster(
            f"the metadata store has cluster {record.uuid}, but this process belongs to cluster {cluster}: correct the "
            "address and chroot"
        )
    if record.rescue_begun_ms and not even_rescued:
        raise WrongCluster(
            f"the metadata of cluster {cluster} are being rebuilt: a missing record proves nothing until `quire rescue "
            "metadata` has completed"
        )
    return record


async def change_cluster(
    store: MetadataStore, cluster: str, change: Callable[[ClusterRecord], ClusterRecord]
) -> ClusterRecord:
    """Replace the cluster's record by `change(record)` with compare-and-set; return the new record.

    After a conflict or an unknown outcome, `change` is applied again, perhaps to its own result. Raises `NotFound`,
    `WrongCluster`, `Unavailable`.
    """
    for _ in range(CHANGE_ATTEMPTS):
        node = await store.get(paths.CLUSTER)
        record = decode(ClusterRecord, node.value, paths.CLUSTER)
        if record.uuid != cluster:
            raise WrongCluster(f"the metadata store has cluster {record.uuid}, not cluster {cluster}")
        changed = change(record)
        if changed == record:
            return record
        try:
            await store.put(paths.CLUSTER, encode(changed), node.version)
            return changed
        except (VersionConflict, OutcomeUnknown):
            continue
    raise Unavailable(f"other processes keep changing the record of cluster {cluster}; try again")


async def is_begun(store: MetadataStore) -> bool:
    """Return whether a cluster was initialized in this metadata store."""
    try:
        await read_cluster(store)
    except NotFound:
        return False
    return True


async def begin_cluster(store: MetadataStore, now_ms: int) -> ClusterRecord:
    """Return the store's cluster; create it if the store has none. Concurrent calls return the same cluster."""
    try:
        return await read_cluster(store)
    except NotFound:
        record = ClusterRecord(uuid=str(uuid4()), created_ms=now_ms)
    try:
        await store.create(paths.CLUSTER, encode(record))
    except AlreadyExists:
        pass
    return await read_cluster(store)
