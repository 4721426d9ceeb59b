"""What the directory adds to the contract: what a failing disk leaves, and buffers that are used again."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from quire.objects.filesystem import BufferPool, FilesystemBlockingStore, FilesystemStore
from quire.objects.store import put_whole
from quire.runtime.errors import (
    ConfigurationError,
    DiskError,
    DiskFull,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    Unreadable,
)
from quire.runtime.limits import MIB, OBJECT_PART_BYTES, OBJECT_RESERVE_BYTES
from quire.wire.block import Buffer


async def parts(content: bytes) -> AsyncIterator[Buffer]:
    yield content


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def fails_with(number: int) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize(
    ("call", "number", "error"),
    [
        ("pwrite", errno.ENOSPC, DiskFull),
        ("pwrite", errno.EIO, DiskError),
        ("fsync", errno.EIO, DiskError),
        ("link", errno.EIO, DiskError),
        ("open", errno.EACCES, ConfigurationError),
        ("open", errno.EMFILE, Unavailable),
    ],
)
async def test_a_disk_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, error: type[Exception]
) -> None:
    store = FilesystemStore(tmp_path)
    await store.put("a/first", parts(b"1"))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails_with(number))
        with pytest.raises(error, match=str(tmp_path)):
            await store.put("a/x", parts(b"content"))
    assert files(tmp_path) == ["a/first"]
    await store.put("a/x", parts(b"content"))
    assert bytes(await store.get_range("a/x", 0, 7)) == b"content"
    await store.close()


@pytest.mark.parametrize(
    ("call", "number", "error"),
    [
        ("open", errno.EMFILE, Unavailable),
        ("open", errno.ESTALE, Unavailable),
        ("preadv", errno.ETIMEDOUT, Unavailable),
        ("preadv", errno.EIO, Unreadable),
        ("open", errno.EACCES, ConfigurationError),
    ],
)
def test_a_read_that_fails_says_nothing_of_the_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, error: type[Exception]
) -> None:
    store = FilesystemBlockingStore(tmp_path)
    put_whole(store, "a/x", [b"content"])
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails_with(number))
        with pytest.raises(error) as raised:
            store.get_range("a/x", 0, 7)
    assert type(raised.value) is error
    assert bytes(store.get_range("a/x", 0, 7)) == b"content"


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.EIO])
def test_a_directory_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = FilesystemBlockingStore(tmp_path)
    put_whole(store, "a/x", [b"content"])
    monkeypatch.setattr(os, "scandir", fails_with(number))
    with pytest.raises((Unavailable, ConfigurationError)):
        list(store.list("a/"))


def test_a_listing_looks_only_at_the_directory_of_its_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FilesystemBlockingStore(tmp_path)
    for name in ("a/b/x", "a/bc", "a/c/y", "b/z"):
        put_whole(store, name, [b"content"])
    real, looked = os.scandir, []

    def scandir(path: Path) -> Any:
        looked.append(str(Path(path).relative_to(tmp_path)))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert [info.name for info in store.list("a/b/")] == ["a/b/x"]
    assert looked == ["a/b"]
    assert [info.name for info in store.list("a/b")] == ["a/b/x", "a/bc"]
    assert [info.name for info in store.list("")] == ["a/b/x", "a/bc", "a/c/y", "b/z"]


def test_a_directory_for_which_there_is_no_room_is_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FilesystemBlockingStore(tmp_path)
    put_whole(store, "a/x", [b"content"])
    monkeypatch.setattr(Path, "mkdir", fails_with(errno.ENOSPC))
    with pytest.raises(DiskFull):
        put_whole(store, "b/x", [b"content"])


async def test_a_name_that_may_not_be_durable_is_an_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FilesystemStore(tmp_path)
    await store.put("a/first", parts(b"1"))
    real, calls = os.fsync, []

    def second_fails(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 2:
            raise OSError(errno.EIO, "no")
        real(fd)

    monkeypatch.setattr(os, "fsync", second_fails)
    with pytest.raises(OutcomeUnknown):
        await store.put("a/x", parts(b"content"))
    assert await store.size("a/x") == 7
    await store.close()


async def test_content_and_names_are_synced_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file before it gets its name, its directory after; and each new directory in its parent."""
    events: list[str] = []
    real_sync, real_link = os.fsync, os.link

    def sync(fd: int) -> None:
        events.append("sync " + os.readlink(f"/proc/self/fd/{fd}").removeprefix(str(tmp_path)))
        real_sync(fd)

    def link(source: Path, target: Path) -> None:
        events.append("link")
        real_link(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "link", link)
    store = FilesystemStore(tmp_path / "root")
    await store.put("a/x", parts(b"content"))
    temporary = next(event for event in events if event.startswith("sync /root/.uploading/"))
    assert events == ["sync ", "sync /root", temporary, "sync /root", "link", "sync /root/a"]
    await store.close()


