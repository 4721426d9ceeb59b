"""The probe lets through the stores that keep their promises, and no others."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.objects.open import open_store
from quire.objects.store import ObjectInfo, ObjectStore
from quire.runtime.errors import AlreadyExists, ConfigurationError, NotFound, Unavailable
from quire.testing.objects import MemoryBlockingStore, MemoryObjectStore
from quire.testing.zookeeper_server import free_port
from quire.wal.probe import RACES, probe
from quire.wire.block import Buffer
from tests.cluster import s3
from tests.moto_store import moto_store


async def test_memory_passes_and_nothing_is_left() -> None:
    store = MemoryObjectStore()
    await probe(store)
    assert await store.list() == []


async def test_a_directory_passes_and_nothing_is_left(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/objects")
    await probe(store)
    assert await store.list() == []
    await store.close()


async def test_moto_passes() -> None:
    with moto_store("probe") as endpoint:
        store = open_store(f"s3://probe/a?endpoint={endpoint}&access_key=test&secret_key=test")
        try:
            await probe(store)
            assert await store.list() == []
        finally:
            await store.close()


@contextlib.contextmanager
def versitygw(folder: Path) -> Iterator[str]:
    """S3 over a directory."""
    program = s3.versitygw()
    if program is None:
        pytest.skip(f"versitygw is not in the path: go install {s3.VERSITYGW}")
    (folder / "probe").mkdir(parents=True)
    port = free_port()
    process = subprocess.Popen(
        [program, "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(folder)],
        env=os.environ | {"ROOT_ACCESS_KEY_ID": "test", "ROOT_SECRET_ACCESS_KEY": "test-secret"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"s3://probe/a?endpoint=http://127.0.0.1:{port}&access_key=test&secret_key=test-secret"
    finally:
        process.kill()
        process.wait()


async def test_versitygw_over_a_directory_passes(tmp_path: Path) -> None:
    """From 1.8.0 on it looks whether the name is taken once more, under a lock."""
    with versitygw(tmp_path / "s3") as url:
        store = open_store(url)
        until = time.monotonic() + 30
        while True:
            try:
                await probe(store)
                break
            except Unavailable:
                assert time.monotonic() < until  # it starts
        assert await store.list() == []
        await store.close()


class CheckThenWrite(MemoryBlockingStore):
    """Looks whether a name is taken, and then writes: right for one at a time, as a server without a lock is."""

    def appear(self, name: str, content: bytes) -> None:
        if name in self.objects:
            raise AlreadyExists(name)
        time.sleep(0.002)  # other threads run here, as they do in a system call
        self.objects[name] = (content, 0)


async def test_a_store_that_checks_and_then_writes_is_refused() -> None:
    store = ObjectStore(CheckThenWrite(), threads=8)
    await store.put_whole("one/at-a-time", (b"1",))
    with pytest.raises(AlreadyExists):
        await store.put_whole("one/at-a-time", (b"2",))
    with pytest.raises(ConfigurationError, match=r"conditional PUTs of one new name, [2-8] succeeded"):
        await probe(store)
    await store.close()


class BrokenStore(MemoryBlockingStore):
    """Breaks one promise: it `overwrites`, shows nothing by reads, or does not list."""

    def __init__(self, breaks: str) -> None:
        super().__init__()
        self._breaks = breaks

    def appear(self, name: str, content: bytes) -> None:
        if self._breaks == "overwrites":
            self.objects.pop(name, None)
        elif self._breaks == "keeps the last":
            taken = name in self.objects
            self.objects[name] = (content, 0)
            if taken:
                raise AlreadyExists(name)
            return
        super().appear(name, content)

    def get_range(self, name: str, offset: int, length: int) -> Buffer:
        if self._breaks == "reads":
            raise NotFound(name)
        return super().get_range(name, offset, length)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        yield from () if self._breaks == "lists" else super().list(prefix)


@pytest.mark.parametrize(
    ("breaks", "sentence"),
    [
        ("overwrites", "of 8 conditional PUTs of one new name, 8 succeeded"),
        ("keeps the last", "other bytes than the successful PUT"),
        ("reads", "does not find an object right after"),
        ("lists", f"does not list {RACES} of {RACES} objects"),
    ],
)
async def test_what_is_missing_is_said_in_one_sentence(breaks: str, sentence: str) -> None:
    store = ObjectStore(BrokenStore(breaks), threads=0)
    with pytest.raises(ConfigurationError, match=sentence) as refused:
        await probe(store)
    assert "\n" not in str(refused.value) and store.url in str(refused.value)


async def test_a_store_that_does_not_answer_proves_nothing() -> None:
    store = MemoryObjectStore()
    for _ in range(8):
        store.faults.fail_next("finish", Unavailable("503 SlowDown"))
    with pytest.raises(Unavailable, match="SlowDown"):
        await probe(store)
