"""Ownership of bundles in a cluster: one metadata session (`registration`), one ephemeral node per bundle.

Any broker answers a lookup. It reads the bundle's node once and watches it, so that a repeated lookup costs no metadata
operation. If a bundle has no owner, its client is sent to the broker with the smallest load, which acquires the bundle.
Only a lookup, or an operator's request, makes a broker acquire a bundle. A client that connects to a former owner must
look its topic up again; otherwise, it would move the bundle back to that broker. A lookup of a bundle that is being
handed over (`handovers`) waits for the end of the hand-over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final
from uuid import uuid4

from quire.metadata.records import OwnerRecord, encode
from quire.metadata.store import ANY_VERSION, MetadataStore
from quire.runtime.clock import Clock
from quire.runtime.errors import AlreadyExists, InUse, NotFound, OutcomeUnknown, QuireError, Unavailable
from quire.runtime.tasks import Tasks
from quire.serving.ownership.handovers import Handovers
from quire.serving.ownership.owners import Owners, path_of
from quire.serving.ownership.port import BrokerStats, BundleHost, BundleStats, NotOwner, Owner
from quire.serving.ownership.registration import BrokerRegistration
from quire.serving.ownership.reports import Reports
from quire.serving.ownership.selection import BrokerSelection, Probe
from quire.serving.ownership.shedding import LoadShedding
from quire.serving.ownership.table import BundleTable

HANDOVERS_AT_ONCE: Final = 1
"""Maximum number of concurrent hand-overs during a stop: concurrent ones compete, so each topic pauses longer."""

SPLIT_KNOWN_S: Final = 10.0
"""Seconds after which every broker knows a namespace's new bundle boundaries; watches take milliseconds."""

_log = logging.getLogger(__name__)


