"""Memory budget for bodies of HTTP requests and answers, over all connections of a server.

    reserve ─▶ wait in the queue ─▶ hold ─▶ shrink ─▶ release
                    └ after `WAIT_S`: Unavailable     └ too slow while requests wait: the connection is closed

A handler reserves memory before it builds a large answer, and the server releases it when the peer has read the answer.
Requests for which no memory is left wait in a fair queue (`semaphore`). While requests wait, the connections of slow
peers are closed: peers that have read nothing for `GRACE_S`, or that read less than `BYTES_A_S_MIN`. So slow peers can
use a limited amount of memory, and delay other requests only for seconds. This module waits, but performs no I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from quire.runtime.errors import Unavailable
from quire.runtime.limits import HTTP_ROOM_BYTES_MAX, KIB
from quire.runtime.semaphore import FairSemaphore

WAIT_S: Final = 20.0
"""Maximum wait of a request in seconds; less than the time-outs of brokers, Spark and Pulsar's tools (30 s or more)."""

WAITING_MAX: Final = 1_000
GRACE_S: Final = 5.0
BYTES_A_S_MIN: Final = 256 * KIB
LOOK_S: Final = 0.5
"""Interval of checks for slow peers while requests wait."""

_BUSY: Final = "the memory budget of HTTP bodies is used up by answers that peers have not read; try again"


class Held:
    """Memory that is reserved for one request. `close` closes the request's connection."""

    def __init__(self, size_bytes: int, now_s: float, close: Callable[[], None]) -> None:
        self.size_bytes = size_bytes
        self.close = close
        self._begun_s = self._progress_s = now_s
        self.is_read = False
        """True while the server waits for the peer: to read the answer, or to send the body."""

    def begin(self, now_s: float) -> None:
        """Begin to wait for the peer."""
        self._begun_s, self._progress_s, self.is_read = now_s, now_s, True

    def progress(self, now_s: float) -> None:
        """Note that the peer has read a piece of the answer."""
        self._progress_s = now_s

    def is_slow(self, now_s: float) -> bool:
        due_s = self._begun_s + GRACE_S + self.size_bytes / BYTES_A_S_MIN
        return self.is_read and now_s > min(due_s, self._progress_s + GRACE_S)


class HttpRoom:
    """Memory budget of a server. Use it on the loop's thread only."""

    def __init__(self, limit_bytes: int = HTTP_ROOM_BYTES_MAX) -> None:
        self._bytes = FairSemaphore(limit_bytes, waiting_max=WAITING_MAX, busy=_BUSY)
        self._held: dict[Held, None] = {}
        self._look: asyncio.TimerHandle | None = None

    @property
    def held_bytes(self) -> int:
        return self._bytes.used

    async def reserve(self, size_bytes: int, address: str, close: Callable[[], None]) -> Held:
        """Wait for memory and reserve it. Raises `Unavailable` after `WAIT_S`."""
        if not self._bytes.try_take(size_bytes):
            self._look_later()
            try:
                async with asyncio.timeout(WAIT_S):
                    await self._bytes.take(size_bytes, address)
            except TimeoutError:
                raise Unavailable(_BUSY) from None
        return self._hold(size_bytes, close)

    def hold_at_once(self, size_bytes: int, close: Callable[[], None]) -> Held:
        """Reserve memory for an existing answer, without waiting. Raises `Unavailable` if there is not enough."""
        if not self._bytes.take_if_free(size_bytes):
            raise Unavailable(_BUSY)
        return self._hold(size_bytes, close)

    def _hold(self, size_bytes: int, close: Callable[[], None]) -> Held:
        held = Held(size_bytes, asyncio.get_running_loop().time(), close)
        self._held[held] = None
        return held

    def shrink(self, held: Held, size_bytes: int) -> None:
        """Reduce a reservation to `size_bytes`."""
        if held in self._held and size_bytes < held.size_bytes:
            released, held.size_bytes = held.size_bytes - size_bytes, size_bytes
            self._bytes.give_back(released)

    def release(self, held: Held) -> None:
        """Release a reservation; do nothing if it was released."""
        if held in self._held:
            del self._held[held]
            self._bytes.give_back(held.size_bytes)

    # -- slow peers ------------------------------------------------------------------------------------

    def _look_later(self) -> None:
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(LOOK_S, self._close_slow)

    def _close_slow(self) -> None:
        self._look = None
        now_s = asyncio.get_running_loop().time()
        for held in [one for one in self._held if one.is_slow(now_s)]:
            held.close()
            self.release(held)
        if self._bytes.has_waiters:
            self._look_later()
