"""One holder at a time, who knows by its own clock when it no longer is."""

from __future__ import annotations

import asyncio

import pytest

from quire.metadata.lease import Lease, LeaseCore, LeaseState
from quire.metadata.store import SessionEvent
from quire.runtime.clock import ManualClock
from quire.runtime.errors import OutcomeUnknown
from quire.testing.metadata import MemoryStore

HELD, IN_DOUBT, LOST, FREE = LeaseState.HELD, LeaseState.IN_DOUBT, LeaseState.LOST, LeaseState.FREE
SUSPENDED, RESUMED, GONE = SessionEvent.SUSPENDED, SessionEvent.RESUMED, SessionEvent.LOST


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], HELD),
        ([(0, SUSPENDED)], IN_DOUBT),
        ([(0, SUSPENDED), (9, RESUMED)], HELD),
        ([(0, SUSPENDED), (10, RESUMED)], LOST),
        ([(0, SUSPENDED), (5, SUSPENDED), (10, None)], LOST),
        ([(0, SUSPENDED), (9, RESUMED), (15, SUSPENDED), (24, None)], IN_DOUBT),
        ([(0, GONE), (1, RESUMED)], LOST),
        ([(0, SUSPENDED), (1, GONE)], LOST),
    ],
)
def test_the_table(events: list[tuple[float, SessionEvent | None]], expected: LeaseState) -> None:
    core = LeaseCore(session_timeout_s=10)
    core.made()
    now = 0.0
    for now, event in events:
        if event is not None:
            core.session(event, now)
    assert core.state(now) is expected


def test_a_lease_never_held_is_never_lost() -> None:
    core = LeaseCore(10)
    core.session(SUSPENDED, 0)
    core.session(GONE, 1)
    core.gone()
    assert core.state(100) is FREE


async def test_two_holders_one_lease() -> None:
    store = MemoryStore()
    clock = ManualClock()
    mine = Lease(store, "/owner", b"mine", clock)
    yours = Lease(store.join(), "/owner", b"yours", clock)
    assert await mine.try_acquire()
    assert not await yours.try_acquire()
    waiting = asyncio.create_task(yours.acquire())
    await asyncio.sleep(0)
    assert not waiting.done()
    await mine.release()
    await asyncio.wait_for(waiting, 5)
    assert (mine.state, yours.state) == (FREE, HELD)
    assert (await store.get("/owner")).value == b"yours"


async def test_a_time_out_whose_node_was_made_is_held() -> None:
    store = MemoryStore()
    lease = Lease(store, "/owner", b"mine", ManualClock())
    store.fail_next(OutcomeUnknown("time-out"), happened=True)
    assert await lease.try_acquire()
    assert lease.state is HELD


async def test_a_time_out_whose_node_was_not_made_is_tried_again() -> None:
    """Nobody holds it, so no change of the node would ever wake who waits for one."""
    store = MemoryStore()
    lease = Lease(store, "/owner", b"mine", ManualClock())
    store.fail_next(OutcomeUnknown("time-out"), happened=False)
    await asyncio.wait_for(lease.acquire(), 5)
    assert lease.state is HELD


async def test_the_session_ends_and_another_takes_it() -> None:
    store = MemoryStore()
    states: list[LeaseState] = []
    mine = Lease(store, "/owner", b"mine", ManualClock(), states.append)
    yours = Lease(store.join(), "/owner", b"yours", ManualClock())
    await mine.acquire()
    waiting = asyncio.create_task(yours.acquire())
    await asyncio.sleep(0)
    store.expire()
    await asyncio.wait_for(waiting, 5)
    assert (mine.state, yours.state) == (LOST, HELD)
    assert states == [HELD, LOST]


async def test_doubt_ends_by_the_holders_own_clock_without_a_word_from_the_store() -> None:
    store = MemoryStore(session_timeout_ms=50)
    clock = ManualClock()
    told = asyncio.Event()
    states: list[LeaseState] = []

    def changed(state: LeaseState) -> None:
        states.append(state)
        if state is LOST:
            told.set()

    lease = Lease(store, "/owner", b"mine", clock, changed)
    await lease.acquire()
    store.suspend()
    await asyncio.sleep(0)
    assert lease.state is IN_DOUBT
    clock.advance_ms(50)
    assert lease.state is LOST
    await asyncio.wait_for(told.wait(), 5)
    assert states == [HELD, IN_DOUBT, LOST]


async def test_a_node_taken_away_is_a_lease_lost() -> None:
    store = MemoryStore()
    lost = asyncio.Event()
    lease = Lease(
        store, "/owner", b"mine", ManualClock(), lambda state: lost.set() if state is LOST else None
    )
    await lease.acquire()
    await store.delete("/owner")
    await asyncio.wait_for(lost.wait(), 5)
    assert await lease.try_acquire()
    assert lease.state is HELD
