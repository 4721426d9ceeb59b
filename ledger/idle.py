"""Explicit LAC: a writer that becomes idle sends the last confirmed entry (LAC) to its bookies, once.

A block contains the LAC as of its creation, so the bookies do not know yet that a ledger's last blocks are confirmed.
Without an explicit LAC (BookKeeper's
[ExplicitLacUpdateFlow](https://github.com/apache/bookkeeper/blob/master/bookkeeper-server/src/main/java/org/apache/bookkeeper/client/ExplicitLacUpdateFlow.java)),
a recovery has to read these blocks one by one, and readers in other processes do not see them.

So a topic with rare messages causes two writes per message: the block, and the LAC half a second later. This is rule 7;
the cost is small. If a ledger gets another block within `idle_lac_ms`, its writer sends no explicit LAC. Writers that
became idle in the same tick send together, so a bookie journals their LACs as one group with one fdatasync. Many LACs
are sent in portions, because a thousand at once would delay other publishers by about 12 ms (`bench/many_clients.py`).

One timer serves all writers of a process. A *young* writer has confirmed a block in the current interval of the timer.
It is recorded once per interval, so only its first confirmation in an interval costs a dict entry.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final, Protocol

from quire.runtime.errors import QuireError
from quire.runtime.tasks import Tasks

PORTION: Final = 32
PORTION_INTERVAL_S: Final = 0.025
"""Delay between two portions of explicit LACs, so that ten thousand idle writers do not cause a burst."""


class Idler(Protocol):
    """Interface through which this module calls a writer."""

    is_young: bool
    """True if the writer has confirmed a block in the current interval."""

    @property
    def error(self) -> QuireError | None:
        """Error that ended the writer, if any."""
        ...

    async def write_lac(self) -> None: ...


class IdleLacs:
    """Writers that confirmed blocks in the current and the last interval; those only in the last one are idle."""

    def __init__(self, tasks: Tasks, interval_ms: int) -> None:
        self._tasks = tasks
        self._interval = interval_ms / 1000
        self._young: dict[Idler, None] = {}
        self._old: dict[Idler, None] = {}
        self._silent: dict[Idler, None] = {}
        """Idle writers that have not sent their LAC, in the order in which they became idle."""
        self._timer: asyncio.TimerHandle | None = None
        self._portion_timer: asyncio.TimerHandle | None = None
        """Timer of the next portion; set while idle writers wait to send their LAC."""

    def touch(self, writer: Idler) -> None:
        """Record that a writer confirmed a block."""
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
        self._tasks.start(self._write_lacs(portion), "explicit LACs")
        if self._silent:
            self._portion_timer = asyncio.get_running_loop().call_later(
                PORTION_INTERVAL_S, self._send_portion
            )

    async def _write_lacs(self, writers: list[Idler]) -> None:
        writes = [writer.write_lac() for writer in writers if writer.error is None]
        await asyncio.gather(*writes, return_exceptions=True)
