"""Histories of the whole cluster: brokers over the bookies, applications over the brokers, an archive beside them.

While it runs, beside what holds for ledgers:

    single writer   when a ledger of a topic confirms, no later ledger of that topic has confirmed anything
    lease           a broker that hears nothing from the metadata store gives up what it owns in time
    archive         a pointer names an object that is there, whole; bookies' copies go only after that

The end, in bounded virtual time after the last fault: applications stop producing, every message with a receipt reaches
every subscription, everything is repaired. Then, with fresh consumers and readers:

    acknowledged    what has a receipt is read, at the id that the receipt names
    order           ids grow, each producer's numbers too where duplicates are dropped; two readers agree
    acks            what an answered acknowledgement named is not delivered again
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, Final
from unittest import mock

from quire.client import EARLIEST, Client, ConsumerBusy
from quire.ledger.state_log import StateLog
from quire.metadata import paths, topics
from quire.metadata.records import LedgerRecord, LedgerState, TopicRecord, decode
from quire.runtime.errors import Unavailable
from quire.serving import broker as broker_module
from quire.serving import offloading
from quire.tiering import offload

from .application import CLIENT, CONSUMER, TYPES, Application, Facts
from .broker_host import PORT, BrokerHost
from .client import LAST_TRIES
from .faults import Cluster
from .leases import LeaseWatch
from .ledger_history import adverse_limits, unrepaired
from .loop import Process
from .objects import SimulatedBucket
from .oracle import Oracle
from .plan import Event, Plan
from .world import SimulatedClock, Violation, World

SETTLE_S: Final = 150.0
STEP_S: Final = 0.5
TOPICS: Final = ("one", "two")
PREFIX: Final = "persistent://public/default/"


@contextmanager
def adverse_times(rng: Random) -> Iterator[None]:
    """What takes seconds and minutes in production is looked at more often, and state logs roll soon."""
    unique = rng.getrandbits
    defaults: Any = StateLog.open.__func__.__kwdefaults__  # type: ignore[attr-defined]
    with (
        adverse_limits(rng),
        mock.patch.object(offload, "INTERVAL_S", 1.0),
        mock.patch.object(offload, "BACKOFF_MAX_S", 2.0),
        mock.patch.object(offloading, "ADOPT_AFTER_S", 1.0),
        mock.patch.object(broker_module, "TOPIC_TICK_S", 0.7),
        mock.patch.dict(defaults, {"roll_bytes": rng.choice((2_000, 20_000))}),
        mock.patch.object(topics, "uuid4", lambda: mock.Mock(hex=f"{unique(128):032x}")),
    ):
        yield


class ClusterOracle(Oracle):
    """The invariants of topics, beside those of ledgers."""

    bucket: SimulatedBucket

    def heard_confirmed(self, ledger_id: int, last_entry: int) -> None:
        super().heard_confirmed(ledger_id, last_entry)
        record = self.records.get(ledger_id)
        if record is None or not record.purpose.startswith("topic:"):
            return
        later = [
            other.ledger_id
            for other in self.records.values()
            if other.purpose == record.purpose
            and other.ledger_id > ledger_id
            and self.confirmed.get(other.ledger_id, -1) >= 0
        ]
        self.world.check(not later, "single writer", f"ledger {ledger_id} confirms, and so did {later}")

    def _metadata_changed(self, path: str) -> None:
        is_ledger = path.startswith(paths.LEDGERS + "/") and path.count("/") == 4
        before = self.records.get(int(path[-16:], 16)) if is_ledger else None
        super()._metadata_changed(path)
        if (
            path.startswith(paths.TOPICS + "/")
            and (node := self.metadata.find(path)) is not None
            and node.value
        ):
            self._check_topic(decode(TopicRecord, node.value, path))
        if before is not None and (after := self.records.get(before.ledger_id)) is not None:
            self._check_deletion(before, after)

    def _check_topic(self, record: TopicRecord) -> None:
        listed = [segment.ledger_id for segment in record.segments]
        self.world.check(listed == sorted(set(listed)), "segments", f"{record.name}: {listed}")
        for segment in record.segments:
            pointer = segment.archive
            if pointer is not None:
                content = self.bucket.objects.get(pointer.name, (b"", 0))[0]
                self.world.check(
                    len(content) == pointer.bytes,
                    "archive",
                    f"segment {segment.ledger_id} is said to be in {pointer.name}, which has {len(content)} bytes",
                )
                self.world.seen["archived"] += 1

    def _check_deletion(self, before: LedgerRecord, after: LedgerRecord) -> None:
        """Nothing is trimmed in these histories, so a topic's ledger with entries goes only after its archive."""
        if after.state is not LedgerState.DELETING or before.state is after.state or before.last_entry < 0:
            return
        if not before.purpose.startswith("topic:"):
            return
        self.world.saw("bookies' copy deleted")
        self.world.check(
            before.ledger_id in self._archived(),
            "archive",
            f"ledger {before.ledger_id} goes and is in no archive",
        )

    def _archived(self) -> set[int]:
        found = set()
        for name in TOPICS:
            node = self.metadata.find(paths.topic("public", "default", name))
            if node is not None:
                record = decode(TopicRecord, node.value, name)
                found |= {each.ledger_id for each in record.segments if each.archive is not None}
        return found


