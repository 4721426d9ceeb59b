"""The topics of a broker: found, created, loaded once however many ask, unloaded, deleted.

A topic is loaded by the first who needs it; who asks meanwhile waits for the same load, and who asks for one that is
being unloaded or deleted waits for the end of that first. Thousands may load at the same time, up to a limit, because
each load costs several metadata operations.

A partitioned topic is a record with a number of partitions and no segments; its partitions are topics of their own that
are created when they are first used. So creating ten thousand partitions writes one record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from quire.metadata import paths, topics
from quire.metadata.records import NamespaceRecord, TopicRecord, decode
from quire.runtime.errors import AlreadyExists, ConfigurationError, NotFound, Unavailable
from quire.serving.bundles import Bundles
from quire.serving.names import TopicName
from quire.serving.policy.namespaces import Namespaces
from quire.serving.subscription.subscriptions import Subscriptions
from quire.serving.topic.services import Services
from quire.serving.topic.topic import Topic

_log = logging.getLogger(__name__)


class Registry:
    """See the top of the file."""

    def __init__(self, services: Services, namespaces: Namespaces, bundles: Bundles) -> None:
        self._services = services
        self._namespaces = namespaces
        self._bundles = bundles
        self._topics: dict[TopicName, Topic] = {}
        self._bundle_of: dict[TopicName, str] = {}
        self._loading: dict[TopicName, asyncio.Future[Topic]] = {}
        self._leaving: dict[TopicName, asyncio.Future[None]] = {}
        self._slots = asyncio.Semaphore(services.settings.topic_loads_max)
        self.is_stopping = False

    def loaded(self) -> list[Topic]:
        return list(self._topics.values())

    def find(self, name: TopicName) -> Topic | None:
        """The topic if it is loaded."""
        return self._topics.get(name)

    # -- loading ---------------------------------------------------------------------------------------

    async def open(self, name: TopicName, *, create: bool = False) -> Topic:
        """The loaded topic; loads it, and with `create` makes it where the policy allows.

        Raises `NotFound`, `Unavailable`, `ConfigurationError`, and what recovery raises.
        """
        while True:
            topic = self._topics.get(name)
            if topic is not None:
                return topic
            if self.is_stopping:
                raise Unavailable("this broker is stopping; look the topic up again")
            leaving = self._leaving.get(name)
            if leaving is not None:
                await asyncio.wait([leaving])
                continue
            loading = self._loading.get(name)
            if loading is None:
                return await asyncio.shield(self._start_loading(name, create))
            await asyncio.wait([loading])
            if create or loading.cancelled() or loading.exception() is None:
                continue
            return loading.result()

    def _start_loading(self, name: TopicName, create: bool) -> asyncio.Future[Topic]:
        loading = asyncio.ensure_future(self._load(name, create))
        self._loading[name] = loading

        def loaded(future: asyncio.Future[Topic]) -> None:
            self._loading.pop(name, None)
            # Whoever waits gets the error; nobody may be left to wait.
            if not future.cancelled():
                future.exception()

        loading.add_done_callback(loaded)
        return loading

    async def _load(self, name: TopicName, create: bool) -> Topic:
        async with self._slots:
            namespace = await self._namespace(name)
            snapshot = await self._snapshot(name, namespace, create)
            bundle = await self._bundles.of(namespace, name)
            topic = Topic(name, self._services, snapshot, namespace.policies, bundle, self._lost)
            subscriptions = Subscriptions(
                topic, bundle.cursors, topic.generation, self._services.clock, name.partition
            )
            topic.subscriptions = subscriptions
            await topic.load()
            subscriptions.load()
            self._topics[name] = topic
            self._bundle_of[name] = bundle.name
            return topic

    async def _namespace(self, name: TopicName) -> NamespaceRecord:
        if name.domain != "persistent":
            raise ConfigurationError(f"{name} cannot be: this broker has persistent topics only")
        return await self._namespaces.get(name.tenant, name.namespace)

    async def _snapshot(self, name: TopicName, namespace: NamespaceRecord, create: bool) -> topics.Topic:
        """The topic's record; made if it may be."""
        try:
            snapshot = await topics.load(self._services.store, name.path)
        except NotFound:
            if not await self._may_create(name, namespace, create):
                raise NotFound(f"there is no topic {name}") from None
            return await self._create(name)
        if snapshot.record.partitions:
            raise ConfigurationError(f"{name} has partitions; use {name.of_partition(0)} and so on")
        if snapshot.record.deleting:
            raise Unavailable(f"{name} is being deleted; delete it again to finish that")
        return snapshot

    async def _may_create(self, name: TopicName, namespace: NamespaceRecord, create: bool) -> bool:
        """A partition always, if its parent has it; another topic by the policy."""
        parent = name.parent
        if parent is not None:
            try:
                return name.partition < await self.partitions(parent)
            except NotFound:
                pass
        return create and self.creates_automatically(namespace)

    def creates_automatically(self, namespace: NamespaceRecord) -> bool:
        wanted = namespace.policies.auto_topic_creation
        return self._services.settings.auto_topic_creation if wanted is None else wanted

    async def _create(self, name: TopicName, partitions: int = 0) -> topics.Topic:
        now_ms = self._services.clock.now_ms()
        # A later incarnation of the same name gets a later generation, so old cursors are never taken for its own.
        record = TopicRecord(name=str(name), created_ms=now_ms, generation=now_ms, partitions=partitions)
        try:
            return await topics.create(self._services.store, name.path, record)
        except AlreadyExists:
            if partitions:
                raise AlreadyExists(f"topic {name} exists already") from None
            return await topics.load(self._services.store, name.path)

    # -- creating and finding --------------------------------------------------------------------------

    async def create(self, name: TopicName, partitions: int = 0) -> None:
        """Raises `AlreadyExists`, `NotFound` for an unknown namespace."""
        await self._namespace(name)
        if await self.record(name) is not None:
            raise AlreadyExists(f"topic {name} exists already")
        await self._create(name, partitions)

    async def record(self, name: TopicName) -> TopicRecord | None:
        """The topic's record, None when there is none. Its older segments may lie in manifests."""
        try:
            value = (await self._services.store.get(name.path)).value
        except NotFound:
            return None
        return decode(TopicRecord, value, name.path)

    async def partitions(self, name: TopicName) -> int:
        """0 for a topic without partitions. Raises `NotFound`."""
        if name in self._topics:
            return 0
        record = await self.record(name)
        if record is None:
            raise NotFound(f"there is no topic {name}")
        return record.partitions

    async def grow(self, name: TopicName, partitions: int) -> None:
        """Give a partitioned topic more partitions."""
        snapshot = await topics.load(self._services.store, name.path)
        if not snapshot.record.partitions:
            raise ConfigurationError(f"{name} has no partitions, and a topic cannot be given any later")
        if partitions < snapshot.record.partitions:
            raise ConfigurationError(
                f"{name} has {snapshot.record.partitions} partitions; there can only be more"
            )
        await topics.update(self._services.store, snapshot, replace(snapshot.record, partitions=partitions))

    async def check(self, name: TopicName) -> None:
        """Raise `NotFound` unless the topic is here or would be created on use."""
        if name in self._topics:
            return
        namespace = await self._namespace(name)
        if await self.record(name) is None and not await self._may_create(name, namespace, True):
            raise NotFound(f"there is no topic {name}")

    async def names(self, tenant: str, namespace: str, domain: str) -> tuple[list[str], list[str]]:
        """(topics with each partition by its name, partitioned topics), as full names in order."""
        await self._namespaces.get(tenant, namespace)
        children = await self._services.store.children(paths.topics_of(tenant, namespace, domain))
        names = [TopicName(domain, tenant, namespace, paths.decode(child)) for child in children]
        records = await asyncio.gather(*(self._listed(name) for name in names))
        parents = {name: count for name, count in zip(names, records, strict=True) if count > 0}
        single = {name for name, count in zip(names, records, strict=True) if count == 0}
        single |= {parent.of_partition(i) for parent, count in parents.items() for i in range(count)}
        return sorted(map(str, single)), sorted(map(str, parents))

    async def _listed(self, name: TopicName) -> int:
        """Its number of partitions, -1 when it was deleted meanwhile."""
        try:
            return await self.partitions(name)
        except NotFound:
            return -1

    # -- leaving ---------------------------------------------------------------------------------------

    async def unload(self, name: TopicName) -> None:
        """Close the topic; the next client loads it again. Nothing if it is not loaded."""
        topic = self._topics.get(name)
        if topic is not None:
            await self._leave(name, topic.unload)

    async def delete(self, name: TopicName) -> None:
        """Delete a topic with all it holds. Raises `NotFound`; `Unavailable`: try again."""
        topic = await self.open(name)
        await self._leave(name, topic.delete)

    async def delete_parent(self, name: TopicName) -> None:
        """Delete the record of a partitioned topic, whose partitions are gone."""
        await topics.delete(self._services.store, await topics.load(self._services.store, name.path))

    async def _leave(self, name: TopicName, leave: Callable[[], Awaitable[None]]) -> None:
        """Carry out `leave` while nobody can open the topic."""
        self._topics.pop(name, None)
        self._bundle_of.pop(name, None)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leaving[name] = done
        try:
            await leave()
        finally:
            del self._leaving[name]
            done.set_result(None)

    def _lost(self, topic: Topic) -> None:
        if self._topics.get(topic.topic_name) is topic:
            del self._topics[topic.topic_name]
            self._bundle_of.pop(topic.topic_name, None)

    async def unload_bundle(self, bundle: str) -> None:
        """Close all topics whose state log failed."""
        names = [name for name, of in self._bundle_of.items() if of == bundle]
        await self._unload_all(names)

    async def stop(self) -> None:
        """Close everything, and open nothing more."""
        self.is_stopping = True
        await self._unload_all(list(self._topics))

    async def _unload_all(self, names: list[TopicName]) -> None:
        results = await asyncio.gather(*map(self.unload, names), return_exceptions=True)
        for name, result in zip(names, results, strict=True):
            if isinstance(result, BaseException):
                _log.warning("%s was not closed cleanly, it will be recovered: %s", name, result)
