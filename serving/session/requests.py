"""The requests of one connection that take time.

They do not wait for one another, and each is answered once. While many are being worked on, the socket is not read
(`Stop.REQUESTS`); nor is it for a moment when more come in a second than may (`Stop.RATE`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from quire.runtime.errors import QuireError
from quire.runtime.limits import REQUESTS_PENDING_PER_CONNECTION_MAX
from quire.runtime.request_rate import RequestRate
from quire.serving.cluster.port import NotOwner
from quire.serving.session.inbound import Inbound, Stop
from quire.wire import pulsar_pb2 as pb
from quire.wire.error_codes import code_of

if TYPE_CHECKING:
    from quire.serving.session.sessions import Sessions

T = TypeVar("T")

RESUME_SHARE: Final = 0.9
"""Of the requests that may be worked on. A client with a thousand topics has asked for all of them when it comes back,
and what it publishes to the first of them comes after that: it waits until the connection is read again."""

RETRY_S_MAX: Final = 10.0
RETRY_STEP_S: Final = 0.05


class Requests:
    def __init__(self, host: Sessions, inbound: Inbound) -> None:
        self._tasks = host.tasks
        self._limits_met = host.limits_met
        self._inbound = inbound
        per_s = host.limits.requests_per_s
        self.rate = RequestRate(per_s, self._stop, lambda: inbound.go_on(Stop.RATE)) if per_s else None
        """None where any number may come."""
        self.pending = 0
        """Being worked on."""

    def _stop(self) -> None:
        self._limits_met["requests_per_s"] += 1
        self._inbound.stop(Stop.RATE)

    def close(self) -> None:
        """The connection is gone."""
        if self.rate is not None:
            self.rate.close()
            self.rate = None  # It knows this one: circles would stay (`runtime.weak`).

    def start(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        """Carry out an asynchronous command."""
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


async def retry_until_deadline(attempt: Callable[[], Awaitable[T]], is_over: Callable[[], bool]) -> T:
    """Try again for a while what fails with "try again": the answer to a PRODUCER or a SUBSCRIBE.

    Told to try again on a connection that stays open, C++ clients never do, and the call hangs until its own
    time-out. So the trying is done here; but not for what another broker has: the client must look that up again.
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
