"""Topics as clients ask for them: looked up and listed, opened, subscribed to, with their schemas.

Names are as clients write them, short or full; see `quire.serving.names`.
"""

from __future__ import annotations

from contextlib import suppress

from quire.runtime.errors import AlreadyExists, NotFound, QuireError
from quire.serving.cluster.fan_out import FanOut
from quire.serving.cluster.partitioned import Partitioned
from quire.serving.cluster.port import Owner
from quire.serving.cluster.registry import Registry
from quire.serving.cluster.topic_lists import Listener, Watched
from quire.serving.cluster.topic_loader import subscriptions_of
from quire.serving.model.ports import ConsumerPort
from quire.serving.model.request import SubscribeRequest
from quire.serving.names import NON_PERSISTENT, TopicName
from quire.serving.schema.registry import from_wire, to_wire
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.subscription import Subscription
from quire.serving.topic.topic import AnyTopic
from quire.wire import pulsar_pb2 as pb


class ClientTopics:
    def __init__(
        self,
        registry: Registry,
        partitioned: Partitioned,
        fan_out: FanOut,
    ) -> None:
        self._registry = registry
        self._namespaces = registry.catalogue.namespaces
        self._partitioned = partitioned
        self._fan_out = fan_out
        self._lists = registry.lists

    # -- which there are, and where --------------------------------------------------------------------

    async def partitions(self, topic: str, *, create: bool) -> int:
        """Number of partitions, 0 for a topic that has none or, with `create`, that its use would create.

        Raises `NotFound`.
        """
        name = TopicName.parse(topic)
        try:
            return await self._registry.catalogue.partitions(name)
        except NotFound:
            if create:
                await self._registry.catalogue.check(name)
                return 0
            raise

    async def look_up(self, topic: str, *, take: bool) -> Owner:
        """The broker that serves the topic or, with `owns` False, should be asked for it; see `Ownership.owner_of`.

        Whether it is there, PRODUCER and SUBSCRIBE say: a client that looks up in vain never tries again. Raises
        `NotFound` for an unknown namespace, `Unavailable`.
        """
        return await self._registry.ownership.owner_of(TopicName.parse(topic), take=take)

    async def names(self, tenant: str, namespace: str, domain: str) -> list[str]:
        """Full names, partitions one by one, their parents not.

        None of a namespace that is not there: it may come, and clients ask again.
        """
        try:
            if domain == NON_PERSISTENT:
                return await self._fan_out.topics(tenant, namespace, domain)
            await self._namespaces.get(tenant, namespace)
        except NotFound:
            return []
        return sorted(await self._lists.names(tenant, namespace))

    async def watch(self, tenant: str, namespace: str, listener: Listener) -> Watched:
        """The namespace's persistent topics, and from then on what changes. Raises `NotFound`, `Unavailable`."""
        await self._namespaces.get(tenant, namespace)
        return await self._lists.watch(tenant, namespace, listener)

    async def open(self, topic: str, *, create: bool = True) -> AnyTopic:
        """Load a topic, with `create` making it where that is allowed.

        Raises `NotFound`, `NotOwner`, `Unavailable`, `ConfigurationError`.
        """
        name = TopicName.parse(topic)
        # A topic that keeps nothing is there as soon as a client asks for it.
        return await self._registry.open(name, create=create or not name.is_persistent, take=False)

    # -- schemas ---------------------------------------------------------------------------------------

    async def admit_producer_schema(self, topic: AnyTopic, schema: pb.Schema | None) -> bytes:
        """The version of what a producer will write, which may be new. Raises `SchemaRefused`, `SchemaInvalid`."""
        return await self._registry.schemas.for_producer(topic.topic_name, topic.applied.policies, schema)

    async def admit_consumer_schema(self, topic: AnyTopic, schema: pb.Schema) -> None:
        """Raises as `admit_producer_schema`."""
        in_use = topic.has_messages or bool(topic.producers.all())
        await self._registry.schemas.for_consumer(
            topic.topic_name, topic.applied.policies, schema, in_use=in_use
        )

    async def find_schema(self, topic: str, version: bytes | None) -> tuple[bytes, pb.Schema]:
        """A version of a topic's schema, or the newest, and its number on the wire. Raises `NotFound`."""
        name = TopicName.parse(topic)
        found = await self._registry.schemas.find(name, None if version is None else from_wire(version))
        if found is None:
            raise NotFound(f"topic {name} has no {'schema' if version is None else 'schema of this version'}")
        return to_wire(found.number), found.definition.message()

    # -- subscriptions ---------------------------------------------------------------------------------

    async def ensure_subscription(self, topic: AnyTopic, name: str) -> None:
        """A durable subscription from the first message on, made if there is none."""
        subscriptions = subscriptions_of(topic)
        found = subscriptions.get(name)
        if found is None:
            await self._partitioned.subscribed(topic.topic_name, name, earliest=True)
            with suppress(AlreadyExists):
                await subscriptions.create(name, earliest=True, is_on_all_partitions=False)
            found = subscriptions.get(name)
        if found is not None:
            await self._prove(topic, found, None, earliest=True)

    async def subscribe(
        self, topic: AnyTopic, command: pb.CommandSubscribe, port: ConsumerPort, address: str
    ) -> Consumer:
        """Add a consumer to the subscription that SUBSCRIBE names, which is made if it is not there."""
        request = SubscribeRequest.of(command, address)
        subscriptions = subscriptions_of(topic)
        earliest, name = request.initial_earliest, request.subscription
        if request.durable and subscriptions.get(name) is None:
            # First elsewhere: found here it counts as made everywhere.
            await self._partitioned.subscribed(topic.topic_name, name, request.properties, earliest=earliest)
        consumer = await subscriptions.subscribe(request, port)
        made = consumer.subscription
        assert isinstance(made, Subscription)
        await self._prove(topic, made, consumer, earliest=earliest)
        return consumer

    async def _prove(
        self, topic: AnyTopic, subscription: Subscription, consumer: Consumer | None, *, earliest: bool
    ) -> None:
        """Make it on partitions that are added by now. Where this fails it is deleted, if it has no other consumer."""
        if subscription.is_on_all_partitions:
            return
        properties = subscription.cursor.properties
        try:
            await self._partitioned.subscribed(
                topic.topic_name, subscription.name, properties, earliest=earliest
            )
        except QuireError:
            await subscription.withdraw(consumer)
            raise
        subscription.is_on_all_partitions = True
