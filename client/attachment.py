"""Keeps one producer or consumer attached to the broker that serves its topic.

    look up ─▶ attach ─▶ attached ──(connection lost, or CLOSE_… from the broker)──┐
       ▲         │ ▲ refused for good: `fail`                                      │
       │         │ └──────────────── the broker said where ◀───────────────────────┤
       └─────────┴───────────────── wait, longer each time ◀───────────────────────┘

The first attachment decides whether the producer or consumer comes to be at all: there, a refusal is its user's
error. Later ones go on for ever, except for what cannot heal (`errors.is_final`). An attachment that held for a while
starts the waits anew; one that broke at once does not, so a broker that takes and drops us is not hammered.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import Any, Final

from quire.client.backoff import Backoff
from quire.client.connection import UNASKED, A, Connection
from quire.client.errors import Moved, TimedOut, is_final
from quire.client.lookup import Lookup
from quire.client.settings import ClientSettings
from quire.runtime.errors import QuireError, Unavailable
from quire.runtime.tasks import Tasks
from quire.wire import pulsar_pb2 as pb

HEALTHY_AFTER_S: Final = 5.0
MOVED_AFTER_S: Final = 0.5
"""A topic that is sent on sooner than this is looked up, so that brokers that disagree do not play ball with it."""

_log = logging.getLogger(__name__)


class Attachable(ABC):
    """A partition's producer or consumer, and the connection it is on, if it is on one."""

    def __init__(self, topic: str, member_id: int) -> None:
        self.topic = topic
        self.attachment: Attachment | None = None
        self._id = member_id
        """Its producer or consumer id: unique within the client, so within every connection."""
        self.connection: Connection | None = None

    async def attached(self) -> Connection:
        """The connection, once there is one. Raises `Unavailable` after the operation timeout."""
        assert self.attachment is not None
        while self.connection is None:
            await self.attachment.ready()
        return self.connection

    @abstractmethod
    async def attach(self, connection: Connection) -> None:
        """Become known to the broker; raises the broker's refusal."""

    @abstractmethod
    def fail(self, error: QuireError) -> None:
        """It will never be attached again."""

    def kept_out(self, error: QuireError) -> None:  # noqa: B027
        """It was attached before, and the broker refuses it now; it will ask again."""

    @abstractmethod
    def _members(self, connection: Connection) -> dict[int, Any]:
        """Those of its kind on `connection`, by their ids."""

    @abstractmethod
    def _close_command(self, request_id: int) -> bytes: ...

    async def _enter(
        self, connection: Connection, what: str, request: Callable[[int], bytes], answer: type[A]
    ) -> A:
        """Have the broker make it; from then on the connection hands on what is for it."""
        members = self._members(connection)
        members[self._id] = self
        answered = None
        try:
            answered = await connection.request(what, request, answer)
        except (TimedOut, asyncio.CancelledError):
            # The broker may make it all the same; it must not hold the topic, a name or the subscription.
            connection.write(self._close_command(UNASKED))
            raise
        finally:
            if answered is None:
                members.pop(self._id, None)
        return answered

    def detached(self, reason: QuireError) -> None:
        """The broker or the connection let go of it."""
        self.connection = None
        if self.attachment is not None:
            self.attachment.lost(reason)

    def detach(self) -> None:
        """The broker has forgotten it."""
        if self.connection is not None:
            self._members(self.connection).pop(self._id, None)
            self.connection = None

    async def _close_at_broker(self, connection: Connection | None, what: str) -> None:
        """Tell the broker that it is closed. Never raises for the broker's sake."""
        if connection is None or connection.ended is not None:
            return
        try:
            await connection.request(what, self._close_command, pb.CommandSuccess)
        except QuireError as error:
            _log.debug("%s", error)


class Attachment:
    """The loop above, as one task."""

    def __init__(self, owner: Attachable, lookup: Lookup, settings: ClientSettings, rng: Random) -> None:
        self._owner = owner
        self._lookup = lookup
        self.timeout_s = settings.operation_timeout_ms / 1000
        self._backoff = Backoff(settings.backoff_first_ms, settings.backoff_max_ms, rng)
        self._lost: asyncio.Future[QuireError] | None = None
        self._settled = asyncio.Event()
        self._error: QuireError | None = None
        self._is_established = False
        self._is_attached = False
        self._task: asyncio.Task[None] | None = None

    def start(self, tasks: Tasks) -> None:
        self._task = tasks.start(self._run(), f"attach {self._owner.topic}")

    async def ready(self, *, has_timeout: bool = True) -> None:
        """Return when it is attached. Raises the final refusal, or `Unavailable` after the operation timeout.

        Without a time-out where a broker may let it wait for its turn.
        """
        try:
            async with asyncio.timeout(self.timeout_s if has_timeout else None):
                await self._settled.wait()
        except TimeoutError:
            pass
        if not self._is_attached:
            raise self._error or Unavailable(f"no broker answered for {self._owner.topic} in time")

    def lost(self, reason: QuireError) -> None:
        """The broker or the connection let go of it."""
        self._is_attached = False
        self._settled.clear()
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(reason)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        moved_to = ""
        while True:
            self._lost = loop.create_future()
            url, moved_to = moved_to, ""
            try:
                await self._owner.attach(await self._broker(url))
            except QuireError as error:
                self._error = error
                if is_final(error, established=self._is_established):
                    self._give_up(error)
                    return
                _log.debug("attaching to %s: %s", self._owner.topic, error)
                if self._is_established:
                    self._owner.kept_out(error)
            else:
                moved_to = await self._hold()
            if not moved_to:
                await asyncio.sleep(self._backoff.next_s())

    async def _broker(self, moved_to: str) -> Connection:
        return await (self._lookup.at(moved_to) if moved_to else self._lookup.broker_of(self._owner.topic))

    async def _hold(self) -> str:
        """Stay attached until it is lost. Returns where the broker sent us, if it did and had kept us for a while."""
        assert self._lost is not None
        self._is_established = self._is_attached = True
        self._settled.set()
        since = asyncio.get_running_loop().time()
        try:
            reason = await self._lost
            _log.debug("%s: %s", self._owner.topic, reason)
        finally:
            self._is_attached = False
            self._settled.clear()
            self._owner.detach()
        held_s = asyncio.get_running_loop().time() - since
        if held_s >= HEALTHY_AFTER_S:
            self._backoff.reset()
        return reason.url if isinstance(reason, Moved) and held_s >= MOVED_AFTER_S else ""

    def _give_up(self, error: QuireError) -> None:
        if self._is_established:
            _log.error("%s", error)
        self._owner.fail(error)
        self._settled.set()
