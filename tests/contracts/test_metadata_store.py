"""What every metadata store must do, whichever it is: the rules are ZooKeeper's.

A store takes part by one more line in `MAKERS`: an async function that opens it on a directory. Opened, closed
and opened again it must hold the same persistent nodes. ZooKeeper's own is tested on a real server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from quire.metadata.open import open_store
from quire.metadata.sqlite import SqliteStore
from quire.metadata.store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    EphemeralParent,
    MetadataStore,
    NotEmpty,
    Put,
)
from quire.runtime.errors import AlreadyExists, NotFound, VersionConflict
from quire.testing.metadata import MemoryStore
from tests.cluster.zookeeper import ZooKeeper, zookeeper  # noqa: F401


async def memory(directory: Path) -> MetadataStore:
    return MemoryStore()


async def sqlite(directory: Path) -> MetadataStore:
    return await SqliteStore.open(directory / "metadata.db")


MAKERS: dict[str, Callable[[Path], Awaitable[MetadataStore]]] = {"memory": memory, "sqlite": sqlite}


@pytest.fixture(params=[*MAKERS, "zookeeper"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    if request.param == "zookeeper":
        server: ZooKeeper = request.getfixturevalue("zookeeper")
        opened = await open_store(server.fresh_url())
    else:
        opened = await MAKERS[request.param](tmp_path)
    yield opened
    await opened.close()


async def settle(store: MetadataStore) -> None:
    """Let callbacks run that are on their way: behind an answer of the store, and behind one to what they asked."""
    for _ in range(3):
        await store.children("/nowhere")
        await asyncio.sleep(0)


async def test_a_new_node_has_version_0_and_each_put_adds_one(store: MetadataStore) -> None:
    assert await store.create("/a", b"x") == "/a"
    assert await store.get("/a") == (b"x", 0, False)
    assert await store.put("/a", b"y", 0) == 1
    assert await store.put("/a", b"z", ANY_VERSION) == 2
    assert await store.get("/a") == (b"z", 2, False)


async def test_a_put_with_another_version_is_refused_and_changes_nothing(store: MetadataStore) -> None:
    await store.create("/a", b"x")
    with pytest.raises(VersionConflict):
        await store.put("/a", b"y", 1)
    assert await store.get("/a") == (b"x", 0, False)


async def test_a_node_is_created_once(store: MetadataStore) -> None:
    await store.create("/a", b"x")
    with pytest.raises(AlreadyExists):
        await store.create("/a", b"y")
    assert (await store.get("/a")).value == b"x"


async def test_what_is_not_there_is_not_found(store: MetadataStore) -> None:
    with pytest.raises(NotFound):
        await store.get("/a")
    with pytest.raises(NotFound):
        await store.put("/a", b"", ANY_VERSION)
    with pytest.raises(NotFound):
        await store.delete("/a")
    assert await store.children("/a") == []


async def test_create_makes_the_parents_and_children_are_names_in_order(store: MetadataStore) -> None:
    await store.create("/a/b/2", b"")
    await store.create("/a/b/10", b"")
    await store.create("/a/bc", b"")
    assert await store.children("/a") == ["b", "bc"]
    assert await store.children("/a/b") == ["10", "2"]
    assert await store.get("/a/b") == (b"", 0, False)


async def test_a_childs_birth_does_not_change_its_parents_version(store: MetadataStore) -> None:
    await store.create("/a", b"x")
    await store.create("/a/b", b"")
    assert (await store.get("/a")).version == 0


async def test_delete_checks_the_version_then_the_children(store: MetadataStore) -> None:
    await store.create("/a/b", b"")
    with pytest.raises(VersionConflict):
        await store.delete("/a", 7)
    with pytest.raises(NotEmpty):
        await store.delete("/a", 0)
    await store.delete("/a/b")
    await store.delete("/a", 0)
    with pytest.raises(NotFound):
        await store.get("/a")


async def test_a_node_that_is_made_again_begins_at_version_0(store: MetadataStore) -> None:
    await store.create("/a", b"")
    await store.put("/a", b"", 0)
    await store.delete("/a", 1)
    await store.create("/a", b"")
    assert (await store.get("/a")).version == 0


async def test_a_sequential_name_ends_in_ten_digits_that_only_grow(store: MetadataStore) -> None:
    paths = [await store.create("/ids/n-", b"", sequential=True) for _ in range(3)]
    await store.delete(paths[-1])
    paths.append(await store.create("/ids/n-", b"", sequential=True))
    numbers = [int(path.removeprefix("/ids/n-")) for path in paths]
    assert all(len(path) == len("/ids/n-") + 10 for path in paths)
    assert numbers == sorted(set(numbers))


async def test_a_transaction_is_made_whole(store: MetadataStore) -> None:
    await store.create("/a", b"1")
    await store.create("/b", b"")
    await store.transact(
        [Check("/a", 0), Put("/a", b"2", 0), Create("/c/d", b"3"), Delete("/b", 0), Create("/b", b"4")]
    )
    assert (await store.get("/a")) == (b"2", 1, False)
    assert (await store.get("/c/d")).value == b"3"
    assert (await store.get("/b")).value == b"4"


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (Check("/a", 9), VersionConflict),
        (Check("/z", 0), NotFound),
        (Put("/a", b"", 9), VersionConflict),
        (Put("/z", b"", 0), NotFound),
        (Create("/d", b""), AlreadyExists),
        (Delete("/d", 0), NotEmpty),
        (Delete("/z"), NotFound),
    ],
)
async def test_a_transaction_with_a_refused_step_changes_nothing(
    store: MetadataStore, last: Create | Put | Delete | Check, error: type[Exception]
) -> None:
    await store.create("/a", b"1")
    await store.create("/b", b"2")
    await store.create("/d/e", b"")
    with pytest.raises(error):
        await store.transact([Put("/a", b"x", 0), Delete("/b"), Create("/new/deep", b""), last])
    assert await store.get("/a") == (b"1", 0, False)
    assert await store.get("/b") == (b"2", 0, False)
    with pytest.raises(NotFound):
        await store.get("/new/deep")


async def test_a_transaction_sees_its_own_steps(store: MetadataStore) -> None:
    await store.transact([Create("/a", b"1"), Put("/a", b"2", 0), Check("/a", 1), Delete("/a", 1)])
    with pytest.raises(NotFound):
        await store.get("/a")


async def test_an_ephemeral_node_says_so_and_has_no_children(store: MetadataStore) -> None:
    await store.create("/up/me", b"x", ephemeral=True)
    assert await store.get("/up/me") == (b"x", 0, True)
    with pytest.raises(EphemeralParent):
        await store.create("/up/me/child", b"")
    assert await store.children("/up") == ["me"]


async def test_an_ephemeral_node_of_a_transaction_is_ephemeral(store: MetadataStore) -> None:
    await store.transact([Create("/up/me", b"", ephemeral=True)])
    assert (await store.get("/up/me")).ephemeral


async def test_a_watch_hears_of_the_node_and_of_its_children_and_of_nothing_else(
    store: MetadataStore,
) -> None:
    heard: list[str] = []
    store.watch("/a", heard.append)

    async def tells(change: Awaitable[object], expected: bool) -> None:
        heard.clear()
        await change
        await settle(store)
        assert heard == (["/a"] if expected else [])

    await tells(store.create("/a", b""), True)
    await tells(store.put("/a", b"x", 0), True)
    await tells(store.create("/a/b", b""), True)
    await tells(store.put("/a/b", b"x", 0), False)
    await tells(store.create("/a/b/c", b""), False)
    await tells(store.create("/ab", b""), False)
    await tells(store.delete("/a/b/c"), False)
    await tells(store.delete("/a/b"), True)
    await tells(store.transact([Put("/a", b"y", ANY_VERSION)]), True)
    await tells(store.delete("/a"), True)
    await tells(store.create("/a/again", b""), True)


async def test_a_refused_change_tells_no_watch(store: MetadataStore) -> None:
    await store.create("/a", b"")
    heard: list[str] = []
    store.watch("/a", heard.append)
    with pytest.raises(VersionConflict):
        await store.transact([Put("/a", b"", 0), Check("/a", 0)])
    await settle(store)
    assert heard == []


async def test_a_cancelled_watch_is_silent_and_the_others_are_not(store: MetadataStore) -> None:
    first: list[str] = []
    second: list[str] = []
    cancel = store.watch("/a", first.append)
    store.watch("/a", second.append)
    cancel()
    cancel()
    await store.create("/a", b"")
    await settle(store)
    assert (first, second) == ([], ["/a"])


async def test_a_callback_that_cancels_another_is_obeyed(store: MetadataStore) -> None:
    heard: list[str] = []
    cancels: list[Callable[[], None]] = []
    store.watch("/a", lambda path: cancels[0]())
    cancels.append(store.watch("/a", heard.append))
    await store.create("/a", b"")
    await settle(store)
    assert heard == []


async def test_many_at_once_lose_no_update(store: MetadataStore) -> None:
    await store.create("/n", b"0")

    async def add_one() -> None:
        while True:
            node = await store.get("/n")
            try:
                await store.put("/n", b"%d" % (int(node.value) + 1), node.version)
                return
            except VersionConflict:
                continue

    await asyncio.gather(*(add_one() for _ in range(20)))
    assert await store.get("/n") == (b"20", 20, False)


async def test_behind_a_sync_reads_see_what_was_done(store: MetadataStore) -> None:
    await store.create("/a", b"1")
    await store.sync()
    assert (await store.get("/a")).value == b"1"
