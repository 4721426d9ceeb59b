"""Copies of the metadata in the archive, and scrubs of the archive with wrong stores.

Coordinators with different clocks take the copies. An operator backs up the metadata store. Then a broker scrubs the
archive and deletes orphans, with a wrong metadata store or object store:

    0    the metadata store is empty, as with a typing error in the chroot
    1    the metadata store is the backup, which is older than a copy of the metadata
    2    the object store is an empty directory, as with a missing mount

Each scrub must be refused, or delete no object that a record names.
"""

from __future__ import annotations

from quire.identity.copies import copies_of, greatest_number, number_of
from quire.identity.place import Place
from quire.identity.stores import StoreRole
from quire.metadata import paths
from quire.metadata.records import ClusterRecord, decode, encode
from quire.metadata.store import MetadataStore
from quire.metadata.tree import PERSISTENT
from quire.objects.store import ObjectStore
from quire.runtime.errors import QuireError, WrongCluster
from quire.testing.metadata import MemoryRows, MemoryStore
from quire.testing.objects import MemoryObjectStore
from quire.tiering import metadata_copy
from quire.tiering.archive import Archive
from quire.tiering.scrub import scrub

from .broker_host import CLUSTER, BrokerHost
from .metadata import MetadataServer
from .objects import SimulatedBucket
from .world import World


def begin(metadata: MetadataServer) -> None:
    """Initialize the cluster in the metadata store, before any process starts."""
    record = encode(ClusterRecord(uuid=CLUSTER))
    metadata.make(lambda tree: tree.create(paths.CLUSTER, record, PERSISTENT), "metadata: the cluster begins")


class Stores:
    """Operator's backup and scrubs, and the check that the newest copy by name is the latest one."""

    def __init__(self, world: World, metadata: MetadataServer, bucket: SimulatedBucket) -> None:
        self._world = world
        self._metadata = metadata
        self._bucket = bucket
        self._backup: MemoryRows | None = None
        self._backed_up = 0
        self._counted: dict[str, int] = {}
        """Number of each stored copy, from the cluster's record in it, by the copy's name."""
        bucket.on_deletion.append(self._deleted)
        bucket.on_put.append(self._put)

    def back_up(self) -> None:
        node = self._metadata.find(paths.CLUSTER)
        assert node is not None
        self._backup = self._metadata.rows.copy()
        self._backed_up = decode(ClusterRecord, node.value, paths.CLUSTER).copies

    @property
    def is_backup_older(self) -> bool:
        """True if a copy was stored after the backup was taken; only this shows that the backup is older."""
        return self._backup is not None and greatest_number(self._bucket.objects) > self._backed_up

    async def scrub(self, host: BrokerHost, kind: int) -> None:
        """Scrub with a wrong store, by the table in the module's docstring."""
        assert host.store is not None
        if kind == 0:
            await self._scrub(host, MemoryStore(), host.objects)
        elif kind == 2:
            await self._scrub(host, host.store, MemoryObjectStore())
        elif self.is_backup_older:
            assert self._backup is not None
            restored = MemoryStore()
            for path, row in self._backup._rows.items():
                restored._shared.tree._rows.keep(path, row)
            await self._scrub(host, restored, host.objects)

    async def _scrub(self, host: BrokerHost, metadata: MetadataStore, objects: ObjectStore) -> None:
        archive = Archive(Place(metadata, objects, CLUSTER, StoreRole.ARCHIVE), host.clock)
        try:
            await scrub(archive, host.clock, grace_ms=-1_000_000, delete_orphans=True)
        except WrongCluster as error:
            self._world.saw("scrub refused")
            self._world.note(f"{host.host}: {error}")
        except QuireError as error:
            self._world.note(f"{host.host} cannot scrub: {error}")

    def _put(self, name: str, content: bytes) -> None:
        if name.startswith(copies_of(CLUSTER)):
            nodes = metadata_copy.decode(content, name).nodes
            value = next(node.value for node in nodes if node.path == paths.CLUSTER)
            self._counted[name] = decode(ClusterRecord, value, paths.CLUSTER).copies
            self._world.saw("copy of the metadata")

    def _deleted(self, name: str) -> None:
        """Check that a deleted object is named by no topic's record, except of topics that are being deleted."""
        if not name.startswith("segments/"):
            return
        for path in list(self._metadata.rows._rows):
            if not path.startswith((f"{paths.TOPICS}/", f"{paths.MANIFESTS}/")):
                continue
            node = self._metadata.find(path)
            if node is None:
                continue
            self._world.check(
                f'"{name}"' not in node.value.decode() or b'"deleting":true' in node.value,
                "absence",
                f"object {name} is deleted, and {path} names it",
            )

    def judge(self) -> None:
        """Check that the newest copy by name is also the latest one by the record in it."""
        listed = [name for name in self._bucket.objects if name.startswith(copies_of(CLUSTER))]
        if self._counted:
            newest = max(listed, key=lambda name: (number_of(name), name), default="")
            self._world.check(
                self._counted.get(newest) == max(self._counted.values()),
                "copies",
                f"{newest} counts as the newest copy, and was taken before others of {len(self._counted)}",
            )
