"""Catalogue of topics: which topics exist, in the metadata store or loaded on this broker, and which may be created.

A non-persistent topic has no record; it exists while it has clients. A partitioned topic is a record with a number of
partitions, which are topics themselves and are created on their first use. So creating a topic with ten thousand
partitions writes one record.

NAME-partition-3 is created only if NAME has such a partition. Otherwise a client of a deleted topic could create a
partition, which would become part of a later topic with that name. A partition without a parent, which older versions
allowed, is an ordinary topic.

A namespace may limit its number of topics (Pulsar's maxTopicsPerNamespace), which is checked before a topic is created.
Each partition counts as a topic, used or not; a non-persistent topic counts while it is in use on this broker. Topics
are counted, and new ones are reserved, under one lock per namespace, so that concurrent requests cannot exceed the
limit. Two brokers may together exceed it by one topic; afterwards both reject new topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final
from weakref import WeakValueDictionary

from quire.metadata import topics
from quire.metadata.records import NamespaceRecord, TopicRecord
from quire.runtime.errors import AlreadyExists, ConfigurationError, NotFound, TooMany, VersionConflict
from quire.serving.names import NON_PERSISTENT, TopicName
from quire.serving.policy.namespaces import Namespaces
from quire.serving.registry.topic_lists import TopicLists
from quire.serving.registry.topic_records import NAMES_A_TURN, TopicRecords
from quire.wire import pulsar_pb2 as pb

_Namespace = tuple[str, str]
NOTHING: Final[frozenset[str]] = frozenset()


class TooManyTopics(TooMany):
    server_error = pb.NotAllowedError


class TopicsLimit:
    """Limit on the number of topics in a namespace. `used` contains the loaded topics.

    `default` applies without a policy; 0 means no limit.
    """

    def __init__(self, lists: TopicLists, used: Collection[TopicName], default: int) -> None:
        self._lists = lists
        self._used = used
        self._default = default
        self._counting: WeakValueDictionary[_Namespace, asyncio.Lock] = WeakValueDictionary()
        self._being_made: dict[_Namespace, frozenset[str]] = {}

    @asynccontextmanager
    async def room(self, namespace: NamespaceRecord, names: Iterable[TopicName]) -> AsyncIterator[None]:
        """Count topics with these names towards the limit while the context is entered.

        Raises `TooManyTopics`, `Unavailable`.
        """
        most = namespace.policies.topics_max
        most = self._default if most is None else most
        if not most:
            yield
            return
        key, wanted = (namespace.tenant, namespace.name), frozenset(map(str, names))
        async with self._counting.setdefault(key, asyncio.Lock()):
            # read before the list, which may lack topics that are created meanwhile
            noted = self._being_made.get(key, NOTHING)
            there = noted | await self._there(*key)
            if len(there | wanted) > max(most, len(there)):
                raise TooManyTopics(
                    "topics_per_namespace",
                    f"namespace {namespace.tenant}/{namespace.name} has {len(there)} topics, and its limit is {most}: "
                    "delete some, or ask for a higher maxTopicsPerNamespace",
                )
            self._being_made[key] = self._being_made.get(key, NOTHING) | wanted
        try:
            yield
        finally:
            left = self._being_made.pop(key, NOTHING) - wanted  # two requests may create the same topic
            if left:
                self._being_made[key] = left

    async def _there(self, tenant: str, namespace: str) -> frozenset[str]:
        """List the full names of all topics, with each partition but without partitioned topics."""
        of_namespace = NON_PERSISTENT, tenant, namespace
        return await self._lists.names(tenant, namespace) | {
            str(one) for one in self._used if one[:3] == of_namespace
        }


class NoPartition(ConfigurationError):
    """Rejection of a new topic that has the name of a partition which its parent topic does not have."""


class Catalogue:
    """Catalogue of topics; `used` contains the topics that are loaded on this broker.

    If `creates` returns True, topics are created on their first use in namespaces without a policy for that.
    """

    def __init__(
        self,
        records: TopicRecords,
        namespaces: Namespaces,
        used: Collection[TopicName],
        limit: TopicsLimit,
        *,
        creates: Callable[[], bool],
    ) -> None:
        self._records = records
        self.namespaces = namespaces
        self._used = used
        self.limit = limit
        """Limit for topics created here, except partitions, which were counted with their parents."""
        self._creates = creates
        self.on_deleting: Callable[[TopicName], None] = lambda _: None
        """Callback with each topic that was found to be marked as deleting."""

    async def namespace(self, name: TopicName) -> NamespaceRecord:
        """Return the record of the topic's namespace. Raises `NotFound`."""
        return await self.namespaces.get(name.tenant, name.namespace)

    async def partitions(self, name: TopicName) -> int:
        """Return the number of partitions, 0 if the topic is not partitioned. Raises `NotFound`, `Unavailable`."""
        if name in self._used:
            return 0
        record = await self._records.find(name)
        if record is None:
            raise NotFound(f"topic {name} does not exist")
        if record.partitions:
            self._refuse_deleting(name, record)
        return record.partitions

    def _refuse_deleting(self, name: TopicName, record: TopicRecord) -> None:
        if record.deleting:
            self.on_deleting(name)
            raise topics.being_deleted(name)

    async def partitions_for_use(self, name: TopicName) -> int:
        """Return the number of partitions for a client that is about to use the topic, which may create it.

        Creates a missing partitioned topic, if the namespace's policy is to do so. Returns 0 for an unpartitioned
        topic, which its first use creates. Raises `NotFound` if it must not be created, `TooManyTopics`.
        """
        try:
            return await self.partitions(name)
        except NotFound:
            await self.check(name)
        count = self._automatic_partitions(name, await self.namespace(name))
        if not count:
            return 0
        with suppress(AlreadyExists):
            await self.create(name, count, None)
        return await self.partitions(name)

    async def check(self, name: TopicName) -> None:
        """Raise `NotFound` unless the topic exists, or would be created on its first use."""
        if name in self._used:
            return
        namespace = await self.namespace(name)
        if name.parent is None and self._creates_automatically(namespace):
            return  # Do not check whether it exists, because clients ask often when a broker stops.
        if await self._records.find(name) is None:
            await self.permit(name, namespace, True)

    async def permit(self, name: TopicName, namespace: NamespaceRecord, create: bool) -> topics.Topic | None:
        """Raise `NotFound` unless the topic may be created.

        A partition may be created if its parent has it; then the parent's record is returned. Any other topic may be
        created with `create`, if the policy allows it.
        """
        if name.parent is not None:
            return await self.covering(name)
        if not (create and self._creates_automatically(namespace)):
            raise NotFound(f"topic {name} does not exist")
        if count := self._automatic_partitions(name, namespace):
            raise ConfigurationError(
                f"by its namespace's policy, {name} would be created with {count} partitions: request its partition "
                "metadata before using it"
            )
        return None

    async def permit_without_record(self, name: TopicName, namespace: NamespaceRecord, create: bool) -> None:
        """Check a non-persistent topic as `permit` does. Raises `ConfigurationError` if it has partitions."""
        if await self._records.find(name) is not None:
            raise _has_partitions(name)
        if await self.permit(name, namespace, create) is None:
            async with self.limit.room(namespace, [name]):
                return

    async def covering(self, name: TopicName) -> topics.Topic:
        """Return the record of this partition's parent. Raises the errors of `partitions`."""
        assert name.parent is not None
        try:
            parent = await self._records.load(name.parent)
        except NotFound:
            raise NotFound(f"neither topic {name} nor {name.parent} exists") from None
        self._refuse_deleting(name.parent, parent.record)
        if name.partition >= parent.record.extent:
            raise NotFound(
                f"topic {name} does not exist: {name.parent} has {parent.record.partitions} partitions"
            )
        return parent

    def _creates_automatically(self, namespace: NamespaceRecord) -> bool:
        wanted = namespace.policies.auto_topic_creation
        return self._creates() if wanted is None else wanted

    def _automatic_partitions(self, name: TopicName, namespace: NamespaceRecord) -> int:
        """Return the number of partitions of an automatically created topic; 0 if it is not partitioned.

        A non-persistent topic is never partitioned automatically: it may be in use, without partitions, on another
        broker.
        """
        if name.parent is not None or not name.is_persistent:
            return 0
        return namespace.policies.auto_topic_partitions or 0

    async def find_or_create(self, name: TopicName, namespace: NamespaceRecord, create: bool) -> topics.Topic:
        """Return the record of an unpartitioned topic; create it if that is permitted.

        Raises `NotFound`, `TooManyTopics`, and `Unavailable` while it is being deleted.
        """
        while True:
            try:
                snapshot = await self._records.load(name)
            except NotFound:
                parent = await self.permit(name, namespace, create)
                if parent is None:
                    async with self.limit.room(namespace, [name]):
                        return await self._records.create(name)
                try:
                    return await self._records.create_partition(name, parent)
                except (NotFound, VersionConflict):
                    continue  # The parent changed, for example because it is being deleted.
            if snapshot.record.partitions:
                raise _has_partitions(name)
            self._refuse_deleting(name, snapshot.record)
            return snapshot

    async def create(self, name: TopicName, partitions: int, properties: Mapping[str, str] | None) -> bool:
        """Create the topic's record; return False for a topic without a record, which must only be loaded.

        Raises `AlreadyExists`, `NotFound` for an unknown namespace, `NoPartition`, `TooManyTopics`.
        """
        namespace = await self.namespace(name)
        record = await self._records.find(name)
        if name in self._used or record is not None:
            if record is not None and record.partitions:
                self._refuse_deleting(name, record)
            raise AlreadyExists(f"topic {name} already exists")
        if name.parent is not None:
            await self._require_given(name, name.parent, partitions)
        if not partitions and not name.is_persistent:
            return False
        if name.parent is not None:
            await self.find_or_create(name, namespace, True)
        else:
            made = [name.of_partition(index) for index in range(partitions)]
            await self.require_none(made)
            async with self.limit.room(namespace, made or [name]):
                await self._records.create(name, partitions, properties)
        return True

    async def _require_given(self, name: TopicName, parent: TopicName, partitions: int) -> None:
        """Raise `NoPartition` unless `parent` has this partition, and the partition is not to be partitioned itself."""
        try:
            if partitions:
                raise NotFound("a partition cannot be partitioned")
            await self.covering(name)
        except NotFound as error:
            raise NoPartition(
                f"{name} is the name of a partition that {parent} does not have: {error}"
            ) from None

    async def require_none(self, partitions: Iterable[TopicName]) -> None:
        """Raise `AlreadyExists` if a topic has a new partition's name: the partition would contain its messages."""
        there = await self._records.find_all(partitions)
        if there:
            raise AlreadyExists(
                f"topic {next(iter(there))} already exists; delete it, or choose another name"
            )

    async def names(self, tenant: str, namespace: str, domain: str) -> tuple[list[str], list[str]]:
        """Return the full names of a namespace's topics, with each partition, and those of its partitioned topics.

        Both lists are sorted.

        Non-persistent topics are listed if they are loaded on this broker.
        """
        await self.namespaces.get(tenant, namespace)
        names = await self._records.names(tenant, namespace, domain)
        records = await self._records.find_all(names)
        parents = {
            name: one.partitions for name, one in records.items() if one.partitions and not one.deleting
        }
        single = {name for name, one in records.items() if not one.partitions}
        single |= {name for name in self._used if name[:3] == (domain, tenant, namespace)}
        shown = {str(parent.of_partition(i)) for parent, count in parents.items() for i in range(count)}
        for count, name in enumerate(single, 1):
            if not name.is_prepared(lambda parent: parents.get(parent, 0)):
                shown.add(str(name))
            if count % NAMES_A_TURN == 0:
                await asyncio.sleep(0)
        return sorted(shown), sorted(map(str, parents))


def _has_partitions(name: TopicName) -> ConfigurationError:
    """Return the error for the use of a partitioned topic as an unpartitioned one."""
    return ConfigurationError(f"topic {name} is partitioned; use {name.of_partition(0)} and so on")
