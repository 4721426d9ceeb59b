"""Metadata store and object store of a process, with the cluster that both must belong to."""

from __future__ import annotations

from collections.abc import Collection

from quire.identity.guard import confirm_absence
from quire.identity.stores import StoreRole, confirm_place, enter_store
from quire.metadata.records import ClusterRecord
from quire.metadata.store import MetadataStore
from quire.objects.store import ObjectStore


class Place:
    """A metadata store and an object store, and the id of the cluster that both must belong to.

    `is_rescue` is set in the process that rebuilds the metadata. In other processes, `confirm` fails during a rescue.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        objects: ObjectStore,
        cluster: str,
        role: StoreRole,
        *,
        is_rescue: bool = False,
    ) -> None:
        self.metadata = metadata
        self.objects = objects
        self.cluster = cluster
        self.role = role
        self._is_rescue = is_rescue
        self._is_entered = False

    async def enter(self, used: Collection[str] = ()) -> None:
        """Verify once, before the first upload, that the object store belongs to the cluster; see `enter_store`.

        Raises `WrongCluster`, `ConfigurationError`, and the stores' errors. After an error, the caller may try again.
        """
        if not self._is_entered:
            await enter_store(self.metadata, self.objects, self.cluster, self.role, used=used)
            self._is_entered = True

    async def confirm(self) -> ClusterRecord:
        """Verify that both stores belong to the cluster now; see `confirm_place`.

        It is called immediately before anything is closed, deleted or declared lost.

        Raises `WrongCluster`, and the stores' errors.
        """
        return await confirm_place(self.metadata, self.objects, self.cluster, even_rescued=self._is_rescue)

    async def confirm_absence(self, found: str = "") -> ClusterRecord:
        """Verify that data without a record belong to no topic, before a command deletes them; see `identity.guard`.

        `found` describes topic data that the caller found; "" if it found no data. Raises `WrongCluster`, and the
        stores' errors.
        """
        return await confirm_absence(self.metadata, self.cluster, self.objects, found)
