"""Ownership in a cluster: one session (`registration`), one ephemeral node per bundle.

A lookup is answered by any broker. The owner's node is read once and then watched, so a lookup of a bundle that was
looked up before costs no metadata operation. When nobody owns the bundle, the broker with the smallest load should:
the client is sent there, and that broker takes it. Only a lookup (or an operator's request) makes a broker take a
bundle; a client that comes with an old address is told to look up again, else it would bring back what was moved.
A lookup of a bundle that is being given away (`handovers`) waits for the end of that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

from quire.metadata.records import OwnerRecord, encode
from quire.metadata.store import ANY_VERSION, MetadataStore
from quire.runtime.clock import Clock
from quire.runtime.errors import AlreadyExists, InUse, NotFound, OutcomeUnknown, QuireError, Unavailable
from quire.runtime.tasks import Tasks
from quire.serving.cluster.handovers import Handovers
from quire.serving.cluster.owners import Owners, path_of
from quire.serving.cluster.port import BundleHost, NotOwner, Owner
from quire.serving.cluster.probe import Probe
from quire.serving.cluster.registration import BrokerRegistration
from quire.serving.cluster.reports import Reports
from quire.serving.cluster.selection import BrokerSelection
from quire.serving.cluster.shedding import LoadShedding
from quire.serving.cluster.table import BundleTable

HANDOVERS_AT_ONCE: Final = 1
"""On a stop: two would share the processors, and every topic would pause for both."""

SPLIT_KNOWN_S: Final = 10.0
"""Every broker has heard of a namespace's new boundaries by then: watches take milliseconds."""

_log = logging.getLogger(__name__)


