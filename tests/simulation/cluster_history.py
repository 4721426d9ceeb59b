"""Histories of the whole cluster: bookies, brokers, applications, and the archive.

Invariants while a history runs, in addition to those of ledgers (`oracle`):

    single writer   when a topic's ledger confirms a block, all earlier ledgers are closed, and no later one has
                    confirmed anything, unless a recovery had found the block
    lease           a broker that is cut off from the metadata store gives up its bundles in time
    archive         a pointer names an intact object; bookies' copies are deleted only after that
    trimming        a segment is removed from a topic's list only after acks of all its messages by all subscriptions
    order of keys   a key-shared subscription's first deliveries of each key are in order
    seek            after a successful seek no message is skipped
    given           a message is confirmed before a consumer or reader gets it
    one holder      all unacknowledged messages of a key are held by one consumer
    whole plan      a plan for Spark is complete, whatever the topic does meanwhile

At the end, in bounded virtual time after the last fault, applications stop producing, every message with a receipt
reaches every subscription, and everything is repaired. Then new consumers and readers check these invariants:

    acknowledged    every message with a receipt is read at the receipt's id
    order           ids grow, and with deduplication each producer's numbers, too; without it, a producer that sends
                    again skips no message that it had sent before; two readers agree
    leaders         no message of a fenced producer comes after its successor's messages
    deleted         no message of a deleted topic is in the new topic of the same name
    acks            no message is delivered after its acknowledgement was confirmed
    readers         the messages of a reader during the history exist, without a gap
    compaction      the compacted topic has, for each key, the last message with a receipt or a later one
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from random import Random
from typing import Any, Final
from unittest import mock

from quire.client import EARLIEST, Client, ConsumerBusy
from quire.ledger import reach
from quire.ledger.state_log import StateLog
from quire.metadata import paths, topics
from quire.metadata.records import LedgerRecord, LedgerState, TopicRecord, decode
from quire.runtime.errors import Unavailable
from quire.serving.ownership import balance
from quire.serving.registry import offloading, rounds, topic_records
from quire.tiering import metadata_copy, offload

from .application import CLIENT, CLIENT_TYPES, CONSUMER, Application
from .broker_host import PORT, BrokerHost
from .client import LAST_TRIES
from .facts import KEYS, LED, PARTED, REMADE, Facts, Place, kinds_of
from .faults import Cluster
from .hostile import HOSTILE, Hostile, watched
from .leases import LeaseWatch
from .ledger_history import adverse_limits, unrepaired
from .limits import DEDUPLICATED, serving_limits
from .loop import Process
from .metadata import MetadataServer
from .objects import SimulatedBucket
from .operator import PARTITIONS_MAX, Operator
from .oracle import Oracle
from .peers import SimulatedPeers
from .plan import Event, Plan
from .stores import Stores
from .stores import begin as begin_stores
from .watches import KeyWatch, take_plan
from .world import SimulatedClock, Violation, World

SETTLE_S: Final = 150.0
STEP_S: Final = 0.5
PARTITIONS: Final = tuple(f"{PARTED}-partition-{number}" for number in range(PARTITIONS_MAX))
TOPICS: Final = ("one", "two", KEYS, LED, REMADE, HOSTILE, *PARTITIONS)
PREFIX: Final = "persistent://public/default/"
Read = list[tuple[Place, bytes]]
"""Places and payloads of messages, in the order in which a reader received them."""


@contextmanager
def adverse_times(rng: Random) -> Iterator[None]:
    """Shorten the periods that are seconds or minutes in production, and let state logs roll early."""
    unique = rng.getrandbits
    defaults: Any = StateLog.open.__func__.__kwdefaults__  # type: ignore[attr-defined]
    with (
        adverse_limits(rng),
        mock.patch.object(offload, "INTERVAL_S", 1.0),
        mock.patch.object(offload, "BACKOFF_MAX_S", 2.0),
        mock.patch.object(offloading, "ADOPT_AFTER_S", 1.0),
        mock.patch.object(rounds, "TICK_S", 0.7),
        mock.patch.object(reach, "LOOK_S", 0.5),
        mock.patch.object(reach, "ANSWER_S", 0.5),
        mock.patch.object(balance, "UNFIT_FOR_S", 2.0),
        mock.patch.dict(defaults, {"roll_bytes": rng.choice((2_000, 20_000))}),
        mock.patch.object(topics, "uuid4", lambda: mock.Mock(hex=f"{unique(128):032x}")),
        mock.patch.object(topic_records, "randbits", unique),
        mock.patch.object(metadata_copy, "uuid4", lambda: mock.Mock(hex=f"{unique(128):032x}")),
        mock.patch.object(metadata_copy, "SETTLED_S", 0.5),
        mock.patch.object(metadata_copy, "INTERVAL_S", 1.0),
        mock.patch.object(metadata_copy, "LOOK_S", 0.3),
        mock.patch.object(metadata_copy, "SHARE", 0.5),
    ):
        yield


class ClusterOracle(Oracle):
    """Invariants of topics, in addition to those of ledgers."""

    bucket: SimulatedBucket
    facts: Facts

    def __init__(self, world: World, metadata: MetadataServer) -> None:
        super().__init__(world, metadata)
        self.listed: dict[str, set[int]] = {}
        """Ledgers that a topic's list of segments ever contained, by topic. Its other ledgers are compactions."""
        self.generations: dict[str, int] = {}

    def heard_confirmed(self, ledger_id: int, last_entry: int) -> None:
        super().heard_confirmed(ledger_id, last_entry)
        record = self.records.get(ledger_id)
        if record is None or not record.purpose.startswith("topic:"):
            return
        listed = self.listed.get(record.purpose.removeprefix("topic:"), set())
        is_keyed = record.purpose.endswith(f"/{KEYS}")
        if is_keyed and ledger_id not in listed:
            return
        later = [
            other.ledger_id
            for other in self.records.values()
            if other.purpose == record.purpose
            and other.ledger_id > ledger_id
            and (not is_keyed or other.ledger_id in listed)
            and self.confirmed.get(other.ledger_id, -1) >= 0
        ]
        # A paused writer may learn late of a confirmation that its successor's recovery has included in the ledger.
        is_found = record.state is LedgerState.CLOSED and last_entry <= record.last_entry
        self.world.check(
            is_found or not later, "single writer", f"ledger {ledger_id} confirms, and so did {later}"
        )
        still_open = [
            other.ledger_id
            for other in self.records.values()
            if other.purpose == record.purpose
            and other.ledger_id < ledger_id
            and other.ledger_id in listed
            and other.state in (LedgerState.OPEN, LedgerState.IN_RECOVERY)
        ]
        self.world.check(
            not still_open, "single writer", f"ledger {ledger_id} confirms, and {still_open} are not closed"
        )

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
        if self.generations.setdefault(record.name, record.generation) != record.generation:
            self.generations[record.name] = record.generation
            self.listed.pop(record.name, None)
        self.world.check(listed == sorted(set(listed)), "segments", f"{record.name}: {listed}")
        known = self.listed.setdefault(record.name, set())
        gone = {each for each in known if listed and each < listed[0]}
        known.update(listed)
        if gone:
            self.facts.trimmed(
                record.name.rpartition("/")[2], gone, listed[0], is_compacted=record.compacted is not None
            )
        for segment in record.segments:
            pointer = segment.archive
            if pointer is not None and not record.deleting:
                content = self.bucket.objects.get(pointer.name, (b"", 0))[0]
                self.world.check(
                    len(content) == pointer.bytes,
                    "archive",
                    f"segment {segment.ledger_id} is said to be in {pointer.name}, which has {len(content)} bytes",
                )
                self.world.seen["archived"] += 1

    def _check_deletion(self, before: LedgerRecord, after: LedgerRecord) -> None:
        """Check that a topic's ledger with entries is deleted only after it was archived or trimmed."""
        if after.state is not LedgerState.DELETING or before.state is after.state or before.last_entry < 0:
            return
        if not before.purpose.startswith("topic:"):
            return
        name = before.purpose.removeprefix("topic:")
        topic = name.rpartition("/")[2]
        if topic == REMADE:
            return
        if (
            before.ledger_id not in self.listed.get(name, ())
            or before.ledger_id < self.facts.first_kept[topic]
        ):
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
    """Cluster of bookies, brokers and applications, with a bucket."""

    oracle_kind = ClusterOracle

    def __init__(self, plan: Plan, world: World) -> None:
        super().__init__(plan, world)
        self.oracle.learns = True
        self.bucket = SimulatedBucket(world)
        assert isinstance(self.oracle, ClusterOracle)
        self.oracle.bucket = self.bucket
        self.facts = self.oracle.facts = Facts(world)
        self.brokers = [BrokerHost(self, self.bucket, number) for number in range(plan.brokers)]
        self.service_url = "pulsar://" + ",".join(f"{each.host}:{PORT}" for each in self.brokers)
        names = ["one", KEYS] if plan.keyed else ["one", "two"][: 1 + plan.seed % 2]
        names += [name for name in (LED, PARTED, REMADE) if getattr(plan, name)]
        self.topics = names
        self.applications = [
            Application(self, self.facts, number, names, self.service_url) for number in range(plan.clients)
        ]
        for application in self.applications:
            application.is_deduplicated = self.brokers[0].settings.deduplication
        self.others = [*self.brokers, *self.applications]
        self.operator = Operator(world, self.brokers, self.facts, SimulatedPeers(self, "operator"))
        self.stores = Stores(world, self.metadata, self.bucket) if plan.copies else None
        honest = [name for name in names if name not in (LED, PARTED, REMADE)]
        self.hostile = Hostile(world, [each.host for each in self.brokers], honest)

    def start(self) -> None:
        if self.stores is not None:
            begin_stores(self.metadata)
        super().start()
        for host in self.others:
            host.start_if_down()

        if self.plan.keyed:
            self.world.later(1.0, self._compact_often)
        if self.plan.parted:
            self.operator.make_parted()
        if self.plan.hostile:
            self.hostile.start()

    def _compact_often(self) -> None:
        if not self._is_over:
            host = self._broker(self.rng.randrange(8))
            self._in(host, host.compact(PREFIX + KEYS))
            self.world.later(self.rng.choice((0.3, 1.0, 3.0)), self._compact_often)

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

    def _plan(self, event: Event) -> None:
        host = self._broker(event.target)
        names = [name for name in self.topics if name != PARTED] + list(PARTITIONS[: self.facts.partitions])
        self._in(host, take_plan(self.world, host, names[int(event.first) % len(names)]))

    def _grow(self, event: Event) -> None:
        if self.plan.parted:
            self.operator.grow()

    def _remake(self, event: Event) -> None:
        if self.plan.remade:
            self.operator.remake()

    def _half_open(self, event: Event) -> None:
        """Reset a client's connections, so that it reconnects while its broker still regards them as open."""
        application = self.applications[event.target % len(self.applications)]
        self.network.half_open(application.host, self._broker(int(event.first)).host, event.second)

    def _leave(self, event: Event) -> None:
        self._in(self._broker(event.target), self._broker(event.target).leave())

    def _usurp(self, event: Event) -> None:
        """Expire a broker's session without its knowledge, and let an application look up its topics again at once."""
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

    def _cut_off(self, event: Event) -> None:
        """Cut a broker off from the bookies, but not from the metadata store, so that it keeps its session."""
        broker = self._broker(event.target).host
        pairs = [pair for each in self.machines for pair in ((broker, each.host), (each.host, broker))]
        for pair in pairs:
            self.network.cut(*pair)
        self.world.later(event.first, self._join, pairs)

    def _archive_trouble(self, event: Event) -> None:
        self.bucket.trouble = event.second
        self.world.later(event.first, lambda: setattr(self.bucket, "trouble", 0.0))

    def _back_up(self, event: Event) -> None:
        if self.stores is not None:
            self.stores.back_up()

    def _scrub(self, event: Event) -> None:
        if self.stores is not None:
            host = self._broker(event.target)
            self._in(host, self.stores.scrub(host, int(event.first)))

    def _decommission(self, event: Event) -> None:
        """Do nothing: only ledger histories drain bookies."""

    def heal(self) -> None:
        super().heal()
        self.bucket.trouble = 0.0
        self.hostile.is_over = True


