"""Fair executor of slow work: queues of addresses, and callers that give up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable

import pytest

from quire.runtime.errors import Unavailable
from quire.security import fair_executor
from quire.security.fair_executor import FairExecutor


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
                assert self._at_once <= fair_executor.AT_ONCE_MAX
            assert self.gates[name].wait(60)
            with self._lock:
                self._at_once -= 1
            return name

        return work

    def open(self, *names: str) -> None:
        for name in names:
            self.gates[name].set()


async def test_queues_alternate() -> None:
    addresses = [*(f"/1.1.1.1:{n}" for n in range(5)), "/2.2.2.2:0", "/3.3.3.3:0"]
    work, lines = Work(addresses), FairExecutor("words")
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
    work, lines = Work(names), FairExecutor("words")
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


async def test_a_flood_from_one_site_keeps_no_other_address_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_executor, "WAITING_MAX", 20)
    flood = [f"/2001:db8:0:{n:x}::1:1" for n in range(40)]
    work, lines = Work([*flood, "/192.0.2.1:5"]), FairExecutor("words are being looked at")
    started = [asyncio.ensure_future(lines.run(name, work.of(name))) for name in flood]
    await asyncio.sleep(0)
    honest = asyncio.ensure_future(lines.run("/192.0.2.1:5", work.of("/192.0.2.1:5")))
    work.open(*flood, "/192.0.2.1:5")
    assert await asyncio.wait_for(honest, 30) == "/192.0.2.1:5"
    ended = await asyncio.gather(*started, return_exceptions=True)
    assert sum(isinstance(one, Unavailable) for one in ended) == 40 - 2 - 20 + 1
    assert await lines.run(flood[0], work.of(flood[0])) == flood[0]


async def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_executor, "WAITING_MAX", 2)
    names = [f"/1.1.{n}.1:1" for n in range(5)]
    work, lines = Work(names), FairExecutor("words are being looked at")
    started = [asyncio.ensure_future(lines.run(name, work.of(name))) for name in names]
    await asyncio.sleep(0)
    work.open(*names)
    *taken, last = await asyncio.gather(*started, return_exceptions=True)
    assert taken == names[:4] and isinstance(last, Unavailable)
    assert await lines.run(names[4], work.of(names[4])) == names[4]
