"""Writers that fall silent tell their bookies what is confirmed, once.

A block carries the LAC of the moment when it was cut, so the last blocks of a ledger are confirmed and no bookie knows.
Without an explicit LAC a recovery has to look at them one by one, and a reader in another process does not see them.

So a topic with a message now and then writes twice for each: the block, and half a second later its LAC. That is
kept, because rule 7 of recovery rests on it and it is cheap where it matters: a ledger that is written to again within
`idle_lac_ms` sends none, and those that fell silent in a tick leave together, so that a bookie journals them as one
group with one fdatasync, however many topics they are of. Many leave in portions: a thousand at once would hold up
whoever publishes meanwhile by a dozen milliseconds (bench/many_clients.py).

One timer serves all writers of a process. A writer is told when it is young, so that of its confirmations only the
first in each interval is an entry in a dict.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final, Protocol

from quire.runtime.errors import QuireError
from quire.runtime.tasks import Tasks

PORTION: Final = 32
PORTION_INTERVAL_S: Final = 0.025
"""Explicit LACs that leave at once, and how long the next ones wait: ten thousand that fall silent are no burst."""


class Idler(Protocol):
    """What this file knows of a writer."""

    is_young: bool
    """It was touched in this interval: it need not be again."""

    @property
    def error(self) -> QuireError | None:
        """Set when it has ended."""
        ...

    async def tell_lac(self) -> None: ...


class IdleLacs:
    """Two generations of writers that confirmed something: who is in the older and not in the younger is idle."""

    def __init__(self, tasks: Tasks, interval_ms: int) -> None:
        self._tasks = tasks
        self._interval = interval_ms / 1000
        self._young: dict[Idler, None] = {}
        self._old: dict[Idler, None] = {}
        self._silent: dict[Idler, None] = {}
        """In the order in which they fell silent."""
        self._timer: asyncio.TimerHandle | None = None
        self._portion_timer: asyncio.TimerHandle | None = None
        """Set while some of the silent wait for their portion."""

    def touch(self, writer: Idler) -> None:
        """It confirmed something."""
        self._young[writer] = None
        writer.is_young = True
        if self._timer is None:
            self._arm()

    def forget(self, writer: Idler) -> None:
        self._young.pop(writer, None)
        self._old.pop(writer, None)
        self._silent.pop(writer, None)

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)

    def stop(self) -> None:
        for timer in (self._timer, self._portion_timer):
            if timer is not None:
                timer.cancel()

    def _tick(self) -> None:
        self._timer = None
        for writer in self._young:
            writer.is_young = False
        self._silent.update((writer, None) for writer in self._old if writer not in self._young)
        self._old, self._young = self._young, {}
        if self._old:
            self._arm()
        if self._silent and self._portion_timer is None:
            self._send_portion()

    def _send_portion(self) -> None:
        self._portion_timer = None
        portion = list(islice(self._silent, PORTION))
        for writer in portion:
            del self._silent[writer]
        self._tasks.start(self._tell(portion), "explicit LACs")
        if self._silent:
            self._portion_timer = asyncio.get_running_loop().call_later(
                PORTION_INTERVAL_S, self._send_portion
            )

    async def _tell(self, writers: list[Idler]) -> None:
        told = [writer.tell_lac() for writer in writers if writer.error is None]
        await asyncio.gather(*told, return_exceptions=True)
