"""Place that trusts its stores, for tests within one cluster."""

from __future__ import annotations

from collections.abc import Collection

from quire.identity.place import Place
from quire.identity.stores import StoreRole
from quire.metadata.records import ClusterRecord
from quire.metadata.store import MetadataStore
from quire.objects.store import ObjectStore
from quire.testing.metadata import MemoryStore

CLUSTER = "00000000-0000-4000-8000-000000000000"


class TrustedPlace(Place):
    """Place that does not verify its stores' cluster; the object store needs no marker of a cluster."""

    def __init__(self, objects: ObjectStore, metadata: MetadataStore | None = None) -> None:
        super().__init__(
            metadata if metadata is not None else MemoryStore(), objects, CLUSTER, StoreRole.ARCHIVE
        )

    async def enter(self, used: Collection[str] = ()) -> None:
        """Return at once."""

    async def confirm(self) -> ClusterRecord:
        """Return a record of the cluster, without a check."""
        return ClusterRecord(uuid=CLUSTER)

    async def confirm_absence(self, found: str = "") -> ClusterRecord:
        """Return a record of the cluster, without a check."""
        return ClusterRecord(uuid=CLUSTER)
