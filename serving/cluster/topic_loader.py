"""Loads a topic of this broker, with its subscriptions, from what is recorded of it. Nothing is remembered here.

Topics load at the same time up to a limit, because each load costs several metadata operations. A load that waits for
something else, for an owner's end or for a state log, does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire.metadata import topics
from quire.metadata.records import NamespaceRecord
from quire.runtime import slow
from quire.serving.cluster.bundle_totals import BundleTotals
from quire.serving.cluster.bundles import Bundles, bundle_of
from quire.serving.cluster.catalogue import Catalogue
from quire.serving.cluster.topic_ownership import TopicOwnership
from quire.serving.model.ports import was_unloaded
from quire.serving.names import TopicName
from quire.serving.policy.applied import AppliedPolicies
from quire.serving.policy.service import TopicPoliciesService
from quire.serving.subscription.delivery.block_source import ReadLimit
from quire.serving.subscription.non_persistent import NonPersistentSubscriptions
from quire.serving.subscription.subscriptions import Subscriptions
from quire.serving.topic.log import LedgerLog
from quire.serving.topic.null_log import NullLog
from quire.serving.topic.services import Services
from quire.serving.topic.topic import AnyTopic, PersistentTopic, Topic, must_be_loaded_anew


class TopicLoader:
    """A topic calls `lost` when another broker took it over."""

    def __init__(
        self,
        services: Services,
        catalogue: Catalogue,
        bundles: Bundles,
        ownership: TopicOwnership,
        policies: TopicPoliciesService,
        totals: BundleTotals,
        lost: Callable[[AnyTopic], None],
    ) -> None:
        self._services = services
        self._catalogue = catalogue
        self._bundles = bundles
        self._ownership = ownership
        self._policies = policies
        self._totals = totals
        self._lost = lost
        self._read_limit = ReadLimit()
        self._slots = asyncio.Semaphore(services.settings.topic_loads_max)

    async def load(self, name: TopicName, bundle: str, *, create: bool) -> AnyTopic:
        """The topic, open, made with `create` where the policy allows; `bundle` is its bundle, owned here.

        Raises `NotFound`, `NotOwner`, `Unavailable`, `ConfigurationError`, and what recovery raises.
        """
        with slow.Stopwatch("load", str(name), self._services.clock.monotonic, topic=str(name)) as watch:
            namespace = await self._catalogue.namespace(name)
            watch.part("its namespace")
            if name.is_persistent and not self._bundles.is_open(bundle):
                async with self._slots:
                    if not self._bundles.is_wanted(bundle):  # by a topic that exists
                        await self._catalogue.find_or_create(name, namespace, create)
                watch.part("its record")
                self._ownership.still(name, bundle)
                await self._bundles.of(namespace, name)
                watch.part("its bundle's state log")
            async with self._slots:
                watch.part("loads of others")
                return await self._load(name, namespace, bundle, create=create)

    async def _load(
        self, name: TopicName, namespace: NamespaceRecord, bundle: str, *, create: bool
    ) -> AnyTopic:
        load = self._load_persistent if name.is_persistent else self._make_non_persistent
        topic = await load(name, namespace, create)
        try:
            while not await self._is_up_to_date(topic):
                await topic.unload()
                topic = await load(name, namespace, create)
            self._ownership.still(name, bundle)
            if topic.is_closed:
                raise was_unloaded(topic.name)
        except BaseException:
            topic.drop()  # it has an open ledger, and no other part would ever let go of it
            raise
        return topic

    async def _is_up_to_date(self, topic: AnyTopic) -> bool:
        """The policies may have changed while it was loaded; False when they ask for another load."""
        policies = await self._policies.of(topic.topic_name)
        topic.apply(policies)
        return not must_be_loaded_anew(topic, policies)

    async def _load_persistent(self, name: TopicName, namespace: NamespaceRecord, create: bool) -> AnyTopic:
        topic = await self.make(
            name, namespace, await self._catalogue.find_or_create(name, namespace, create)
        )
        await topic.load()
        subscriptions_of(topic).load()
        return topic

    async def make(
        self, name: TopicName, namespace: NamespaceRecord, snapshot: topics.Topic
    ) -> PersistentTopic:
        """A topic, not loaded yet, with its subscriptions, not taken up yet. As it is it can only be deleted.

        The bundle may have been lost while something before took long. A state log that was opened after that would
        never be closed, and would be taken for current when the bundle comes back.
        """
        self._ownership.still(name, bundle_of(namespace, name))
        bundle = await self._bundles.of(namespace, name)
        services, applied = self._services, await self._applied(name)
        log = LedgerLog(str(name), services, snapshot, applied, bundle)
        generation = snapshot.record.generation
        totals = self._totals.of(bundle.name)
        subscriptions = Subscriptions(
            log, bundle.cursors, generation, services.clock, name.partition, self._read_limit
        )
        return Topic(name, services, applied, log, subscriptions, totals, self._lost)

    async def _make_non_persistent(
        self, name: TopicName, namespace: NamespaceRecord, create: bool
    ) -> AnyTopic:
        """A topic without a record, and so without anything to load."""
        await self._catalogue.permit_without_record(name, namespace, create)
        services, applied = self._services, await self._applied(name)
        log = NullLog(str(name), services.clock, applied, services.tracing)
        totals = self._totals.of(bundle_of(namespace, name))
        subscriptions = NonPersistentSubscriptions(log, services.clock, name.partition, totals)
        topic = Topic(name, services, applied, log, subscriptions, totals, self._lost)
        await topic.load()
        return topic

    async def _applied(self, name: TopicName) -> AppliedPolicies:
        return AppliedPolicies(await self._policies.of(name), self._services.clock, self._services.limiters)


def subscriptions_of(topic: AnyTopic) -> Subscriptions:
    """The concrete type behind the port; the loader makes no other."""
    assert isinstance(topic.subscriptions, Subscriptions)
    return topic.subscriptions
