"""A lease on a real ZooKeeper: whoever is cut off knows that it lost the lease before another one has it."""

from __future__ import annotations

import asyncio

from quire.metadata.lease import Lease, LeaseState
from quire.runtime.clock import SystemClock
from tests.cluster.zookeeper import ZooKeeper
from tests.zookeeper.test_store import PATIENCE_S, Told, behind_proxy, opened, patiently


async def test_a_holder_that_is_cut_off_gives_up_before_another_has_the_lease(zookeeper: ZooKeeper) -> None:
    async with behind_proxy(zookeeper) as (proxy, store, other):
        told: list[LeaseState] = []
        holder = Lease(store, "/lease", b"holder", SystemClock(), told.append)
        waiter = Lease(other, "/lease", b"waiter", SystemClock())
        await holder.acquire()
        acquired = asyncio.create_task(waiter.acquire())

        proxy.lose_answers = proxy.lose_requests = True  # the connection stands, and nothing comes through
        await asyncio.wait_for(acquired, PATIENCE_S)
        assert holder.state is LeaseState.LOST
        assert told == [LeaseState.HELD, LeaseState.IN_DOUBT, LeaseState.LOST]
        assert waiter.state is LeaseState.HELD

        session = Told(store)
        proxy.cut()
        assert not await patiently(store, holder.try_acquire)
        assert session.is_silent, "the loss was told already"
        await waiter.release()
        await asyncio.wait_for(holder.acquire(), PATIENCE_S)
        assert holder.state is LeaseState.HELD
        await holder.release()


async def test_a_clean_stop_hands_the_lease_over_at_once(zookeeper: ZooKeeper) -> None:
    url = zookeeper.fresh_url(session_timeout="60s")
    async with opened(url) as one, opened(url) as two:
        first = Lease(one, "/lease", b"1", SystemClock())
        second = Lease(two, "/lease", b"2", SystemClock())
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await first.release()
        await asyncio.wait_for(waiting, PATIENCE_S)
        assert second.state is LeaseState.HELD
        third = Lease(one, "/lease", b"3", SystemClock())
        waiting = asyncio.create_task(third.acquire())
        await two.close()
        await asyncio.wait_for(waiting, PATIENCE_S)
        assert third.state is LeaseState.HELD