class ClusterOwnership:
    """`Ownership` in a cluster. `broker_id` is the broker's name in the cluster: its address.

    `answers` returns whether a broker accepts connections at its service URL; `unique` returns an id for this start of
    the broker.
    """

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        broker_id: str,
        *,
        moves_per_minute_max: int = 10,
        answers: Callable[[str], Awaitable[bool]] | None = None,
        unique: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self._store = store
        self._clock = clock
        self._tasks = Tasks("ownership")
        self._table = table = BundleTable()
        self._owners = Owners(store, self._node_changed)
        self._splitting: set[str] = set()
        self._taking: dict[str, asyncio.Task[Owner]] = {}
        self.registration = BrokerRegistration(
            store, clock, broker_id, self._tasks, unique, self._session_lost
        )
        self.reports = Reports(store, broker_id, table, self._tasks)
        self.selection = BrokerSelection(self.registration, self._owners, self.reports, answers or Probe())
        self._handovers = Handovers(store, table, self._owners, self.registration, self.selection)
        self.shedding = LoadShedding(
            clock, self.registration, table, self.reports, moves_per_minute_max, self.release, self.give_up
        )

    # -- life cycle ------------------------------------------------------------------------------------

    async def start(self, host: BundleHost) -> None:
        self._host = host
        await self.registration.start(host.addresses)
        await self.reports.start(host)
        self.shedding.host = host
        await self.shedding.report()
        self._tasks.start(self.shedding.run(), "loads")

    async def stop(self) -> None:
        """Remove this broker from the list, so that no client is sent to it, then hand over its bundles one by one."""
        self.registration.is_stopping = True
        await self._tasks.stop()
        await self.registration.stop()
        turns = asyncio.Semaphore(HANDOVERS_AT_ONCE)

        async def hand_over(bundle: str) -> None:
            async with turns:
                await self.release(bundle, "its broker was stopped")

        await asyncio.gather(*map(hand_over, self._table.names()), return_exceptions=True)
        await self.reports.stop()

    def _session_lost(self) -> None:
        lost = self._table.end_session()
        self._owners.forget_all()
        self.reports.lost()
        _log.error("metadata session ended, bundles dropped: bundles=%d", len(lost))
        self._host.drop(lost)

    def why_not_ready(self) -> str:
        return self.registration.why_not_ready() or self.reports.why_unfit()

    # -- lookups ---------------------------------------------------------------------------------------

    def holds(self, bundle: str) -> bool:
        return self._table.holds(bundle)

    async def require(self, bundle: str, *, take: bool) -> None:
        if self._table.holds(bundle):
            return
        if not take:
            await self._require_named(bundle)
            return
        owner = await self.owner_of(bundle, take=True)
        if not owner.is_here:
            raise NotOwner(f"bundle {bundle} is owned by broker {owner.broker_id}", owner)

    async def _require_named(self, bundle: str) -> None:
        """Acquire a bundle whose node names this broker, although it does not serve it; otherwise raise `NotOwner`.

        Such a node remains if a hand-over could not delete it, or if the store ends a session later than this broker
        does. While it remains, other brokers' lookups send clients to this broker, and no broker serves the bundle.
        """
        registration = self.registration
        may_take = registration.is_held and not registration.is_stopping and bundle not in self._handovers
        known = await self._owners.find(bundle) if may_take else self._owners.known(bundle)
        owner = None if known is None else registration.owner(known.broker)
        if may_take and owner is not None and owner.is_here:
            owner = await self._take(bundle, "its node named this broker, which did not serve it")
            if owner.is_here:
                return
        raise NotOwner(
            f"bundle {bundle} is not owned by this broker ({registration.broker_id}); look the topic up again",
            owner,
        )

    async def owner_of(self, bundle: str, *, take: bool = False) -> Owner:
        await self._handovers.end_of(bundle)
        registration = self.registration
        registration.require()
        if self._table.holds(bundle):
            return registration.owner(registration.me)
        known = await self.selection.owner(bundle)
        if known is not None and not registration.is_me(known.broker):
            return registration.owner(known.broker)
        if known is None and self._table.get(bundle) is None:
            chosen = await self.selection.candidate(take=take)
            if chosen is not registration.me:
                return registration.owner(chosen, owns=False)
        return await self._take(bundle, "a client looked it up, and it had no owner")

    def _node_changed(self, bundle: str) -> None:
        if self._table.holds(bundle):
            self._tasks.start(self._verify(bundle), f"verify {bundle}")

    def verify_owned(self, bundle: str) -> None:
        """Read the node of an owned bundle again, to check that this broker still owns it.

        A suspended broker process may miss the end of its session. Without this check it would load the topic again for
        its clients, and fence the new owner's ledger, until it notices the end.
        """
        if self._table.holds(bundle):
            self._owners.forget(bundle)
            self._tasks.start(self._verify(bundle), f"verify {bundle}")

    async def _verify(self, bundle: str) -> None:
        """Drop a bundle of this broker if its node was deleted or names another broker."""
        epoch = self._table.epoch
        try:
            found = await self._owners.find(bundle)
        except QuireError:
            return  # Then the state of the session decides.
        lost = found is None or not self.registration.is_me(found.broker)
        if lost and epoch == self._table.epoch and self._table.holds(bundle):
            _log.error("bundle lost, its node was deleted or names another broker: bundle=%s", bundle)
            self._table.remove(bundle)
            self._host.drop([bundle])

    # -- acquiring bundles -----------------------------------------------------------------------------

    async def take(self, bundle: str) -> None:
        self.registration.require()
        if self.registration.is_stopping:
            raise Unavailable("this broker is stopping and acquires no bundles")
        self._owners.watch(bundle)
        owner = await self._take(bundle, "its former owner handed it over")
        if not owner.is_here:
            raise NotOwner(f"bundle {bundle} is owned by broker {owner.broker_id}", owner)

    async def _take(self, bundle: str, why: str) -> Owner:
        """Acquire the bundle; concurrent calls share one attempt."""
        task = self._taking.get(bundle)
        if task is None:
            task = self._taking[bundle] = self._tasks.start(self._try_to_take(bundle, why), f"take {bundle}")
            task.add_done_callback(lambda _: self._taking.pop(bundle, None))
        return await asyncio.shield(task)

    async def _try_to_take(self, bundle: str, why: str) -> Owner:
        registration, held = self.registration, self._table.get(bundle)
        if held is not None:  # another lookup acquired the bundle after the caller's check
            if held.is_leaving:
                raise Unavailable(f"bundle {bundle} is being handed over; try again")
            return registration.owner(registration.me)
        if unfit := self.reports.why_unfit():
            found = await self._owners.find(bundle)
            if found is not None and registration.is_me(found.broker):
                await self._delete_node(
                    bundle
                )  # otherwise, the node would send every client of the bundle here
            raise Unavailable(f"{unfit}; try again")
        epoch, now_ms = self._table.epoch, self._clock.now_ms()
        record = OwnerRecord(broker=registration.me, since_ms=now_ms, why=why)
        try:
            await self._store.create(path_of(bundle), encode(record), ephemeral=True)
        except (AlreadyExists, OutcomeUnknown):
            self._owners.forget(bundle)
            found = await self._owners.find(bundle)
            if found is None:
                raise Unavailable(f"bundle {bundle} is changing its owner; try again") from None
            if not registration.is_me(found.broker):
                return registration.owner(found.broker)
        registration.require()
        if not self._table.hold(bundle, epoch, now_ms, why):
            raise Unavailable(
                f"the metadata session ended while this broker acquired bundle {bundle}; try again"
            )
        _log.info("bundle acquired: bundle=%s reason=%s", bundle, why)
        self._host.gained(bundle)
        return registration.owner(registration.me)

    # -- handing over bundles --------------------------------------------------------------------------

    async def release(self, bundle: str, why: str) -> None:
        if bundle in self._splitting:
            raise Unavailable(f"bundle {bundle} is being split; try again")
        if not self._table.begin_leaving(bundle):
            await self._raise_not_owner(bundle)
        await self._handovers.carry_out(self._host, bundle, why)

    async def give_up(self, why: str) -> None:
        """Give up all bundles without closing their ledgers, which would require a write.

        The next owners recover the ledgers. The bundles' nodes are deleted before the clients are disconnected;
        otherwise, lookups would send the clients back to this broker.
        """
        given = [
            bundle
            for bundle in self._table.names()
            if bundle not in self._splitting and self._table.remove(bundle)
        ]
        _log.error("giving up all bundles: bundles=%d reason=%s", len(given), why)
        await asyncio.gather(*map(self._delete_node, given))
        self._host.drop(given)

    async def _raise_not_owner(self, bundle: str) -> None:
        if bundle in self._handovers:
            raise Unavailable(f"bundle {bundle} is already being handed over")
        found = await self._owners.find(bundle)
        if found is None or self.registration.is_me(found.broker):
            raise NotFound(f"no broker owns a bundle {bundle}; `quire brokers show` lists the owned bundles")
        owner = self.registration.owner(found.broker)
        raise NotOwner(f"bundle {bundle} is owned by {owner.broker_id}", owner)

    # -- splitting bundles -----------------------------------------------------------------------------

    async def split(
        self, bundle: str, parts: tuple[str, str], carry_out: Callable[[], Awaitable[None]]
    ) -> None:
        if bundle in self._splitting or not self._table.holds(bundle):
            raise InUse(f"bundle {bundle} is already being split or handed over")
        if others := self.reports.of_other_versions():
            raise InUse(
                f"bundles are not split while brokers run another version, which may lack support: {', '.join(others)}"
            )
        self._splitting |= {bundle, *parts}
        try:
            for part in parts:
                if not (await self._take(part, f"it was a part of {bundle}")).is_here:
                    raise InUse(f"bundle {part} does not exist yet, but is owned by another broker")
            await carry_out()
        except BaseException:
            for part in parts:
                await self._leave(part)
            raise
        finally:
            self._splitting -= {bundle, *parts}
        if self._table.remove(bundle):
            self._tasks.start(self._delete_later(bundle), f"delete the node of {bundle}")

    async def _leave(self, bundle: str) -> None:
        """Drop a bundle with its loaded topics, without closing them."""
        if self._table.remove(bundle):
            self._host.drop([bundle])
            await self._delete_node(bundle)

    async def _delete_later(self, bundle: str) -> None:
        await asyncio.sleep(SPLIT_KNOWN_S)
        await self._delete_node(bundle)

    async def _delete_node(self, bundle: str) -> None:
        with suppress(NotFound, Unavailable, OutcomeUnknown):  # the node is deleted with the session
            await self._store.delete(path_of(bundle), ANY_VERSION)
        self._owners.forget(bundle)

    # -- for operators ---------------------------------------------------------------------------------

    def brokers(self) -> list[BrokerStats]:
        return self.reports.brokers()

    def bundles(self) -> list[BundleStats]:
        return self.reports.bundles()

    def metrics(self) -> Mapping[str, float]:
        return {
            "quire_serving_bundles_owned": len(self._table),
            "quire_serving_bundles_moved_total": self.shedding.moves_total,
            "quire_serving_bundles_split_total": self.shedding.splits_total,
            "quire_serving_sessions_lost_total": self.registration.sessions_lost_total,
            "quire_serving_session_in_doubt": bool(self.registration.why_not_ready()),
            "quire_serving_cannot_write": self.registration.broker_id in self.reports.cannot_write(),
        }
