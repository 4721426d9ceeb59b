"""What the file adds to the contract: it lasts, it is locked, it tells what is wrong with it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sqlite3
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from quire.metadata.open import look_at, open_store
from quire.metadata.sqlite import SqliteStore
from quire.metadata.store import ANY_VERSION
from quire.runtime.errors import AlreadyExists, ConfigurationError, NotFound, Unavailable


async def test_persistent_nodes_last_and_ephemeral_ones_do_not(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "m.db")
    await store.create("/a", b"x")
    await store.put("/a", b"y", 0)
    await store.create("/n-", b"", sequential=True)
    await store.create("/up/me", b"", ephemeral=True)
    await store.close()
    store = await SqliteStore.open(tmp_path / "m.db")
    assert await store.get("/a") == (b"y", 1, False)
    assert await store.children("/up") == []
    assert await store.create("/n-", b"", sequential=True) == "/n-0000000001"
    await store.close()


CHILD = """
import asyncio, sys
from pathlib import Path
from quire.metadata.sqlite import SqliteStore
async def main():
    store = await SqliteStore.open(Path(sys.argv[1]))
    await store.create("/up/me", b"", ephemeral=True)
    for number in range(10_000):
        await store.create(f"/n/{number}", b"x")
        print(number, flush=True)
asyncio.run(main())
"""


def start_child(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True)


async def test_a_killed_process_leaves_what_was_answered_and_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    child = start_child(path)
    assert child.stdout is not None
    for _ in range(20):
        last = int(child.stdout.readline())
    with pytest.raises(ConfigurationError, match="in use"):
        await SqliteStore.open(path)
    os.kill(child.pid, signal.SIGKILL)
    rest = child.communicate()[0].split("\n")
    last = max([last, *(int(line) for line in rest[:-1])])
    store = await SqliteStore.open(path)
    assert {str(number) for number in range(last + 1)} <= set(await store.children("/n"))
    with pytest.raises(NotFound):
        await store.get("/up/me")
    await store.close()


async def test_a_second_opener_is_told_and_the_first_goes_on(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "m.db")
    with pytest.raises(ConfigurationError, match="in use"):
        await SqliteStore.open(tmp_path / "m.db")
    await store.create("/a", b"")
    await store.close()


async def test_a_file_that_is_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to look at" * 100)
    with pytest.raises(ConfigurationError):
        await SqliteStore.open(text)
    assert text.read_text().startswith("not a database")
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE songs(title)")
    database.close()
    with pytest.raises(ConfigurationError, match="not a metadata file"):
        await SqliteStore.open(other)


async def test_a_directory_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError):
        await SqliteStore.open(tmp_path / "file" / "m.db")


async def test_a_refused_call_spoils_none_of_its_group(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "m.db")
    calls = [store.create(f"/a/{number // 2}", b"%d" % number) for number in range(100)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(result, AlreadyExists) for result in results] == [False, True] * 50
    await store.close()
    store = await SqliteStore.open(tmp_path / "m.db")
    assert len(await store.children("/a")) == 50
    await store.close()


async def test_a_broken_disk_is_unavailable_not_an_exception_of_sqlite(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "m.db")
    await store.create("/a", b"x")
    store._database.execute("PRAGMA max_page_count = 1")
    with pytest.raises(Unavailable):
        await store.put("/a", bytes(100_000), ANY_VERSION)
    assert await store.get("/a") == (b"x", 0, False)
    await store.close()


async def test_a_mistake_of_the_caller_does_not_stop_the_thread(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "m.db")
    with pytest.raises(AssertionError):
        await store.create("/a//b", b"")
    await store.create("/a", b"")
    await store.close()


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "m.db")
    await store.close()
    await store.close()
    with pytest.raises(Unavailable):
        await store.get("/a")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite://host/x", "postgres://x", "x"])
async def test_a_wrong_url_says_what_to_write(url: str) -> None:
    with pytest.raises(ConfigurationError, match="sqlite:///"):
        await open_store(url)


async def test_urls(tmp_path: Path) -> None:
    store = await open_store(f"sqlite://{tmp_path}/with%20space/m.db")
    await store.close()
    assert (tmp_path / "with space" / "m.db").exists()


async def test_a_refusal_is_freed_without_the_collector(tmp_path: Path) -> None:
    """It is of every day, and the collector hardly ever runs: in a circle with its frames it would stay."""
    store = await SqliteStore.open(tmp_path / "m.db")
    refusals: list[weakref.ref[NotFound]] = []
    gc.disable()
    try:
        for _ in range(2):
            try:
                await store.get("/quire/nothing")
            except NotFound as error:
                refusals.append(weakref.ref(error))
        await store.children("/quire")  # the helper thread keeps the last group of answers until the next one
        assert [one() for one in refusals] == [None, None]
    finally:
        gc.enable()
        await store.close()


def test_a_path_that_may_not_be_looked_at_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(ConfigurationError, match=r"cannot open metadata file .*m\.db: .*Permission denied"):
        look_at(f"sqlite://{tmp_path}/m.db")
