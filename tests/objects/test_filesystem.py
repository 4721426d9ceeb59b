"""What the directory adds to the contract: what a failing disk leaves, and buffers that are used again."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from quire.objects.filesystem import BufferPool, FilesystemBlockingStore, FilesystemStore
from quire.runtime.errors import ConfigurationError, DiskError, DiskFull, NotFound, OutcomeUnknown
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


def test_reading_makes_no_directory(tmp_path: Path) -> None:
    store = FilesystemBlockingStore(tmp_path / "nowhere")
    with pytest.raises(NotFound):
        store.get_range("x", 0, 1)
    assert list(store.list("")) == []
    assert store.sweep(1 << 60) == 0
    assert not (tmp_path / "nowhere").exists()


def test_a_buffer_is_used_again_when_nobody_looks_at_it() -> None:
    pool = BufferPool(10 * MIB)
    first = pool.take(MIB)
    address = id(first)
    part = memoryview(first)[10:20]
    del first
    assert id(pool.take(MIB)) != address, "a part of it is still looked at"
    del part
    assert address in {id(pool.take(MIB)) for _ in range(10)}


def test_a_pool_holds_no_more_than_it_may() -> None:
    pool = BufferPool(4 * MIB)
    taken = [pool.take(MIB) for _ in range(10)]
    assert len({id(buffer) for buffer in taken}) == 10
    assert len(pool._buffers) == 3


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
    with pytest.raises(DiskFull, match="full but for its reserve"):
        upload.write([bytes(OBJECT_PART_BYTES)])
    upload.abort()
    assert list(store.list("")) == [] and not list((tmp_path / "not" / "yet" / ".uploading").iterdir())
    disk.total = 16 * OBJECT_PART_BYTES
    assert store.room_bytes() == OBJECT_RESERVE_BYTES - OBJECT_PART_BYTES, "a small disk has a small reserve"
