"""Makes a topic of this broker, and its subscriptions, from what is recorded of it. Nothing is remembered here."""

from __future__ import annotations

from collections.abc import Callable

from quire.metadata import topics
from quire.metadata.records import NamespaceRecord
from quire.serving.cluster.bundle_totals import BundleTotals
from quire.serving.cluster.bundles import Bundles, bundle_of
from quire.serving.cluster.catalogue import Catalogue, has_partitions
from quire.serving.cluster.port import NotOwner, Ownership
from quire.serving.cluster.topic_records import TopicRecords
from quire.serving.names import TopicName
from quire.serving.policy.book import PolicyBook
from quire.serving.subscription.delivery.block_source import ReadLimit
from quire.serving.subscription.non_persistent import NonPersistentSubscriptions
from quire.serving.subscription.subscriptions import Subscriptions
from quire.serving.topic.non_persistent import AnyTopic, NonPersistentTopic
from quire.serving.topic.services import Services
from quire.serving.topic.topic import Topic


class TopicFactory:
    """A topic calls `lost` when another broker took it over."""

    def __init__(
        self,
        services: Services,
        records: TopicRecords,
        catalogue: Catalogue,
        bundles: Bundles,
        ownership: Ownership,
        policies: PolicyBook,
        totals: BundleTotals,
        lost: Callable[[Topic], None],
    ) -> None:
        self._services = services
        self._records = records
        self._catalogue = catalogue
        self._bundles = bundles
        self._ownership = ownership
        self._policies = policies
        self._totals = totals
        self._lost = lost
        self._read_limit = ReadLimit()

    async def load(self, name: TopicName, namespace: NamespaceRecord, snapshot: topics.Topic) -> Topic:
        """The topic, recovered and open, with its subscriptions. Raises what recovery does, and `NotOwner`."""
        topic = await self.make(name, namespace, snapshot)
        await topic.load()
        subscriptions_of(topic).load()
        return topic

    async def make(self, name: TopicName, namespace: NamespaceRecord, snapshot: topics.Topic) -> Topic:
        """A topic, not loaded yet, with its subscriptions, not taken up yet. As it is it can only be deleted.

        What took long before may have lost the bundle. Nobody would close a state log that was opened after that, and
        it would be taken for current when the bundle comes back.
        """
        require_held(self._ownership, name, bundle_of(namespace, name))
        bundle = await self._bundles.of(namespace, name)
        totals, policies = self._totals.of(bundle.name), await self._policies.of(name)
        topic = Topic(name, self._services, snapshot, policies, bundle, self._lost, totals)
        topic.subscriptions = Subscriptions(
            topic, bundle.cursors, topic.generation, self._services.clock, name.partition, self._read_limit
        )
        return topic

    async def make_non_persistent(
        self, name: TopicName, namespace: NamespaceRecord, create: bool
    ) -> NonPersistentTopic:
        """A topic without a record. Raises `NotFound` when it may not be made, `ConfigurationError` for a parent."""
        if await self._records.find(name) is not None:
            raise has_partitions(name)
        await self._catalogue.permit(name, namespace, create)
        totals = self._totals.of(bundle_of(namespace, name))
        topic = NonPersistentTopic(name, self._services, await self._policies.of(name), totals)
        topic.subscriptions = NonPersistentSubscriptions(topic, self._services.clock, name.partition)
        return topic


def subscriptions_of(topic: AnyTopic) -> Subscriptions:
    """The concrete type behind the port; the factory makes no other."""
    assert isinstance(topic.subscriptions, Subscriptions)
    return topic.subscriptions


def require_held(ownership: Ownership, name: TopicName, bundle: str) -> None:
    """Raise `NotOwner` when the bundle, which was this broker's, is so no longer."""
    if not ownership.holds(bundle):
        raise NotOwner(f"{name} went to another broker meanwhile; look it up again")
