"""Turns at slow work: lines of addresses, and those who give up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable

import pytest

from quire.runtime.errors import Unavailable
from quire.security import turns
from quire.security.turns import Turns


class Work:
    """What is done, each until its gate is opened."""

    def __init__(self, names: Iterable[str]) -> None:
        self.gates = {name: threading.Event() for name in names}
        self.begun: list[str] = []
        self._at_once = 0
        self._lock = threading.Lock()

    def of(self, name: str) -> Callable[[], str]:
        def work() -> str:
            with self._lock:
                self.begun.append(name)
                self._at_once += 1
                assert self._at_once <= turns.AT_ONCE_MAX
            assert self.gates[name].wait(60)
            with self._lock:
                self._at_once -= 1
            return name

        return work

    def open(self, *names: str) -> None:
        for name in names:
            self.gates[name].set()


async def test_lines_take_turns() -> None:
    addresses = [*(f"/1.1.1.1:{n}" for n in range(5)), "/2.2.2.2:0", "/3.3.3.3:0"]
    work, lines = Work(addresses), Turns("words")
    started = {one: asyncio.ensure_future(lines.run(one, work.of(one))) for one in addresses}
    await asyncio.sleep(0)
    work.open(addresses[0], *addresses[5:])
    work.open(addresses[2])
    for one in (addresses[2], *addresses[5:]):
        assert await asyncio.wait_for(started[one], 30) == one
    assert addresses[4] not in work.begun, "the first one's line has waited for the others"
    work.open(*addresses)
    assert await asyncio.gather(*started.values()) == addresses


async def test_who_gives_up_has_no_turn_and_frees_none_before_its_work_is_over() -> None:
    names = [f"/1.1.1.1:{n}" for n in range(5)]
    work, lines = Work(names), Turns("words")
    started = [asyncio.ensure_future(lines.run(name, work.of(name))) for name in names]
    await asyncio.sleep(0)
    for one in started[:4]:
        one.cancel()
    await asyncio.wait(started[:4])
    assert not started[4].done()
    work.open(names[0], names[4])
    assert await asyncio.wait_for(started[4], 30) == names[4]
    work.open(names[1])
    assert sorted(work.begun) == [names[0], names[1], names[4]]


async def test_there_are_only_so_many_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LINES_MAX", 2)
    names = [f"/1.1.1.{n}:1" for n in range(5)]
    work, lines = Work(names), Turns("words are being looked at")
    started = [asyncio.ensure_future(lines.run(name, work.of(name))) for name in names]
    await asyncio.sleep(0)
    work.open(*names)
    *taken, last = await asyncio.gather(*started, return_exceptions=True)
    assert taken == names[:4] and isinstance(last, Unavailable)
    assert await lines.run(names[4], work.of(names[4])) == names[4]
