"""The bookie in the metadata store: sessions that end, wishes of operators, and who is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from msgspec.structs import replace

from quire import __version__
from quire.bookie.registration import Registration
from quire.metadata import paths
from quire.metadata.cluster import begin_cluster
from quire.metadata.records import BookieIntent, BookieRecord, ClusterRecord, decode, encode
from quire.metadata.store import ANY_VERSION
from quire.metadata.tree import Tree
from quire.runtime.errors import ConfigurationError, OutcomeUnknown, Unavailable
from quire.testing.metadata import MemoryStore
from quire.testing.node import SimulatedNode

from .node import OK, Node, one, retire


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    started = await Node.on(SimulatedNode(seed=5))
    yield started
    await started.storage.stop()


@pytest.fixture
async def store() -> MemoryStore:
    return MemoryStore(session_timeout_ms=100)


@pytest.fixture
async def registration(node: Node, store: MemoryStore) -> AsyncIterator[Registration]:
    made = Registration(store, node.storage, "127.0.0.1:3181")
    await made.start()
    yield made
    await made.stop()


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def seen(store: MemoryStore, node: Node) -> BookieRecord | None:
    if node.id.uuid not in await store.children(paths.BOOKIES_AVAILABLE):
        return None
    path = paths.bookie_available(node.id.uuid)
    return decode(BookieRecord, (await store.get(path)).value, path)


async def want(store: MemoryStore, node: Node, intent: BookieIntent) -> None:
    path = paths.bookie(node.id.uuid)
    record = decode(BookieRecord, (await store.get(path)).value, path)
    await store.put(path, encode(replace(record, intent=intent)), -1)


async def test_others_see_which_version_it_is(
    node: Node, store: MemoryStore, registration: Registration
) -> None:
    record = await seen(store, node)
    assert record is not None and record.version == __version__


async def test_a_lost_session_registers_again(
    node: Node, store: MemoryStore, registration: Registration
) -> None:
    other = store.join()
    store.expire()
    await until(lambda: seen(other, node))


async def test_a_record_that_somebody_removed_comes_back(
    node: Node, store: MemoryStore, registration: Registration
) -> None:
    """Also the bookie itself: what it deletes to register again may be carried out late."""
    await store.delete(paths.bookie_available(node.id.uuid))
    await until(lambda: seen(store, node))


@pytest.mark.parametrize("happened", [True, False])
async def test_a_change_in_doubt_is_told_again(
    node: Node, store: MemoryStore, registration: Registration, happened: bool
) -> None:
    """The bookie is read-only for a moment, the store does not answer to that, and all is as before: but not there."""
    store.fail_next(OutcomeUnknown("no answer"), happened=happened)
    node.storage.health.set_read_only(True)
    with pytest.raises(OutcomeUnknown):
        await registration._renew()
    node.storage.health.set_read_only(False)
    await registration._renew()
    record = await seen(store, node)
    assert record is not None and not record.read_only


async def test_a_bookie_that_is_drained_turns_read_only_and_says_so_and_back(
    node: Node, store: MemoryStore, registration: Registration
) -> None:
    for intent in (BookieIntent.DRAIN, BookieIntent.STAY):
        await want(store, node, intent)

        async def told(intent: BookieIntent = intent) -> bool:
            record = await seen(store, node)
            return record is not None and record.intent is intent

        await until(told)
        record = await seen(store, node)
        assert record is not None and record.read_only == (intent is BookieIntent.DRAIN)
        assert node.storage.health.is_read_only == (intent is BookieIntent.DRAIN)


async def test_a_restart_remembers_the_drain_and_forgets_that_it_was_given_up(
    node: Node, store: MemoryStore
) -> None:
    first = Registration(store, node.storage, "127.0.0.1:3181")
    await first.start()
    await first.stop()
    for intent, kept in ((BookieIntent.DRAIN, BookieIntent.DRAIN), (BookieIntent.GIVE_UP, BookieIntent.STAY)):
        await want(store, node, intent)
        again = Registration(store, node.storage, "127.0.0.1:3181")
        await again.start()
        path = paths.bookie(node.id.uuid)
        assert decode(BookieRecord, (await store.get(path)).value, path).intent is kept
        await again.stop()


async def test_a_restart_tells_repair_what_the_bookie_is_now(node: Node, store: MemoryStore) -> None:
    """Else one that was given up and came back would count as given up when it goes the next time."""
    first = Registration(store, node.storage, "127.0.0.1:3181")
    await first.start()
    await first.stop()
    await want(store, node, BookieIntent.GIVE_UP)
    path, news = paths.bookie(node.id.uuid), asyncio.Event()
    other = store.join()
    other.watch(paths.UNDERREPLICATED, lambda _: news.set())
    await asyncio.sleep(0)
    assert not news.is_set()
    again = Registration(store, node.storage, "127.0.0.1:3181")
    await again.start()
    async with asyncio.timeout(60):
        await news.wait()
    assert decode(BookieRecord, (await other.get(path)).value, path).intent is BookieIntent.STAY
    await again.stop()


async def test_a_retired_bookie_goes_out_of_sight_and_stays_there(
    node: Node, store: MemoryStore, registration: Registration
) -> None:
    await retire(store, node.id.uuid)

    async def retired() -> bool:
        return registration.is_retired

    await until(retired)
    assert await seen(store, node) is None
    assert node.storage.health.is_read_only
    assert await store.children(paths.BOOKIES) == []


@pytest.mark.parametrize("drains", [False, True])
@pytest.mark.parametrize("comes_back", ["empty", "as another cluster's", "without the bookie"])
async def test_a_store_that_comes_back_wrong_is_no_retirement(
    node: Node, store: MemoryStore, comes_back: str, drains: bool, caplog: pytest.LogCaptureFixture
) -> None:
    record = await begin_cluster(store, 1)
    registration = Registration(store, node.storage, "127.0.0.1:3181", cluster=record.uuid)
    await registration.start()
    if drains:
        registration.leave()
    rows = store._shared.tree._rows.copy()
    await store.delete(paths.bookie(node.id.uuid))
    if comes_back != "without the bookie":
        await store.delete(paths.CLUSTER)
    if comes_back == "as another cluster's":
        await begin_cluster(store, 1)
    store.expire()

    async def noticed() -> bool:
        return "cannot update the registration" in caplog.text

    await until(noticed)
    assert not registration.is_retired and node.storage.health.is_read_only is drains
    store._shared.tree = Tree(rows)  # the right one is back
    registration._on_identity("")

    async def seen_again() -> bool:
        return await seen(store, node) is not None

    await until(seen_again)
    await registration.stop()


async def test_a_bookie_that_runs_while_its_metadata_are_rebuilt_is_registered(
    node: Node, store: MemoryStore
) -> None:
    record = await begin_cluster(store, 1)
    registration = Registration(store, node.storage, "127.0.0.1:3181", cluster=record.uuid)
    await registration.start()
    await store.delete(paths.bookie(node.id.uuid))
    await store.put(paths.CLUSTER, encode(replace(record, rescue_begun_ms=1)), ANY_VERSION)
    store.expire()

    async def known() -> bool:
        return bool(await store.children(paths.BOOKIES)) and await seen(store, node) is not None

    await until(known)
    assert not registration.is_retired
    await registration.stop()


async def test_one_that_is_retired_while_it_registers_hears_of_it(
    node: Node, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its former process drained, and the coordinator went by what that had left behind. Nobody repairs for it now."""
    made = Registration(store, node.storage, "127.0.0.1:3181")
    tell = made._available.tell

    async def tell_and_be_retired(record: BookieRecord) -> None:
        await tell(record)
        await retire(store, node.id.uuid)

    monkeypatch.setattr(made._available, "tell", tell_and_be_retired)
    await made.start()

    async def retired() -> bool:
        return made.is_retired

    await until(retired)
    assert await seen(store, node) is None and node.storage.health.is_read_only
    await made.stop()


