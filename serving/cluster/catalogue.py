"""Which topics there are, and which may be made: what the metadata store says, and what is in use on this broker.

A non-persistent topic has no record; it is there while it has clients. A partitioned topic is a record with a number
of partitions, which are topics of their own and are made when they are first used. So creating ten thousand partitions
writes one record.

NAME-partition-3 is made if NAME has such a partition, and never otherwise: what a client brings along from a topic that
was deleted would lie in wait for the next topic of that name. One that is there without a parent, from times when that
was allowed, is a topic like others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

from quire.metadata import topics
from quire.metadata.records import NamespaceRecord, TopicRecord
from quire.runtime.errors import AlreadyExists, ConfigurationError, NotFound, VersionConflict
from quire.serving.cluster.topic_records import NAMES_A_TURN, TopicRecords
from quire.serving.cluster.topics_limit import TopicsLimit
from quire.serving.names import TopicName
from quire.serving.policy.namespaces import Namespaces


class NoPartition(ConfigurationError):
    """A topic cannot be made because its name is that of a partition, and no topic has it."""


class Catalogue:
    """`used` are the topics that are loaded here.

    `creates` says whether topics are made on their first use where the namespace does not say.
    """

    def __init__(
        self,
        records: TopicRecords,
        namespaces: Namespaces,
        used: Collection[TopicName],
        limit: TopicsLimit,
        *,
        creates: bool,
    ) -> None:
        self._records = records
        self.namespaces = namespaces
        self._used = used
        self.limit = limit
        """Of what is made here, but for partitions, which were counted with their parents."""
        self._creates = creates
        self.on_deleting: Callable[[TopicName], None] = lambda _: None
        """Is told of each topic that is met while it is being deleted."""

    async def namespace(self, name: TopicName) -> NamespaceRecord:
        """Of the topic. Raises `NotFound`."""
        return await self.namespaces.get(name.tenant, name.namespace)

    async def partitions(self, name: TopicName) -> int:
        """0 for a topic without partitions. Raises `NotFound`, and `Unavailable` while its partitions are deleted."""
        if name in self._used:
            return 0
        record = await self._records.find(name)
        if record is None:
            raise NotFound(f"there is no topic {name}")
        if record.partitions:
            self._refuse_deleting(name, record)
        return record.partitions

    def _refuse_deleting(self, name: TopicName, record: TopicRecord) -> None:
        if record.deleting:
            self.on_deleting(name)
            raise topics.being_deleted(name)

    async def check(self, name: TopicName) -> None:
        """Raise `NotFound` unless the topic is here or would be created on use."""
        if name in self._used:
            return
        namespace = await self.namespace(name)
        if name.parent is None and self._creates_automatically(namespace):
            return  # whether it is there or not, and clients ask often when a broker goes
        if await self._records.find(name) is None:
            await self.permit(name, namespace, True)

    async def permit(self, name: TopicName, namespace: NamespaceRecord, create: bool) -> topics.Topic | None:
        """Raise `NotFound` unless it may be made: a partition if its parent has it, which is returned then.

        Another topic if the caller would `create` it and the policy allows that.
        """
        if name.parent is not None:
            return await self.covering(name)
        if not (create and self._creates_automatically(namespace)):
            raise NotFound(f"there is no topic {name}")
        return None

    async def permit_without_record(self, name: TopicName, namespace: NamespaceRecord, create: bool) -> None:
        """The same for a topic that keeps nothing; `ConfigurationError` for one that has partitions."""
        if await self._records.find(name) is not None:
            raise _has_partitions(name)
        if await self.permit(name, namespace, create) is None:
            async with self.limit.room(namespace, [name]):
                return

    async def covering(self, name: TopicName) -> topics.Topic:
        """The record of the partitioned topic that has, or is given, this partition. Raises as `partitions`."""
        assert name.parent is not None
        try:
            parent = await self._records.load(name.parent)
        except NotFound:
            raise NotFound(f"there is no topic {name}, nor {name.parent}") from None
        self._refuse_deleting(name.parent, parent.record)
        if name.partition >= parent.record.extent:
            raise NotFound(
                f"there is no topic {name}: {name.parent} has {parent.record.partitions} partitions"
            )
        return parent

    def _creates_automatically(self, namespace: NamespaceRecord) -> bool:
        wanted = namespace.policies.auto_topic_creation
        return self._creates if wanted is None else wanted

    async def find_or_create(self, name: TopicName, namespace: NamespaceRecord, create: bool) -> topics.Topic:
        """The record of a topic that is no parent of partitions; made if it may be, else `NotFound`.

        Raises `Unavailable` while it is being deleted, `TooManyTopics`.
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
                    continue  # the parent has changed: it may be on its way out
            if snapshot.record.partitions:
                raise _has_partitions(name)
            self._refuse_deleting(name, snapshot.record)
            return snapshot

    async def create(self, name: TopicName, partitions: int, properties: Mapping[str, str] | None) -> bool:
        """Make a record for the topic; False for one that has none, and only has to be loaded.

        Raises `AlreadyExists`, `NotFound` for an unknown namespace, `NoPartition`, `TooManyTopics`.
        """
        namespace = await self.namespace(name)
        record = await self._records.find(name)
        if name in self._used or record is not None:
            if record is not None and record.partitions:
                self._refuse_deleting(name, record)
            raise AlreadyExists(f"topic {name} exists already")
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
        """Raise `NoPartition` unless `parent` has this partition, which can have none itself."""
        try:
            if partitions:
                raise NotFound("a partition has no partitions")
            await self.covering(name)
        except NotFound as error:
            raise NoPartition(
                f"{name} cannot be the name of a topic that is no partition of {parent}: {error}"
            ) from None

    async def require_none(self, partitions: Iterable[TopicName]) -> None:
        """Raise `AlreadyExists` when a topic has the name of a partition to be: its messages would be taken for its."""
        there = await self._records.find_all(partitions)
        if there:
            raise AlreadyExists(
                f"topic {next(iter(there))} exists already; delete it, or choose another name"
            )

    async def names(self, tenant: str, namespace: str, domain: str) -> tuple[list[str], list[str]]:
        """(topics with each partition by its name, partitioned topics), as full names in order.

        Of topics that keep nothing, those that are in use on this broker.
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
    """Of a request that takes the parent of partitions for a topic."""
    return ConfigurationError(f"{name} has partitions; use {name.of_partition(0)} and so on")
