"""Slices: one a turn of the loop, in the order of asking, over all who ask; others have turns in between."""

from __future__ import annotations

import asyncio
import time

from quire.runtime.slices import PAUSE_SHARE, TURNS_BETWEEN, Share, Slices


async def test_each_has_a_turn_of_its_own_in_the_order_of_asking() -> None:
    slices, done = Slices(), list[str]()
    turn = 0
    turns: list[int] = []

    def count() -> None:
        nonlocal turn
        turn += 1
        if len(slices):
            asyncio.get_running_loop().call_soon(count)

    def work(name: str, times: int) -> None:
        turns.append(turn)
        done.append(name)
        if times > 1:
            slices.put(lambda: work(name, times - 1))

    slices.put(lambda: work("a", 2))
    slices.put(lambda: work("b", 1))
    waiting = asyncio.ensure_future(slices.turn())
    await asyncio.sleep(0)
    assert len(slices) == 3
    count()
    async with asyncio.timeout(60):
        await waiting
        while len(slices):
            await slices.turn()
    assert done == ["a", "b", "a"]
    assert turns == sorted(set(turns)), "no two in one turn"


async def test_who_gave_up_waiting_keeps_nobody_else_from_his_turn() -> None:
    slices = Slices()
    gone, other = asyncio.ensure_future(slices.turn()), asyncio.ensure_future(slices.turn())
    await asyncio.sleep(0)
    gone.cancel()
    async with asyncio.timeout(60):
        await other


async def test_parts_come_in_turns_of_their_own() -> None:
    slices, turn, seen = Slices(), 0, list[tuple[int, list[int]]]()

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    async for part in slices.parts([1, 2, 3, 4, 5], 2):
        seen.append((turn, list(part)))
    counting.cancel()
    assert [part for _, part in seen] == [[1, 2], [3, 4], [5]]
    assert len({at for at, _ in seen}) == 3 and seen[0][0] == 0, "the first waits for nobody"
    assert [part async for part in slices.parts([], 2)] == []


async def test_the_pause_is_as_long_as_the_slices_are() -> None:
    slices = Slices()
    work_s, ends, begins = 0.02, list[float](), list[float]()

    def work() -> None:
        begins.append(time.monotonic())
        while time.monotonic() < begins[-1] + work_s:
            pass
        ends.append(time.monotonic())

    async def woken() -> None:
        await slices.turn()
        work()

    async with asyncio.timeout(60):
        await asyncio.gather(*(woken() for _ in range(3)))
        slices.put(work)
        while len(begins) < 4:
            await slices.turn()
    assert all(
        begin - end >= 0.9 * PAUSE_SHARE * work_s for end, begin in zip(ends, begins[1:], strict=False)
    )


async def test_who_finds_the_share_spent_goes_on_in_turn_with_turns_in_between() -> None:
    share, done = Share(100), list[tuple[int, str]]()
    loop, turn = asyncio.get_running_loop(), 0

    def count() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(count)

    def work(name: str, times: int) -> None:
        done.append((turn, name))
        share.spend(60)
        if times > 1:
            share.wait(60, lambda: work(name, times - 1))

    count()
    share.spend(60)
    assert not share.is_spent
    share.spend(60)
    assert share.is_spent
    for name in "abc":
        share.wait(60, lambda name=name: work(name, 2))  # type: ignore[misc]
    async with asyncio.timeout(60):
        while len(done) < 6:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert [name for _, name in done] == ["a", "b", "c", "a", "b", "c"]
    turns = [at for at, _ in done]
    assert turns[0] == turns[1] and turns[2] == turns[3] and turns[4] == turns[5], "as many as fit"
    assert all(
        later - former >= TURNS_BETWEEN for former, later in zip(turns[1::2], turns[2::2], strict=False)
    )
