"""What is too much for one turn of the event loop, done in slices: one slice a turn, over all who have some.

A loop that gave every peer with much to do a slice of each turn would turn slower with each such peer, and everybody
else would wait for all of them. So these wait for one another, in the order of asking, and the others wait for one
slice at most. Whoever asks makes its slice short (a millisecond or two), and asks again for the next one.

Between two slices the loop has `PAUSE_S` for everybody else, and `PAUSE_SHARE` times as long as the slice took with
the turn that it was in. A message takes some turns from the socket to the disk and back, in which the journal's thread
needs the interpreter as well: beside slices without a pause it would wait for each. So slices take a quarter of a loop
that has little else to do, and less of a busy one.

A `Share` is for work that comes by itself, such as what is read from sockets: so much of it in one turn, over all. Who
comes when it is spent goes on in a later one, in the order of asking: in every fourth, so that of the turns that a
message takes most are short ones. There is no pause: where nobody else has work, turns without work take microseconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, TypeVar

PAUSE_S: Final = 0.002
PAUSE_SHARE: Final = 3
TURNS_BETWEEN: Final = 4

T = TypeVar("T")


class Slices:
    """One for an event loop."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_due = False
        """The next slice has its time, or one is under way."""
        self._pause_until_s = 0.0

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
            asyncio.get_running_loop().call_at(self._pause_until_s, self._next)

    def _next(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        self._waiting.popleft()()
        # Behind what the work has woken (`turn`), which is what takes the time then.
        loop.call_soon(self._done, began_s)

    def _done(self, began_s: float) -> None:
        now_s = asyncio.get_running_loop().time()
        self._pause_until_s = now_s + max(PAUSE_S, PAUSE_SHARE * (now_s - began_s))
        self._is_due = False
        self._expect()


class Share:
    """One for an event loop and a kind of work."""

    def __init__(self, weight_max: int) -> None:
        """`weight_max`: in one turn of the loop, but for the last piece."""
        self._weight_max = weight_max
        self._weight = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self.is_spent = False
        """In this turn."""
        self._is_due = False
        self._turns_since = 0
        """Those who waited went on."""

    def spend(self, weight: int) -> None:
        """So much was done in this turn."""
        self._weight += weight
        self.is_spent = self._weight >= self._weight_max
        self._expect()

    def wait(self, weight: int, go_on: Callable[[], None]) -> None:
        """Call `go_on` in a later turn that should have room for `weight`. It does not raise."""
        self._waiting.append((weight, go_on))
        self._expect()

    def _expect(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._new_turn)

    def _new_turn(self) -> None:
        self._turns_since += 1
        self._weight, self.is_spent, self._is_due = 0, False, False
        if not self._waiting:
            return
        self._expect()
        if self._turns_since < TURNS_BETWEEN:
            return
        self._turns_since = expected = 0
        while self._waiting and expected < self._weight_max:
            weight, go_on = self._waiting.popleft()
            expected += weight
            go_on()
