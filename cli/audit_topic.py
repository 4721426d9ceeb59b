"""The audit log as messages of a topic: what waits in `AuditLog.unpublished` is published, by a client of our own.

It is one: it logs in by `[client]` of the security file at this process's own address, and needs `produce` on the topic
like everybody else. So it is slow when the topic is, and nothing waits for it; what finds no room meanwhile is counted
and told of. It makes no circle: what succeeds is no line, and what is refused is tried again after a while that grows
to `AGAIN_S_MAX`, with a line for each time at most.

A line is there once or, when its broker broke off, twice; in order of each process.
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
    from quire.serving.cluster.addresses import Addresses

AGAIN_S_FIRST: Final = 1.0
AGAIN_S_MAX: Final = 60.0
STOP_S: Final = 2.0
"""How long what waits may take when the process stops."""

AT_ONCE_MAX: Final = 500
_log = logging.getLogger(__name__)


def audit_topic(security: Security | None, addresses: Addresses) -> AuditTopic | None:
    """For a broker at `addresses`; None where the security file names no topic. Raises `ConfigurationError`."""
    if security is None or security.configuration.audit is None or not security.configuration.audit.topic:
        return None
    from quire.client.authentication import Authentication  # a broker without such a topic starts without
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
    """Publishes between `start` and `stop`."""

    def __init__(self, audit: AuditLog, topic: str, connect: Callable[[], Client]) -> None:
        """`connect` makes a client, not entered yet, as this process's credentials are now."""
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
            _log.warning("%d lines of the audit log were not published", len(self._audit.unpublished))
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
                    _log.error("the audit log cannot be published to %s, and waits: %s", self._topic, error)
                self._is_told = True
            if len(self._audit.unpublished) < before:
                again_s = AGAIN_S_FIRST
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, AGAIN_S_MAX)

    async def _publish(self) -> None:
        """As long as it goes well."""
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
