"""Slices: one a turn of the loop, in the order of asking, over all who ask; others have turns in between."""

from __future__ import annotations

import asyncio

from quire.runtime.slices import Slices


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
    async with asyncio.timeout(10):
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
    async with asyncio.timeout(10):
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
