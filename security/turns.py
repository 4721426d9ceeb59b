"""Turns at work that is slow and that anybody may ask for, such as trying a password.

A few do it at once; whoever else wants to waits in the line of where he comes from, and the lines take turns. So who
floods waits for himself: whoever comes from elsewhere has, before him, one of each other line at most.

A line is of a host, or of a network of IPv6 (/64), which one machine may have all of. Each is bounded, and so is how
many there are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from quire.runtime.errors import Unavailable
from quire.runtime.network import network_of

T = TypeVar("T")

AT_ONCE_MAX: Final = 2
LINES_MAX: Final = 100
IN_A_LINE_MAX: Final = 20


class Turns:
    """`what` is being waited for, in the words of a refusal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._under_way = 0
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}
        """By where they come from; the line whose turn is next is the first one."""

    async def run(self, address: str, work: Callable[[], T]) -> T:
        """What `work` returns, in a thread, when it is this address's turn. Raises `Unavailable` for too many."""
        await self._turn(network_of(address))
        done = asyncio.ensure_future(asyncio.to_thread(work))
        # Who gives up does not stop the thread: the turn is over when its work is.
        done.add_done_callback(self._over)
        return await asyncio.shield(done)

    async def _turn(self, name: str) -> None:
        if self._under_way < AT_ONCE_MAX:
            self._under_way += 1
            return
        line = self._lines.get(name)
        if len(line or ()) >= IN_A_LINE_MAX or (line is None and len(self._lines) >= LINES_MAX):
            raise Unavailable(f"too many {self._what}; try again")
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(name, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.cancelled():
                self._leave(name, mine)
            else:
                self._next()
            raise

    def _leave(self, name: str, mine: asyncio.Future[None]) -> None:
        line = self._lines.get(name, deque())
        if mine in line:  # else its turn had come in the same moment
            line.remove(mine)
            if not line:
                del self._lines[name]

    def _over(self, done: asyncio.Future[T]) -> None:
        if not done.cancelled():
            done.exception()  # whoever waited may be gone
        self._next()

    def _next(self) -> None:
        """A turn is over: it is the next line's, which goes to the end then."""
        self._under_way -= 1
        while self._lines:
            name = next(iter(self._lines))
            line = self._lines.pop(name)
            first = line.popleft()
            if line:
                self._lines[name] = line
            if not first.done():
                self._under_way += 1
                first.set_result(None)
                return
