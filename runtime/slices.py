"""What is too much for one turn of the event loop, done in slices: one slice a turn, over all who have some.

A loop that gave every peer with much to do a slice of each turn would turn slower with each such peer, and everybody
else would wait for all of them. So these wait for one another, in the order of asking, and the others wait for one
slice at most. Whoever asks makes its slice short (a millisecond or two), and asks again for the next one.

Between two slices the loop has `PAUSE_S` for everybody else. A message takes some turns from the socket to the disk and
back, in which the journal's thread needs the interpreter as well: beside slices without a pause it would wait for each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, TypeVar

PAUSE_S: Final = 0.002

T = TypeVar("T")


class Slices:
    """See the top of the file; one for an event loop."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_due = False
        self._last_s = 0.0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def put(self, work: Callable[[], None]) -> None:
        """Do `work` in a later turn, alone among those that were put here. It does not raise."""
        self._waiting.append(work)
        self._expect()

    async def turn(self) -> None:
        """Wait for a turn in which nobody else that waits here has one."""
        come = asyncio.get_running_loop().create_future()
        self.put(lambda: None if come.done() else come.set_result(None))
        await come

    async def parts(self, many: Sequence[T], count: int) -> AsyncIterator[Sequence[T]]:
        """`many` by `count` at a time: the first at once, each further one in a turn of its own."""
        for start in range(0, len(many), count):
            if start:
                await self.turn()
            yield many[start : start + count]

    def _expect(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            loop = asyncio.get_running_loop()
            loop.call_at(self._last_s + PAUSE_S, self._next)

    def _next(self) -> None:
        self._is_due = False
        self._last_s = asyncio.get_running_loop().time()
        work = self._waiting.popleft()
        self._expect()
        work()
