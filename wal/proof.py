"""Checks that distinguish a missing object of a WAL from a wrong store or an outdated record.

An object is missing only if the object store and the metadata store are the cluster's, and a current record names the
object. A store with another URL, without the cluster's marker, or below an unmounted mount point contains no object of
the log. A record from an older copy of the metadata names objects that were replaced later. Neither case is damage.
"""

from __future__ import annotations

from quire.identity.place import Place
from quire.metadata import paths
from quire.metadata.records import WalRecord
from quire.objects.store import ObjectStore, location_of
from quire.runtime.errors import CorruptionError, NotFound, QuireError, Unavailable, WrongCluster


class RecordOutdated(Unavailable):
    """Raised for a WAL whose record is older than its objects, because the metadata store was restored from a copy."""

    def __init__(self, wal: str, what: str) -> None:
        super().__init__(
            f"the record of wal-{wal} is older than its objects: {what}; nothing is closed or deleted: restore a newer "
            "copy of the metadata store, or rebuild it with `quire rescue metadata`"
        )


def check_store(record: WalRecord, objects: ObjectStore) -> None:
    """Raise `WrongCluster` unless `objects` is the store in the WAL's record."""
    if location_of(record.store) != location_of(objects.url):
        raise WrongCluster(
            f"wal-{record.uuid} is in {record.store}, but this process uses {objects.url}: start it with the WAL's "
            "store as --wal"
        )


async def prove_missing(place: Place, error: QuireError, uuid: str, version: int) -> QuireError:
    """Turn the `NotFound` of an object into a `CorruptionError` if the object is really missing.

    `version` is the version of the record that named the object. The object is missing if both stores are the
    cluster's, and the record still has this version. The record is read after a sync, because a ZooKeeper follower may
    be behind. Otherwise, the returned error explains the reason. Errors other than `NotFound` are returned unchanged.
    """
    if not isinstance(error, NotFound):
        return error
    try:
        await place.confirm()  # this also syncs the metadata store
        now = (await place.metadata.get(paths.wal(uuid))).version
    except QuireError as doubt:
        return doubt
    if now != version:
        return Unavailable(f"wal-{uuid} was changed during the read; try again")
    return CorruptionError(f"an object is missing although the record of its WAL names it: {error}")
