"""Host with a broker process, which is composed as by `quire broker`, except for HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any, Final
from unittest import mock

from aiohttp import web

from quire.identity.place import Place
from quire.identity.stores import StoreRole
from quire.ledger.ledgers import Ledgers, LedgerWriter, WriterListener
from quire.ledger.reach import Reach
from quire.runtime.errors import QuireError
from quire.runtime.limits import MESSAGE_BYTES_MAX
from quire.serving.admin.app import make_app
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.operations import fan_out
from quire.serving.ownership.cluster_ownership import ClusterOwnership
from quire.serving.settings import BrokerSettings
from quire.serving.topic.services import Services
from quire.testing.place import TrustedPlace
from quire.tiering.archive import Archive
from quire.tiering.metadata_copy import MetadataCopies

from .client import RETRY_S, make_base
from .faults import Cluster
from .host import SimulatedHost
from .loop import Process
from .metadata import SimulatedStore
from .objects import SimulatedBucket, SimulatedObjects
from .oracle import Oracle
from .peers import SimulatedPeers
from .plan import Plan
from .world import SimulatedClock, World

PORT: Final = 6650
CLUSTER: Final = "51a7ed00-0000-4000-8000-000000000000"
"""UUID of the cluster, in histories in which stores have a cluster's marker."""


def adverse_broker_settings(
    rng: Random, host: str, plan: Plan, *, deduplication: bool, archive_lag_ms: int
) -> BrokerSettings:
    """Return settings with segments of a few blocks, which are archived all the time."""
    return BrokerSettings(
        listen=f"{host}:{PORT}",
        advertise=f"pulsar://{host}:{PORT}",
        cluster="simulated",
        segment_bytes_max=rng.choice((3_000, 20_000, 200_000)),
        segment_age_ms_max=rng.choice((1_000, 5_000, 60_000)),
        bytes_in_flight_max=2 * MESSAGE_BYTES_MAX,
        tail_cache_bytes=rng.choice((1, 10_000, 1_000_000)),
        deduplication=deduplication,
        namespace_bundles=3,
        keep_alive_ms=2_000,
        archive_delay_ms=rng.choice((0, 300)),
        archive_lag_ms=archive_lag_ms,
        retention_ms=plan.retention_ms,
        retention_bytes=plan.retention_bytes,
    )


class WatchedLedgers(Ledgers):
    """`Ledgers` that report their writers' confirmations to the oracle."""

    oracle: Oracle

    async def create(self, purpose: str, listener: WriterListener, *how: Any, **more: Any) -> LedgerWriter:
        watched = _Watched(listener, self.oracle)
        writer = await super().create(purpose, watched, *how, **more)
        watched.ledger_id = writer.ledger_id
        return writer


class _Watched:
    def __init__(self, listener: WriterListener, oracle: Oracle) -> None:
        self._listener, self._oracle = listener, oracle
        self.ledger_id = -1

    def confirmed(self, last_entry: int) -> None:
        self._oracle.heard_confirmed(self.ledger_id, last_entry)
        self._listener.confirmed(last_entry)

    def failed(self, error: QuireError) -> None:
        self._listener.failed(error)


class WatchedOwnership(ClusterOwnership):
    """`ClusterOwnership` that records when it gives up all its bundles."""

    world: World

    async def give_up(self, why: str) -> None:
        self.world.saw("broker gave all up")
        await super().give_up(why)


