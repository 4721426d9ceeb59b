"""Load limits of one connection: asynchronous requests in progress, and bytes of commands that wait in its lanes.

Requests do not wait for each other, and each is answered once. The broker does not read the socket while too many
requests are in progress (`Stop.REQUESTS`), while the client exceeds its rate (`Stop.RATE`), or while too many bytes of
commands wait (`Stop.HELD`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from quire.runtime.errors import QuireError
from quire.runtime.limits import HELD_BYTES_PER_CONNECTION_MAX, REQUESTS_PENDING_PER_CONNECTION_MAX
from quire.runtime.rate_queue import RequestRate
from quire.serving.ownership.port import NotOwner
from quire.serving.session.context import SessionContext
from quire.serving.session.inbound import Inbound, Stop
from quire.wire import pulsar_pb2 as pb
from quire.wire.error_codes import code_of

T = TypeVar("T")

RESUME_SHARE: Final = 0.9
"""Share of the maximum number of pending requests at which the socket is read again.

A client with a thousand topics looks up all of them when it reconnects. Its first SENDs follow these requests, so they
wait until the socket is read again.
"""

RETRY_S_MAX: Final = 10.0
RETRY_STEP_S: Final = 0.05


class Requests:
    """Asynchronous requests of one connection."""

    def __init__(self, context: SessionContext, inbound: Inbound) -> None:
        self._tasks = context.tasks
        self._limits_met = context.limits_met
        self._inbound = inbound
        per_s = context.limits.requests_per_s
        self.rate = RequestRate(per_s, self._stop, lambda: inbound.go_on(Stop.RATE)) if per_s else None
        """Limit on the client's requests per second; None if they are not limited."""
        self.pending = 0
        """Number of requests in progress."""

    def _stop(self) -> None:
        self._limits_met["requests_per_s"] += 1
        self._inbound.stop(Stop.RATE)

    def close(self) -> None:
        """Stop the timer of the rate limit, because the connection is closed."""
        if self.rate is not None:
            self.rate.close()
            self.rate = (
                None  # it references this object: a reference cycle would stay in memory (`runtime.weak`)
            )

    def start(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        """Execute an asynchronous command in a task."""
        self.pending += 1
        if self.pending >= REQUESTS_PENDING_PER_CONNECTION_MAX:
            self._inbound.stop(Stop.REQUESTS)
        task = self._tasks.start(work, what)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, _: asyncio.Task[None]) -> None:
        self.pending -= 1
        if self.pending <= RESUME_SHARE * REQUESTS_PENDING_PER_CONNECTION_MAX:
            self._inbound.go_on(Stop.REQUESTS)


class HeldBytes:
    """Bytes of commands and SENDs that wait in the lanes of one connection.

    They have a separate budget, so that clients whose commands must wait can delay each other, but no other clients.
    """

    def __init__(self, context: SessionContext, inbound: Inbound) -> None:
        self._context = context
        self._inbound = inbound
        self._byte_count = 0

    def hold(self, byte_count: int) -> None:
        """Count bytes that wait in a lane; stop reading the socket if they exceed the limit."""
        self._byte_count += byte_count
        self._context.held.take(byte_count)
        if self._is_too_much():
            self._inbound.stop(Stop.HELD)

    def release(self, byte_count: int) -> None:
        """Stop counting bytes that no longer wait."""
        self._byte_count -= byte_count
        self._context.held.give_back(byte_count)
        self._context.budget.look_again()
        if not self._is_too_much():
            self._inbound.go_on(Stop.HELD)

    def release_all(self) -> None:
        """Release all bytes, because the connection is closed."""
        self._context.held.give_back(self._byte_count)
        self._byte_count = 0

    def _is_too_much(self) -> bool:
        held = self._byte_count
        return held >= HELD_BYTES_PER_CONNECTION_MAX or (held > 0 and self._context.held.is_spent)


async def retry_until_deadline(attempt: Callable[[], Awaitable[T]], is_over: Callable[[], bool]) -> T:
    """Await `attempt` of a PRODUCER or SUBSCRIBE; retry it while the response would be ServiceNotReady.

    Retries end after `RETRY_S_MAX` seconds, or when `is_over` returns True. C++ clients never retry such a request on a
    connection that stays open, so the application's call would hang until its own time-out. If another broker owns the
    topic, the error is raised at once, because the client must look the topic up again.
    """
    loop = asyncio.get_running_loop()
    deadline, delay_s = loop.time() + RETRY_S_MAX, RETRY_STEP_S
    while True:
        try:
            return await attempt()
        except QuireError as error:
            late = loop.time() + delay_s > deadline or isinstance(error, NotOwner)
            if code_of(error) != pb.ServiceNotReady or is_over() or late:
                raise
        await asyncio.sleep(delay_s)
        delay_s = min(2 * delay_s, 1.0)
