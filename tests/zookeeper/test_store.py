"""The ZooKeeper store on a real server: sessions that break, answers that get lost, watches that must not be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ThrottledOpError

from quire.metadata import zookeeper_connection
from quire.metadata.open import open_store
from quire.metadata.store import Create, MetadataStore, Put, SessionEvent
from quire.metadata.zookeeper import NODE_BYTES_MAX, ZooKeeperStore
from quire.runtime.errors import (
    AlreadyExists,
    ConfigurationError,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    VersionConflict,
)
from tests.cluster.zookeeper import ZooKeeper, own_zookeeper
from tests.zookeeper.proxy import Proxy

SUSPENDED, RESUMED, LOST = SessionEvent.SUSPENDED, SessionEvent.RESUMED, SessionEvent.LOST
PATIENCE_S = 40.0


class Told:
    """What a store told, in order; `next` waits for the next thing."""

    def __init__(self, store: MetadataStore) -> None:
        self._events: asyncio.Queue[SessionEvent] = asyncio.Queue()
        store.on_session(self._events.put_nowait)

    async def next(self) -> SessionEvent:
        return await asyncio.wait_for(self._events.get(), PATIENCE_S)

    @property
    def is_silent(self) -> bool:
        return self._events.empty()


class Heard:
    """A watch on `path` that a test waits for."""

    def __init__(self, store: MetadataStore, path: str) -> None:
        self._event = asyncio.Event()
        self.cancel = store.watch(path, lambda _: self._event.set())

    async def again(self) -> None:
        await asyncio.wait_for(self._event.wait(), PATIENCE_S)
        self._event.clear()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[ZooKeeperStore]:
    store = await ZooKeeperStore.open(url)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def behind_proxy(
    zookeeper: ZooKeeper, session_timeout: str = "3s"
) -> AsyncIterator[tuple[Proxy, ZooKeeperStore, ZooKeeperStore]]:
    """A store behind a proxy, and another one straight to the server, on the same chroot."""
    proxy = Proxy(zookeeper.port)
    await proxy.start()
    straight = zookeeper.fresh_url(session_timeout)
    async with opened(straight) as other:
        async with opened(straight.replace(f":{zookeeper.port}/", f":{proxy.port}/")) as store:
            yield proxy, store, other
        await proxy.stop()


async def in_thread(work: Callable[[], Any]) -> None:
    """Without stopping the loop, whose clock is under test."""
    await asyncio.get_running_loop().run_in_executor(None, work)


async def patiently(store: MetadataStore, what: Callable[[], Awaitable[Any]]) -> Any:
    """Try until the store is there again, of which a watch tells."""
    heard = Heard(store, "/")
    try:
        while True:
            try:
                return await what()
            except Unavailable:
                await heard.again()
    finally:
        heard.cancel()


# -- opening -------------------------------------------------------------------------------------------
async def test_the_granted_session_time_out_counts_not_the_wish(zookeeper: ZooKeeper) -> None:
    async with opened(zookeeper.fresh_url(session_timeout="7s")) as store:
        assert store.session_timeout_ms == 7_000


async def test_chroots_are_made_and_do_not_see_each_other(zookeeper: ZooKeeper) -> None:
    base = zookeeper.fresh_url().partition("?")[0]
    async with opened(f"{base}/a/b") as one, opened(f"{base}/a") as two:
        await one.create("/n", b"x")
        assert await two.children("/") == ["b"]
        assert (await two.get("/b/n")).value == b"x"
        made = await one.create("/s/n-", b"", sequential=True)
        assert made == "/s/n-0000000000"


async def test_what_cannot_be_reached_is_said_in_one_sentence(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no ZooKeeper answered at 127.0.0.1:1 within 0.3 s; start it or"):
        await ZooKeeperStore.open("zk://127.0.0.1:1/q", connect_timeout_s=0.3)
    with pytest.raises(ConfigurationError, match="has an address; correct the metadata URL"):
        await ZooKeeperStore.open("zk://no-such-host.invalid:1/q", connect_timeout_s=0.3)


async def test_a_chroot_that_cannot_be_made_is_a_wrong_configuration(zookeeper: ZooKeeper) -> None:
    base = zookeeper.fresh_url().partition("?")[0]
    async with opened(base) as store:
        await store.create("/up", b"", ephemeral=True)
        with pytest.raises(ConfigurationError, match=r"cannot create the chroot .*/up/q in"):
            await open_store(f"{base}/up/q")


# -- sessions ------------------------------------------------------------------------------------------
async def test_a_server_that_comes_back_in_time_finds_the_session_alive(tmp_path: Path) -> None:
    with own_zookeeper(tmp_path) as server:
        async with opened(server.fresh_url(session_timeout="60s")) as store, opened(server.url) as other:
            told, heard = Told(store), Heard(store, "/up")
            await store.create("/up/me", b"", ephemeral=True)
            await heard.again()
            await in_thread(server.restart)
            assert [await told.next(), await told.next()] == [SUSPENDED, RESUMED]
            await heard.again()  # it may have missed something
            assert (await store.get("/up/me")).ephemeral
            await patiently(other, lambda: other.create("/test-1/up/you", b""))
            await heard.again()
            assert await store.children("/up") == ["me", "you"]
            assert told.is_silent


async def test_a_hanging_server_costs_the_session_in_time_and_a_new_one_begins(tmp_path: Path) -> None:
    with own_zookeeper(tmp_path) as server:
        async with opened(server.fresh_url(session_timeout="2s")) as store:
            told = Told(store)
            await store.create("/up", b"", ephemeral=True)
            heard = Heard(store, "/up")
            last_answer = time.monotonic()
            server.pause()
            unanswered = asyncio.create_task(store.put("/up", b"x", 0))
            assert await told.next() is SUSPENDED
            with pytest.raises(OutcomeUnknown):
                await unanswered
            with pytest.raises(Unavailable):
                await store.get("/up")
            assert await told.next() is LOST
            assert time.monotonic() - last_answer < 3.5
            server.resume()
            await heard.again()
            await patiently(store, lambda: store.create("/up", b"again", ephemeral=True))
            assert (await store.get("/up")).value == b"again"
            assert store.counts.sessions_lost == 1


async def test_a_session_given_up_is_ended_although_the_server_would_have_kept_it(tmp_path: Path) -> None:
    with own_zookeeper(tmp_path) as server:
        async with opened(server.fresh_url(session_timeout="3s")) as store:
            told = Told(store)
            await store.create("/up", b"old", ephemeral=True)
            await in_thread(server.kill)
            assert [await told.next(), await told.next()] == [SUSPENDED, LOST]
            await in_thread(server.start)
            back = time.monotonic()
            await patiently(store, lambda: store.create("/up", b"new", ephemeral=True))
            assert (await store.get("/up")).value == b"new"
            assert time.monotonic() - back < 3.0, "the old session was left to time out"
            assert told.is_silent


async def test_a_session_that_the_server_ended_is_lost_and_a_new_one_begins(zookeeper: ZooKeeper) -> None:
    async with opened(zookeeper.fresh_url(session_timeout="20s")) as store:
        told = Told(store)
        await store.create("/up", b"", ephemeral=True)
        heard = Heard(store, "/up")
        await in_thread(lambda: _end_session(zookeeper, store._connection.client._kazoo.client_id))
        events = [await told.next()]
        if events[0] is SUSPENDED:
            events.append(await told.next())
        assert events[-1] is LOST
        await heard.again()
        with pytest.raises(NotFound):
            await patiently(store, lambda: store.get("/up"))


def _end_session(server: ZooKeeper, session: tuple[int, bytes]) -> None:
    """As the server does after the time-out; here a second client of the same session closes it."""
    thief = KazooClient(hosts=f"127.0.0.1:{server.port}", client_id=session, timeout=20.0)
    thief.start()
    thief.stop()
    thief.close()


async def test_a_busy_client_notices_a_hanging_server_too(tmp_path: Path) -> None:
    """kazoo itself never does: each request it sends puts off its ping."""
    with own_zookeeper(tmp_path) as server:
        async with opened(server.fresh_url(session_timeout="2s")) as store:
            told = Told(store)
            await store.create("/a", b"")
            server.pause()

            asked: list[asyncio.Future[object]] = []
            over = asyncio.Event()

            def ask() -> None:
                if not over.is_set():
                    asked.append(asyncio.ensure_future(store.get("/a")))
                    asyncio.get_running_loop().call_later(0.05, ask)

            ask()
            assert [await told.next(), await told.next()] == [SUSPENDED, LOST]
            over.set()
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
            # the first may have been answered: the signal takes its time
            assert {type(outcome) for outcome in outcomes[1:]} == {Unavailable}
            server.resume()


async def test_a_server_that_accepts_and_says_nothing_does_not_cost_the_session(zookeeper: ZooKeeper) -> None:
    """As one that is just starting. kazoo itself would wait for its answer until the session is over."""
    async with behind_proxy(zookeeper, session_timeout="8s") as (proxy, store, _):
        told = Told(store)
        proxy.cut()
        proxy.lose_requests = True
        assert await told.next() is SUSPENDED
        await asyncio.wait_for(proxy.swallowed.wait(), PATIENCE_S)
        proxy.lose_requests = False  # but the question that was swallowed stays so
        assert await told.next() is RESUMED


# -- lost answers --------------------------------------------------------------------------------------
async def test_a_change_whose_answer_was_lost_has_an_unknown_outcome(zookeeper: ZooKeeper) -> None:
    async with behind_proxy(zookeeper) as (proxy, store, other):
        await store.create("/a", b"")
        heard = Heard(other, "/a")
        await other.get("/a")
        proxy.lose_answers = True
        put = asyncio.create_task(store.put("/a", b"x", 0))
        await heard.again()
        proxy.cut()
        with pytest.raises(OutcomeUnknown):
            await put
        assert (await patiently(store, lambda: store.get("/a"))) == (b"x", 1, False)


async def test_a_read_whose_answer_was_lost_did_not_happen(zookeeper: ZooKeeper) -> None:
    async with behind_proxy(zookeeper) as (proxy, store, _):
        await store.create("/a", b"")
        proxy.lose_answers = True
        get = asyncio.create_task(store.get("/a"))
        await proxy.swallowed.wait()
        proxy.cut()
        with pytest.raises(Unavailable):
            await get


async def test_an_ephemeral_node_is_found_to_be_ours_when_its_answer_was_lost(zookeeper: ZooKeeper) -> None:
    async with behind_proxy(zookeeper) as (proxy, store, other):
        await store.create("/up", b"")
        heard = Heard(other, "/up")
        await other.get("/up")
        proxy.lose_answers = True
        create = asyncio.create_task(store.create("/up/me", b"", ephemeral=True))
        await heard.again()
        proxy.cut()
        assert await create == "/up/me"


async def test_an_ephemeral_node_that_was_not_made_is_known_not_to_be(zookeeper: ZooKeeper) -> None:
    async with behind_proxy(zookeeper) as (proxy, store, other):
        await store.create("/up", b"")
        proxy.lose_requests = True
        create = asyncio.create_task(store.create("/up/me", b"", ephemeral=True))
        await proxy.swallowed.wait()
        proxy.cut()
        with pytest.raises(Unavailable):
            await create
        assert await other.children("/up") == []


async def test_an_ephemeral_node_that_is_anothers_is_known_to_be(zookeeper: ZooKeeper) -> None:
    async with behind_proxy(zookeeper) as (proxy, store, other):
        await other.create("/up/me", b"", ephemeral=True)
        proxy.lose_answers = True
        create = asyncio.create_task(store.create("/up/me", b"", ephemeral=True))
        await proxy.swallowed.wait()
        proxy.cut()
        with pytest.raises(AlreadyExists):
            await create


# -- watches -------------------------------------------------------------------------------------------
async def test_no_change_by_others_escapes_a_watch(zookeeper: ZooKeeper) -> None:
    """The watcher reads whenever it is told; however the changes fall between, it ends with the last one."""
    url = zookeeper.fresh_url()
    async with opened(url) as store, opened(url) as other:
        await other.create("/n", b"0")
        heard = Heard(store, "/n")
        seen = int((await store.get("/n")).value)

        async def change() -> None:
            for number in range(1, 301):
                await other.put("/n", b"%d" % number, number - 1)
                await other.create(f"/n/{number}", b"")

        changing = asyncio.create_task(change())
        while seen < 300 or len(await store.children("/n")) < 300:
            await heard.again()
            now = int((await store.get("/n")).value)
            assert now >= seen
            seen = now
        await changing


async def test_a_change_while_the_connection_was_cut_is_told(zookeeper: ZooKeeper) -> None:
    async with behind_proxy(zookeeper) as (proxy, store, other):
        await store.create("/a", b"")
        heard, told = Heard(store, "/a"), Told(store)
        await store.get("/a")
        proxy.lose_answers = True
        await other.put("/a", b"x", 0)
        await proxy.swallowed.wait()
        proxy.cut()
        assert [await told.next(), await told.next()] == [SUSPENDED, RESUMED]
        await heard.again()
        assert (await store.get("/a")).value == b"x"


async def test_a_watch_made_while_cut_off_is_armed_later(zookeeper: ZooKeeper) -> None:
    async with behind_proxy(zookeeper) as (proxy, store, other):
        told = Told(store)
        proxy.cut()
        assert await told.next() is SUSPENDED
        heard = Heard(store, "/a")
        assert await told.next() is RESUMED
        await heard.again()
        await other.create("/a", b"")
        await heard.again()


async def test_a_watch_that_a_busy_server_did_not_take_is_armed_again(
    zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_connection, "ARM_AGAIN_S", 0.0)
    url = zookeeper.fresh_url()
    async with opened(url) as store, opened(url) as other:
        kazoo = store._connection.client._kazoo
        refusals = ["exists_async", "get_children_async"]
        for name in refusals:
            monkeypatch.setattr(kazoo, name, _throttled(kazoo, name, refusals))
        heard = Heard(store, "/a")
        await heard.again()  # it may have missed something
        assert refusals == []
        await other.create("/a", b"")
        await heard.again()
        await other.create("/a/b", b"")
        await heard.again()


def _throttled(kazoo: KazooClient, name: str, refusals: list[str]) -> Callable[..., Any]:
    """A method of kazoo's that answers once as a server does that throttles."""
    method = getattr(kazoo, name)

    def asked(*arguments: Any) -> Any:
        if name not in refusals:
            return method(*arguments)
        refusals.remove(name)
        answer = kazoo.handler.async_result()
        answer.set_exception(ThrottledOpError())
        return answer

    return asked