async def test_a_filesystem_without_direct_io_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuses(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct I/O here")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refuses)
    store = FilesystemStore(tmp_path)
    content = os.urandom(3 * MIB + 17)
    await store.put("x", parts(content))
    assert bytes(await store.get_range("x", 5, len(content) - 5)) == content[5:]
    await store.close()


async def test_preparing_says_what_is_wrong_with_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        store = FilesystemStore(root)
        with pytest.raises(ConfigurationError, match="file"):
            await store.prepare()
        await store.close()


def test_a_directory_that_may_not_be_looked_into_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FilesystemBlockingStore(tmp_path / "archive")
    monkeypatch.setattr(os, "stat", fails_with(errno.EACCES))
    for call in (store.prepare, store.room_bytes):
        with pytest.raises(ConfigurationError, match="Permission denied"):
            call()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_nothing_is_uploaded_in_the_place_of_a_directory_that_was_moved(
    tmp_path: Path, is_replaced: bool
) -> None:
    root = tmp_path / "bucket"
    store = FilesystemBlockingStore(root)
    put_whole(store, "wal/1", [b"object"])
    under_way = store.begin("wal/2")
    under_way.write([b"object"])
    root.rename(tmp_path / "moved")
    if is_replaced:
        root.mkdir()
    with pytest.raises(Unavailable, match="mount"):
        under_way.finish()
    with pytest.raises(Unavailable, match="mount"):
        put_whole(store, "wal/3", [b"object"])
    assert root.exists() == is_replaced and not list(tmp_path.glob("bucket/*"))
    if is_replaced:
        root.rmdir()
    (tmp_path / "moved").rename(root)
    put_whole(store, "wal/3", [b"object"])
    assert [info.name for info in store.list("wal/")] == ["wal/1", "wal/3"]


def test_reading_makes_no_directory(tmp_path: Path) -> None:
    store = FilesystemBlockingStore(tmp_path / "nowhere")
    with pytest.raises(NotFound):
        store.get_range("x", 0, 1)
    assert list(store.list("")) == []
    assert store.sweep(1 << 60) == 0
    assert not (tmp_path / "nowhere").exists()


def address_of(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def test_a_buffer_is_used_again_only_when_no_view_of_it_is_left() -> None:
    pool = BufferPool(10 * MIB)
    first = pool.take(MIB)
    address = address_of(first)
    part = first[10:20].toreadonly()
    del first
    kept = [pool.take(MIB) for _ in range(5)]
    assert address not in map(address_of, kept), "a slice of it is in use"
    assert len({*map(address_of, kept)}) == 5, "each buffer is lent once"
    del part
    assert address_of(pool.take(MIB)) == address


def test_a_read_is_never_overwritten_by_a_later_one(tmp_path: Path) -> None:
    """The cases in which an interpreter's reference counts would differ: a view, a slice, an object over it."""
    store = FilesystemBlockingStore(tmp_path)
    for number in range(8):
        put_whole(store, f"x{number}", [bytes([number]) * 100_000])
    read = [store.get_range(f"x{number}", 10, 50_000) for number in range(8)]
    kept = [memoryview(each)[5:500] if number % 2 else each for number, each in enumerate(read)]
    del read
    for number in range(8):
        store.get_range(f"x{7 - number}", 0, 90_000)
    assert [{*bytes(each)} for each in kept] == [{number} for number in range(8)]


def test_buffers_are_made_once_when_each_read_is_done_before_the_next() -> None:
    pool = BufferPool(10 * MIB)
    assert len({address_of(pool.take(MIB)) for _ in range(20)}) == 1


def test_a_pool_holds_no_more_than_it_may() -> None:
    pool = BufferPool(4 * MIB)
    taken = [pool.take(MIB) for _ in range(10)]
    assert len({*map(address_of, taken)}) == 10
    del taken
    assert len(pool._free) == 3


class Disk:
    """A disk of which a test says how much is free."""

    def __init__(self, total: int, free: int) -> None:
        self.total = total
        self.free = free

    def usage(self, path: Path) -> Any:
        assert path.exists()
        return shutil._ntuple_diskusage(self.total, self.total - self.free, self.free)  # type: ignore[attr-defined]


def test_the_reserve_of_the_disk_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(total=64 << 30, free=OBJECT_RESERVE_BYTES + OBJECT_PART_BYTES)
    monkeypatch.setattr(shutil, "disk_usage", disk.usage)
    store = FilesystemBlockingStore(tmp_path / "not" / "yet")
    assert store.room_bytes() == OBJECT_PART_BYTES
    upload = store.begin("segments/x")
    upload.write([bytes(OBJECT_PART_BYTES)])
    disk.free -= OBJECT_PART_BYTES
    with pytest.raises(DiskFull, match="full except for its reserve"):
        upload.write([bytes(OBJECT_PART_BYTES)])
    upload.abort()
    assert list(store.list("")) == [] and not list((tmp_path / "not" / "yet" / ".uploading").iterdir())
    disk.total = 16 * OBJECT_PART_BYTES
    assert store.room_bytes() == OBJECT_RESERVE_BYTES - OBJECT_PART_BYTES, "a small disk has a small reserve"


@pytest.mark.parametrize("leaves_directory", [True, False])
def test_a_mount_that_vanishes_is_unavailable_and_not_an_empty_store(
    tmp_path: Path, leaves_directory: bool
) -> None:
    root, away = tmp_path / "bucket", tmp_path / "away"
    store = FilesystemBlockingStore(root)
    put_whole(store, "wal/one", (b"block",))
    root.rename(away)
    if leaves_directory:
        root.mkdir()
    for call in (
        lambda: put_whole(store, "wal/two", (b"block",)),
        lambda: store.get_range("wal/one", 0, 5),
        lambda: store.size("wal/one"),
        lambda: store.delete("wal/one"),
        lambda: list(store.list("wal/")),
        lambda: store.sweep(1 << 60),
    ):
        with pytest.raises(Unavailable, match="mount"):
            call()
    assert (list(root.iterdir()) if leaves_directory else root.exists()) in ([], False)
    shutil.rmtree(root, ignore_errors=True)
    away.rename(root)
    assert bytes(store.get_range("wal/one", 0, 5)) == b"block"
    put_whole(store, "wal/two", (b"block",))


def test_a_mount_that_vanishes_during_an_upload_is_not_taken_for_done(tmp_path: Path) -> None:
    root = tmp_path / "bucket"
    store = FilesystemBlockingStore(root)
    put_whole(store, "one", (b"block",))
    root.rename(tmp_path / "away")
    shutil.copytree(tmp_path / "away", root)
    (root / ".uploading" / "temporary").write_bytes(b"block")
    with pytest.raises(Unavailable, match="is not the one that this process has used"):
        store.appear(root / ".uploading" / "temporary", "three")
