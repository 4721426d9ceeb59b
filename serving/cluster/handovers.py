"""Bundles that this broker gives to others.

The topics are closed, the node is deleted, the broker that a lookup would choose is asked to take the bundle, and then
the clients are sent there, which need not look it up (unless it has more than one URL: nobody knows here by which one
a client would come). It does no harm if that broker does not take it: the clients find the next owner by lookups. The
next bundle's turn comes when the topics of this one were loaded, for each topic pauses as long as the topics that are
on the way together need.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from quire.metadata.store import ANY_VERSION, MetadataStore
from quire.runtime.errors import NotFound, OutcomeUnknown, QuireError, Unavailable
from quire.serving.cluster.owners import Owners, path_of
from quire.serving.cluster.port import BundleHost, Owner
from quire.serving.cluster.registration import BrokerRegistration
from quire.serving.cluster.selection import BrokerSelection
from quire.serving.cluster.table import BundleTable

TAKE_S: Final = 2.0
"""How long a broker may take to own a bundle, and then to load its topics, before the clients look it up."""

_log = logging.getLogger(__name__)


class Handovers:
    """`table` has the bundles of this broker, `owners` the nodes of all."""

    def __init__(
        self,
        store: MetadataStore,
        table: BundleTable,
        owners: Owners,
        registration: BrokerRegistration,
        selection: BrokerSelection,
    ) -> None:
        self._store = store
        self._table = table
        self._owners = owners
        self._registration = registration
        self._selection = selection
        self._under_way: dict[str, asyncio.Future[None]] = {}

    def __contains__(self, bundle: str) -> bool:
        return bundle in self._under_way

    async def end_of(self, bundle: str) -> None:
        """Return when the bundle is not being given away, at once if it is not."""
        done = self._under_way.get(bundle)
        if done is not None:
            await asyncio.wait([done])

    async def carry_out(self, host: BundleHost, bundle: str, why: str) -> None:
        """Give away a bundle that has left the table."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way[bundle] = done
        _log.info("handing over bundle %s: %s", bundle, why)
        new_owner: Owner | None = None
        try:
            handover = await host.hand_over(bundle)
            try:
                if self._table.gone(bundle):  # else the session ended meanwhile, and the node with it
                    await self._delete_node(bundle)
                    new_owner = await self._pass_on(host, bundle)
            finally:  # the topics are closed: a client that is not disconnected would wait for ever
                handover.disconnect_clients(self._where_to(new_owner))
        finally:
            self._table.gone(bundle)
            self._owners.forget(bundle)
            del self._under_way[bundle]
            done.set_result(None)
        if new_owner is not None and handover.topics:
            await self._ask_to_take(host, new_owner, bundle, handover.topics)

    def _where_to(self, new_owner: Owner | None) -> str:
        """The service URL that clients are told when they are disconnected; empty: they look it up."""
        me = self._registration.me
        if new_owner is None or new_owner.listeners or me.listeners or new_owner.service_url_tls:
            return ""
        return new_owner.service_url

    async def _delete_node(self, bundle: str) -> None:
        try:
            await self._store.delete(path_of(bundle), ANY_VERSION)
        except (NotFound, Unavailable, OutcomeUnknown):
            pass  # it goes with the session, or the bundle is taken again (`ClusterOwnership.require`)

    async def _pass_on(self, host: BundleHost, bundle: str) -> Owner | None:
        """Let the broker that a lookup would choose take the bundle. None: the next lookup decides."""
        try:
            chosen = await self._selection.candidate(take=False)
        except Unavailable:
            return None
        if chosen is self._registration.me:
            return None
        new_owner = self._registration.owner(chosen)
        return new_owner if await self._ask_to_take(host, new_owner, bundle, ()) else None

    async def _ask_to_take(
        self, host: BundleHost, new_owner: Owner, bundle: str, topics: Sequence[str]
    ) -> bool:
        try:
            async with asyncio.timeout(TAKE_S):
                await host.ask_to_take(new_owner, bundle, topics)
        except (QuireError, TimeoutError) as error:
            _log.info("broker %s was not ready for bundle %s: %r", new_owner.broker_id, bundle, error)
            return False
        return True
