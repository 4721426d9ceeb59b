"""Which object store a cluster may use, and what proves it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from quire.identity.marker import NAME, decode_marker, encode_marker, read_marker
from quire.identity.stores import StoreRole, confirm_place, confirm_store, enter_store
from quire.metadata import paths
from quire.metadata.cluster import begin_cluster, confirm_cluster, read_cluster
from quire.metadata.records import ClusterRecord, encode
from quire.metadata.store import MetadataStore
from quire.objects.filesystem import FilesystemBlockingStore
from quire.objects.store import ObjectStore
from quire.runtime.errors import ConfigurationError, CorruptionError, WrongCluster
from quire.testing.metadata import MemoryStore
from quire.wire.checksum import crc32c

OTHER = "5f0e0b3c-8d0a-4a6e-9a55-0f5f7f1f7a11"


@pytest.fixture
def metadata() -> MetadataStore:
    return MemoryStore()


def directory(tmp_path, name="objects"):
    return ObjectStore(FilesystemBlockingStore(tmp_path / name), threads=0)


async def begun(metadata: MetadataStore) -> str:
    return (await begin_cluster(metadata, 1)).uuid


async def test_first_store_is_marked_and_listed(metadata, tmp_path):
    cluster, objects = await begun(metadata), directory(tmp_path)
    await objects.prepare()
    await enter_store(metadata, objects, cluster, StoreRole.ARCHIVE)
    assert await read_marker(objects) == cluster
    assert (await read_cluster(metadata)).archives == (objects.url,)
    await enter_store(metadata, objects, cluster, StoreRole.ARCHIVE)
    await confirm_place(metadata, objects, cluster)


async def test_store_of_another_cluster_is_refused(metadata, tmp_path):
    cluster, objects = await begun(metadata), directory(tmp_path)
    await objects.prepare()
    await objects.put_whole(NAME, (encode_marker(OTHER),))
    with pytest.raises(WrongCluster, match=f"cluster {OTHER}, not to cluster {cluster}"):
        await enter_store(metadata, objects, cluster, StoreRole.ARCHIVE, adopt=True)
    with pytest.raises(WrongCluster, match=OTHER):
        await confirm_store(objects, cluster)


async def test_empty_directory_in_place_of_a_mount_is_refused(metadata, tmp_path):
    cluster, objects = await begun(metadata), directory(tmp_path)
    await objects.prepare()
    await enter_store(metadata, objects, cluster, StoreRole.ARCHIVE)
    (tmp_path / "objects").rename(tmp_path / "unmounted")
    objects = directory(tmp_path)  # of a process that starts now
    await objects.prepare()
    with pytest.raises(WrongCluster, match="no marker"):
        await confirm_place(metadata, objects, cluster)
    with pytest.raises(WrongCluster, match="has used it before"):
        await enter_store(metadata, objects, cluster, StoreRole.ARCHIVE, adopt=True)
    assert await read_marker(objects) is None


@pytest.mark.parametrize(
    "left", [None, b"", encode_marker(OTHER)[:-1] + b"x"], ids=["deleted", "empty", "rotten"]
)
async def test_a_marker_that_is_lost_is_put_again_on_the_operators_word(metadata, tmp_path, left):
    cluster, objects = await begun(metadata), directory(tmp_path)
    await objects.prepare()
    await enter_store(metadata, objects, cluster, StoreRole.ARCHIVE)
    await objects.delete(NAME)
    if left is not None:
        await objects.put_whole(NAME, (left,))
    with pytest.raises((WrongCluster, CorruptionError), match="quire stores adopt"):
        await enter_store(metadata, objects, cluster, StoreRole.ARCHIVE)
    with pytest.raises(WrongCluster, match="is empty"):
        await enter_store(metadata, objects, cluster, StoreRole.ARCHIVE, adopt=True)
    await objects.put_whole("segments/1", (b"object",))
    await enter_store(metadata, objects, cluster, StoreRole.ARCHIVE, adopt=True)
    await confirm_place(metadata, objects, cluster)


async def test_a_damaged_marker_among_copies_of_another_cluster_stays(metadata, tmp_path):
    cluster, objects = await begun(metadata), directory(tmp_path)
    await objects.prepare()
    await objects.put_whole(NAME, (b"rotten",))
    await objects.put_whole(f"metadata/{OTHER}/0000000000000001-a", (b"copy",))
    with pytest.raises(WrongCluster, match=OTHER):
        await enter_store(metadata, objects, cluster, StoreRole.ARCHIVE, adopt=True)
    assert await objects.size(NAME) == 6


def test_a_marker_of_a_newer_version_is_not_damage():
    newer = b"quire-cluster 2 " + OTHER.encode()
    with pytest.raises(ConfigurationError, match="newer Quire"):
        decode_marker(newer + b" %08x" % crc32c(newer), "it")


async def test_second_store_needs_the_operators_word(metadata, tmp_path):
    cluster, first, typo = await begun(metadata), directory(tmp_path), directory(tmp_path, "objcets")
    for objects in (first, typo):
        await objects.prepare()
    await enter_store(metadata, first, cluster, StoreRole.ARCHIVE)
    with pytest.raises(ConfigurationError, match="quire stores adopt archive"):
        await enter_store(metadata, typo, cluster, StoreRole.ARCHIVE)
    assert await read_marker(typo) is None
    await enter_store(metadata, typo, cluster, StoreRole.ARCHIVE, adopt=True)
    assert (await read_cluster(metadata)).archives == (first.url, typo.url)


async def test_first_store_of_another_role_needs_no_word(metadata, tmp_path):
    cluster, logs, archive = await begun(metadata), directory(tmp_path), directory(tmp_path, "archive")
    for objects, role in ((logs, StoreRole.LOGS), (archive, StoreRole.ARCHIVE)):
        await objects.prepare()
        await enter_store(metadata, objects, cluster, role)
    record = await read_cluster(metadata)
    assert (record.log_stores, record.archives) == ((logs.url,), (archive.url,))


async def test_moved_store_is_known_by_its_marker(metadata, tmp_path):
    cluster, objects = await begun(metadata), directory(tmp_path)
    await objects.prepare()
    await enter_store(metadata, objects, cluster, StoreRole.ARCHIVE)
    (tmp_path / "objects").rename(tmp_path / "moved")
    await enter_store(metadata, directory(tmp_path, "moved"), cluster, StoreRole.ARCHIVE)


async def test_store_from_before_markers_must_be_one_that_records_name(metadata, tmp_path):
    cluster, objects = await begun(metadata), directory(tmp_path)
    await objects.prepare()
    with pytest.raises(ConfigurationError, match="never used"):
        await enter_store(metadata, objects, cluster, StoreRole.LOGS, used=["file:///elsewhere"])
    with pytest.raises(WrongCluster, match="is empty"):
        await enter_store(metadata, objects, cluster, StoreRole.LOGS, used=[objects.url])
    await objects.put_whole("wal/log/0", (b"block",))
    await enter_store(metadata, objects, cluster, StoreRole.LOGS, used=[objects.url])


async def test_store_with_copies_of_another_clusters_metadata_is_refused(metadata, tmp_path):
    cluster, objects = await begun(metadata), directory(tmp_path)
    await objects.prepare()
    await objects.put_whole(f"metadata/{OTHER}/0000000000000001-a", (b"copy",))
    with pytest.raises(WrongCluster, match=OTHER):
        await enter_store(metadata, objects, cluster, StoreRole.ARCHIVE)


async def test_metadata_that_cannot_prove_its_cluster_prove_nothing(metadata):
    cluster = await begun(metadata)
    assert (await confirm_cluster(metadata, cluster)).uuid == cluster
    with pytest.raises(
        WrongCluster, match=f"has cluster {cluster}, but this process belongs to cluster {OTHER}"
    ):
        await confirm_cluster(metadata, OTHER)
    with pytest.raises(WrongCluster, match="has no cluster"):
        await confirm_cluster(MemoryStore(), cluster)
    node = await metadata.get(paths.CLUSTER)
    rebuilt = replace(ClusterRecord(uuid=cluster), rescue_begun_ms=1)
    await metadata.put(paths.CLUSTER, encode(rebuilt), node.version)
    with pytest.raises(WrongCluster, match="being rebuilt"):
        await confirm_cluster(metadata, cluster)


@pytest.mark.parametrize("at", [0, 20, 40, 55])
def test_damaged_marker_is_damage_not_absence(at):
    content = bytearray(encode_marker(OTHER))
    assert decode_marker(bytes(content), "it") == OTHER
    content[at] ^= 1
    with pytest.raises(CorruptionError):
        decode_marker(bytes(content), "it")


def test_golden_marker():
    assert (
        encode_marker(OTHER)
        == b"quire-cluster 1 5f0e0b3c-8d0a-4a6e-9a55-0f5f7f1f7a11 " + encode_marker(OTHER)[-8:]
    )
    assert len(encode_marker(OTHER)) == 61
