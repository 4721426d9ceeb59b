"""First steps of a rescue: find the lost cluster's id, choose a copy of its metadata, and record the rescue."""

from __future__ import annotations

from collections.abc import Iterable

from quire.identity.copies import greatest_number, list_copies
from quire.identity.marker import NAME, read_marker
from quire.metadata import paths
from quire.metadata.cluster import find_cluster, read_cluster
from quire.metadata.records import ClusterRecord, encode
from quire.metadata.store import MetadataStore
from quire.objects.store import ObjectStore
from quire.rescue import facts
from quire.rescue.facts import CopyFacts
from quire.rescue.rescue import Report
from quire.runtime.errors import ConfigurationError, CorruptionError, NotFound, WrongCluster
from quire.tiering.metadata_copy import decode, newest, take


async def marked_cluster(stores: Iterable[ObjectStore], named: str) -> str:
    """Return the cluster id in the object stores' markers; if there is no marker, return `named`, which may be "".

    Raises `WrongCluster` for a marker of another cluster, `CorruptionError` for a damaged marker, `ConfigurationError`
    for an empty store, and the stores' errors.
    """
    cluster, by = named, "--cluster, or the rescue that has begun, names"
    for objects in stores:
        try:
            found = await read_marker(objects)
        except CorruptionError as error:
            raise CorruptionError(
                f"the marker of {objects.url} is damaged: check that it is the right store, delete the object "
                f"{NAME} there, and run this command again with --cluster; the rescue then writes the marker"
            ) from error
        if found is None and not await objects.list():
            raise ConfigurationError(
                f"{objects.url} is empty, so it is not a store of the lost cluster: check the directory's mount, or "
                "the bucket and prefix; omit the option if the cluster had no such store"
            )
        if found is not None and cluster and found != cluster:
            raise WrongCluster(f"{objects.url} belongs to cluster {found}, but {by} cluster {cluster}")
        if found is not None:
            cluster, by = found, f"{objects.url} belongs to"
    return cluster


async def look_for_copy(
    objects: ObjectStore | None, cluster: str, report: Report, number: int = 0
) -> CopyFacts:
    """Return the newest copy of the cluster's metadata in the archive, or the copy with `number`.

    Without `cluster`, the archive must have copies of only one cluster. Raises `Unavailable`, `CorruptionError`,
    `ConfigurationError`.
    """
    if objects is None:
        return CopyFacts()
    copy, damaged = await newest(objects, cluster, number)
    report.doubtful += damaged
    found = facts.take_apart(copy)
    report.copy_taken_ms = found.taken_ms
    outdated_by = found.record.outdated_by if found.record is not None else 0
    if outdated_by and not number:
        assert found.record is not None
        raise ConfigurationError(
            f"the newest copy of the metadata in {objects.url}, {found.record.copies}, was taken after an older "
            f"backup of the metadata store had been restored; copy {outdated_by} was taken before that: choose one of "
            "the two with --copy NUMBER"
        )
    return found


async def look_at_restored(store: MetadataStore, url: str, now_ms: int, report: Report) -> CopyFacts:
    """Return the records of a metadata store that was restored from an older backup, beside the new store.

    Raises `Unavailable`, `CorruptionError`, `ConfigurationError` if it contains no complete cluster.
    """
    await find_cluster(store, url)
    found = facts.take_apart(decode((await take(store, now_ms)).sealed, url))
    report.copy_url = url
    return found


async def find_begun(store: MetadataStore, url: str) -> ClusterRecord | None:
    """Return the record of the cluster whose rescue was begun in this store; None if the store is empty.

    Raises `ConfigurationError` for a store in use.
    """
    try:
        record = await read_cluster(store)
    except NotFound:
        if await store.children(paths.TOPICS):
            raise ConfigurationError(f"{url} has topics but no cluster: use an empty chroot") from None
        return None
    if not record.rescue_begun_ms:
        raise ConfigurationError(
            f"{url} has the metadata of cluster {record.uuid}, which a rescue must not overwrite: use an empty chroot, "
            "or a new file"
        )
    return record


async def begin(store: MetadataStore, url: str, cluster: str, now_ms: int, copies: int = 0) -> ClusterRecord:
    """Begin the rescue of `cluster` in an empty store, or continue it. Raises `ConfigurationError`.

    `copies` is the greatest number of any copy of the metadata; the next copy gets a greater number.
    """
    record = await find_begun(store, url)
    if record is None:
        if not cluster:
            raise ConfigurationError(
                "the id of the lost cluster is unknown: give it with --cluster, from `cluster` in a bookie's "
                "identity.json (any UUID, if there are no bookies), or give the --archive that has its marker or a "
                "copy of its metadata"
            )
        record = ClusterRecord(uuid=cluster, created_ms=now_ms, rescue_begun_ms=now_ms, copies=copies)
        await store.create(paths.CLUSTER, encode(record))
    if cluster and record.uuid != cluster:
        raise ConfigurationError(f"{url} is being rebuilt for cluster {record.uuid}, not for {cluster}")
    return record


async def greatest_copy(objects: ObjectStore | None, cluster: str, copy: CopyFacts) -> int:
    """Return the greatest number of any copy of the metadata, existing or deleted. Raises the store's errors."""
    listed = await list_copies(objects, cluster) if objects is not None and cluster else []
    return max(greatest_number(listed), copy.record.copies if copy.record is not None else 0)
