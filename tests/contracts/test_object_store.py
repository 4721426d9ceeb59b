"""What every object store must do, whichever it is. The S3 server is moto's, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from quire.objects.open import open_store
from quire.objects.store import ObjectStore
from quire.runtime.errors import AlreadyExists, CorruptionError, NotFound
from quire.runtime.limits import MIB, OBJECT_PART_BYTES
from quire.testing.objects import MemoryObjectStore
from quire.wire.block import Buffer
from tests.moto_store import make_bucket, moto_store

FAR_FUTURE_MS = 1 << 50


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    with moto_store() as endpoint:
        yield endpoint


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "filesystem":
            return f"file://{tmp_path}/archive"
        case "s3":
            endpoint = request.getfixturevalue("s3_endpoint")
            bucket = f"b-{tmp_path.name}"[:60]
            make_bucket(endpoint, bucket)
            return f"s3://{bucket}/some/prefix?endpoint={endpoint}&access_key=test&secret_key=test"
    return "memory://"


@pytest.fixture
async def store(url: str) -> AsyncIterator[ObjectStore]:
    opened = MemoryObjectStore() if url == "memory://" else open_store(url)
    yield opened
    await opened.close()


each_store = pytest.mark.parametrize("url", ["memory", "filesystem", "s3"], indirect=True)
pytestmark = each_store


async def stream(*parts: Buffer) -> AsyncIterator[Buffer]:
    for part in parts:
        yield part


async def test_what_was_put_is_read_by_ranges(store: ObjectStore) -> None:
    content = bytes(range(256)) * 100
    await store.put(
        "a/b-1", stream(content[:100], memoryview(content)[100:20_000], bytearray(content[20_000:]))
    )
    assert await store.size("a/b-1") == len(content)
    for offset, length in [(0, 1), (0, len(content)), (4095, 2), (4096, 4096), (len(content) - 7, 7)]:
        assert bytes(await store.get_range("a/b-1", offset, length)) == content[offset : offset + length]


@pytest.mark.parametrize(
    "size", [0, 1, OBJECT_PART_BYTES, OBJECT_PART_BYTES + 1, 2 * OBJECT_PART_BYTES + 12_345]
)
async def test_any_size(store: ObjectStore, size: int) -> None:
    piece = uuid4().bytes * (MIB // 16)
    whole = (piece * (size // MIB + 1))[:size]
    await store.put("x", stream(*(whole[at : at + MIB] for at in range(0, size, MIB))))
    assert await store.size("x") == size
    if size:
        assert bytes(await store.get_range("x", 0, size)) == whole


async def test_a_name_is_never_overwritten(store: ObjectStore) -> None:
    await store.put("x", stream(b"first"))
    with pytest.raises(AlreadyExists):
        await store.put("x", stream(b"second"))
    with pytest.raises(AlreadyExists):
        await store.put("x", stream(bytes(OBJECT_PART_BYTES), bytes(OBJECT_PART_BYTES)))
    assert bytes(await store.get_range("x", 0, 5)) == b"first"
    assert await store.size("x") == 5


async def test_what_is_not_there_is_not_found_and_deleting_it_is_done(store: ObjectStore) -> None:
    with pytest.raises(NotFound):
        await store.size("x")
    with pytest.raises(NotFound):
        await store.get_range("x", 0, 1)
    await store.delete("x")
    await store.delete("nowhere/x")


async def test_a_range_behind_the_end_is_damage(store: ObjectStore) -> None:
    await store.put("x", stream(b"0123456789"))
    for offset, length in [(5, 6), (10, 1), (100, 5)]:
        with pytest.raises(CorruptionError, match="x"):
            await store.get_range("x", offset, length)


async def test_deleted_is_gone_and_the_name_is_free(store: ObjectStore) -> None:
    await store.put("x", stream(b"1"))
    await store.delete("x")
    with pytest.raises(NotFound):
        await store.size("x")
    assert await store.list() == []
    await store.put("x", stream(b"2"))
    assert bytes(await store.get_range("x", 0, 1)) == b"2"


async def test_a_listing_is_by_prefix_and_in_order(store: ObjectStore) -> None:
    for name in ("seg/b", "seg/a", "other/c", "seg-x"):
        await store.put(name, stream(name.encode()))
    assert [info.name for info in await store.list("seg/")] == ["seg/a", "seg/b"]
    assert [(info.name, info.bytes) for info in await store.list("seg")] == [
        ("seg-x", 5),
        ("seg/a", 5),
        ("seg/b", 5),
    ]
    assert len(await store.list()) == 4
    assert all(1_500_000_000_000 < info.modified_ms < FAR_FUTURE_MS for info in await store.list())


@pytest.mark.parametrize("before_failing", [0, 100, OBJECT_PART_BYTES, 3 * OBJECT_PART_BYTES])
async def test_an_upload_whose_source_fails_leaves_nothing(store: ObjectStore, before_failing: int) -> None:
    async def failing() -> AsyncIterator[Buffer]:
        for _ in range(0, before_failing, MIB):
            yield bytes(min(MIB, before_failing))
        raise CorruptionError("the source is damaged")

    with pytest.raises(CorruptionError, match="source"):
        await store.put("x", failing())
    assert await store.list() == []
    assert await store.sweep(FAR_FUTURE_MS) == 0


async def test_a_cancelled_upload_leaves_nothing(store: ObjectStore) -> None:
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[Buffer]:
        yield bytes(OBJECT_PART_BYTES)
        yield bytes(OBJECT_PART_BYTES)
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(store.put("x", endless()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.list() == []
    assert await store.sweep(FAR_FUTURE_MS) == 0


async def test_an_upload_that_nobody_ended_is_invisible_and_swept(store: ObjectStore) -> None:
    upload = store.blocking.begin("x")
    await store.run(lambda: upload.write([bytes(OBJECT_PART_BYTES)]))
    await store.run(lambda: upload.write([bytes(OBJECT_PART_BYTES)]))
    with pytest.raises(NotFound):
        await store.size("x")
    assert await store.list() == []
    assert await store.sweep(0) == 0
    assert await store.sweep(FAR_FUTURE_MS) == 1
    assert await store.sweep(FAR_FUTURE_MS) == 0


async def test_of_two_uploads_under_one_name_one_wins(store: ObjectStore) -> None:
    results = await asyncio.gather(
        *(store.put("x", stream(b"%d" % number * 10)) for number in range(4)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["AlreadyExists"] * 3 + ["NoneType"]
    winner = next(number for number, result in enumerate(results) if result is None)
    assert bytes(await store.get_range("x", 0, 10)) == b"%d" % winner * 10


async def test_reads_at_once_do_not_share_memory(store: ObjectStore) -> None:
    contents = [bytes([number]) * 300_000 for number in range(8)]
    for number, content in enumerate(contents):
        await store.put(f"x{number}", stream(content))
    for _ in range(3):
        reads = await asyncio.gather(*(store.get_range(f"x{number}", 10, 200_000) for number in range(8)))
        assert [bytes(read) for read in reads] == [content[10:200_010] for content in contents]


async def test_the_url_names_the_store_without_secrets(url: str, store: ObjectStore) -> None:
    assert "secret" not in store.url
    assert "access" not in store.url
    assert store.url.partition("?")[0].rstrip("/") == url.partition("?")[0].rstrip("/")
