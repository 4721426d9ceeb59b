"""One broker: it listens to clients and joins sessions, topics and subscriptions.

    Broker
      sessions      serving/session: one Connection per client
      registry      the loaded topics
      namespaces    what tenants and namespaces prescribe
      bundles       the state logs that topics share
      ownership     which bundles are this broker's
      admin         what an operator asks that is more than one call
      offloading    sealed segments on their way to the archive
      rounds        what is done for topics every few seconds

A broker holds no data, and threads only for what clients can make long (`Services.helpers`). It stops by unloading its
topics, so that nothing has to be recovered; killed, it leaves that to the next start.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final
from zlib import crc32

from quire.ledger.ledgers import Ledgers
from quire.metadata.store import MetadataStore
from quire.runtime.budget import ByteBudget
from quire.runtime.clock import Clock
from quire.runtime.errors import AlreadyExists, ConfigurationError, NotFound, QuireError
from quire.runtime.limits import HELD_SHARE_OF_BYTES_IN_FLIGHT
from quire.runtime.settings import parse_address
from quire.runtime.slices import Share, Slices
from quire.runtime.tasks import Tasks
from quire.serving.cluster.addresses import Addresses
from quire.serving.cluster.admin import Admin
from quire.serving.cluster.bundles import Bundles, split_evenly
from quire.serving.cluster.fan_out import FanOut
from quire.serving.cluster.local_bundles import LocalBundles
from quire.serving.cluster.offloading import Offloading
from quire.serving.cluster.ownerless import Ownerless
from quire.serving.cluster.partitioned import Partitioned
from quire.serving.cluster.peers import Peers
from quire.serving.cluster.port import Owner, Ownership, SoleOwner
from quire.serving.cluster.registry import Registry
from quire.serving.cluster.rounds import Rounds
from quire.serving.cluster.topic_factory import subscriptions_of
from quire.serving.cluster.topic_lists import Listener, TopicLists, Watched
from quire.serving.model.ports import ConsumerPort
from quire.serving.model.request import SubscribeRequest
from quire.serving.names import NON_PERSISTENT, TopicName
from quire.serving.policy.namespaces import Namespaces
from quire.serving.policy.rate_limiter import BrokerLimiters
from quire.serving.schema.registry import from_wire, to_wire
from quire.serving.session.connection import READ_WEIGHT_MAX, Connection
from quire.serving.session.frame_room import FrameRoom
from quire.serving.session.table import TABLE
from quire.serving.settings import BrokerSettings
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.subscription import Subscription
from quire.serving.topic.non_persistent import AnyTopic
from quire.serving.topic.publish import Turn
from quire.serving.topic.services import Services
from quire.serving.topic.tail_cache import TailCache
from quire.tiering.archive import Archive
from quire.wire import pulsar_pb2 as pb

BACKLOG: Final = 1024
TOPIC_TICK_S: Final = 5.0
"""How often topics are looked after (`rounds`)."""

HANDOVER_S: Final = 7.0
"""How long stopping waits for bundles to be handed over; containers are killed ten seconds after they are told."""

STOP_STEP_S: Final = 0.01
WARNINGS_MAX: Final = 20
"""Lost ledgers that a health check tells of; `quire ledgers lost` has all."""

STOP_S: Final = 3.0
"""How long stopping waits for topics to close; what is not closed by then is recovered at the next load."""

NAMES_SINCE_MS: Final = 1_735_689_600_000
"""The year 2025: names of producers tell the time since then."""

NAME_PARTS: Final = 36**3
"""Brokers that begin in one millisecond have names of their own but for one time in so many."""

_log = logging.getLogger(__name__)


class Broker:
    """See the top of the file. A `SessionHost`."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MetadataStore,
        ledgers: Ledgers,
        archive: Archive | None,
        clock: Clock,
        budget: ByteBudget | None = None,
        ownership: Ownership | None = None,
    ) -> None:
        settings.validate()
        self.settings = settings
        self.clock = clock
        self.budget = budget or ByteBudget(settings.bytes_in_flight_max)
        self.held = ByteBudget(self.budget.limit_bytes // HELD_SHARE_OF_BYTES_IN_FLIGHT)
        # One message of each connection may wait, whatever waits already: what is too much counts in the other budget.
        self.budget.add_gauge(lambda: max(0, self.held.used_bytes - self.held.limit_bytes))
        self.frame_room = FrameRoom()
        self.slices = Slices()
        self.read_share = Share(READ_WEIGHT_MAX)
        self.tasks = Tasks("broker")
        self.addresses = Addresses(settings.advertise, settings.listeners)
        self.ownership: Ownership = ownership or SoleOwner()
        self.peers = Peers()
        self.namespaces = Namespaces(
            store, settings.cluster, split_evenly(settings.namespace_bundles), ledgers.delete
        )
        self.services = Services(
            store=store,
            ledgers=ledgers,
            archive=archive,
            clock=clock,
            settings=settings,
            turn=Turn(clock, asyncio.get_running_loop().call_soon),
            budget=self.budget,
            tail_cache=TailCache(settings.tail_cache_bytes),
            tasks=self.tasks,
            limiters=BrokerLimiters.of(settings, clock),
        )
        self._ledgers = ledgers
        self._bundles = Bundles(ledgers, store, self._bundle_failed)
        self.registry = Registry(self.services, self.namespaces, self._bundles, self.ownership)
        self.fan_out = FanOut(self.registry, self.peers, self.ownership, self.addresses)
        self.partitioned = Partitioned(self.registry, self.services, self.fan_out)
        self._offloading = (
            None
            if archive is None
            else Offloading(
                archive, self.services, self.registry, self.namespaces, lambda: ledgers.is_short_of_space
            )
        )
        self.rounds = Rounds(self.registry, ledgers, self._bundles, self._offloading, clock, self.tasks)
        self.bundles = LocalBundles(
            self.registry, self._bundles, self.ownership, self._offloading, self.peers, self.addresses
        )
        self.admin = Admin(
            self.services, ledgers, archive, self.registry, self.partitioned, self.fan_out, self._offloading
        )
        self.ownerless = Ownerless(self.registry, self.ownership, self.services)
        self._topic_lists = TopicLists(store, self.tasks, self.slices)
        self._server: asyncio.Server | None = None
        self._sessions: dict[Connection, None] = {}
        """In the order in which they came."""
        self._started_ms = clock.now_ms()
        self._names_given = 0
        self._why_not: list[Callable[[], str]] = []
        self._connections_total = 0
        self._sends_of_closed = [0, 0]

    # -- life ------------------------------------------------------------------------------------------

    async def start(self, listener: socket.socket | None = None) -> None:
        """Listen: on `listener`, a bound socket, or where the settings say.

        Raises `ConfigurationError` when the address cannot be had.
        """
        await self.namespaces.ensure_defaults()
        settings = self.settings
        try:
            self._server = await self._listen(listener)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {settings.listen}: {error.strerror or error}"
            ) from error
        host, port = self._server.sockets[0].getsockname()[:2]
        bound = f"pulsar://[{host}]:{port}" if ":" in host else f"pulsar://{host}:{port}"
        self.addresses.service_url = settings.advertise or bound
        await self.ownership.start(self.bundles)
        if self._offloading is not None:
            self._offloading.start()
        self.tasks.start(self._every(settings.keep_alive_ms / 1000, self._keep_alive), "keep-alive")
        self._ledgers.follow_damage()
        for act in (self.rounds.tend, self.rounds.look, self.rounds.rest):
            self.tasks.start(self._every(TOPIC_TICK_S, act), "topics")

    async def _listen(self, listener: socket.socket | None) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        if listener is not None:
            return await loop.create_server(lambda: Connection(self, TABLE), sock=listener, backlog=BACKLOG)
        host, port = parse_address(self.settings.listen)
        return await loop.create_server(lambda: Connection(self, TABLE), host, port, backlog=BACKLOG)

    async def stop(self) -> None:
        """Let the clients go, close topics and state logs, hand over what others can serve, within a few seconds."""
        if self._offloading is not None:
            await self._offloading.stop()
        await self._hand_over_all()
        if self._server is not None:
            self._server.close()
        try:
            async with asyncio.timeout(STOP_S):
                await self.registry.stop()
                await self._bundles.close()
        except TimeoutError:
            _log.warning("not all topics could be closed in time; they will be recovered")
        for session in list(self._sessions):
            session.close()
        await self.tasks.stop()
        self.services.helpers.close(0.0)
        await self.peers.close()

    async def _hand_over_all(self) -> None:
        try:
            async with asyncio.timeout(HANDOVER_S):
                await self.ownership.stop()
                await self._all_answered()
        except TimeoutError:
            _log.warning("not all bundles could be handed over in time; the next owners will recover them")

    async def _all_answered(self) -> None:
        """Mostly lookups that waited for the end of the hand-over, and now hear where the topics are."""
        while any(session.has_unanswered for session in self._sessions):  # noqa: ASYNC110  once in a process's life
            await asyncio.sleep(STOP_STEP_S)

    async def _every(self, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await act()
            except Exception:
                _log.exception("a mistake of ours in what is done every %g s; it goes on", seconds)

    async def _keep_alive(self) -> None:
        for session in list(self._sessions):
            session.keep_alive()

    def _bundle_failed(self, bundle: str) -> None:
        self.tasks.start(self.registry.unload_bundle(bundle), f"unload bundle {bundle}")

    # -- what sessions ask: SessionHost ----------------------------------------------------------------

    @property
    def service_url(self) -> str:
        """`pulsar://host:port` for clients."""
        return self.addresses.service_url

    @property
    def entry_metadata(self) -> bool:
        return self.settings.broker_entry_metadata

    @property
    def message_bytes_max(self) -> int:
        return self.settings.message_bytes_max

    def session_opened(self, connection: Connection) -> bool:
        self._sessions[connection] = None
        self._connections_total += 1
        return len(self._sessions) <= self.settings.connections_max

    def session_closed(self, connection: Connection) -> None:
        if connection in self._sessions:
            del self._sessions[connection]
            self._sends_of_closed[0] += connection.fast_sends
            self._sends_of_closed[1] += connection.slow_sends

    def new_producer_name(self) -> str:
        """Short, for each entry repeats it: when this broker began, what sets it apart from others, a number."""
        self._names_given += 1
        began, apart = self._started_ms - NAMES_SINCE_MS, crc32(self.service_url.encode()) % NAME_PARTS
        return f"{self.settings.cluster}-{_letters(began * NAME_PARTS + apart)}-{self._names_given}"

    async def client_partitions(self, topic: str, *, create: bool) -> int:
        name = TopicName.parse(topic)
        try:
            return await self.registry.catalogue.partitions(name)
        except NotFound:
            if create:
                await self.registry.catalogue.check(name)
                return 0
            raise

    async def look_up(self, topic: str, *, take: bool) -> Owner:
        """Whether it is there, PRODUCER and SUBSCRIBE say: a client that looks up in vain never tries again."""
        name = TopicName.parse(topic)
        return await self.ownership.owner_of(await self.registry.bundle_of(name), take=take)

    async def client_topics(self, tenant: str, namespace: str, domain: str) -> list[str]:
        """None of a namespace that is not there: it may come, and clients ask again."""
        try:
            if domain == NON_PERSISTENT:
                return await self.fan_out.topics(tenant, namespace, domain)
            await self.namespaces.get(tenant, namespace)
        except NotFound:
            return []
        return sorted(await self._topic_lists.names(tenant, namespace))

    async def watch_topics(self, tenant: str, namespace: str, listener: Listener) -> Watched:
        await self.namespaces.get(tenant, namespace)
        return await self._topic_lists.watch(tenant, namespace, listener)

    async def open_topic(self, topic: str, *, create: bool = True) -> AnyTopic:
        name = TopicName.parse(topic)
        # What keeps nothing is there as soon as somebody asks for it.
        return await self.registry.open(name, create=create or not name.is_persistent, take=False)

    async def admit_producer_schema(self, topic: AnyTopic, schema: pb.Schema | None) -> bytes:
        return await self.registry.schemas.for_producer(topic.topic_name, topic.policies, schema)

    async def admit_consumer_schema(self, topic: AnyTopic, schema: pb.Schema) -> None:
        in_use = topic.has_messages or bool(topic.producers.all())
        await self.registry.schemas.for_consumer(topic.topic_name, topic.policies, schema, in_use=in_use)

    async def find_schema(self, topic: str, version: bytes | None) -> tuple[bytes, pb.Schema]:
        name = TopicName.parse(topic)
        found = await self.registry.schemas.find(name, None if version is None else from_wire(version))
        if found is None:
            raise NotFound(f"topic {name} has no {'schema' if version is None else 'schema of this version'}")
        return to_wire(found.number), found.definition.message()

    async def ensure_subscription(self, topic: AnyTopic, name: str) -> None:
        subscriptions = subscriptions_of(topic)
        found = subscriptions.get(name)
        if found is None:
            await self.partitioned.subscribed(topic.topic_name, name, earliest=True)
            with suppress(AlreadyExists):
                await subscriptions.create(name, earliest=True)
            found = subscriptions.get(name)
        if found is not None:
            await self._prove(topic, found, None, earliest=True)

    async def subscribe(
        self, topic: AnyTopic, command: pb.CommandSubscribe, port: ConsumerPort, address: str
    ) -> Consumer:
        request = SubscribeRequest.of(command, address)
        subscriptions = subscriptions_of(topic)
        earliest, name = request.initial_earliest, request.subscription
        if request.durable and subscriptions.get(name) is None:
            # First elsewhere: found here it counts as made everywhere.
            await self.partitioned.subscribed(topic.topic_name, name, request.properties, earliest=earliest)
        consumer = await subscriptions.subscribe(request, port)
        made = consumer.subscription
        assert isinstance(made, Subscription)
        await self._prove(topic, made, consumer, earliest=earliest)
        return consumer

    async def _prove(
        self, topic: AnyTopic, subscription: Subscription, consumer: Consumer | None, *, earliest: bool
    ) -> None:
        """The topic may have begun to grow while it was made. Where this fails it goes again, if nobody else has it."""
        if subscription.is_on_all_partitions:
            return
        properties = subscription.cursor.properties
        try:
            await self.partitioned.subscribed(
                topic.topic_name, subscription.name, properties, earliest=earliest
            )
        except QuireError:
            await subscription.withdraw(consumer)
            raise
        subscription.is_on_all_partitions = True

    # -- what probes ask -------------------------------------------------------------------------------

    def why_not_ready(self) -> Sequence[str]:
        """Reasons why this broker should get no traffic now; empty when it should."""
        reasons = []
        if self._server is None:
            reasons.append("the broker is not listening yet")
        if self.registry.is_stopping:
            reasons.append("the broker is stopping")
        reasons.append(self.ownership.why_not_ready() if self._server is not None else "")
        return list(filter(None, (*reasons, *(why_not() for why_not in self._why_not))))

    def warnings(self) -> Sequence[str]:
        """What a person should look at though the broker serves: what was lost for good, and how to go on."""
        return [str(error) for error in self._ledgers.lost().values()][:WARNINGS_MAX]

    def watch(self, why_not: Callable[[], str]) -> None:
        """`why_not` tells of a part of this process why it cannot work; nothing when all is well."""
        self._why_not.append(why_not)

    def metrics(self) -> Mapping[str, float]:
        """Counters and gauges by their full name. Counters never fall: what closes leaves its count behind."""
        fast, slow = self._sends_of_closed
        totals = self.registry.totals.sum()
        return {
            "quire_serving_connections": len(self._sessions),
            "quire_serving_connections_total": self._connections_total,
            "quire_serving_topics_loaded": len(self.registry),
            "quire_serving_bundles_damaged": len(self._bundles.damaged),
            "quire_serving_messages_in_total": totals.messages_in,
            "quire_serving_bytes_in_total": totals.bytes_in,
            "quire_serving_bytes_in_flight": self.budget.used_bytes,
            "quire_serving_bytes_in_flight_max": self.budget.limit_bytes,
            "quire_ledger_lost_ledgers": len(self._ledgers.lost()),
            "quire_serving_bytes_held": self.held.used_bytes,
            "quire_serving_slices_waiting": len(self.slices),
            "quire_serving_bytes_of_frames": self.frame_room.used_bytes,
            "quire_serving_tail_cache_bytes": self.services.tail_cache.bytes_used,
            "quire_serving_fast_sends_total": fast + sum(one.fast_sends for one in self._sessions),
            "quire_serving_slow_sends_total": slow + sum(one.slow_sends for one in self._sessions),
            **({} if self._offloading is None else self._offloading.metrics()),
            **self.services.store.counts.metrics(),
            **self.ownership.metrics(),
        }


def _letters(number: int) -> str:
    """A number in digits and letters."""
    found = ""
    number = abs(number)
    while number or not found:
        number, digit = divmod(number, 36)
        found = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + found
    return found
