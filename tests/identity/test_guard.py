"""Evidence without which no destructive command may take absence from the metadata for absence from the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from msgspec.structs import replace

from quire.identity.copies import copies_of, copy_name, greatest_number, list_copies, number_of
from quire.identity.guard import accept_older, confirm_absence
from quire.identity.stores import StoreRole, enter_store
from quire.metadata import paths
from quire.metadata.cluster import begin_cluster, change_cluster, read_cluster
from quire.metadata.records import TopicRecord, encode
from quire.runtime.errors import OutcomeUnknown, Unavailable, VersionConflict, WrongCluster
from quire.testing.metadata import MemoryStore
from quire.testing.objects import MemoryObjectStore


class Stores:
    def __init__(self) -> None:
        self.metadata = MemoryStore()
        self.objects = MemoryObjectStore()
        self.cluster = ""

    async def begin(self) -> None:
        self.cluster = (await begin_cluster(self.metadata, 1)).uuid
        await enter_store(self.metadata, self.objects, self.cluster, StoreRole.ARCHIVE)
        await self.metadata.create(paths.topic("t", "n", "x"), encode(TopicRecord(name="x")))

    async def put_copy(self, number: int) -> None:
        name = copy_name(self.cluster, number, 7, uuid4().hex)
        await self.objects.put_whole(name, [b"copy"])

    async def confirm(self) -> None:
        await confirm_absence(self.metadata, self.cluster, self.objects, "2 objects")


@pytest.fixture
async def stores() -> AsyncIterator[Stores]:
    made = Stores()
    await made.begin()
    yield made


async def test_whole_and_current_metadata_prove_absence(stores: Stores) -> None:
    await stores.confirm()
    await change_cluster(stores.metadata, stores.cluster, lambda record: replace(record, copies=3))
    await stores.put_copy(3)
    await stores.confirm()


async def test_a_metadata_store_that_came_back_empty_proves_nothing(stores: Stores) -> None:
    stores.metadata = MemoryStore()
    with pytest.raises(WrongCluster, match="has no cluster"):
        await stores.confirm()


async def test_a_cluster_without_topics_proves_nothing_of_objects_that_are_there(stores: Stores) -> None:
    await stores.metadata.delete(paths.topic("t", "n", "x"))
    with pytest.raises(WrongCluster, match=r"has no topic of cluster .* but there are 2 objects"):
        await stores.confirm()
    await confirm_absence(stores.metadata, stores.cluster, stores.objects)


async def test_a_store_without_the_clusters_marker_proves_nothing(stores: Stores) -> None:
    stores.objects = MemoryObjectStore()
    with pytest.raises(WrongCluster, match="no marker"):
        await stores.confirm()


async def test_metadata_that_are_older_than_a_copy_of_them_prove_nothing_until_accepted(
    stores: Stores,
) -> None:
    await change_cluster(stores.metadata, stores.cluster, lambda record: replace(record, copies=4))
    await stores.put_copy(4)
    await stores.put_copy(5)
    with pytest.raises(WrongCluster, match="older than copy 5 of them"):
        await stores.confirm()
    assert await accept_older(stores.metadata, stores.cluster, stores.objects) == 5
    await stores.confirm()
    assert (await read_cluster(stores.metadata)).copies == 5
    assert await accept_older(stores.metadata, stores.cluster, stores.objects) == 0


async def test_metadata_from_before_copies_were_numbered_are_older_than_a_numbered_one(
    stores: Stores,
) -> None:
    await stores.objects.put_whole(f"{copies_of(stores.cluster)}{9:016d}-{uuid4().hex}", [b"by time"])
    await stores.confirm()
    await stores.put_copy(10)
    with pytest.raises(WrongCluster, match="older than copy 10"):
        await stores.confirm()


async def test_copies_are_listed_by_number_and_other_objects_are_left_out(stores: Stores) -> None:
    timed = f"{copies_of(stores.cluster)}{9:016d}-{uuid4().hex}"
    await stores.objects.put_whole(timed, [b"by time"])
    await stores.objects.put_whole(copies_of(stores.cluster) + "notes.txt", [b"by hand"])
    await stores.put_copy(11)
    await stores.put_copy(10)
    listed = await list_copies(stores.objects, stores.cluster)
    assert [number_of(name) for name in listed] == [9, 10, 11]
    assert greatest_number(listed) == 11 and greatest_number([timed]) == 0


@pytest.mark.parametrize("error", [VersionConflict("another was faster"), OutcomeUnknown("no answer")])
async def test_the_clusters_record_is_changed_beside_other_changes(stores: Stores, error: Exception) -> None:
    stores.metadata.fail_next(error, happened=isinstance(error, OutcomeUnknown))
    record = await change_cluster(stores.metadata, stores.cluster, lambda before: replace(before, copies=9))
    assert record.copies == 9 and record == await read_cluster(stores.metadata)


async def test_another_clusters_record_is_not_changed(stores: Stores) -> None:
    with pytest.raises(WrongCluster):
        await change_cluster(stores.metadata, "another", lambda before: replace(before, copies=9))
    for _ in range(10):
        stores.metadata.fail_next(VersionConflict("another was faster"), happened=False)
    with pytest.raises(Unavailable, match="other processes keep changing"):
        await change_cluster(stores.metadata, stores.cluster, lambda before: replace(before, copies=9))


async def test_metadata_under_rescue_prove_nothing(stores: Stores) -> None:
    """So `quire rescue metadata --accept-loss` has checks of its own."""
    await change_cluster(stores.metadata, stores.cluster, lambda record: replace(record, rescue_begun_ms=1))
    with pytest.raises(WrongCluster, match="rescue"):
        await stores.confirm()
