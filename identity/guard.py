"""Guard of destructive commands: evidence that data without a metadata record do not belong to the cluster any more.

A command may delete data without a record, or give up unreadable data, only if the metadata store belongs to the
cluster, and its records are complete and current. All of these commands use this guard:

| command | deletes or gives up |
|---|---|
| `quire archive verify --delete-orphans` | objects of segments without a record |
| `quire bookies orphans --delete` | ledgers that their topic or state log does not list |
| `quire wal scrub --delete` | objects that no log needs |
| `quire wal close`, also with `--accept-loss` | the blocks in damaged objects of a log |
| `quire ledgers recover --accept-loss` | entries of a ledger that no bookie can return |
| `quire brokers forget --accept-loss` | the subscriptions in a state log that cannot be read |

`quire rescue metadata --accept-loss` does not use this guard. It rebuilds the metadata, so the metadata prove nothing:
it begins with an empty metadata store and a cluster record that this guard refuses. It has its own checks: the marker
of each object store, the bookies and logs that the metadata copy names, and the loss that its dry run reports.

A command

1. lists the objects,
2. calls `Place.confirm_absence`, which raises with the evidence if the metadata cannot prove absence,
3. shows the objects, and ends unless the operator asked for their deletion,
4. immediately before each deletion, calls `Place.confirm` (or `confirm_cluster`), and either rereads the record that
   could name the object, or writes that record by compare-and-set.

| evidence | conclusion, or check |
|---|---|
| the metadata store or the object store is not the cluster's | `confirm_place` |
| the metadata are being rebuilt | `confirm_cluster` |
| no topic is recorded, but objects or ledgers of topics were found | the metadata store was replaced by an empty one |
| a metadata copy has a greater number than the last one in the cluster's record | an older backup was restored |
"""

from __future__ import annotations

from msgspec.structs import replace

from quire.identity.copies import greatest_number, list_copies
from quire.identity.stores import confirm_store
from quire.metadata import paths
from quire.metadata.cluster import change_cluster, confirm_cluster
from quire.metadata.records import ClusterRecord
from quire.metadata.store import MetadataStore
from quire.objects.store import ObjectStore
from quire.runtime.errors import WrongCluster


async def confirm_absence(
    metadata: MetadataStore, cluster: str, objects: ObjectStore | None, found: str = ""
) -> ClusterRecord:
    """Verify that objects and ledgers without a record belong to no topic of `cluster`. Return the cluster's record.

    `found` describes topic data that the caller found, such as "12 objects"; "" if it found no data. `objects` is the
    store that contains the metadata copies, if the cluster has one. Raises `WrongCluster`, and the stores' errors.
    """
    if objects is not None:
        await confirm_store(objects, cluster)
    record, newer = await find_newer_copy(metadata, cluster, objects)
    if newer:
        raise WrongCluster(
            f"the metadata of cluster {cluster} are older than copy {newer} of them"
            f"{f' in {objects.url}' if objects is not None else ''}: an older backup was restored, so later records "
            "are missing; nothing is deleted or given up. Rebuild them with `quire rescue metadata`, or accept them as "
            "they are with `quire rescue accept-older`"
        )
    if found and not await has_topics(metadata):
        raise WrongCluster(
            f"the metadata store has no topic of cluster {cluster}, but there are {found}: the store may have been "
            "replaced by an empty one; nothing is deleted. If all topics were deleted on purpose, create one first"
        )
    return record


async def find_newer_copy(
    metadata: MetadataStore, cluster: str, objects: ObjectStore | None
) -> tuple[ClusterRecord, int]:
    """Return the cluster's record, and the number of a copy newer than the metadata; 0 if there is no such copy.

    Raises `WrongCluster`, and the stores' errors.
    """
    listed = await list_copies(objects, cluster) if objects is not None else []
    # Read the record after the listing, because another process may upload a copy in between.
    record = await confirm_cluster(metadata, cluster)
    if record.outdated_by:
        return record, record.outdated_by
    greatest = greatest_number(listed)
    return record, greatest if greatest > record.copies else 0


async def accept_older(metadata: MetadataStore, cluster: str, objects: ObjectStore) -> int:
    """Accept, on an operator's order, metadata that are older than a copy of them.

    Return the number of the newest such copy, or 0 if no copy is newer than the metadata.

    Raises `WrongCluster`, and the stores' errors.
    """
    await confirm_store(objects, cluster)
    _, newer = await find_newer_copy(metadata, cluster, objects)
    if newer:
        await change_cluster(
            metadata,
            cluster,
            lambda record: replace(record, copies=max(record.copies, newer), outdated_by=0),
        )
    return newer


async def has_topics(metadata: MetadataStore) -> bool:
    """Return whether the metadata store has a topic of any tenant."""
    for tenant in await metadata.children(paths.TOPICS):
        for namespace in await metadata.children(f"{paths.TOPICS}/{tenant}"):
            for domain in await metadata.children(f"{paths.TOPICS}/{tenant}/{namespace}"):
                if await metadata.children(f"{paths.TOPICS}/{tenant}/{namespace}/{domain}"):
                    return True
    return False