class BrokerHost(SimulatedHost):
    def __init__(self, cluster: Cluster, bucket: SimulatedBucket, number: int) -> None:
        super().__init__(cluster, f"broker-{number}")
        self.bucket = bucket
        self.clock = SimulatedClock(
            self.world.loop, self.rng.uniform(-0.02, 0.02), self.rng.choice((0, 0, -3_000, 3_000))
        )
        self.broker: Broker | None = None
        self.objects = SimulatedObjects(bucket, self.world)
        self._rest: web.Application | None = None
        self.http_url = f"http://{self.host}"
        plan_rng = self.world.rng("broker settings")
        self.settings = adverse_broker_settings(
            self.rng,
            self.host,
            cluster.plan,
            deduplication=plan_rng.random() < 0.5,
            archive_lag_ms=plan_rng.choice((0, 1_000, 10_000)),
        )

    def work(self, process: Process) -> Coroutine[Any, Any, None]:
        self.store = SimulatedStore(self.cluster.metadata, process)
        return self._run(process, self.store)

    def forget(self) -> None:
        self.broker = self._rest = None

    @property
    def rest(self) -> web.Application | None:
        """Return the broker's REST application, created once because its two hundred routes take long to build."""
        if self.broker is not None and self._rest is None:
            self._rest = make_app(self.broker)
            self._rest.freeze()
        return self._rest if self.broker is not None else None

    async def _run(self, process: Process, store: SimulatedStore) -> None:
        try:
            self.broker = await self._start(process, store)
            self.world.note(f"{process} is up")
        except QuireError as error:
            self.world.note(f"{process} cannot start: {error}")
            self.kill(restart_s=RETRY_S)

    async def _start(self, process: Process, store: SimulatedStore) -> Broker:
        base = await make_base(self.cluster, store, self.clock, self.rng, process.name, WatchedLedgers)
        assert isinstance(base.ledgers, WatchedLedgers)
        base.ledgers.oracle = self.cluster.oracle
        self.objects = SimulatedObjects(self.bucket, self.world)
        place: Place = TrustedPlace(self.objects, store)
        if self.cluster.plan.copies:
            place = Place(store, self.objects, CLUSTER, StoreRole.ARCHIVE)
        archive = Archive(place, self.clock, unique=self._unique)
        ownership = WatchedOwnership(store, self.clock, f"{self.host}:{PORT}", unique=self._unique)
        ownership.world = self.world
        with mock.patch.object(fan_out, "Peers", lambda *_: SimulatedPeers(self.cluster, self.host)):
            broker = Broker(Services(self.settings, store, base.ledgers, archive, self.clock), ownership)
        broker.addresses.http_url = self.http_url
        reach = Reach(base.directory, self.cluster.plan.ack_quorum, ownership.shedding.shed_soon)
        ownership.reports.set_cannot_write_source(lambda: reach.why_not)
        await broker.start()
        reach.start()
        base.repair.start()
        if self.cluster.plan.copies:
            await MetadataCopies(place, self.clock, lambda: base.repair.is_coordinator).start()
        return broker

    def _unique(self) -> str:
        return f"{self.rng.getrandbits(128):032x}"

    # -- actions of events -----------------------------------------------------------------------------
    async def leave(self) -> None:
        """Stop the broker cleanly, and start a new process a moment later."""
        broker, process = self.broker, self.process
        if broker is not None:
            self.broker = None
            await broker.stop()
            await broker.services.ledgers.stop()
            if self.process is process:
                self.kill(restart_s=RETRY_S)

    async def move(self, number: int) -> None:
        """Move one of the broker's bundles to another broker; for a quarter of the numbers, split it instead."""
        if self.broker is None or not isinstance(self.broker.ownership, ClusterOwnership):
            return
        names = sorted(self.broker.ownership._table.names())
        if names:
            bundle = names[number % len(names)]
            if number % 4 == 3:
                await self.broker.bundles.split(bundle)
                self.world.saw("bundle split")
            else:
                await self.broker.ownership.release(bundle, "an operator asked")
                self.world.saw("bundle moved")

    async def compact(self, topic: str) -> None:
        if self.broker is not None:
            try:
                await self.broker.admin.topics.compact(TopicName.parse(topic))
                self.world.saw("compaction begun")
            except QuireError as error:
                self.world.note(f"{self.host} cannot compact {topic}: {error}")

    async def unload(self, topic: str) -> None:
        if self.broker is not None:
            try:
                await asyncio.wait_for(self.broker.admin.topics.unload(TopicName.parse(topic)), 5)
                self.world.saw("topic unloaded")
            except (QuireError, TimeoutError) as error:
                self.world.note(f"{self.host} cannot unload {topic}: {error}")