class ClusterHistory:
    def __init__(self, plan: Plan, world: World) -> None:
        self.plan, self.world = plan, world
        self.cluster = BrokerCluster(plan, world)
        self.facts, self.oracle = self.cluster.facts, self.cluster.oracle
        self.producers: dict[Place, str] = {}
        """Producer names of the messages read at the end, by place. One connection at a time has a name."""

    @contextmanager
    def limits(self) -> Iterator[None]:
        """Patch limits while the history runs: not in `run`, which is never resumed after a violation."""
        with (
            adverse_times(self.world.rng("limits")),
            serving_limits(self.world, self.plan),
            watched(self.world) if self.plan.hostile else nullcontext(),
        ):
            yield

    async def run(self) -> None:
        self.cluster.start()
        if self.cluster.applications[0].is_deduplicated:
            self.world.saw(DEDUPLICATED)
        LeaseWatch(self.world, self.cluster.brokers).start()
        if self.plan.keyed:
            KeyWatch(self.world, self.cluster.brokers, self.oracle).start()
        await asyncio.sleep(self.plan.seconds)
        self.world.note("-- faults are over")
        self.cluster.heal()
        for application in self.cluster.applications:
            application.stops_producing = True
        await self._settle()
        for application in self.cluster.applications:
            application.stops = True
        await asyncio.sleep(2.0)
        if self.cluster.stores is not None:
            self.cluster.stores.judge()
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
        if cluster.operator.is_busy:
            return "the operator still waits for an answer"
        for topic in cluster.topics:
            for kind in kinds_of(topic):
                missing = self.facts.undelivered(topic, kind)
                if missing:
                    return f"{len(missing)} messages of {topic} never reached {kind}, such as {min(missing)[:40]!r}"
        return unrepaired(cluster)

    # -- checks at the end -----------------------------------------------------------------------------
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
                read = []
                for name in self._names(topic):
                    read += await self._read_twice(client, topic, name)
                self._check_receipts(topic, read)
                if topic == LED:
                    self._check_leaders(read)
                self._check_tapes(topic, read)
                if topic == KEYS:
                    await self._at_last(partial(self._check_compacted, client, topic))
                for kind in kinds_of(topic):
                    await self._at_last(partial(self._check_acks, client, topic, kind))

    def _names(self, topic: str) -> list[str]:
        """Return the topic's name, or the names of its partitions."""
        return list(PARTITIONS[: self.facts.partitions]) if topic == PARTED else [topic]

    async def _read_twice(self, client: Client, topic: str, name: str) -> Read:
        read: Read = await self._at_last(partial(self._read, client, name))
        again = await self._at_last(partial(self._read, client, name))
        agree = self._kept(topic, read) == self._kept(topic, again)
        self.world.check(agree, "order", f"two readers of {name} do not agree")
        self._check_order(topic, read)
        if not self.cluster.applications[0].is_deduplicated:
            self._check_resends(topic, read)
        return read

    async def _at_last(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run `work`, and retry it while bundles move or a dead consumer is unnoticed; neither may last long."""
        for _ in range(LAST_TRIES):
            try:
                return await work()
            except (Unavailable, ConsumerBusy) as error:
                self.world.note(f"judge: {error}")
                await asyncio.sleep(1.0)
        return await work()

    async def _read(self, client: Client, topic: str, *, compacted: bool = False) -> Read:
        found = []
        async with client.reader(topic, start=EARLIEST, compacted=compacted, settings=CONSUMER) as reader:
            while await reader.has_next():
                message = await reader.read(20.0)
                place = message.id.place
                found.append((place, bytes(message.payload or b"")))
                self.producers[place] = message.producer_name
        return found

    def _kept(self, topic: str, read: Read) -> Read:
        """Return the messages that have not been trimmed since."""
        return [one for one in read if one[0][0] >= self.facts.first_kept[topic]]

    def _check_order(self, topic: str, read: Read) -> None:
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

    def _check_resends(self, topic: str, read: Read) -> None:
        """Check that no abandoned connection of a producer publishes after its newer connection.

        A client that reconnects sends all messages without a receipt again, in order. So a message that skips others
        that were stored before comes from an abandoned connection. Only broker-assigned names belong to one process.
        """
        stored: defaultdict[str, set[int]] = defaultdict(set)
        last: dict[str, int] = {}
        for place, payload in read:
            producer, number = self.producers[place], int(payload.split(b" ")[2])
            left_out = stored[producer] & set(range(last.get(producer, number) + 1, number))
            self.world.check(
                not left_out or producer.startswith("application"),
                "order",
                f"{topic}: {producer} goes on with {number} at {place}, not {left_out}, behind {last.get(producer)}",
            )
            if number <= last.get(producer, -1):
                self.world.saw("sent again")
            stored[producer].add(number)
            last[producer] = number

    def _check_leaders(self, read: Read) -> None:
        """Check that the topic epochs of the messages' producers never decrease."""
        epoch = -1
        for place, payload in read:
            after = int(payload.split(b" ")[3])
            self.world.check(
                after >= epoch,
                "leaders",
                f"{place}, {payload[:40]!r}, was published behind those of epoch {epoch}",
            )
            if after > epoch:
                self.world.saw("leader")
            epoch = after

    def _check_receipts(self, topic: str, read: Read) -> None:
        there = set(read)
        ghosts = [payload for _, payload in read if (topic, payload) in self.facts.gone]
        self.world.check(
            not ghosts, "deleted", lambda: f"{ghosts[0][:40]!r} of the former {topic} is there again"
        )
        for (of, payload), message_id in self.facts.receipts.items():
            if of == topic and self.facts.is_kept(topic, message_id):
                self.world.check(
                    (message_id.place, payload) in there,
                    "acknowledged",
                    f"{payload[:40]!r} of {topic} has a receipt for {message_id} and is not there",
                )

    def _check_tapes(self, topic: str, read: Read) -> None:
        """Check that each tape is a contiguous part of the messages read now, except for trimmed ones."""
        for of, tape in self.facts.tapes:
            if of != topic or not tape:
                continue
            self.world.seen["messages read along"] += len(tape)
            first, last = tape[0][0], tape[-1][0]
            kept = self._kept(topic, tape)
            there = [one for one in self._kept(topic, read) if first <= one[0] <= last]
            differ = sorted(set(kept) ^ set(there))
            self.world.check(
                kept == there,
                "readers",
                f"what a reader of {topic} was given differs from what is there, beginning with {differ[:1]}",
            )

    async def _check_compacted(self, client: Client, topic: str) -> None:
        """Check that the compacted topic has, for each key, the last message with a receipt or a later one."""
        last_there: dict[str, Place] = {}
        for place, payload in await self._read(client, topic, compacted=True):
            key = self.facts.keys[topic, payload]
            self.world.check(
                place > last_there.get(key, (-1, -1, -1)), "compaction", f"{place} of {key} is late"
            )
            last_there[key] = place
        for payload, found in self.facts.of(topic):
            if payload in self.facts.without_compaction:
                continue
            key = self.facts.keys[topic, payload]
            self.world.check(
                found.place <= last_there.get(key, (-1, -1, -1)),
                "compaction",
                f"{payload[:40]!r} of {key} at {found} has a receipt; the last one compacted is {last_there.get(key)}",
            )
        self.world.saw("compacted topic read")

    async def _check_acks(self, client: Client, topic: str, kind: str) -> None:
        """Check that a new consumer gets no message whose acknowledgement was confirmed."""
        acknowledged = self.facts.acknowledged[topic, kind]
        names, how = self._names(topic), CLIENT_TYPES.get(kind, kind)
        async with client.consumer(names, kind, type=how, start=EARLIEST, settings=CONSUMER) as consumer:
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
                self.facts.asks(topic, kind, [message])
                await consumer.ack(message)
                self.world.saw("delivered in the end")
