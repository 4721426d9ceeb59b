"""Loader of topics and their subscriptions from the records in the metadata store. Keeps no state about topics.

A limited number of topics is loaded concurrently, because each load requires several metadata operations. A load that
waits for a state log to open does not count towards the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire.metadata import topics
from quire.metadata.records import NamespaceRecord
from quire.runtime import slow
from quire.serving.model.ports import was_unloaded
from quire.serving.names import TopicName
from quire.serving.policy.applied import AppliedPolicies
from quire.serving.policy.service import TopicPoliciesService
from quire.serving.registry.bundles import Bundles, BundleTotals, bundle_of
from quire.serving.registry.catalogue import Catalogue
from quire.serving.registry.topic_ownership import TopicOwnership
from quire.serving.subscription.delivery.block_source import ReadLimit
from quire.serving.subscription.non_persistent import NonPersistentSubscriptions
from quire.serving.subscription.subscriptions import Subscriptions
from quire.serving.topic.log import LedgerLog
from quire.serving.topic.null_log import NullLog
from quire.serving.topic.services import Services
from quire.serving.topic.topic import AnyTopic, PersistentTopic, Topic, must_be_loaded_anew


class TopicLoader:
    """Loader of topics; a loaded topic calls `lost` when it enters LOST (`lifecycle.states`)."""

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
        """Load the topic; with `create`, create it if it does not exist and the policy allows that.

        `bundle` is its bundle, which this broker owns.

        Raises `NotFound`, `NotOwner`, `Unavailable`, `ConfigurationError`, and the errors of recovery.
        """
        with slow.Stopwatch("load", str(name), self._services.clock.monotonic, topic=str(name)) as watch:
            namespace = await self._catalogue.namespace(name)
            watch.part("its namespace")
            if name.is_persistent and not self._bundles.is_open(bundle):
                async with self._slots:
                    if not self._bundles.is_open_or_opening(bundle):  # otherwise an existing topic opened it
                        await self._catalogue.find_or_create(name, namespace, create)
                watch.part("its record")
                self._ownership.require_held(name, bundle)
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
            self._ownership.require_held(name, bundle)
            if topic.is_closed:
                raise was_unloaded(topic.name)
        except BaseException:
            topic.drop()  # Otherwise its open ledger would never be released.
            raise
        return topic

    async def _is_up_to_date(self, topic: AnyTopic) -> bool:
        """Apply policies that changed during the load; return False if they require another load."""
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
        """Create a `Topic` with its subscriptions, without loading it; the caller then loads or deletes it.

        The bundle may have been lost meanwhile, so its ownership is checked again: a state log that was opened
        afterwards would never be closed, and would be considered current when this broker acquires the bundle again.
        """
        self._ownership.require_held(name, bundle_of(namespace, name))
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
        """Create a non-persistent topic, which has no record to load."""
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
    """Return the topic's subscriptions as their concrete type, the only one that the loader creates."""
    assert isinstance(topic.subscriptions, Subscriptions)
    return topic.subscriptions
