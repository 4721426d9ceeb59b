"""Requests of clients about topics: lookups, lists, subscriptions and schemas.

Clients send short or full topic names; see `quire.serving.names`.
"""

from __future__ import annotations

from contextlib import suppress

from quire.runtime.errors import AlreadyExists, NotFound, QuireError
from quire.serving.model.ports import ConsumerPort, NotAllowed
from quire.serving.model.request import SubscribeRequest
from quire.serving.names import NON_PERSISTENT, TopicName
from quire.serving.operations.fan_out import FanOut
from quire.serving.operations.partitioned import Partitioned
from quire.serving.ownership.port import Owner
from quire.serving.registry.registry import Registry
from quire.serving.registry.topic_lists import Listener, TopicWatch
from quire.serving.registry.topic_loader import subscriptions_of
from quire.serving.schema.registry import from_wire, to_wire
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.subscription import Attachment, Subscription
from quire.serving.topic.producer_names import ProducerNames
from quire.serving.topic.services import Services
from quire.serving.topic.topic import AnyTopic
from quire.wire import pulsar_pb2 as pb


class ClientTopics:
    def __init__(
        self,
        services: Services,
        registry: Registry,
        partitioned: Partitioned,
        fan_out: FanOut,
    ) -> None:
        self._registry = registry
        self._namespaces = registry.catalogue.namespaces
        self._partitioned = partitioned
        self._fan_out = fan_out
        self._lists = registry.lists
        self._producer_names = ProducerNames(services.settings.cluster, services.store, services.clock)

    async def begin(self) -> None:
        """Prepare the generation of producer names. Raises `Unavailable`, `CorruptionError`."""
        await self._producer_names.begin()

    def new_producer_name(self) -> str:
        """Return a producer name that is unique in the cluster."""
        return self._producer_names.next()

    # -- lookups and lists -----------------------------------------------------------------------------

    async def partitions(self, topic: str, *, create: bool) -> int:
        """Return the number of partitions; with `create`, see `Catalogue.partitions_for_use`. Raises `NotFound`."""
        catalogue, name = self._registry.catalogue, TopicName.parse(topic)
        return await (catalogue.partitions_for_use(name) if create else catalogue.partitions(name))

    async def look_up(self, topic: str, *, take: bool) -> Owner:
        """Return the broker that serves the topic or, if `take` is False, should serve it; see `Ownership.owner_of`.

        The topic need not exist: PRODUCER and SUBSCRIBE check that, because a client never repeats a failed lookup.
        Raises `NotFound` for an unknown namespace, `Unavailable`.
        """
        return await self._registry.ownership.owner_of(TopicName.parse(topic), take=take)

    async def names(self, tenant: str, namespace: str, domain: str) -> list[str]:
        """List the full names of topics, with each partition but without partitioned topics.

        The list of an unknown namespace is empty, because the namespace may be created later and clients repeat the
        request.
        """
        try:
            if domain == NON_PERSISTENT:
                return await self._fan_out.topics(tenant, namespace, domain)
            await self._namespaces.get(tenant, namespace)
        except NotFound:
            return []
        return sorted(await self._lists.names(tenant, namespace))

    async def watch(self, tenant: str, namespace: str, listener: Listener) -> TopicWatch:
        """Return the namespace's persistent topics, and notify `listener` of later changes.

        Raises `NotFound`, `Unavailable`.
        """
        await self._namespaces.get(tenant, namespace)
        return await self._lists.watch(tenant, namespace, listener)

    async def open(self, topic: str, *, create: bool = True) -> AnyTopic:
        """Load a topic; with `create`, create it if that is allowed.

        Raises `NotFound`, `NotOwner`, `Unavailable`, `ConfigurationError`.
        """
        name = TopicName.parse(topic)
        # a non-persistent topic exists as soon as a client uses it
        return await self._registry.open(name, create=create or not name.is_persistent, take=False)

    # -- schemas ---------------------------------------------------------------------------------------

    async def admit_producer_schema(self, topic: AnyTopic, schema: pb.Schema | None) -> bytes:
        """Register a producer's schema; return its version. Raises `SchemaRefused`, `SchemaInvalid`."""
        return await self._registry.schemas.for_producer(topic.topic_name, topic.applied.policies, schema)

    async def admit_consumer_schema(self, topic: AnyTopic, schema: pb.Schema, *, may_add: bool) -> None:
        """Check a consumer's schema; with `may_add`, register it. Raises `SchemaRefused`, `SchemaInvalid`."""
        in_use = topic.has_messages or bool(topic.producers.all())
        await self._registry.schemas.for_consumer(
            topic.topic_name, topic.applied.policies, schema, in_use=in_use, may_add=may_add
        )

    async def find_schema(self, topic: str, version: bytes | None) -> tuple[bytes, pb.Schema]:
        """Return a topic's schema and its version: the given version, or the newest if None. Raises `NotFound`."""
        name = TopicName.parse(topic)
        found = await self._registry.schemas.find(name, None if version is None else from_wire(version))
        if found is None:
            raise NotFound(f"topic {name} has no {'schema' if version is None else 'schema of this version'}")
        return to_wire(found.number), found.definition.message()

    # -- subscriptions ---------------------------------------------------------------------------------

    async def ensure_subscription(self, topic: AnyTopic, name: str) -> None:
        """Create a durable subscription from the first message on, unless it exists.

        Raises `NotAllowed` if clients must not create subscriptions.
        """
        subscriptions = subscriptions_of(topic)
        found = subscriptions.get(name)
        if found is None:
            if not topic.log.policies.auto_subscription_creation:
                raise NotAllowed(
                    f"cannot create the initial subscription {name} of topic {topic.name}: autoSubscriptionCreation is "
                    "off: create it first"
                )
            await self._partitioned.extend_subscription(topic.topic_name, name, earliest=True)
            with suppress(AlreadyExists):
                await subscriptions.create(name, earliest=True, is_on_all_partitions=False)
            found = subscriptions.get(name)
        if found is not None:
            await self._prove(topic, found, None, earliest=True)

    def check_subscribe(self, topic: AnyTopic, request: SubscribeRequest) -> None:
        """Check that the topic's policies allow SUBSCRIBE, before it has any effect.

        Raises `NotAllowed`, `SubscriptionNotFound`.
        """
        subscriptions_of(topic).check_policies(request)

    async def subscribe(self, topic: AnyTopic, request: SubscribeRequest, port: ConsumerPort) -> Attachment:
        """Attach a consumer to the subscription in SUBSCRIBE, which is created if that is allowed."""
        subscriptions = subscriptions_of(topic)
        earliest, name = request.initial_earliest, request.subscription
        if request.durable and subscriptions.get(name) is None:
            # First on the other partitions: once the subscription exists on this one, it counts as created on all.
            await self._partitioned.extend_subscription(
                topic.topic_name, name, request.properties, earliest=earliest
            )
        attached = await subscriptions.subscribe(request, port)
        await self._prove(topic, *attached, earliest=earliest)
        return attached

    async def _prove(
        self, topic: AnyTopic, subscription: Subscription, consumer: Consumer | None, *, earliest: bool
    ) -> None:
        """Create the subscription on partitions that were added meanwhile.

        If that fails, delete the subscription, unless it has other consumers.
        """
        if subscription.is_on_all_partitions:
            return
        properties = subscription.cursor.properties
        try:
            await self._partitioned.extend_subscription(
                topic.topic_name, subscription.name, properties, earliest=earliest
            )
        except QuireError:
            await subscription.withdraw(consumer)
            raise
        subscription.is_on_all_partitions = True
