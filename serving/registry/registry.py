"""Registry of a broker's loaded topics: loads each topic once, finds it by name, and unloads it.

The first request for a topic loads it; concurrent requests wait for the same load. Requests for a topic that is
being unloaded or deleted first wait until that has finished.

A non-persistent topic has no record and nothing to load: it is registered from its first use until it is unloaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from quire.runtime.errors import ConfigurationError, NotFound, Unavailable
from quire.serving.names import TopicName
from quire.serving.ownership.port import BundleLoad, NotOwner, Ownership
from quire.serving.policy.guard import guard_of
from quire.serving.policy.namespaces import Namespaces
from quire.serving.policy.resolved import defaults_of
from quire.serving.policy.service import TopicPoliciesService
from quire.serving.registry.bundles import Bundle, Bundles, BundleTotals
from quire.serving.registry.catalogue import Catalogue, TopicsLimit
from quire.serving.registry.topic_lists import TopicLists
from quire.serving.registry.topic_loader import TopicLoader, subscriptions_of
from quire.serving.registry.topic_ownership import TopicOwnership
from quire.serving.registry.topic_records import TopicRecords
from quire.serving.schema.registry import Schemas
from quire.serving.topic.services import Services
from quire.serving.topic.topic import AnyTopic, PersistentTopic, is_persistent

_log = logging.getLogger(__name__)


class Registry:
    def __init__(self, services: Services, namespaces: Namespaces, ownership: Ownership) -> None:
        self._topics: dict[TopicName, AnyTopic] = {}
        self._bundle_of: dict[TopicName, str] = {}
        """Bundle of each topic that is loaded or being loaded."""
        self._loading: dict[TopicName, asyncio.Future[AnyTopic]] = {}
        self._closing: dict[TopicName, asyncio.Future[None]] = {}
        self.is_stopping = False
        self.records = TopicRecords(services.store, services.clock, namespaces)
        self.policies = TopicPoliciesService(
            services.store, namespaces, services.tasks, defaults_of(services.settings, services.limits)
        )
        self.guard = guard_of(services.security, namespaces, self.policies)
        """Guard of the broker; None if it has no authentication."""
        self.schemas = Schemas(services.store, services.clock, services.helpers)
        self.lists = TopicLists(services.store, services.tasks, services.slices)
        self.catalogue = Catalogue(
            self.records,
            namespaces,
            self._topics,
            TopicsLimit(self.lists, self._topics, services.limits.topics_per_namespace),
            creates=lambda: services.settings.auto_topic_creation,
        )
        self.totals = BundleTotals(services.clock)
        self.bundles = Bundles(services.ledgers, services.store, self.totals)
        self.ownership = TopicOwnership(namespaces, ownership)
        self._loader = TopicLoader(
            services, self.catalogue, self.bundles, self.ownership, self.policies, self.totals, self._on_lost
        )

    # -- loaded topics ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._topics)

    def find(self, name: TopicName) -> AnyTopic | None:
        """Return the topic if it is loaded, else None."""
        return self._topics.get(name)

    def all(self) -> list[AnyTopic]:
        """List the loaded topics."""
        return list(self._topics.values())

    def persistent(self) -> list[PersistentTopic]:
        """List the loaded persistent topics."""
        return [topic for topic in self._topics.values() if is_persistent(topic)]

    def in_namespace(self, tenant: str, namespace: str) -> list[TopicName]:
        """List the loaded topics of a namespace."""
        return [name for name in self._topics if name[1:3] == (tenant, namespace)]

    def bundle_of(self, name: TopicName) -> str | None:
        """Return the bundle of a topic that is loaded or being loaded, else None."""
        return self._bundle_of.get(name)

    def in_bundle(self, bundle: str) -> list[TopicName]:
        """List the topics of a bundle that are loaded or being loaded."""
        return [name for name, of in self._bundle_of.items() if of == bundle]

    def bundle_loads(self) -> dict[str, BundleLoad]:
        """Return the load of each bundle with loaded topics. Must be cheap: it is called every few seconds."""
        return self.totals.loads(Counter(self._bundle_of.values()))

    # -- splits of bundles -----------------------------------------------------------------------------

    def move_to(self, part: Bundle, *, of: str) -> None:
        """Move the loaded topics of bundle `of` that hash into `part` to `part`, without interrupting them."""
        totals = self.totals.of(part.name)
        for name in self.in_bundle(of):
            if part.contains(str(name)):
                self._bundle_of[name] = part.name
                topic = self._topics[name]
                topic.received.count_for(totals)
                if is_persistent(topic):
                    topic.log.dedup_log = part
                    if topic.log.dedup is not None:
                        topic.log.dedup.move_to(part)
                    subscriptions_of(topic).move_to(part.cursors)

    def rename_bundle(self, bundle: str, new: str) -> None:
        for name in self.in_bundle(bundle):
            self._bundle_of[name] = new

    # -- loading ---------------------------------------------------------------------------------------

    async def create(
        self, name: TopicName, partitions: int = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic as `Catalogue.create` does; a non-persistent topic is loaded, which creates it."""
        if not await self.catalogue.create(name, partitions, properties):
            await self.open(name, create=True)

    async def open_persistent(self, name: TopicName) -> PersistentTopic:
        """Open a persistent topic as `open` does. Raises `ConfigurationError` for a non-persistent one."""
        if not name.is_persistent:
            raise ConfigurationError(f"this request is not supported for non-persistent topic {name}")
        topic = await self.open(name)
        assert is_persistent(topic)
        return topic

    async def open(self, name: TopicName, *, create: bool = False, take: bool = True) -> AnyTopic:
        """Return the topic; load it if necessary and, with `create`, create it if the policy allows that.

        With `take`, this broker acquires the topic's bundle if it is unowned. Raises the errors of `TopicLoader.load`.
        """
        while True:
            topic = self._topics.get(name)
            if topic is not None:
                return topic
            if self.is_stopping:
                raise Unavailable("this broker is stopping; look the topic up again")
            closing = self._closing.get(name)
            if closing is not None:
                await asyncio.wait([closing])
                continue
            loading = self._loading.get(name)
            if loading is None:
                return await asyncio.shield(self._start_loading(name, create, take))
            await asyncio.wait([loading])
            if create or loading.cancelled() or loading.exception() is None:
                continue
            return loading.result()

    def _start_loading(self, name: TopicName, create: bool, take: bool) -> asyncio.Future[AnyTopic]:
        loading = asyncio.ensure_future(self._load(name, create, take))
        self._loading[name] = loading

        def loaded(future: asyncio.Future[AnyTopic]) -> None:
            self._loading.pop(name, None)
            if name not in self._topics:
                self._bundle_of.pop(name, None)
            # Waiting requests get the error; reading it here avoids a warning if none waits.
            if not future.cancelled():
                future.exception()

        loading.add_done_callback(loaded)
        return loading

    async def _load(self, name: TopicName, create: bool, take: bool) -> AnyTopic:
        bundle = await self.ownership.require(name, take=take)
        self._bundle_of[name] = bundle
        topic = await self._loader.load(name, bundle, create=create)
        if self._bundle_of.get(name) != bundle:
            topic.drop()
            raise NotOwner(f"the owner of {name} changed while the topic was being loaded; look it up again")
        self._topics[name] = topic
        return topic

    async def when_loaded(self, bundle: str) -> list[AnyTopic]:
        """Wait for the running loads of a bundle's topics, and return its loaded topics."""
        names = self.in_bundle(bundle)
        loading = [self._loading[name] for name in names if name in self._loading]
        if loading:
            await asyncio.wait(loading)
        return [self._topics[name] for name in names if name in self._topics]

    # -- unloading -------------------------------------------------------------------------------------

    async def open_to_delete(self, name: TopicName) -> AnyTopic:
        """Return the loaded topic; if its deletion was interrupted, return a `Topic` that is not loaded."""
        while (closing := self._closing.get(name)) is not None:
            await asyncio.wait([closing])
        record = await self.records.find(name)
        if record is None and name not in self._topics:
            await self.ownership.require(name)
            if name not in self._topics:
                raise NotFound(f"topic {name} does not exist")
        if record is None or not record.deleting:
            return await self.open(name)
        await self.ownership.require(name)
        namespace = await self.catalogue.namespace(name)
        return await self._loader.make(name, namespace, await self.records.load(name))

    async def unload(self, name: TopicName, *, even_used: bool = True) -> None:
        """Close the topic if it is loaded; the next client's request loads it again."""
        topic = self._topics.get(name)
        if topic is not None and (even_used or not topic.is_used):
            await self.close(name, topic.unload)

    async def unload_all(self, names: Iterable[TopicName], *, even_used: bool = True) -> None:
        """Unload topics as `unload` does; a topic that fails is recovered by its next load."""
        wanted = list(names)
        unloads = (self.unload(name, even_used=even_used) for name in wanted)
        results = await asyncio.gather(*unloads, return_exceptions=True)
        for name, result in zip(wanted, results, strict=True):
            if isinstance(result, BaseException):
                _log.warning(
                    "topic was not closed cleanly; the next load will recover it: topic=%s error=%s",
                    name,
                    result,
                )

    async def stop(self) -> None:
        """Close all topics and bundles, and reject later requests to open a topic."""
        self.is_stopping = True
        await self.unload_all(self._topics)

    def is_closing(self, name: TopicName) -> bool:
        return name in self._closing

    async def close(self, name: TopicName, act: Callable[[], Awaitable[None]]) -> None:
        """Await `act`, which ends the topic; the topic cannot be opened meanwhile. Concurrent calls run in order."""
        self._topics.pop(name, None)
        self._bundle_of.pop(name, None)
        while (other := self._closing.get(name)) is not None:
            await asyncio.wait([other])
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing[name] = done
        try:
            await act()
        finally:
            del self._closing[name]
            done.set_result(None)

    def remove_bundles(self, bundles: Collection[str]) -> list[AnyTopic]:
        """Remove the topics of these bundles from the registry, and return them.

        A load in progress of one of these topics then fails, even if this broker has acquired the bundle again.
        """
        removed = []
        for name in [name for name, of in self._bundle_of.items() if of in bundles]:
            del self._bundle_of[name]
            if name in self._topics:
                removed.append(self._topics.pop(name))
        return removed

    def _on_lost(self, topic: AnyTopic) -> None:
        if self._topics.get(topic.topic_name) is topic:
            del self._topics[topic.topic_name]
            bundle = self._bundle_of.pop(topic.topic_name, None)
            if bundle is not None:
                self.ownership.lost(bundle)
