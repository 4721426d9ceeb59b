"""Attachment of one producer or consumer to the broker that owns its topic.

    look up ─▶ attach ─▶ attached ──(connection lost, or CLOSE_… from the broker)──┐
       ▲         │ ▲ final error: `fail`                                           │
       │         │ └──────────────── the broker named the new owner ◀──────────────┤
       └─────────┴───────────────── exponential back-off ◀─────────────────────────┘

If the first attachment is refused, creating the producer or consumer fails with the broker's error. Later attachments
are retried without limit, except after final errors (`errors.is_final`). An attachment of 5 s or more resets the
back-off; a shorter one does not, so that a broker that accepts and drops clients is not flooded.
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
from quire.client.errors import AuthenticationFailed, Moved, TimedOut, is_final
from quire.client.lookup import Lookup
from quire.client.routing import partition_index
from quire.client.settings import ClientSettings
from quire.runtime.errors import QuireError, Unavailable
from quire.runtime.tasks import Tasks
from quire.wire import pulsar_pb2 as pb

RENEWAL_S_MAX: Final = 60.0
"""Seconds for which an established producer or consumer retries after its credentials were refused."""

HEALTHY_AFTER_S: Final = 5.0
MOVED_AFTER_S: Final = 0.5
"""Seconds after which a redirect to a new owner is followed without a lookup.

After a shorter attachment the topic is looked up instead, so that brokers that disagree about the owner cannot redirect
a client to each other in an endless loop.
"""

_log = logging.getLogger(__name__)


class Attachable(ABC):
    """Producer or consumer of one partition. `connection` is None while it is not attached to a broker."""

    def __init__(self, topic: str, member_id: int) -> None:
        self.topic = topic
        self.partition = partition_index(topic)
        self.attachment: Attachment | None = None
        self._id = member_id
        """Producer or consumer id, unique within the client and so within each connection."""
        self.connection: Connection | None = None

    async def attached(self) -> Connection:
        """Return the connection, waiting for an attachment. Raises `Unavailable` after the operation timeout."""
        assert self.attachment is not None
        while self.connection is None:
            await self.attachment.ready()
        return self.connection

    @abstractmethod
    async def attach(self, connection: Connection) -> None:
        """Register the producer or consumer at the broker. Raises the broker's error."""

    @abstractmethod
    def fail(self, error: QuireError) -> None:
        """Fail permanently: the producer or consumer is never attached again."""

    def kept_out(self, error: QuireError) -> None:  # noqa: B027
        """Handle a failed reattachment; the next attempt follows."""

    @abstractmethod
    def _members(self, connection: Connection) -> dict[int, Any]:
        """Return the registered producers or consumers of `connection` by id."""

    @abstractmethod
    def _close_command(self, request_id: int) -> bytes: ...

    async def _enter(
        self, connection: Connection, what: str, request: Callable[[int], bytes], answer: type[A]
    ) -> A:
        """Register at the connection for the broker's commands, and send `request`, which creates it at the broker."""
        members = self._members(connection)
        members[self._id] = self
        answered = None
        try:
            answered = await connection.request(what, request, answer)
        except (TimedOut, asyncio.CancelledError):
            # The broker may still create it, and it would then occupy the topic, its name or the subscription.
            connection.write(self._close_command(UNASKED))
            raise
        finally:
            if answered is None:
                members.pop(self._id, None)
        return answered

    def detached(self, reason: QuireError) -> None:
        """Handle the end of the attachment, whether the broker closed it or the connection was lost."""
        self.connection = None
        if self.attachment is not None:
            self.attachment.lost(reason)

    def detach(self) -> None:
        """Leave the connection after the broker has removed the producer or consumer."""
        if self.connection is not None:
            self._members(self.connection).pop(self._id, None)
            self.connection = None

    async def _close_at_broker(self, connection: Connection | None, what: str) -> None:
        """Close the producer or consumer at the broker. Errors are only logged."""
        if connection is None or connection.ended is not None:
            return
        try:
            await connection.request(what, self._close_command, pb.CommandSuccess)
        except QuireError as error:
            _log.debug("%s", error)


class Attachment:
    """Task that keeps one producer or consumer attached, as in the diagram above."""

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
        self._unknown_since: float | None = None
        """Event loop time in seconds since which all attempts were refused for their credentials, or None."""
        self._task: asyncio.Task[None] | None = None

    def start(self, tasks: Tasks) -> None:
        self._task = tasks.start(self._run(), f"attach {self._owner.topic}")

    async def ready(self, *, has_timeout: bool = True) -> None:
        """Wait until attached. Raises the final error, or `Unavailable` after the operation timeout.

        `has_timeout` is False where the broker may queue the producer for exclusive access.
        """
        try:
            async with asyncio.timeout(self.timeout_s if has_timeout else None):
                await self._settled.wait()
        except TimeoutError:
            pass
        if not self._is_attached:
            raise self._error or Unavailable(
                f"{self._owner.topic} could not be attached to a broker within the operation timeout"
            )

    def lost(self, reason: QuireError) -> None:
        """Handle the end of the attachment, whether the broker closed it or the connection was lost."""
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
                if is_final(error, established=self._is_established) and not self._may_be_renewed(error):
                    self._give_up(error)
                    return
                _log.debug("attaching to %s failed: %s", self._owner.topic, error)
                if self._is_established:
                    self._owner.kept_out(error)
            else:
                moved_to = await self._hold()
            if not moved_to:
                await asyncio.sleep(self._backoff.next_s())

    async def _broker(self, moved_to: str) -> Connection:
        return await (self._lookup.at(moved_to) if moved_to else self._lookup.broker_of(self._owner.topic))

    async def _hold(self) -> str:
        """Wait until the attachment ends.

        Returns the new owner's URL if the broker named it after `MOVED_AFTER_S`, else "".
        """
        assert self._lost is not None
        self._is_established = self._is_attached = True
        self._unknown_since = None
        self._settled.set()
        since = asyncio.get_running_loop().time()
        try:
            reason = await self._lost
            _log.debug("attachment to %s ended: %s", self._owner.topic, reason)
        finally:
            self._is_attached = False
            self._settled.clear()
            self._owner.detach()
        held_s = asyncio.get_running_loop().time() - since
        if held_s >= HEALTHY_AFTER_S:
            self._backoff.reset()
        return reason.url if isinstance(reason, Moved) and held_s >= MOVED_AFTER_S else ""

    def _may_be_renewed(self, error: QuireError) -> bool:
        """Return whether to retry after refused credentials: their source, such as a file, may be renewed."""
        if not (self._is_established and isinstance(error, AuthenticationFailed)):
            self._unknown_since = None
            return False
        now_s = asyncio.get_running_loop().time()
        if self._unknown_since is None:
            self._unknown_since = now_s
            _log.warning("%s; retrying for %d s in case the credentials are renewed", error, RENEWAL_S_MAX)
        return now_s - self._unknown_since < RENEWAL_S_MAX

    def _give_up(self, error: QuireError) -> None:
        if self._is_established:
            _log.error("%s", error)
        self._owner.fail(error)
        self._settled.set()
