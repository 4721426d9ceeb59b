"""A process whose loop stands loses its session, though kazoo's thread would keep it alive."""

from __future__ import annotations

import asyncio
import threading

from quire.metadata.lease import Lease, LeaseState
from quire.metadata.open import end_session_when_standing
from quire.metadata.store import SessionEvent
from quire.runtime.clock import SystemClock
from quire.runtime.watchdog import Watchdog
from tests.cluster.zookeeper import ZooKeeper
from tests.zookeeper.test_store import PATIENCE_S, opened, patiently


async def test_what_a_standing_process_holds_goes_to_another_one(zookeeper: ZooKeeper) -> None:
    url = zookeeper.fresh_url(session_timeout="4s")
    holds, may_turn, heard = threading.Event(), threading.Event(), list[object]()

    async def standing() -> None:
        watchdog = Watchdog()
        watchdog.start()
        async with opened(url) as store:
            end_session_when_standing(store, watchdog)
            store.on_session(heard.append)
            lease = Lease(store, "/lease", b"standing", SystemClock())
            await lease.acquire()
            asyncio.get_running_loop().call_soon(stand)
            await asyncio.sleep(0)
            # It turns again: it may ask nothing, and hears of its loss, before it has a session anew.
            assert await patiently(store, lease.try_acquire) is False
            heard.append(lease.state)
            await lease.release()
        watchdog.stop()

    def stand() -> None:
        holds.set()
        assert may_turn.wait(PATIENCE_S)

    thread = threading.Thread(target=lambda: asyncio.run(standing()), daemon=True)
    thread.start()
    assert await asyncio.to_thread(holds.wait, PATIENCE_S)
    async with opened(url) as store:
        lease = Lease(store, "/lease", b"other", SystemClock())
        await asyncio.wait_for(lease.acquire(), PATIENCE_S)
        may_turn.set()
        await asyncio.to_thread(thread.join, PATIENCE_S)
        assert not thread.is_alive()
        assert lease.state is LeaseState.HELD
        await lease.release()
    assert heard == [SessionEvent.LOST, LeaseState.LOST]


async def test_a_process_that_turns_again_soon_keeps_its_session(zookeeper: ZooKeeper) -> None:
    url = zookeeper.fresh_url(session_timeout="40s")
    watchdog, stood = Watchdog(), threading.Event()
    watchdog.when_standing(lambda: 0.5, stood.set)
    watchdog.start()
    async with opened(url) as store:
        end_session_when_standing(store, watchdog)
        lease = Lease(store, "/lease", b"standing", SystemClock())
        await lease.acquire()
        assert stood.wait(PATIENCE_S)
        await store.get("/lease")
        assert lease.state is LeaseState.HELD
        await lease.release()
    watchdog.stop()
