"""Hand-overs of bundles from this broker to other brokers.

1. The topics are closed, and the bundle's node is deleted.
2. The broker that a lookup would choose is asked to acquire the bundle. If it refuses, clients find the next owner by
lookups.
3. The clients are redirected to that broker without a lookup, unless it has several URLs, because this broker does not
know which of them a client would use.
4. The new owner loads the topics. The next bundle is handed over afterwards, because the pause of each topic grows with
the number of topics that move together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from quire.metadata.store import ANY_VERSION, MetadataStore
from quire.runtime.errors import NotFound, OutcomeUnknown, QuireError, Unavailable
from quire.serving.ownership.owners import Owners, path_of
from quire.serving.ownership.port import BundleHost, Owner
from quire.serving.ownership.registration import BrokerRegistration
from quire.serving.ownership.selection import BrokerSelection
from quire.serving.ownership.table import BundleTable

TAKE_S: Final = 2.0
"""Time limit, in seconds, for a broker to acquire a bundle and to load its topics; then clients look the bundle up."""

_log = logging.getLogger(__name__)


class Handovers:
    """Hand-overs in progress. `table` contains this broker's bundles, `owners` caches the owners of all bundles."""

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
        """Wait until no hand-over of the bundle is in progress."""
        done = self._under_way.get(bundle)
        if done is not None:
            await asyncio.wait([done])

    async def carry_out(self, host: BundleHost, bundle: str, why: str) -> None:
        """Hand over a bundle that is LEAVING in the table."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way[bundle] = done
        _log.info("handing over a bundle: bundle=%s reason=%s", bundle, why)
        new_owner: Owner | None = None
        try:
            handover = await host.hand_over(bundle)
            try:
                if self._table.remove(
                    bundle
                ):  # otherwise the session has ended, and the node was deleted with it
                    await self._delete_node(bundle)
                    new_owner = await self._pass_on(host, bundle)
            finally:  # the topics are closed: clients that are not disconnected would wait forever
                handover.disconnect_clients(self._where_to(new_owner))
        finally:
            self._table.remove(bundle)
            self._owners.forget(bundle)
            del self._under_way[bundle]
            done.set_result(None)
        if new_owner is not None and handover.topics:
            await self._ask_to_take(host, new_owner, bundle, handover.topics)

    def _where_to(self, new_owner: Owner | None) -> str:
        """Return the service URL for disconnected clients; an empty string if they must look the topic up."""
        me = self._registration.me
        if new_owner is None or new_owner.listeners or me.listeners or new_owner.service_url_tls:
            return ""
        return new_owner.service_url

    async def _delete_node(self, bundle: str) -> None:
        try:
            await self._store.delete(path_of(bundle), ANY_VERSION)
        except (NotFound, Unavailable, OutcomeUnknown):
            pass  # The session's end deletes the node, or this broker acquires the bundle again (`require`).

    async def _pass_on(self, host: BundleHost, bundle: str) -> Owner | None:
        """Ask the broker that a lookup would choose to acquire the bundle. Return None if the next lookup decides."""
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
            _log.info(
                "broker did not acquire a bundle or load its topics: broker=%s bundle=%s error=%r",
                new_owner.broker_id,
                bundle,
                error,
            )
            return False
        return True