class BrokerCluster(Cluster):
    """Bookies, brokers, applications, and the bucket."""

    oracle_kind = ClusterOracle

    def __init__(self, plan: Plan, world: World) -> None:
        super().__init__(plan, world)
        self.oracle.learns = True
        self.bucket = SimulatedBucket(world)
        assert isinstance(self.oracle, ClusterOracle)
        self.oracle.bucket = self.bucket
        self.facts = Facts(world)
        self.brokers = [BrokerHost(self, self.bucket, number) for number in range(plan.brokers)]
        self.service_url = "pulsar://" + ",".join(f"{each.host}:{PORT}" for each in self.brokers)
        names = list(TOPICS[: 1 + plan.seed % 2])
        self.topics = names
        self.applications = [
            Application(self, self.facts, number, names, self.service_url) for number in range(plan.clients)
        ]
        for application in self.applications:
            application.is_deduplicated = self.brokers[0].settings.deduplication
        self.others = [*self.brokers, *self.applications]

    def start(self) -> None:
        super().start()
        for host in self.others:
            host.start_if_down()

    # -- events of this kind of history ----------------------------------------------------------------
    def _broker(self, number: int) -> BrokerHost:
        return self.brokers[number % len(self.brokers)]

    def _in(self, host: BrokerHost, work: Any) -> None:
        if host.process is None or host.broker is None:
            work.close()
        else:
            host.process.start(work)

    def _move(self, event: Event) -> None:
        self._in(self._broker(event.target), self._broker(event.target).move(int(event.first)))

    def _unload(self, event: Event) -> None:
        host = self._broker(event.target)
        self._in(host, host.unload(PREFIX + self.topics[int(event.first) % len(self.topics)]))

    def _leave(self, event: Event) -> None:
        self._in(self._broker(event.target), self._broker(event.target).leave())

    def _usurp(self, event: Event) -> None:
        """A broker's session ends and it does not hear of it; some of its clients look for another one at once."""
        host, application = (
            self._broker(event.target),
            self.applications[int(event.first) % len(self.applications)],
        )
        if host.store is not None:
            host.store.away()
            host.store.expire()
            self.world.later(event.second, host.store.back)
            self.network.cut(application.host, host.host)
            self.network.reset(application.host, host.host)
            self.world.later(event.second, self.network.heal, application.host, host.host)

    def _archive_trouble(self, event: Event) -> None:
        self.bucket.trouble = event.second
        self.world.later(event.first, lambda: setattr(self.bucket, "trouble", 0.0))

    def _decommission(self, event: Event) -> None:
        """Histories of ledgers do that."""

    def heal(self) -> None:
        super().heal()
        self.bucket.trouble = 0.0


