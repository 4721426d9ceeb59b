"""Ownership in a cluster: one session, one ephemeral node per bundle.

| session | serves its topics | answers lookups, takes bundles | leaves it when |
|---|---|---|---|
| held | yes | yes | suspended: *in doubt*; over: *lost* |
| in doubt | yes | no: "try again" | resumed: *held*; the time-out passes by our own clock, or over: *lost* |
| lost | no, all was dropped | no | registered again: *held*, owning nothing |

The session's state is that of the lease on the broker's own registration (`metadata.lease`); all nodes of a session
live and die together, so there is one time-out, not one per bundle.

A lookup is answered by any broker. The owner's node is read once and then watched, so a lookup of a bundle that was
looked up before costs no metadata operation. When nobody owns the bundle, the broker with the smallest load should:
the client is sent there, and that broker takes it. Only a lookup (or an operator's request) makes a broker take a
bundle; a client that comes with an old address is told to look up again, else it would bring back what was moved.

To give a bundle away: close its topics, delete the node, ask the broker that a lookup would choose to take it, and
then send the clients there, who need not look it up (unless there are listeners: a connection does not tell by which
its client came). Who does not take it is no harm: the clients find the next owner by lookups. Whoever asks here
meanwhile waits for the end of that. The next bundle's turn comes when the topics of this one were loaded, for each
topic pauses as long as the topics that are on the way together need.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from quire.metadata import paths
from quire.metadata.lease import Lease, LeaseState
from quire.metadata.records import BrokerRecord, OwnerRecord, encode
from quire.metadata.store import ANY_VERSION, MetadataStore
from quire.runtime.clock import Clock
from quire.runtime.errors import (
    AlreadyExists,
    ConfigurationError,
    NotFound,
    OutcomeUnknown,
    QuireError,
    Unavailable,
)
from quire.runtime.tasks import Tasks
from quire.serving.cluster import balance
from quire.serving.cluster.owners import Owners, path_of
from quire.serving.cluster.port import BundleHost, NotOwner, Owner
from quire.serving.cluster.probe import Probe
from quire.serving.cluster.reports import Reports
from quire.serving.cluster.table import BundleTable

REPORT_S: Final = 3.0
"""How often loads are looked at; written when they changed enough to matter."""

REST_MS: Final = 120_000
"""A bundle that came a moment ago is not given away by balance: rates need time to be true."""

RETRY_S: Final = 0.25
HANDOVERS_AT_ONCE: Final = 1
"""On a stop: two would share the processors, and every topic would pause for both."""

INVITATION_S: Final = 2.0
"""How long a broker may take to take a bundle, and then to load its topics, until the clients fend for themselves."""

PATIENCE_S: Final = 2.0
"""Beyond the session's time-out, for what a dead broker left to go."""

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
        self._id = broker_id
        self._answers = answers or Probe()
        self._unique = unique
        self._patience_s = store.session_timeout_ms / 1000 + PATIENCE_S
        self._tasks = Tasks("ownership")
        self._table = BundleTable()
        self._owners = Owners(store, self._node_changed)
        self._taking: dict[str, asyncio.Task[Owner]] = {}
        self._leaving: dict[str, asyncio.Future[None]] = {}
        self.reports = Reports(store, broker_id, self._table, self._tasks)
        self._balancer = balance.Balancer(broker_id, moves_per_minute_max)
        self._heard = asyncio.Event()
        """The store said something of the session."""
        self._is_stopping = False
        self._moves_total = 0
        self._sessions_lost_total = 0

    # -- life ------------------------------------------------------------------------------------------

    async def start(self, host: BundleHost) -> None:
        self._host = host
        self._me = BrokerRecord(
            broker_id=self._id,
            service_url=host.service_url,
            http_url=host.http_url,
            started_ms=self._clock.now_ms(),
            session=self._unique(),
            listeners=dict(host.listeners),
        )
        self._lease = Lease(
            self._store, paths.broker(self._id), encode(self._me), self._clock, self._session_changed
        )
        self._unwatch = self._store.on_session(lambda _: self._heard.set())
        await self._register_first()
        await self.reports.start(host)
        await self._report()
        self._tasks.start(self._keep_looking(), "loads")

    async def _register_first(self) -> None:
        """A broker that was killed leaves its name behind until its session is over: wait that long."""
        try:
            async with asyncio.timeout(self._patience_s):
                await self._lease.acquire()
        except TimeoutError:
            await self._lease.release()
            raise ConfigurationError(
                f"another broker is registered as {self._id}; give each broker an --advertise of its own"
            ) from None

    async def stop(self) -> None:
        """Leave the list of brokers, so that nobody is sent here, then hand over bundle by bundle."""
        self._is_stopping = True
        await self._tasks.stop()
        await self._lease.release()
        turns = asyncio.Semaphore(HANDOVERS_AT_ONCE)

        async def hand_over(bundle: str) -> None:
            async with turns:
                await self.release(bundle, "its broker stops")

        await asyncio.gather(*map(hand_over, self._table.names()), return_exceptions=True)
        await self._delete(paths.load(self._id))
        self._unwatch()
        self.reports.stop()

    # -- the session -----------------------------------------------------------------------------------

    def _session_changed(self, state: LeaseState) -> None:
        if state is LeaseState.IN_DOUBT:
            _log.warning("the metadata store does not answer: serving on, without lookups and changes")
        elif state is LeaseState.HELD:
            _log.info("registered as broker %s", self._id)
        elif state is LeaseState.LOST:
            self._drop_all()
            if not self._is_stopping:
                self._tasks.start(self._register_again(), "register again")

    def _drop_all(self) -> None:
        lost = self._table.over()
        self._owners.forget_all()
        self.reports.lost()
        self._sessions_lost_total += 1
        _log.error("the session with the metadata store is over: dropped %d bundles", len(lost))
        self._host.drop(lost)

    async def _register_again(self) -> None:
        while True:
            try:
                await self._lease.acquire()
                return
            except (Unavailable, OutcomeUnknown):
                await self._until_heard()

    async def _until_heard(self) -> None:
        """A little while, or until the store says something of the session."""
        self._heard.clear()
        try:
            async with asyncio.timeout(RETRY_S):
                await self._heard.wait()
        except TimeoutError:
            pass

    def _must_know(self) -> None:
        """Raise `Unavailable` unless the session is beyond doubt."""
        why = self.why_not_ready()
        if why:
            raise Unavailable(f"{why}; try again")

    def why_not_ready(self) -> str:
        match self._lease.state:
            case LeaseState.IN_DOUBT:
                return "the metadata store does not answer this broker"
            case LeaseState.LOST:
                return "this broker's session is over and it has not registered again yet"
        return ""

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
        give it up. Every lookup at another broker sends its client here then, for as long as nobody serves it.
        """
        may_take = (
            self._lease.state is LeaseState.HELD and not self._is_stopping and bundle not in self._leaving
        )
        known = await self._owners.find(bundle) if may_take else self._owners.known(bundle)
        owner = None if known is None else self._owner(known.broker)
        if may_take and owner is not None and owner.is_here:
            owner = await self._take(bundle, "its node named this broker, which did not serve it")
            if owner.is_here:
                return
        raise NotOwner(
            f"bundle {bundle} is not served by this broker ({self._id}); look the topic up again", owner
        )

    async def owner_of(self, bundle: str, *, take: bool = False) -> Owner:
        leaving = self._leaving.get(bundle)
        if leaving is not None:
            await asyncio.wait([leaving])
        self._must_know()
        if self._table.holds(bundle):
            return self._owner(self._me)
        known = await self._find_living(bundle)
        if known is not None and not self._is_mine(known):
            return self._owner(known.broker)
        if known is None and self._table.get(bundle) is None:
            chosen = await self._choose_living(take=take)
            if chosen is not self._me:
                self.reports.sent[chosen.broker_id] += 1
                return self._owner(chosen)._replace(owns=False)
        return await self._take(bundle, "a client asked for it, and nobody owned it")

    def _owner(self, broker: BrokerRecord) -> Owner:
        return Owner(
            broker.broker_id,
            broker.service_url,
            broker.http_url,
            broker.session == self._me.session,
            listeners=broker.listeners,
        )

    def _is_mine(self, owner: OwnerRecord) -> bool:
        return owner.broker.session == self._me.session

    def _choose(self, *, take: bool) -> BrokerRecord:
        """Who should own what nobody owns."""
        there = self.reports.registered()
        if self._is_stopping:
            there.pop(self._id, None)
        elif take or not there:
            return self._me
        if not there:
            raise Unavailable("this broker is stopping and there is no other; start one")
        chosen = self.reports.least_loaded(there)
        return self._me if chosen == self._id and not self._is_stopping else there[chosen]

    async def _choose_living(self, *, take: bool) -> BrokerRecord:
        chosen = self._choose(take=take)
        if chosen is self._me or self._is_stopping or await self._answers(chosen.service_url):
            return chosen
        return self._me

    async def _find_living(self, bundle: str) -> OwnerRecord | None:
        """The owner; of one that takes no connections, wait for its session's end, for it is probably dead."""
        changes = self._owners.changes(bundle)
        known = await self._owners.find(bundle)
        if known is None or self._is_mine(known) or await self._answers(known.broker.service_url):
            return known
        await self._owners.change_after(changes, bundle, self._patience_s)
        self._must_know()
        return await self._owners.find(bundle)

    def _node_changed(self, bundle: str) -> None:
        if self._table.holds(bundle):
            self._tasks.start(self._verify(bundle), f"verify {bundle}")

    def look_again(self, bundle: str) -> None:
        """Else the broker that slept through its session's end would load the topic anew for its clients, and fence the
        owner's ledger, until it hears of the end.
        """
        if self._table.holds(bundle):
            self._owners.forget(bundle)
            self._tasks.start(self._verify(bundle), f"verify {bundle}")

    async def _verify(self, bundle: str) -> None:
        """The node of a bundle of ours changed: somebody else deleted it, or it is our own creation that we hear of."""
        epoch = self._table.epoch
        try:
            found = await self._owners.find(bundle)
        except QuireError:
            return  # the session's state will tell
        lost = found is None or not self._is_mine(found)
        if lost and epoch == self._table.epoch and self._table.holds(bundle):
            _log.error("bundle %s was taken away from this broker", bundle)
            self._table.gone(bundle)
            self._host.drop([bundle])

    # -- taking ----------------------------------------------------------------------------------------

    async def take(self, bundle: str) -> None:
        self._must_know()
        if self._is_stopping:
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
        held = self._table.get(bundle)
        if held is not None:  # since the caller looked, another lookup was faster
            if held.is_leaving:
                raise Unavailable(f"bundle {bundle} is being handed over; try again")
            return self._owner(self._me)
        epoch, now_ms = self._table.epoch, self._clock.now_ms()
        record = OwnerRecord(broker=self._me, since_ms=now_ms, why=why)
        try:
            await self._store.create(path_of(bundle), encode(record), ephemeral=True)
        except (AlreadyExists, OutcomeUnknown):
            self._owners.forget(bundle)
            found = await self._owners.find(bundle)
            if found is None:
                raise Unavailable(f"bundle {bundle} has just changed hands; try again") from None
            if not self._is_mine(found):
                return self._owner(found.broker)
        self._must_know()
        if not self._table.taken(bundle, epoch, now_ms, why):
            raise Unavailable(f"the session ended while bundle {bundle} was taken; try again")
        _log.info("owns bundle %s: %s", bundle, why)
        self._host.gained(bundle)
        return self._owner(self._me)

    # -- giving away -----------------------------------------------------------------------------------

    async def release(self, bundle: str, why: str) -> None:
        if not self._table.leave(bundle):
            await self._raise_not_owner(bundle)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leaving[bundle] = done
        _log.info("handing over bundle %s: %s", bundle, why)
        heir: Owner | None = None
        try:
            handover = await self._host.hand_over(bundle)
            try:
                if self._table.gone(bundle):  # else the session ended meanwhile, and the node with it
                    await self._delete(path_of(bundle))
                    heir = await self._pass_on(bundle)
            finally:  # the topics are closed: who is not sent away would wait for ever
                handover.send_away(self._where_to(heir))
        finally:
            self._table.gone(bundle)
            self._owners.forget(bundle)
            del self._leaving[bundle]
            done.set_result(None)
        if heir is not None and handover.topics:
            await self._invite(heir, bundle, handover.topics)

    def _where_to(self, heir: Owner | None) -> str:
        """What clients are told when they are sent away; empty: to look it up."""
        return "" if heir is None or heir.listeners or self._me.listeners else heir.service_url

    async def _pass_on(self, bundle: str) -> Owner | None:
        """Let the broker that a lookup would choose take the bundle. None: the next lookup decides."""
        try:
            chosen = await self._choose_living(take=False)
        except Unavailable:
            return None
        if chosen is self._me:
            return None
        self.reports.sent[chosen.broker_id] += 1
        heir = self._owner(chosen)
        return heir if await self._invite(heir, bundle, ()) else None

    async def _invite(self, heir: Owner, bundle: str, topics: Sequence[str]) -> bool:
        try:
            async with asyncio.timeout(INVITATION_S):
                await self._host.invite(heir, bundle, topics)
        except (QuireError, TimeoutError) as error:
            _log.info("broker %s was not ready for bundle %s: %r", heir.broker_id, bundle, error)
            return False
        return True

    async def _raise_not_owner(self, bundle: str) -> None:
        if bundle in self._leaving:
            raise Unavailable(f"bundle {bundle} is being handed over already")
        found = await self._owners.find(bundle)
        owner = None if found is None or self._is_mine(found) else self._owner(found.broker)
        if owner is None:
            raise NotFound(f"nobody owns a bundle {bundle}; `quire brokers show` lists those that are owned")
        raise NotOwner(f"bundle {bundle} is owned by {owner.broker_id}", owner)

    async def _delete(self, path: str) -> None:
        try:
            await self._store.delete(path, ANY_VERSION)
        except (NotFound, Unavailable, OutcomeUnknown):
            pass  # it goes with the session, or the bundle is taken again (`_require_named`)

    # -- loads -----------------------------------------------------------------------------------------

    async def look_at_loads(self) -> None:
        """Report this broker's loads, and give away what is too much. Raises `Unavailable`, `OutcomeUnknown`."""
        await self._report()
        await self._give_away()

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            try:
                await self.look_at_loads()
            except (Unavailable, OutcomeUnknown) as error:
                _log.debug("loads are told later: %s", error)
            except QuireError as error:  # a bundle went while others were handed over
                _log.info("loads are looked at again later: %s", error)

    async def _report(self) -> None:
        if self._lease.state is LeaseState.HELD:
            await self.reports.write()

    async def _give_away(self) -> None:
        young = self._clock.now_ms() - REST_MS
        resting = [
            name for name in self._table.names() if (held := self._table.get(name)) and held.since_ms > young
        ]
        for bundle in self._balancer.plan(self.reports.loads(), self._clock.monotonic(), resting):
            self._moves_total += 1
            await self.release(bundle, "this broker has more load than the others")

    # -- for people ------------------------------------------------------------------------------------

    def brokers(self) -> list[dict[str, Any]]:
        return self.reports.brokers()

    def bundles(self) -> list[dict[str, Any]]:
        return self.reports.bundles()

    def metrics(self) -> Mapping[str, float]:
        return {
            "quire_serving_bundles_owned": len(self._table),
            "quire_serving_bundles_moved_total": self._moves_total,
            "quire_serving_sessions_lost_total": self._sessions_lost_total,
            "quire_serving_session_in_doubt": bool(self.why_not_ready()),
        }
