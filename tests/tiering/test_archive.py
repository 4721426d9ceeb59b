"""Upload, verify, read back; and what each fault on the way leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from quire.identity.marker import NAME, encode_marker
from quire.identity.place import Place
from quire.identity.stores import StoreRole
from quire.metadata import paths
from quire.metadata.cluster import begin_cluster
from quire.metadata.records import ArchivePointer
from quire.objects.filesystem import FilesystemStore
from quire.runtime.clock import ManualClock
from quire.runtime.errors import (
    ConfigurationError,
    CorruptionError,
    DiskFull,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    WrongCluster,
)
from quire.testing.metadata import MemoryStore
from quire.testing.objects import MemoryObjectStore
from quire.testing.place import TrustedPlace
from quire.tiering.archive import Archive
from quire.tiering.read_back import ArchiveCache
from quire.tiering.segment_object import SegmentError
from quire.wire import block
from quire.wire.block import Buffer

from . import segments
from .segments import CLOCK_MS, TOPIC, Source, but_labels, make_blocks, record_of


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore(ManualClock())


@pytest.fixture
async def archive(store: MemoryObjectStore) -> AsyncIterator[Archive]:
    opened = Archive(TrustedPlace(store), ManualClock())
    yield opened
    await opened.close()


async def offload(archive: Archive, blocks: Sequence[Buffer]) -> ArchivePointer:
    return await segments.offload(archive, record_of(blocks), Source(blocks))


async def read_all(archive: Archive, pointer: ArchivePointer, bytes_max: int) -> list[bytes]:
    reader = archive.open(pointer)
    found: list[bytes] = []
    entry = 0
    while blocks := await reader.read(entry, bytes_max):
        assert len(blocks) == 1 or sum(map(len, blocks)) <= bytes_max
        found += map(bytes, blocks)
        entry = block.read_header(blocks[-1]).last_entry + 1
    return found


@pytest.mark.parametrize("bytes_max", [1, 100_000, 10_000_000])
@pytest.mark.parametrize(("count", "entry_bytes"), [(1, 1), (700, 700), (60, 50_000)])
async def test_what_went_in_comes_back(
    archive: Archive, count: int, entry_bytes: int, bytes_max: int
) -> None:
    blocks = make_blocks(count, entry_bytes)
    pointer = await offload(archive, blocks)
    assert await read_all(archive, pointer, bytes_max) == [bytes(one) for one in blocks]


async def test_the_same_from_a_filesystem(tmp_path: Path) -> None:
    blocks = make_blocks(1500, 4000)
    archive = Archive(TrustedPlace(FilesystemStore(tmp_path)), ManualClock())
    pointer = await offload(archive, blocks)
    assert pointer.bytes > 20 << 20
    assert await read_all(archive, pointer, 1 << 20) == [bytes(one) for one in blocks]
    await archive.close()


async def test_reading_begins_at_any_entry(archive: Archive) -> None:
    blocks = make_blocks(300, 900)
    pointer = await offload(archive, blocks)
    reader = archive.open(pointer)
    for one in blocks:
        header = block.peek(one)
        for entry in {header.first_entry, header.last_entry}:
            assert bytes((await reader.read(entry, 1))[0]) == bytes(one)
    assert await reader.read(record_of(blocks).last_entry + 1, 1) == []


async def test_a_time_is_found_and_nothing_at_it_is_missed(archive: Archive) -> None:
    blocks = make_blocks(300, 900)
    reader = archive.open(await offload(archive, blocks))
    assert await reader.find_time(0) == 0
    for number in range(0, 300, 7):
        entry = await reader.find_time(CLOCK_MS + number)
        assert entry <= block.peek(blocks[number]).first_entry
    assert await reader.find_time(CLOCK_MS + 299) > 0


async def test_a_sequential_reader_fetches_each_byte_once(archive: Archive, store: MemoryObjectStore) -> None:
    blocks = make_blocks(900, 2000)
    pointer = await offload(archive, blocks)
    store.faults.calls.clear()
    await read_all(archive, pointer, 50_000)
    chunks = -(-pointer.bytes // store.read_bytes_best)
    assert store.faults.calls.count("get_range") <= chunks + 2


async def test_two_readers_share_one_fetch_and_one_may_go(archive: Archive, store: MemoryObjectStore) -> None:
    pointer = await offload(archive, make_blocks(20, 900))
    store.faults.calls.clear()
    reads = [asyncio.create_task(archive.open(pointer).read(0, 1)) for _ in range(5)]
    await asyncio.sleep(0)
    reads[0].cancel()
    results = await asyncio.gather(*reads, return_exceptions=True)
    assert [isinstance(result, list) for result in results] == [False, True, True, True, True]
    assert store.faults.calls.count("get_range") == 2, "the index and one chunk"


async def test_the_cache_is_bounded(store: MemoryObjectStore) -> None:
    cache = ArchiveCache(chunk_bytes_max=3 << 20)
    archive = Archive(TrustedPlace(store), ManualClock(), cache=cache)
    pointer = await offload(archive, make_blocks(1500, 2000))
    assert pointer.bytes > 12 << 20
    await read_all(archive, pointer, 1 << 20)
    assert cache.bytes_held < 4 << 20


async def test_every_flipped_bit_of_an_object_is_found_by_verify(
    archive: Archive, store: MemoryObjectStore
) -> None:
    pointer = await offload(archive, make_blocks(3, 20))
    for offset in range(pointer.bytes):
        store.faults.flip(pointer.name, offset)
        with pytest.raises(SegmentError, match=pointer.name) as caught:
            await archive.verify(pointer)
        assert caught.value.offset >= 0
        store.faults.flip(pointer.name, offset)
    await archive.verify(pointer)


async def test_a_reader_is_told_of_damage_and_where(archive: Archive, store: MemoryObjectStore) -> None:
    blocks = make_blocks(900, 900)
    pointer = await offload(archive, blocks)
    store.faults.flip(pointer.name, 2_000_000)
    reader = archive.open(pointer)
    assert await reader.read(0, 1)
    with pytest.raises(SegmentError, match=pointer.name) as caught:
        await read_all(archive, pointer, 1 << 20)
    assert 2_000_000 - (64 << 10) < caught.value.offset <= 2_000_000
    store.faults.flip(pointer.name, 2_000_000)
    assert len(await read_all(archive, pointer, 1 << 20)) == 900, "an error is not cached"


async def test_another_object_under_the_recorded_name_is_refused(
    archive: Archive, store: MemoryObjectStore
) -> None:
    mine = await offload(archive, make_blocks(5, 50, seed=1))
    other = await offload(archive, make_blocks(5, 50, seed=1, ledger_id=6))
    store.faults.objects[mine.name] = store.faults.objects[other.name]
    with pytest.raises(SegmentError, match="differs from its record"):
        await archive.open(mine).read(0, 1)
    with pytest.raises(SegmentError, match="differs from its record"):
        await archive.verify(mine)
    del store.faults.objects[mine.name]
    fresh = Archive(TrustedPlace(store), ManualClock())
    with pytest.raises(NotFound):
        await fresh.open(mine).read(0, 1)
    assert not await fresh.is_there(mine)
    assert await fresh.is_there(other)


async def test_an_upload_that_timed_out_but_happened_is_taken(
    archive: Archive, store: MemoryObjectStore
) -> None:
    store.faults.fail_next("finish", OutcomeUnknown("time-out"), happened=True)
    pointer = await offload(archive, make_blocks(5, 50))
    assert [info.name for info in await but_labels(store)] == [pointer.name]


async def test_an_upload_that_timed_out_and_did_not_happen_is_tried_again(
    archive: Archive, store: MemoryObjectStore
) -> None:
    blocks = make_blocks(5, 50)
    store.faults.fail_next("finish", OutcomeUnknown("time-out"), happened=False)
    with pytest.raises(Unavailable, match="cannot upload segment 5"):
        await offload(archive, blocks)
    assert await store.list() == []
    await archive.verify(await offload(archive, blocks))


@pytest.mark.parametrize("call", ["begin", "write", "finish"])
@pytest.mark.parametrize("error", [Unavailable("no"), DiskFull("full")])
async def test_a_failed_upload_leaves_nothing(
    archive: Archive, store: MemoryObjectStore, call: str, error: Exception
) -> None:
    store.faults.fail_next(call, error)
    with pytest.raises(type(error)):
        await offload(archive, make_blocks(5, 50))
    assert await store.list() == []
    assert store.faults.uploads == {}


async def test_a_verification_that_fails_gives_no_pointer(archive: Archive, store: MemoryObjectStore) -> None:
    store.faults.fail_next("get_range", Unavailable("no"))
    with pytest.raises(Unavailable):
        await offload(archive, make_blocks(5, 50))
    assert len(await but_labels(store)) == 1, "garbage, for the scrub"


async def test_two_tries_never_share_a_name(archive: Archive) -> None:
    blocks = make_blocks(5, 50)
    assert (await offload(archive, blocks)).name != (await offload(archive, blocks)).name


@pytest.mark.parametrize(
    "change",
    [{"last_entry": 400}, {"last_entry": 2}, {"messages": 3}, {"first_index": 7}],
)
async def test_a_source_that_differs_from_the_record_is_not_archived(
    archive: Archive, store: MemoryObjectStore, change: dict[str, int]
) -> None:
    blocks = make_blocks(5, 50)
    record = msgspec.structs.replace(record_of(blocks), **change)
    with pytest.raises(CorruptionError, match="segment 5 of persistent://t/n/x"):
        await archive.offload(TOPIC, record, Source(blocks))
    assert await store.list() == []


@pytest.mark.parametrize("damage", ["flipped", "missing", "twice"])
async def test_a_damaged_source_is_not_archived(
    archive: Archive, store: MemoryObjectStore, damage: str
) -> None:
    blocks = make_blocks(5, 50)
    source = list(blocks)
    if damage == "flipped":
        source[2] = bytearray(source[2])
        source[2][-1] ^= 1
    elif damage == "missing":
        del source[2]
    else:
        source.insert(2, source[1])
    with pytest.raises(CorruptionError, match="segment 5 of"):
        await archive.offload(TOPIC, record_of(blocks), Source(source))
    assert await store.list() == []


async def test_a_segment_recorded_elsewhere_is_read_from_there(
    tmp_path: Path, store: MemoryObjectStore
) -> None:
    blocks = make_blocks(5, 50)
    before = Archive(TrustedPlace(FilesystemStore(tmp_path)), ManualClock())
    pointer = await offload(before, blocks)
    await before.close()
    now = Archive(TrustedPlace(store), ManualClock())
    assert await read_all(now, pointer, 1 << 20) == [bytes(one) for one in blocks]
    with pytest.raises(ConfigurationError):
        now.open(msgspec.structs.replace(pointer, store="ftp://x"))
    await now.close()


async def test_a_segment_is_found_where_its_whole_store_was_moved(tmp_path: Path) -> None:
    metadata = MemoryStore()
    cluster = (await begin_cluster(metadata, 1)).uuid
    blocks = make_blocks(5, 50)
    old = FilesystemStore(tmp_path / "old")
    before = Archive(Place(metadata, old, cluster, StoreRole.ARCHIVE), ManualClock())
    await before.place.enter()
    pointers = [await offload(before, blocks) for _ in range(2)]
    await before.close()
    (tmp_path / "old").rename(tmp_path / "new")
    new = FilesystemStore(tmp_path / "new")
    now = Archive(Place(metadata, new, cluster, StoreRole.ARCHIVE), ManualClock())
    await now.place.enter()
    for pointer in pointers:
        assert await now.is_there(pointer)
        await now.verify(pointer)
        await now.prove_label(TOPIC, record_of(blocks).ledger_id, pointer)
        assert await read_all(now, pointer, 1 << 20) == [bytes(one) for one in blocks]
    await now.delete(pointers[:1])
    left = [info.name for info in await new.list()]
    assert left == [NAME, pointers[1].name, f"{pointers[1].name}.label"]
    assert not (tmp_path / "old").exists()
    await now.close()


async def test_objects_of_a_former_store_are_deleted_where_that_proves_to_be_the_clusters(
    tmp_path: Path,
) -> None:
    """The archive was moved to another store; the former one is from before stores were marked."""
    metadata, former = MemoryStore(), FilesystemStore(tmp_path / "former")
    cluster = (await begin_cluster(metadata, 1)).uuid
    await former.prepare()
    before = Archive(TrustedPlace(former), ManualClock())
    pointers = [await offload(before, make_blocks(5, 50)) for _ in range(2)]
    store = MemoryObjectStore()
    now = Archive(Place(metadata, store, cluster, StoreRole.ARCHIVE), ManualClock())
    await now.place.enter()
    (tmp_path / "former").rename(tmp_path / "unmounted")
    (tmp_path / "former").mkdir()
    with pytest.raises(WrongCluster, match="is empty"):
        await now.delete(pointers)
    (tmp_path / "former").rmdir()
    (tmp_path / "unmounted").rename(tmp_path / "former")
    await now.delete(pointers[:1])
    left = [info.name for info in await former.list()]
    assert left == [NAME, pointers[1].name, f"{pointers[1].name}.label"]
    (tmp_path / "former" / NAME).write_bytes(encode_marker("5f0e0b3c-8d0a-4a6e-9a55-0f5f7f1f7a11"))
    with pytest.raises(WrongCluster, match="belongs to cluster 5f0e0b3c"):
        await now.delete(pointers[1:])
    assert len(await former.list()) == 3
    await now.close()
    await before.close()


@pytest.mark.parametrize("wrong", ["metadata", "objects"])
async def test_nothing_is_deleted_while_a_store_does_not_prove_to_be_the_clusters(
    store: MemoryObjectStore, wrong: str
) -> None:
    metadata = MemoryStore()
    cluster = (await begin_cluster(metadata, 1)).uuid
    archive = Archive(Place(metadata, store, cluster, StoreRole.ARCHIVE), ManualClock())
    await archive.place.enter()
    pointer = await offload(archive, make_blocks(5, 50))
    before = [info.name for info in await store.list()]
    if wrong == "metadata":
        await metadata.delete(paths.CLUSTER)
    else:
        await store.delete(NAME)
        before.remove(NAME)
    with pytest.raises(WrongCluster):
        await archive.delete([pointer])
    assert [info.name for info in await store.list()] == before
    await archive.close()


async def test_an_object_that_cannot_be_deleted_does_not_keep_the_others(
    archive: Archive, store: MemoryObjectStore
) -> None:
    pointers = [await offload(archive, make_blocks(5, 50)) for _ in range(2)]
    store.faults.fail_next("delete", Unavailable("no"))
    with pytest.raises(Unavailable):
        await archive.delete(pointers)
    assert {info.name.removesuffix(".label") for info in await store.list()} == {pointers[0].name}


async def test_deleting_is_done_twice(archive: Archive, store: MemoryObjectStore) -> None:
    pointer = await offload(archive, make_blocks(5, 50))
    await archive.delete([pointer])
    await archive.delete([pointer])
    assert await store.list() == []


async def test_a_segment_that_does_not_fit_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = make_blocks(50, 4000)
    store = FilesystemStore(tmp_path)
    monkeypatch.setattr(store.blocking, "room_bytes", lambda: record_of(blocks).bytes - 1)
    archive = Archive(TrustedPlace(store), ManualClock())
    with pytest.raises(DiskFull, match=r"has \d+ bytes left, but segment 5 of .* free space on that disk"):
        await archive.offload(TOPIC, record_of(blocks), Source(blocks))
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    await archive.verify(await offload(archive, blocks))
    await archive.close()
