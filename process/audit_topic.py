"""Publisher of the audit log to a topic: a client in this process that publishes `AuditLog.unpublished`.

The client connects to this process's own address, authenticates by `[client]` of the security file, and needs `produce`
on the topic like any client. No other work waits for it; lines that are dropped because the buffer is full are counted
and logged. There is no feedback loop: a successful publish writes no audit line, and a failed one is retried with
exponential back-off up to `AGAIN_S_MAX`, with at most one line per try.

A line is published once or, after a lost connection, twice; lines of one process are in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from quire.runtime.errors import QuireError
from quire.runtime.tasks import Tasks
from quire.security.tls import to_brokers

if TYPE_CHECKING:
    from quire.client.client import Client
    from quire.security.audit import AuditLog
    from quire.security.security import Security
    from quire.serving.ownership.port import Addresses

AGAIN_S_FIRST: Final = 1.0
AGAIN_S_MAX: Final = 60.0
STOP_S: Final = 2.0
"""Seconds for publishing the waiting lines when the process stops."""

AT_ONCE_MAX: Final = 500
_log = logging.getLogger(__name__)


def audit_topic(security: Security | None, addresses: Addresses) -> AuditTopic | None:
    """Create a broker's publisher; return None if the security file has no topic. Raises `ConfigurationError`."""
    if security is None or security.configuration.audit is None or not security.configuration.audit.topic:
        return None
    from quire.client.authentication import Authentication  # imported only by brokers with such a topic
    from quire.client.client import Client
    from quire.client.settings import ClientSettings

    settings = ClientSettings(operation_timeout_ms=10_000, backoff_max_ms=5_000)
    method = security.configuration.client.method
    context = to_brokers(security.configuration)

    def connect() -> Client:
        url, tls = addresses.service_url, None
        if context is not None and (method == "tls" or not url):
            url, tls = addresses.service_url_tls, context.current()
        presented = Authentication(method, security.credentials.data)
        return Client(url, authentication=presented, tls=tls, settings=settings)

    return AuditTopic(security.audit, security.configuration.audit.topic, connect)


class AuditTopic:
    """Publisher of the audit log, which runs from `start` to `stop`."""

    def __init__(self, audit: AuditLog, topic: str, connect: Callable[[], Client]) -> None:
        """Create the publisher. `connect` returns an unopened client with this process's current credentials."""
        self._audit = audit
        self._topic = topic
        self._connect = connect
        self._tasks = Tasks("audit-topic")
        self._is_told = False

    def start(self) -> None:
        self._tasks.start(self._run(), "publishing the audit log")

    async def stop(self) -> None:
        try:
            async with asyncio.timeout(STOP_S):
                while self._audit.unpublished and not self._is_told:  # noqa: ASYNC110  once in a process's life
                    await asyncio.sleep(0.01)
        except TimeoutError:
            _log.warning(
                "%d lines of the audit log were not published before the stop", len(self._audit.unpublished)
            )
        await self._tasks.stop()

    async def _run(self) -> None:
        again_s = AGAIN_S_FIRST
        while True:
            await self._audit.has_unpublished.wait()
            before = len(self._audit.unpublished)
            try:
                await self._publish()
            except (QuireError, OSError, TimeoutError) as error:
                if not self._is_told:
                    _log.error("cannot publish the audit log to topic %s, retrying: %s", self._topic, error)
                self._is_told = True
            if len(self._audit.unpublished) < before:
                again_s = AGAIN_S_FIRST
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, AGAIN_S_MAX)

    async def _publish(self) -> None:
        """Publish waiting lines until publishing fails."""
        waiting = self._audit.unpublished
        async with self._connect() as client, client.producer(self._topic) as producer:
            while True:
                await self._audit.has_unpublished.wait()
                lines = [line.encode() for line in list(waiting)[:AT_ONCE_MAX]]
                await asyncio.gather(*(producer.send(line) for line in lines))
                self._is_told = False
                for _ in lines:
                    waiting.popleft()
                if not waiting:
                    self._audit.has_unpublished.clear()
