"""The fair semaphore and its waiting queue: order, weights, full queues, and callers that are cancelled."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from quire.runtime.errors import Unavailable
from quire.runtime.semaphore import FairSemaphore
from quire.runtime.waiting import UNBOUNDED, WaitingQueue

NEAR, FAR = "/10.0.0.1:1", "/10.1.0.1:1"


async def test_callers_are_served_in_order_and_a_small_one_does_not_overtake() -> None:
    semaphore = FairSemaphore(10)
    assert semaphore.try_take(8)
    order: list[int] = []

    async def take(count: int) -> None:
        await semaphore.take(count)
        order.append(count)

    tasks = [asyncio.ensure_future(take(count)) for count in (9, 1, 3)]
    await asyncio.sleep(0)
    assert semaphore.has_waiters and not semaphore.try_take(1), "it would overtake"
    semaphore.give_back(8)
    await asyncio.sleep(0)
    assert order == [9, 1] and semaphore.used == 10
    semaphore.give_back(9)
    await asyncio.gather(*tasks)
    assert order == [9, 1, 3] and semaphore.used == 4 and not semaphore.has_waiters


async def test_addresses_take_turns() -> None:
    semaphore, order = FairSemaphore(1), list[str]()

    async def take(address: str, name: str) -> None:
        await semaphore.take(1, address)
        order.append(name)
        semaphore.give_back()

    assert semaphore.try_take()
    tasks = [take(NEAR, "near 1"), take(NEAR, "near 2"), take(NEAR, "near 3"), take(FAR, "far")]
    started = [asyncio.ensure_future(task) for task in tasks]
    await asyncio.sleep(0)
    semaphore.give_back()
    await asyncio.gather(*started)
    assert order == ["near 1", "far", "near 2", "near 3"]


async def test_a_full_queue_drops_a_caller_of_the_longest_line() -> None:
    semaphore = FairSemaphore(1, waiting_max=2, busy="too many; try again")
    assert semaphore.try_take()
    flood = [asyncio.ensure_future(semaphore.take(1, NEAR)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="too many; try again"):
        await flood[2]
    far = asyncio.ensure_future(semaphore.take(1, FAR))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await flood[1]
    semaphore.give_back()
    await flood[0]
    semaphore.give_back()
    await far
    assert semaphore.used == 1


@pytest.mark.parametrize("first", ["grant", "cancel"])
async def test_a_caller_cancelled_in_the_moment_of_its_grant_holds_nothing(first: str) -> None:
    semaphore = FairSemaphore(1)
    assert semaphore.try_take()
    cancelled = asyncio.ensure_future(semaphore.take())
    after = asyncio.ensure_future(semaphore.take())
    await asyncio.sleep(0)
    if first == "grant":
        semaphore.give_back()
        cancelled.cancel()
    else:
        cancelled.cancel()
        semaphore.give_back()
    await asyncio.wait_for(after, 30)
    assert cancelled.cancelled() and semaphore.used == 1


async def test_a_caller_that_is_cancelled_makes_way_for_smaller_ones() -> None:
    semaphore = FairSemaphore(10)
    assert semaphore.try_take(5)
    large = asyncio.ensure_future(semaphore.take(10))
    small = asyncio.ensure_future(semaphore.take(5))
    await asyncio.sleep(0)
    large.cancel()
    await asyncio.wait_for(small, 30)
    assert semaphore.used == 10


async def test_a_caller_dropped_and_cancelled_in_one_moment_holds_nothing() -> None:
    semaphore = FairSemaphore(1, waiting_max=2)
    assert semaphore.try_take()
    near, dropped = (asyncio.ensure_future(semaphore.take(1, NEAR)) for _ in range(2))
    await asyncio.sleep(0)
    far = asyncio.ensure_future(semaphore.take(1, FAR))
    asyncio.get_running_loop().call_soon(dropped.cancel)
    await asyncio.wait([dropped])
    assert dropped.cancelled() and semaphore.used == 1
    for waiting in (near, far):
        semaphore.give_back()
        await waiting
    assert semaphore.used == 1 and not semaphore.has_waiters


@pytest.mark.parametrize("seed", range(20))
async def test_no_grant_is_lost_or_kept_whoever_is_cancelled(seed: int) -> None:
    rng = Random(seed)
    semaphore = FairSemaphore(8, waiting_max=rng.choice([3, UNBOUNDED]), busy="busy")
    held = 0

    async def work(count: int, address: str) -> None:
        nonlocal held
        await semaphore.take(count, address)
        held += count
        try:
            assert held <= 8
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
        finally:
            held -= count
            semaphore.give_back(count)

    tasks: list[asyncio.Task[None]] = []
    for _ in range(200):
        tasks.append(asyncio.create_task(work(rng.randint(1, 8), rng.choice(["", NEAR, FAR]))))
        if rng.random() < 0.5:
            await asyncio.sleep(0)
        if rng.random() < 0.5:
            rng.choice(tasks).cancel()
    ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
    unexpected = [one for one in ended if not isinstance(one, Unavailable | asyncio.CancelledError | None)]
    assert not unexpected and None in ended
    assert semaphore.used == held == 0 and not semaphore.has_waiters


def test_a_caller_that_fails_stops_no_caller_after_it(caplog: pytest.LogCaptureFixture) -> None:
    queue, resumed = WaitingQueue(UNBOUNDED), list[str]()

    def fail() -> None:
        raise ZeroDivisionError

    queue.join(fail)
    queue.join(lambda: resumed.append("next"))
    removed = queue.join(lambda: resumed.append("removed"))
    queue.remove(removed)
    queue.serve(lambda _: True)
    assert resumed == ["next"] and not queue and "callback of a caller that waited" in caplog.text


def test_a_caller_that_joins_while_it_is_resumed_is_last() -> None:
    queue, resumed = WaitingQueue(UNBOUNDED), list[str]()

    def again() -> None:
        resumed.append("first")
        queue.join(lambda: resumed.append("first again"))

    queue.join(again)
    queue.join(lambda: resumed.append("second"))
    queue.serve(lambda _: len(resumed) < 2)
    assert resumed == ["first", "second"] and len(queue) == 1