class ClusterOwnership:
    """An `Ownership`. `broker_id` is the broker's name in the cluster: its address.

    `answers` tells whether a broker takes connections at its service URL; see `probe`. `unique` names this life of it.
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

    # -- life ------------------------------------------------------------------------------------------

    async def start(self, host: BundleHost) -> None:
        self._host = host
        await self.registration.start(host.addresses)
        await self.reports.start(host)
        self.shedding.host = host
        await self.shedding.report()
        self._tasks.start(self.shedding.run(), "loads")

    async def stop(self) -> None:
        """Leave the list of brokers, so that no client is sent here, then hand over bundle by bundle."""
        self.registration.is_stopping = True
        await self._tasks.stop()
        await self.registration.stop()
        turns = asyncio.Semaphore(HANDOVERS_AT_ONCE)

        async def hand_over(bundle: str) -> None:
            async with turns:
                await self.release(bundle, "its broker stops")

        await asyncio.gather(*map(hand_over, self._table.names()), return_exceptions=True)
        await self.reports.stop()

    def _session_lost(self) -> None:
        lost = self._table.over()
        self._owners.forget_all()
        self.reports.lost()
        _log.error("the session with the metadata store is over: dropped %d bundles", len(lost))
        self._host.drop(lost)

    def why_not_ready(self) -> str:
        return self.registration.why_not_ready() or self.reports.why_unfit()

    # -- who owns it -----------------------------------------------------------------------------------

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
            raise NotOwner(f"bundle {bundle} is served by {owner.broker_id}", owner)

    async def _require_named(self, bundle: str) -> None:
        """Take a bundle again whose node still names this broker; else `NotOwner`.

        Such a node is left when a hand-over could not delete it, or the store is slower to end a session than we are to
        give it up. Every lookup at another broker sends its client here then, for as long as no broker serves it.
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
            f"bundle {bundle} is not served by this broker ({registration.broker_id}); look the topic up again",
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
        return await self._take(bundle, "a client asked for it, and nobody owned it")

    def _node_changed(self, bundle: str) -> None:
        if self._table.holds(bundle):
            self._tasks.start(self._verify(bundle), f"verify {bundle}")

    def verify_owned(self, bundle: str) -> None:
        """Else the broker that slept through its session's end would load the topic anew for its clients, and fence the
        owner's ledger, until it hears of the end.
        """
        if self._table.holds(bundle):
            self._owners.forget(bundle)
            self._tasks.start(self._verify(bundle), f"verify {bundle}")

    async def _verify(self, bundle: str) -> None:
        """The node of a bundle of this broker changed: it was deleted, or this is the news of its creation."""
        epoch = self._table.epoch
        try:
            found = await self._owners.find(bundle)
        except QuireError:
            return  # the session's state will tell
        lost = found is None or not self.registration.is_me(found.broker)
        if lost and epoch == self._table.epoch and self._table.holds(bundle):
            _log.error("bundle %s was taken away from this broker", bundle)
            self._table.gone(bundle)
            self._host.drop([bundle])

    # -- taking ----------------------------------------------------------------------------------------

    async def take(self, bundle: str) -> None:
        self.registration.require()
        if self.registration.is_stopping:
            raise Unavailable("this broker is stopping, too")
        self._owners.watch(bundle)
        owner = await self._take(bundle, "its owner gave it to this broker")
        if not owner.is_here:
            raise NotOwner(f"bundle {bundle} is served by {owner.broker_id}", owner)

    async def _take(self, bundle: str, why: str) -> Owner:
        """Take it once, however many ask."""
        task = self._taking.get(bundle)
        if task is None:
            task = self._taking[bundle] = self._tasks.start(self._try_to_take(bundle, why), f"take {bundle}")
            task.add_done_callback(lambda _: self._taking.pop(bundle, None))
        return await asyncio.shield(task)

    async def _try_to_take(self, bundle: str, why: str) -> Owner:
        registration, held = self.registration, self._table.get(bundle)
        if held is not None:  # since the caller looked, another lookup was faster
            if held.is_leaving:
                raise Unavailable(f"bundle {bundle} is being handed over; try again")
            return registration.owner(registration.me)
        if unfit := self.reports.why_unfit():
            found = await self._owners.find(bundle)
            if found is not None and registration.is_me(found.broker):
                await self._delete_node(bundle)  # it leads every lookup elsewhere to here
            raise Unavailable(f"{unfit}; try again")
        epoch, now_ms = self._table.epoch, self._clock.now_ms()
        record = OwnerRecord(broker=registration.me, since_ms=now_ms, why=why)
        try:
            await self._store.create(path_of(bundle), encode(record), ephemeral=True)
        except (AlreadyExists, OutcomeUnknown):
            self._owners.forget(bundle)
            found = await self._owners.find(bundle)
            if found is None:
                raise Unavailable(f"bundle {bundle} has just changed hands; try again") from None
            if not registration.is_me(found.broker):
                return registration.owner(found.broker)
        registration.require()
        if not self._table.taken(bundle, epoch, now_ms, why):
            raise Unavailable(f"the session ended while bundle {bundle} was taken; try again")
        _log.info("owns bundle %s: %s", bundle, why)
        self._host.gained(bundle)
        return registration.owner(registration.me)

    # -- giving away -----------------------------------------------------------------------------------

    async def release(self, bundle: str, why: str) -> None:
        if bundle in self._splitting:
            raise Unavailable(f"bundle {bundle} is being split; try again")
        if not self._table.leave(bundle):
            await self._raise_not_owner(bundle)
        await self._handovers.carry_out(self._host, bundle, why)

    async def give_up(self, why: str) -> None:
        """Let go of all bundles at once. Nothing is closed, for that would be written: the next owners recover it.

        The nodes go first: a client that is sent away while one of them names this broker would come back.
        """
        given = [
            bundle
            for bundle in self._table.names()
            if bundle not in self._splitting and self._table.gone(bundle)
        ]
        _log.error("giving up %d bundles: %s", len(given), why)
        await asyncio.gather(*map(self._delete_node, given))
        self._host.drop(given)

    async def _raise_not_owner(self, bundle: str) -> None:
        if bundle in self._handovers:
            raise Unavailable(f"bundle {bundle} is being handed over already")
        found = await self._owners.find(bundle)
        if found is None or self.registration.is_me(found.broker):
            raise NotFound(f"nobody owns a bundle {bundle}; `quire brokers show` lists those that are owned")
        owner = self.registration.owner(found.broker)
        raise NotOwner(f"bundle {bundle} is owned by {owner.broker_id}", owner)

    # -- splitting -------------------------------------------------------------------------------------

    async def split(
        self, bundle: str, parts: tuple[str, str], carry_out: Callable[[], Awaitable[None]]
    ) -> None:
        if bundle in self._splitting or not self._table.holds(bundle):
            raise InUse(f"bundle {bundle} is being split or handed over already")
        if others := self.reports.of_other_versions():
            raise InUse(
                f"brokers of another version are there, which may not know of splits: {', '.join(others)}"
            )
        self._splitting |= {bundle, *parts}
        try:
            for part in parts:
                if not (await self._take(part, f"it was a part of {bundle}")).is_here:
                    raise InUse(f"bundle {part} is another broker's, though it is not there yet")
            await carry_out()
        except BaseException:
            for part in parts:
                await self._leave(part)
            raise
        finally:
            self._splitting -= {bundle, *parts}
        if self._table.gone(bundle):
            self._tasks.start(self._delete_later(bundle), f"delete the node of {bundle}")

    async def _leave(self, bundle: str) -> None:
        """Own it no longer, whatever of it is loaded."""
        if self._table.gone(bundle):
            self._host.drop([bundle])
            await self._delete_node(bundle)

    async def _delete_later(self, bundle: str) -> None:
        await asyncio.sleep(SPLIT_KNOWN_S)
        await self._delete_node(bundle)

    async def _delete_node(self, bundle: str) -> None:
        with suppress(NotFound, Unavailable, OutcomeUnknown):  # it goes with the session
            await self._store.delete(path_of(bundle), ANY_VERSION)
        self._owners.forget(bundle)

    # -- for people ------------------------------------------------------------------------------------

    def brokers(self) -> list[dict[str, Any]]:
        return self.reports.brokers()

    def bundles(self) -> list[dict[str, Any]]:
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
