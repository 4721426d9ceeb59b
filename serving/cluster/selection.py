"""Which broker a client is sent to: the owner of a bundle, or the one that should own it.

A broker that takes no connections is probably dead: no client is sent there (`probe`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from quire.metadata.records import BrokerRecord, OwnerRecord
from quire.runtime.errors import Unavailable
from quire.serving.cluster.owners import Owners
from quire.serving.cluster.registration import BrokerRegistration
from quire.serving.cluster.reports import Reports


class BrokerSelection:
    """`answers` tells whether a broker takes connections at its service URL."""

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
        """The owner; of one that takes no connections, wait for its session's end. Raises `Unavailable`."""
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
        """The broker that should own a bundle without an owner; with `take` this one, unless it stops or cannot write.

        The client that is sent to another one counts as load there. Raises `Unavailable`.
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
            raise Unavailable("this broker is stopping and there is no other; start one")
        chosen = self._reports.least_loaded(there)
        return me if chosen == me.broker_id and not self._registration.is_stopping else there[chosen]


def _service_url(broker: BrokerRecord) -> str:
    return broker.service_url or broker.service_url_tls
