"""Selection of the broker to which a client is sent: a bundle's owner, or the broker that should own it.

A broker that accepts no connections is probably dead, so lookups send no client to it. A killed broker owns its bundles
until its session ends. A client that is sent to a killed broker would retry with exponential back-off, and look up
again long after another broker could have served it. Therefore the lookup waits until the bundle's ownership node is
deleted. A wrong result of a probe is harmless: a wrong "no" delays a lookup, and clients handle a wrong "yes" like any
connection failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit

from quire.metadata.records import BrokerRecord, OwnerRecord
from quire.runtime.errors import Unavailable
from quire.serving.ownership.owners import Owners
from quire.serving.ownership.registration import BrokerRegistration
from quire.serving.ownership.reports import Reports

VALID_S: Final = 0.5
TIMEOUT_S: Final = 1.0


class BrokerSelection:
    """Selection of brokers; `answers` returns whether a broker accepts connections at its service URL."""

    def __init__(
        self,
        registration: BrokerRegistration,
        owners: Owners,
        reports: Reports,
        answers: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._registration = registration
        self._owners = owners
        self._reports = reports
        self.answers = answers

    async def owner(self, bundle: str) -> OwnerRecord | None:
        """Return the owner; if it accepts no connections, wait for the end of its session. Raises `Unavailable`."""
        changes = self._owners.changes(bundle)
        known = await self._owners.find(bundle)
        if known is None or self._registration.is_me(known.broker):
            return known
        if await self.answers(_service_url(known.broker)):
            return known
        await self._owners.change_after(changes, bundle, self._registration.patience_s)
        self._registration.require()
        return await self._owners.find(bundle)

    async def candidate(self, *, take: bool) -> BrokerRecord:
        """Choose the owner of an unowned bundle; with `take`, this broker unless it is stopping or cannot write.

        A client that is sent to another broker counts as load there. Raises `Unavailable`.
        """
        me, chosen = self._registration.me, self._least_loaded(take=take)
        if chosen is not me:
            if not self._registration.is_stopping and not await self.answers(_service_url(chosen)):
                return me
            self._reports.sent[chosen.broker_id] += 1
        return chosen

    def _least_loaded(self, *, take: bool) -> BrokerRecord:
        me, there = self._registration.me, self._reports.registered()
        if self._registration.is_stopping:
            there.pop(me.broker_id, None)
        elif (take and not self._reports.why_unfit()) or not there:
            return me
        if not there:
            raise Unavailable("this broker is stopping, and no other broker is registered; start one")
        chosen = self._reports.least_loaded(there)
        return me if chosen == me.broker_id and not self._registration.is_stopping else there[chosen]


def _service_url(broker: BrokerRecord) -> str:
    return broker.service_url or broker.service_url_tls


class Probe:
    """Probe of brokers' ports; the result for each URL is cached for `VALID_S`."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[float, asyncio.Task[bool]]] = {}

    async def __call__(self, url: str) -> bool:
        now = asyncio.get_running_loop().time()
        at, task = self._asked.get(url, (-VALID_S, None))
        if task is None or (task.done() and now - at >= VALID_S):
            task = asyncio.ensure_future(takes_connections(url))
            self._asked[url] = now, task
        return await asyncio.shield(task)


async def takes_connections(url: str) -> bool:
    """Return whether a connection to the host and port of `url` can be opened."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    return True
