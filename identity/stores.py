"""Checks that an object store and a metadata store belong to the same cluster.

`enter_store` runs when a process starts:

| marker in the object store | the cluster's record lists the store | then |
|---|---|---|
| of this cluster | yes | continue |
| of this cluster | no | add it to the list: the store was moved, or its URL was changed |
| of another cluster | | refuse to start |
| missing | yes | refuse: wrong mount, or emptied bucket; an operator may adopt a store that has objects |
| missing | no, and the list is empty | mark the store: it is the first one, or was used by a version without markers |
| missing | no, and others are listed | refuse, unless an operator adopts the store (`quire stores adopt`) |
| damaged | | refuse; an operator may adopt a store that has objects |

The record has one list per role, so a cluster with write-ahead logs can add its first archive without an operator. A
store without a marker is also refused if it contains copies of another cluster's metadata, or if it is empty although
the cluster has used it before.

`confirm_place` runs immediately before a process closes a write-ahead log, deletes objects, or declares a loss, because
mounts, chroots and buckets may change under a running process. It proves that

- the metadata store has this cluster's record: it is not empty, another cluster's, or being rebuilt,
- the object store has this cluster's marker.

A mismatch raises `WrongCluster`, never `NotFound`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from enum import StrEnum

from msgspec.structs import replace

from quire.identity.copies import FOLDER, cluster_of
from quire.identity.marker import NAME, put_marker, read_marker, replace_damaged_marker
from quire.metadata.cluster import change_cluster, confirm_cluster
from quire.metadata.records import ClusterRecord
from quire.metadata.store import MetadataStore
from quire.objects.store import ObjectStore, location_of
from quire.runtime.errors import ConfigurationError, CorruptionError, WrongCluster

_log = logging.getLogger(__name__)


class StoreRole(StrEnum):
    """Role of an object store in a cluster."""

    ARCHIVE = "archive"
    LOGS = "logs"

    def locations(self, record: ClusterRecord) -> tuple[str, ...]:
        """Return the locations of the stores that the record lists for this role."""
        return record.archives if self is StoreRole.ARCHIVE else record.log_stores

    def add(self, record: ClusterRecord, location: str) -> ClusterRecord:
        """Return the record with `location` added to the stores of this role."""
        if self is StoreRole.ARCHIVE:
            return replace(record, archives=(*record.archives, location))
        return replace(record, log_stores=(*record.log_stores, location))


async def enter_store(
    metadata: MetadataStore,
    objects: ObjectStore,
    cluster: str,
    role: StoreRole,
    *,
    used: Collection[str] = (),
    adopt: bool = False,
) -> None:
    """Verify that `objects` belongs to `cluster`, and mark it if the cluster begins to use it; see the module's table.

    `used` contains the store URLs in the cluster's other records: versions without markers may have used those stores.
    `adopt` is set if an operator allows the cluster to use this store. Raises `WrongCluster`, `ConfigurationError`, and
    the stores' errors.
    """
    record = await confirm_cluster(metadata, cluster)
    location = location_of(objects.url)
    put = put_marker
    try:
        found = await read_marker(objects)
    except CorruptionError:
        if not adopt:
            raise
        found, put = None, replace_damaged_marker
    if found is None:
        await _refuse_unmarked(objects, record, role, set(map(location_of, used)), adopt=adopt)
        found = await put(objects, cluster)
        _log.info("marked object store %s as a store of cluster %s", objects.url, cluster)
    if found != cluster:
        raise WrongCluster(
            f"{objects.url} belongs to cluster {found}, not to cluster {cluster} of this metadata store: correct the "
            "bucket and prefix, or the metadata store"
        )
    if location not in role.locations(record):
        await change_cluster(
            metadata,
            cluster,
            lambda record: record if location in role.locations(record) else role.add(record, location),
        )


async def confirm_place(
    metadata: MetadataStore, objects: ObjectStore, cluster: str, *, even_rescued: bool = False
) -> ClusterRecord:
    """Verify that both stores belong to `cluster` now. Return the cluster's current record.

    Raises `WrongCluster`, `Unavailable`, and the stores' other errors.
    """
    record = await confirm_cluster(metadata, cluster, even_rescued=even_rescued)
    await confirm_store(objects, cluster)
    return record


async def confirm_store(objects: ObjectStore, cluster: str) -> None:
    """Verify that `objects` has the marker of `cluster`. Raises `WrongCluster`, and the store's errors."""
    found = await read_marker(objects)
    if found is None:
        raise WrongCluster(
            f"{objects.url} has no marker of cluster {cluster}: it is another store, or an empty directory below an "
            "unmounted mount point; nothing is closed or deleted there. Mount the right directory, or correct the URL"
        )
    if found != cluster:
        raise WrongCluster(
            f"{objects.url} belongs to cluster {found}, not to cluster {cluster}; nothing is closed or deleted there. "
            "Correct the URL"
        )


async def _refuse_unmarked(
    objects: ObjectStore, record: ClusterRecord, role: StoreRole, used: Collection[str], *, adopt: bool
) -> None:
    """Raise `ConfigurationError` or `WrongCluster` if a store without a marker must not be marked as this cluster's."""
    location = location_of(objects.url)
    was_marked = location in (*record.archives, *record.log_stores)
    if was_marked and not adopt:
        raise WrongCluster(
            f"{objects.url} has no marker of cluster {record.uuid}, which has used it before: mount the right "
            "directory, or correct the bucket and prefix; if only the marker was deleted, "
            f"`quire stores adopt {role} URL --metadata URL` restores it"
        )
    known = {*role.locations(record), *used}
    if known and location not in known and not adopt:
        raise ConfigurationError(
            f"cluster {record.uuid} has never used {objects.url}; it uses {', '.join(sorted(known))}: correct the "
            f"URL, or adopt this store with `quire stores adopt {role} URL --metadata URL`"
        )
    is_empty = all(info.name == NAME for info in await objects.list())
    if is_empty and (was_marked or location in used):
        raise WrongCluster(
            f"{objects.url} is empty, but cluster {record.uuid} has used it before: mount the right directory, or "
            "correct the bucket and prefix"
        )
    clusters = {cluster_of(info.name) for info in await objects.list(FOLDER)}
    if clusters and record.uuid not in clusters:
        raise WrongCluster(
            f"{objects.url} contains copies of the metadata of cluster {', '.join(sorted(clusters))}, but not of "
            f"cluster {record.uuid}: use another bucket or prefix"
        )
