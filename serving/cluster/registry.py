"""The topics of a broker: created, loaded once however many ask, unloaded, deleted.

A topic is loaded by the first who needs it; who asks meanwhile waits for the same load, and who asks for one that is
being unloaded or deleted waits for the end of that first. Thousands may load at the same time, up to a limit, because
each load costs several metadata operations.

A non-persistent topic has no record and nothing to load: it is here from its first use until it is unloaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from quire.metadata import topics
from quire.metadata.records import NamespaceRecord
from quire.metadata.store import CHANGE_ATTEMPTS
from quire.runtime.errors import (
    ConfigurationError,
    CorruptionError,
    NotFound,
    QuireError,
    Unavailable,
    VersionConflict,
)
from quire.serving.cluster.bundle_totals import BundleTotals
from quire.serving.cluster.bundles import Bundles, bundle_of
from quire.serving.cluster.catalogue import Catalogue
from quire.serving.cluster.port import BundleLoad, NotOwner, Ownership
from quire.serving.cluster.topic_factory import TopicFactory, require_held
from quire.serving.cluster.topic_records import TopicRecords
from quire.serving.model.ports import was_unloaded
from quire.serving.names import TopicName
from quire.serving.policy.book import PolicyBook
from quire.serving.policy.namespaces import Namespaces
from quire.serving.policy.resolved import TopicPolicies, defaults_of
from quire.serving.schema.registry import Schemas
from quire.serving.topic.non_persistent import AnyTopic, NonPersistentTopic
from quire.serving.topic.services import Services
from quire.serving.topic.topic import Topic

POLICY_RETRY_S: Final = 1.0
DELETION_RETRY_S: Final = 10.0
CLOSED_A_TURN: Final = 100
"""Topics of a bundle that are closed, or dropped: some milliseconds."""

POLICY_BATCH: Final = 500
"""Topics that get other policies in one turn of the event loop."""

_log = logging.getLogger(__name__)


class Registry:
    def __init__(
        self, services: Services, namespaces: Namespaces, bundles: Bundles, ownership: Ownership
    ) -> None:
        self._services = services
        self.records = TopicRecords(services.store, services.clock, namespaces)
        self._bundles = bundles
        self._ownership = ownership
        self._topics: dict[TopicName, AnyTopic] = {}
        self._bundle_of: dict[TopicName, str] = {}
        """Of the topics that are loaded or loading."""
        self._loading: dict[TopicName, asyncio.Future[AnyTopic]] = {}
        self._leaving: dict[TopicName, asyncio.Future[None]] = {}
        self._deleting: set[TopicName] = set()
        """Whose interrupted deletion is being finished."""
        self.policies = PolicyBook(
            services.store, namespaces, services.tasks, defaults_of(services.settings), self._policies_changed
        )
        self.schemas = Schemas(services.store, services.clock, services.helpers)
        creates = services.settings.auto_topic_creation
        self.catalogue = Catalogue(self.records, namespaces, self._topics, creates=creates)
        self.totals = BundleTotals(services.clock)
        self._factory = TopicFactory(
            services,
            self.records,
            self.catalogue,
            bundles,
            ownership,
            self.policies,
            self.totals,
            self._lost,
        )
        namespaces.on_change(self._namespace_changed)
        self._slots = asyncio.Semaphore(services.settings.topic_loads_max)
        self.is_stopping = False

    def loaded(self) -> list[Topic]:
        """The persistent ones."""
        return [topic for topic in self._topics.values() if isinstance(topic, Topic)]

    def __len__(self) -> int:
        return len(self._topics)

    def find(self, name: TopicName) -> AnyTopic | None:
        """The topic if it is loaded."""
        return self._topics.get(name)

    def serves(self, bundle: str) -> bool:
        """Topics of the bundle are loaded or being loaded."""
        return bundle in self._bundle_of.values()

    # -- loading ---------------------------------------------------------------------------------------

    async def open_persistent(self, name: TopicName) -> Topic:
        """As `open`, for what only a topic that keeps messages can answer. Raises `ConfigurationError`."""
        if not name.is_persistent:
            raise ConfigurationError(f"{name} keeps no messages, so this cannot be asked of it")
        topic = await self.open(name)
        assert isinstance(topic, Topic)
        return topic

    async def open(self, name: TopicName, *, create: bool = False, take: bool = True) -> AnyTopic:
        """The loaded topic; loads it, and with `create` makes it where the policy allows.

        With `take`, a bundle that nobody owns is taken for it. Raises `NotOwner`, `NotFound`, `Unavailable`,
        `ConfigurationError`, and what recovery raises.
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
            # Whoever waits gets the error; nobody may be left to wait.
            if not future.cancelled():
                future.exception()

        loading.add_done_callback(loaded)
        return loading

    async def _load(self, name: TopicName, create: bool, take: bool) -> AnyTopic:
        """Loads under way hold slots. None is held while it waits for others: for an owner's end, or a state log."""
        namespace = await self.catalogue.namespace(name)
        of = bundle_of(namespace, name)
        await self._ownership.require(of, take=take)
        self._bundle_of[name] = of
        if name.is_persistent and not self._bundles.is_open(of):
            async with self._slots:
                await self._find_or_create(name, namespace, create)
            require_held(self._ownership, name, of)
            await self._bundles.of(namespace, name)
        async with self._slots:
            topic: AnyTopic
            if name.is_persistent:
                topic = await self._load_persistent(name, namespace, create)
            else:
                topic = await self._factory.make_non_persistent(name, namespace, create)
            try:
                while not await self._is_up_to_date(topic):
                    await topic.unload()
                    topic = await self._load_persistent(name, namespace, create)
                require_held(self._ownership, name, of)
                if topic.is_closed:
                    raise was_unloaded(topic.name)
                if self._bundle_of.get(name) != of:
                    raise NotOwner(f"{name} went to another broker and came back while it was being loaded")
            except BaseException:
                topic.drop()  # it has an open ledger, and nobody else would ever let go of it
                raise
            self._topics[name] = topic
            return topic

    async def _is_up_to_date(self, topic: AnyTopic) -> bool:
        """The policies may have changed while it was loaded; False when they ask for another load."""
        policies = await self.policies.of(topic.topic_name)
        topic.apply(policies)
        return not _must_be_loaded_anew(topic, policies)

    async def _load_persistent(self, name: TopicName, namespace: NamespaceRecord, create: bool) -> Topic:
        return await self._factory.load(name, namespace, await self._find_or_create(name, namespace, create))

    async def _find_or_create(
        self, name: TopicName, namespace: NamespaceRecord, create: bool
    ) -> topics.Topic:
        snapshot = await self.catalogue.find_or_create(name, namespace, create)
        if snapshot.record.deleting:
            self._go_on_deleting(name)
            raise topics.being_deleted(name)
        return snapshot

    async def create(
        self, name: TopicName, partitions: int = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        """As `Catalogue.create`; a topic that keeps nothing is there because it is loaded."""
        if not await self.catalogue.create(name, partitions, properties):
            await self.open(name, create=True)

    async def bundle_of(self, name: TopicName) -> str:
        """The bundle that `name` belongs to. Raises `NotFound` for an unknown namespace."""
        return bundle_of(await self.catalogue.namespace(name), name)

    async def is_here(self, name: TopicName) -> bool:
        """Its bundle is owned by this broker."""
        return self._ownership.holds(await self.bundle_of(name))

    async def require(self, name: TopicName) -> None:
        """Raise `NotOwner` unless the topic's bundle is owned here; one that is nobody's is taken."""
        await self._ownership.require(await self.bundle_of(name), take=True)

    # -- policies --------------------------------------------------------------------------------------

    def _namespace_changed(self, tenant: str, namespace: str) -> None:
        found = self._bundles.of_namespace(tenant, namespace)
        if found:
            work = self._leave_bundles(tenant, namespace, found)
            self._services.tasks.start(work, f"see whether {tenant}/{namespace} is gone")

    async def _leave_bundles(self, tenant: str, namespace: str, bundles: Iterable[str]) -> None:
        """A namespace that is deleted has no topics, and its state logs go."""
        try:
            await self.catalogue.namespaces.get(tenant, namespace)
        except NotFound:
            for bundle in bundles:
                self._bundles.drop(bundle)
        except QuireError as error:
            _log.info("whether %s/%s is gone cannot be told now: %s", tenant, namespace, error)

    def _policies_changed(self, tenant: str, namespace: str) -> None:
        if self._of_namespace(tenant, namespace):
            work = self._follow_policies(tenant, namespace)
            self._services.tasks.start(work, f"policies of {tenant}/{namespace}")

    async def apply_policies(self, tenant: str, namespace: str) -> None:
        """What is known to be prescribed holds for every topic when this returns: for those that are being loaded, too.

        Raises `Unavailable` when it cannot be read; then it holds later.
        """
        for count, name in enumerate(self._of_namespace(tenant, namespace), 1):
            await self._apply_policies(name)
            if count % POLICY_BATCH == 0:
                await asyncio.sleep(0)

    def _of_namespace(self, tenant: str, namespace: str) -> list[TopicName]:
        return [name for name in self._topics if name[1:3] == (tenant, namespace)]

    async def _apply_policies(self, name: TopicName) -> None:
        """Give a topic, if it is loaded, what holds for it now."""
        try:
            policies = await self.policies.of(name)
        except NotFound:
            return  # its namespace is gone
        except CorruptionError as error:
            _log.error("topic %s keeps the policies that it has: %s", name, error)
            return
        topic = self._topics.get(name)
        if topic is not None:
            topic.apply(policies)
            if _must_be_loaded_anew(topic, policies):
                await self.unload(name)

    async def _follow_policies(self, tenant: str, namespace: str) -> None:
        """As `apply_policies`, however long the metadata store takes to tell."""
        while True:
            try:
                await self.apply_policies(tenant, namespace)
            except QuireError as error:
                _log.warning(
                    "policies of %s/%s cannot be applied, trying again: %s", tenant, namespace, error
                )
                await asyncio.sleep(POLICY_RETRY_S)
            else:
                return

    # -- leaving ---------------------------------------------------------------------------------------

    async def forget_unused(self) -> None:
        """Let go of topics that keep nothing and that nobody has used since the last call."""
        for topic in list(self._topics.values()):
            if isinstance(topic, NonPersistentTopic) and topic.is_abandoned():
                await self.unload(topic.topic_name)

    async def unload(self, name: TopicName) -> None:
        """Close the topic; the next client loads it again. Nothing if it is not loaded."""
        topic = self._topics.get(name)
        if topic is not None:
            await self._leave(name, topic.unload)

    async def rest(self, names: Iterable[TopicName]) -> None:
        """Unload topics that are idle; one that came into use meanwhile stays."""

        async def unload(name: TopicName) -> None:
            topic = self._topics.get(name)
            if topic is not None and not topic.is_used:
                await self._leave(name, topic.unload)

        await self._for_each(unload, list(names))

    async def delete(self, name: TopicName, unless: Callable[[Topic], bool] = lambda _: False) -> None:
        """Delete a topic with all it holds, `unless` that holds in the moment when nobody can get in any more.

        Raises `NotFound`; `Unavailable`: try again.
        """
        while True:
            topic = await self._to_delete(name)
            if not topic.is_closed and name not in self._leaving:
                break  # else somebody else was faster
        if isinstance(topic, Topic) and unless(topic):
            return

        try:
            await self._leave(name, lambda: topic.delete(lambda: self._forget(name)))
        except QuireError:
            self._go_on_deleting(name)
            raise

    def _go_on_deleting(self, name: TopicName) -> None:
        """Who began it died or met an error. Until it is done nobody can have the name, and the ledgers stay."""
        if name not in self._deleting:
            self._deleting.add(name)
            self._services.tasks.start(self._finish_deletion(name), f"go on deleting {name}")

    async def _finish_deletion(self, name: TopicName) -> None:
        """Until it is done, or another broker's, who goes on when it meets the topic."""
        try:
            while not self.is_stopping:
                try:
                    record = await self.records.find(name)
                    if record is None or not record.deleting or not await self.is_here(name):
                        return
                    # In between another may have finished it, and somebody made the topic anew.
                    await self.delete(name, unless=lambda topic: not topic.segment_list.record.deleting)
                except QuireError as error:
                    _log.warning("%s cannot be deleted, trying again: %s", name, error)
                    await asyncio.sleep(DELETION_RETRY_S)
        finally:
            self._deleting.discard(name)

    async def _forget(self, name: TopicName) -> None:
        """What is kept of a topic beside its record; of partitions, what is their parent's, stays as long as that."""
        if name.parent is None or await self.records.find(name.parent) is None:
            await self.policies.forget(name)
            await self.schemas.forget(name)

    async def _to_delete(self, name: TopicName) -> AnyTopic:
        """The loaded topic; one whose deletion was interrupted is made without being loaded."""
        while (leaving := self._leaving.get(name)) is not None:
            await asyncio.wait([leaving])
        record = await self.records.find(name)
        if record is None and name not in self._topics:
            await self.require(name)
            if name not in self._topics:
                raise NotFound(f"there is no topic {name}")
        if record is None or not record.deleting:
            return await self.open(name)
        namespace = await self.catalogue.namespace(name)
        await self._ownership.require(bundle_of(namespace, name), take=True)
        return await self._factory.make(name, namespace, await self.records.load(name))

    async def delete_parent(self, name: TopicName, generation: int) -> None:
        """Delete the record of the partitioned topic of this `generation`, whose partitions are gone, and what it has.

        All in one step: several brokers may be at it, and when the last of them comes to this there may be the next
        topic of that name, with policies and schemas. Raises `NotFound`, `Unavailable`.
        """
        for _ in range(CHANGE_ATTEMPTS):
            parent = await self.records.load(name)
            if parent.record.generation != generation:
                return
            beside = [*await self.policies.removal(name), *await self.schemas.removal(name)]
            try:
                await topics.delete(self._services.store, parent, beside)
            except (NotFound, VersionConflict):
                continue  # another was at it in this moment
            await self.policies.refresh(name.tenant, name.namespace, name)
            return
        raise Unavailable(f"what is kept of {name} is being changed by others; delete it again")

    async def _leave(self, name: TopicName, leave: Callable[[], Awaitable[None]]) -> None:
        """Carry out `leave` while nobody can open the topic, and when nobody else is at it."""
        self._topics.pop(name, None)
        self._bundle_of.pop(name, None)
        while (other := self._leaving.get(name)) is not None:
            await asyncio.wait([other])
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
            bundle = self._bundle_of.pop(topic.topic_name, None)
            if bundle is not None:
                self._ownership.look_again(bundle)

    async def unload_bundle(self, bundle: str) -> None:
        """Close all topics of a bundle, also those that are being loaded, and let their clients go."""
        self.let_go(await self.close_bundle(bundle))

    def used(self, bundle: str) -> list[str]:
        """The bundle's topics that have producers or consumers, by their full names."""
        found = (self._topics.get(name) for name, of in self._bundle_of.items() if of == bundle)
        return [topic.name for topic in found if topic is not None and topic.is_used]

    async def warm(self, names: Iterable[TopicName]) -> None:
        """Load topics before their clients come; what cannot be loaded is told to those."""
        await asyncio.gather(*(self.open(name, take=False) for name in names), return_exceptions=True)

    async def close_bundle(self, bundle: str) -> list[AnyTopic]:
        """As `unload_bundle`, but the producers stay; answers the topics, to be dropped a moment later."""
        names = [name for name, of in self._bundle_of.items() if of == bundle]
        loading = [self._loading[name] for name in names if name in self._loading]
        if loading:
            await asyncio.wait(loading)
        topics = [self._topics[name] for name in names if name in self._topics]
        closing: list[asyncio.Future[None]] = []
        for count, topic in enumerate(topics, 1):
            closing.append(asyncio.ensure_future(self._close(topic)))
            if count % CLOSED_A_TURN == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*closing)
        return topics

    async def _close(self, topic: AnyTopic) -> None:
        try:
            await self._leave(topic.topic_name, topic.close)
        except QuireError as error:
            _log.warning("%s was not closed cleanly, it will be recovered: %s", topic.name, error)
        except Exception:
            # Its clients must be let go all the same, and those of all others.
            _log.exception("%s was not closed cleanly, it will be recovered", topic.name)

    def drop_bundles(self, bundles: Collection[str]) -> None:
        """Let go of all topics of some bundles: they are, or may be, another broker's. Nobody finds them any more.

        One that is being loaded misses its bundle when that is done, even if the bundle was taken again by then.
        """
        gone, dropped = set(bundles), []
        for name in [name for name, of in self._bundle_of.items() if of in gone]:
            del self._bundle_of[name]
            if name in self._topics:
                dropped.append(self._topics.pop(name))
        for bundle in bundles:
            self._bundles.drop(bundle)
        self.let_go(dropped)

    def let_go(self, topics: Sequence[AnyTopic], service_url: str = "") -> None:
        """Drop topics that nobody finds any more; of thousands some in each turn of the loop, the first ones now.

        Those that have to wait can do no harm: their state log is closed, and the next owner fences their ledgers.
        """
        for topic in topics[:CLOSED_A_TURN]:
            topic.drop(service_url)
        if left := topics[CLOSED_A_TURN:]:
            asyncio.get_running_loop().call_soon(self.let_go, left, service_url)

    def bundle_loads(self) -> dict[str, BundleLoad]:
        """Of the bundles with loaded topics, what they cost. Called every few seconds: walks no topic's parts."""
        return self.totals.loads(Counter(self._bundle_of.values()))

    async def stop(self) -> None:
        """Close everything, and open nothing more."""
        self.is_stopping = True
        await self._for_each(self.unload, list(self._topics))

    async def _for_each(self, unload: Callable[[TopicName], Awaitable[None]], names: list[TopicName]) -> None:
        results = await asyncio.gather(*map(unload, names), return_exceptions=True)
        for name, result in zip(names, results, strict=True):
            if isinstance(result, BaseException):
                _log.warning("%s was not closed cleanly, it will be recovered: %s", name, result)


def _must_be_loaded_anew(topic: AnyTopic, policies: TopicPolicies) -> bool:
    """Deduplication is turned on and off by a load, which learns what was sent before."""
    return isinstance(topic, Topic) and policies.deduplication != topic.deduplicates