async def test_an_address_that_another_holds_is_refused_one_that_it_left_is_waited_for(
    node: Node, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.bookie.registration._ADDRESS_GRACE_S", 0.1)
    other = store.join()
    record = BookieRecord(uuid="other", incarnation=1, address="127.0.0.1:3181")
    await other.create(paths.bookie_available("other"), encode(record), ephemeral=True)
    registration = Registration(store, node.storage, "127.0.0.1:3181")
    with pytest.raises(ConfigurationError, match="running bookie other already advertises"):
        await registration.start()
    assert await store.children(paths.BOOKIES) == []
    starting = asyncio.create_task(registration.start())
    await asyncio.sleep(0)
    other.expire()
    await starting
    assert await seen(store, node)
    await registration.stop()


async def test_a_start_that_cost_the_session_waits_for_a_new_one(node: Node, store: MemoryStore) -> None:
    """A long replay holds the loop, and the session ends meanwhile: that is no reason to do it all again."""
    store.suspend()
    asyncio.get_running_loop().call_later(0.05, store.resume)
    registration = Registration(store, node.storage, "127.0.0.1:3181")
    await registration.start()
    assert await seen(store, node)
    await registration.stop()


async def test_a_store_that_does_not_come_back_ends_the_start(
    node: Node, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.bookie.registration._ADDRESS_GRACE_S", 0.1)
    store.suspend()
    with pytest.raises(Unavailable):
        await Registration(store, node.storage, "127.0.0.1:3181").start()


async def test_ledgers_that_the_store_does_not_know_of_are_refused(node: Node, store: MemoryStore) -> None:
    assert await node.add(one(1, 0)) == [OK]
    with pytest.raises(ConfigurationError, match="names another store or chroot"):
        await Registration(store, node.storage, "127.0.0.1:3181").start()
    assert await store.children(paths.BOOKIES_AVAILABLE) == []


async def test_ledgers_that_a_store_is_being_rebuilt_from_are_welcome(node: Node, store: MemoryStore) -> None:
    assert await node.add(one(1, 0)) == [OK]
    await store.create(paths.CLUSTER, encode(ClusterRecord(uuid="c", rescue_begun_ms=5)))
    with pytest.raises(ConfigurationError, match="names another store or chroot"):
        await Registration(store, node.storage, "127.0.0.1:3181", cluster="another").start()
    registration = Registration(store, node.storage, "127.0.0.1:3181", cluster="c")
    await registration.start()
    assert await seen(store, node) is not None and await store.children(paths.BOOKIES) == [node.id.uuid]
    await registration.stop()