# -- parents, limits, throughput -----------------------------------------------------------------------
async def test_sessions_that_make_the_same_parents_at_once_do_not_disturb_each_other(
    zookeeper: ZooKeeper,
) -> None:
    url = zookeeper.fresh_url()
    async with opened(url) as one, opened(url) as two:
        for at in range(20):
            await asyncio.gather(
                *(
                    store.create(f"/r{at}/s/t/{name}", b"")
                    for store, name in ((one, "1"), (two, "2"), (one, "3"))
                ),
                two.transact([Create(f"/r{at}/s/x/4", b""), Create(f"/r{at}/s/x/5", b"")]),
            )
            assert await one.children(f"/r{at}/s/t") == ["1", "2", "3"]
            assert await one.children(f"/r{at}/s/x") == ["4", "5"]


async def test_a_refused_transaction_leaves_no_parents_behind(zookeeper: ZooKeeper) -> None:
    async with opened(zookeeper.fresh_url()) as store:
        await store.create("/a", b"")
        with pytest.raises(VersionConflict):
            await store.transact([Create("/x/y/z", b""), Put("/a", b"", 5)])
        assert await store.children("/") == ["a"]


async def test_a_value_that_zookeeper_would_choke_on_is_refused(zookeeper: ZooKeeper) -> None:
    async with opened(zookeeper.fresh_url()) as store:
        await store.create("/a", bytes(NODE_BYTES_MAX))
        for attempt in (
            store.put("/a", bytes(NODE_BYTES_MAX + 1), 0),
            store.create("/b", bytes(NODE_BYTES_MAX + 1)),
            store.transact([Put("/a", bytes(NODE_BYTES_MAX + 1), 0)]),
        ):
            with pytest.raises(LimitExceeded):
                await attempt
        assert (await store.get("/a")).version == 0


