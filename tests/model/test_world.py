"""The model's bookies do what bookies do: random walks, mirrored on bookies that pass the contract tests."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from quire.testing.bookie import MemoryBookie
from quire.wire.bookie import AddRequest, ReadRequest, Status
from tests.model.machines import BOOKIES, LEDGER, one_entry
from tests.model.world import Bounds, Label, State, World

WALKS = 60
MOVES_MAX = 60
BOUNDS = Bounds(bookies=4, entries=3, recoveries=2, timeouts=2)


class Mirror:
    """Bookies in memory to which happens what happens in the model; their answers must be the same."""

    def __init__(self) -> None:
        self.bookies = [MemoryBookie(bookie, deliver=lambda answer: answer()) for bookie in BOOKIES[:4]]
        self.compared = {"block": 0, "read": 0, "writes again": 0}

    async def follow(self, label: Label, before: State) -> None:
        match label:
            case ("block", entry, bookie, _, _, status):
                assert self._add(before, bookie, entry, recovery=False) is status
            case ("writes again", _, entry, bookie, status):
                assert self._add(before, bookie, entry, recovery=True) is status
            case ("read", _, bookie, entry, status, lac):
                request = ReadRequest(BOOKIES[bookie], LEDGER, entry, 1 << 20, fence=True)
                answer = await self.bookies[bookie].ask(request)
                assert (answer.status, answer.lac) == (status, lac)
            case _:
                return
        self.compared[label[0]] += 1

    def _add(self, before: State, bookie: int, entry: int, *, recovery: bool) -> Status:
        answers: list[Status] = []
        found = one_entry(entry, before.lacs[entry])
        self.bookies[bookie].add(AddRequest(BOOKIES[bookie], [found], recovery), answers.extend)
        return answers[0]

    def is_like(self, state: State) -> bool:
        for number, bookie in enumerate(self.bookies):
            ledger = bookie.ledgers.get(LEDGER)
            stored = sum(1 << entry for entry in ledger.blocks) if ledger else 0
            if stored != state.stored[number] or bool(ledger and ledger.is_fenced) != bool(
                state.fenced >> number & 1
            ):
                return False
        return True


async def walk(seed: int) -> Mirror:
    rng, world, mirror = Random(seed), World(BOUNDS), Mirror()
    state = world.first()
    for _ in range(MOVES_MAX):
        moves = list(world.moves(state))
        if not moves:
            break
        label, after = rng.choice(moves)
        await mirror.follow(label, state)
        assert mirror.is_like(after), f"seed {seed}: {label}"
        state = after
    return mirror


def test_its_bookies_answer_as_bookies_do() -> None:
    compared = dict.fromkeys(("block", "read", "writes again"), 0)
    for seed in range(WALKS):
        for kind, count in asyncio.run(walk(seed)).compared.items():
            compared[kind] += count
    assert all(count > WALKS for count in compared.values()), compared


def test_a_bookie_that_forgets_its_fence_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "_serve", lambda world, state, *_: (state, Status.NO_SUCH_ENTRY, -1, ()))
    with pytest.raises(AssertionError):
        for seed in range(WALKS):
            asyncio.run(walk(seed))
