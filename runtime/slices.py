"""Scheduler of long work: at most one slice per turn, over all callers. A *turn* is one iteration of the event loop.

If every peer with much work had a slice in each turn, turns would become longer with each such peer. So callers queue
for a slice in order, and all other work waits for at most one slice. A caller keeps its slice short (one or two
milliseconds), and queues again for the next one.

Between two slices, the loop is free for other work for `PAUSE_S`, and for `PAUSE_SHARE` times the duration of the
slice. A message takes several turns from the socket to the disk and back, and the journal's thread needs the
interpreter as well: without pauses, it would wait for a slice each time. So slices take a quarter of the time of an
idle loop, and less of a busy one.

A `Share` limits input, such as bytes from sockets, in one turn, over all callers. Callers beyond the limit continue in
order, in every fourth turn, so that most turns that a message needs are short. There is no pause, because turns without
other work take microseconds.
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
    """Scheduler of slices of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_due = False
        """True if the next slice is scheduled, or one is in progress."""
        self._pause_until_s = 0.0

    def __len__(self) -> int:
        """Return the number of waiting callers."""
        return len(self._waiting)

    def put(self, work: Callable[[], None]) -> None:
        """Run `work` in a later iteration of the event loop, as its only slice. `work` must not raise."""
        self._waiting.append(work)
        self._expect()

    async def turn(self) -> None:
        """Wait for a turn in which no other caller has a slice."""
        come = asyncio.get_running_loop().create_future()
        self.put(lambda: None if come.done() else come.set_result(None))
        await come

    async def parts(self, many: Sequence[T], count: int) -> AsyncIterator[Sequence[T]]:
        """Yield `count` of `many` at a time: the first at once, each further one in its own turn."""
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
        # Measure after the callbacks that the work has scheduled (see `turn`), because they do the actual work.
        loop.call_soon(self._done, began_s)

    def _done(self, began_s: float) -> None:
        now_s = asyncio.get_running_loop().time()
        self._pause_until_s = now_s + max(PAUSE_S, PAUSE_SHARE * (now_s - began_s))
        self._is_due = False
        self._expect()


class Share:
    """Limit of one kind of work in a turn of an event loop."""

    def __init__(self, weight_max: int) -> None:
        """Create a share of `weight_max` per turn; only the last piece of work in a turn may exceed it."""
        self._weight_max = weight_max
        self._weight = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self.is_spent = False
        """True if the share of this turn is used up."""
        self._is_due = False
        self._turns_since = 0
        """Number of turns since the last waiting callers continued."""

    def spend(self, weight: int) -> None:
        """Count work of this turn."""
        self._weight += weight
        self.is_spent = self._weight >= self._weight_max
        self._expect()

    def wait(self, weight: int, go_on: Callable[[], None]) -> None:
        """Call `go_on` in a later turn that has not used up its share. `weight` is the estimated work of `go_on`.

        `go_on` must not raise.
        """
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