async def test_a_store_that_is_not_to_be_created_leaves_nothing(zookeeper: ZooKeeper) -> None:
    url = zookeeper.fresh_url()
    store = await open_store(url, create=False)
    assert await store.children("/") == []
    with pytest.raises(NotFound):
        await store.get("/cluster")
    await store.close()
    async with opened(zookeeper.url) as root:
        with pytest.raises(NotFound):
            await root.get(urlsplit(url).path)


async def test_a_closed_store_leaves_no_ephemeral_node_and_answers_no_more(zookeeper: ZooKeeper) -> None:
    url = zookeeper.fresh_url()
    async with opened(url) as other:
        store = await open_store(url)
        await store.create("/up", b"", ephemeral=True)
        await store.close()
        await store.close()
        with pytest.raises(NotFound):
            await other.get("/up")
        with pytest.raises(Unavailable):
            await store.get("/up")


async def test_what_is_asked_is_counted(zookeeper: ZooKeeper) -> None:
    async with opened(zookeeper.fresh_url()) as store:
        await store.create("/a", b"")
        await store.put("/a", b"", 0)
        await store.get("/a")
        assert store.counts.metrics() == {
            "quire_metadata_reads_total": 1,
            "quire_metadata_changes_total": 2,
            "quire_metadata_watch_events_total": 0,
            "quire_metadata_sessions_lost_total": 0,
        }