class ClusterHistory:
    """See the top of the file."""

    def __init__(self, plan: Plan, world: World) -> None:
        self.plan, self.world = plan, world
        self.cluster = BrokerCluster(plan, world)
        self.facts, self.oracle = self.cluster.facts, self.cluster.oracle

    async def run(self) -> None:
        with adverse_times(self.world.rng("limits")):
            self.cluster.start()
            LeaseWatch(self.world, self.cluster.brokers).start()
            await asyncio.sleep(self.plan.seconds)
            self.world.note("-- faults are over")
            self.cluster.heal()
            for application in self.cluster.applications:
                application.stops_producing = True
            await self._settle()
            for application in self.cluster.applications:
                application.stops = True
            await asyncio.sleep(2.0)
            await self._judge()

    async def _settle(self) -> None:
        end = self.world.loop.time() + SETTLE_S
        while why := self._unsettled():
            if self.world.loop.time() > end:
                raise Violation("liveness", f"{SETTLE_S:g} s after the last fault, {why}")
            await asyncio.sleep(STEP_S)
        self.world.note("all is settled")

    def _unsettled(self) -> str:
        cluster = self.cluster
        down = [each.host for each in cluster.machines if not each.is_up]
        down += [each.host for each in cluster.brokers if each.broker is None or each.broker.why_not_ready()]
        if down:
            return f"{down} are not up"
        producing = [each.host for each in cluster.applications if each.producing]
        if producing:
            return f"{producing} still produce"
        for topic in cluster.topics:
            for kind in TYPES:
                missing = self.facts.undelivered(topic, kind)
                if missing:
                    return f"{len(missing)} messages of {topic} never reached {kind}, such as {min(missing)[:40]!r}"
        return unrepaired(cluster)

    # -- what must be there ----------------------------------------------------------------------------
    async def _judge(self) -> None:
        process = Process(self.world.loop, "judge")
        work = process.start(self._judge_all())
        await asyncio.wait([work])
        work.result()

    async def _judge_all(self) -> None:
        async with Client(
            self.cluster.service_url,
            settings=CLIENT,
            clock=SimulatedClock(self.world.loop),
            rng=self.world.rng("judge"),
        ) as client:
            for topic in self.cluster.topics:
                read = await self._at_last(partial(self._read, client, topic))
                again = await self._at_last(partial(self._read, client, topic))
                self.world.check(read == again, "order", f"two readers of {topic} do not agree")
                self._check_order(topic, read)
                self._check_receipts(topic, read)
                for kind in TYPES:
                    await self._at_last(partial(self._check_acks, client, topic, kind))

    async def _at_last(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Bundles may still move, and a consumer's dead connection be unknown; nobody is to be refused for long."""
        for _ in range(LAST_TRIES):
            try:
                return await work()
            except (Unavailable, ConsumerBusy) as error:
                self.world.note(f"judge: {error}")
                await asyncio.sleep(1.0)
        return await work()

    async def _read(self, client: Client, topic: str) -> list[tuple[tuple[int, int, int], bytes]]:
        found = []
        async with client.reader(topic, start=EARLIEST, settings=CONSUMER) as reader:
            while await reader.has_next():
                message = await reader.read(20.0)
                found.append((message.id.place, bytes(message.payload or b"")))
        return found

    def _check_order(self, topic: str, read: list[tuple[tuple[int, int, int], bytes]]) -> None:
        places = [place for place, _ in read]
        self.world.check(places == sorted(set(places)), "order", f"ids of {topic} do not grow")
        highest: dict[bytes, int] = {}
        for _, payload in read:
            who, number = payload.split(b" ")[0], int(payload.split(b" ")[2])
            known = highest.get(who, -1)
            if self.cluster.applications[0].is_deduplicated:
                self.world.check(
                    number > known, "order", f"{topic}: {number} of {who!r} stands behind {known}"
                )
            highest[who] = max(number, known)
        self.world.seen["messages read in the end"] += len(read)

    def _check_receipts(self, topic: str, read: list[tuple[tuple[int, int, int], bytes]]) -> None:
        there = set(read)
        for (of, payload), message_id in self.facts.receipts.items():
            if of == topic:
                self.world.check(
                    (message_id.place, payload) in there,
                    "acknowledged",
                    f"{payload[:40]!r} of {topic} has a receipt for {message_id} and is not there",
                )

    async def _check_acks(self, client: Client, topic: str, kind: str) -> None:
        """What a fresh consumer is given was not acknowledged."""
        acknowledged = self.facts.acknowledged[topic, kind]
        async with client.consumer(topic, kind, type=kind, start=EARLIEST, settings=CONSUMER) as consumer:
            while True:
                try:
                    message = await consumer.receive(1.0)
                except TimeoutError:
                    return
                payload = bytes(message.payload or b"")
                self.world.check(
                    message.id.place not in acknowledged,
                    "acks",
                    f"{payload[:40].rstrip(bytes(1))!r} of {topic} at {message.id} comes to {kind} again",
                )
                await consumer.ack(message)
                self.world.saw("delivered in the end")
