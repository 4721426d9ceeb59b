"""Which topics there are, and which may be made: what the metadata store says, and what is in use on this broker.

A non-persistent topic has no record; it is there while somebody uses it. A partitioned topic is a record with a number
of partitions, which are topics of their own and are made when they are first used. So creating ten thousand partitions
writes one record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from quire.metadata import topics
from quire.metadata.records import NamespaceRecord
from quire.runtime.errors import ConfigurationError, NotFound
from quire.serving.names import TopicName
from quire.serving.policy.namespaces import Namespaces
from quire.serving.topic_records import TopicRecords


class Catalogue:
    """See the top of the file. `used` are the topics that are loaded here.

    `creates` says whether topics are made on their first use where the namespace does not say.
    """

    def __init__(
        self,
        records: TopicRecords,
        namespaces: Namespaces,
        used: Collection[TopicName],
        *,
        creates: bool,
    ) -> None:
        self._records = records
        self._namespaces = namespaces
        self._used = used
        self._creates = creates

    async def namespace(self, name: TopicName) -> NamespaceRecord:
        """Of the topic. Raises `NotFound`."""
        return await self._namespaces.get(name.tenant, name.namespace)

    async def partitions(self, name: TopicName) -> int:
        """0 for a topic without partitions. Raises `NotFound`."""
        if name in self._used:
            return 0
        record = await self._records.find(name)
        if record is None:
            raise NotFound(f"there is no topic {name}")
        return record.partitions

    async def check(self, name: TopicName) -> None:
        """Raise `NotFound` unless the topic is here or would be created on use."""
        if name in self._used:
            return
        namespace = await self.namespace(name)
        if name.parent is None and self._creates_automatically(namespace):
            return  # whether it is there or not, and lookups are many when a broker goes
        if await self._records.find(name) is None and not await self.may_create(name, namespace, True):
            raise NotFound(f"there is no topic {name}")

    async def may_create(self, name: TopicName, namespace: NamespaceRecord, create: bool) -> bool:
        """A partition always, if its parent has it; another topic, if who asks would `create` it, by the policy."""
        parent = name.parent
        if parent is not None:
            try:
                return name.partition < await self.partitions(parent)
            except NotFound:
                pass
        return create and self._creates_automatically(namespace)

    def _creates_automatically(self, namespace: NamespaceRecord) -> bool:
        wanted = namespace.policies.auto_topic_creation
        return self._creates if wanted is None else wanted

    async def find_or_create(self, name: TopicName, namespace: NamespaceRecord, create: bool) -> topics.Topic:
        """The record of a topic that is no parent of partitions; made if it may be, else `NotFound`."""
        try:
            snapshot = await self._records.load(name)
        except NotFound:
            if not await self.may_create(name, namespace, create):
                raise NotFound(f"there is no topic {name}") from None
            return await self._records.create(name)
        if snapshot.record.partitions:
            raise has_partitions(name)
        return snapshot

    async def names(self, tenant: str, namespace: str, domain: str) -> tuple[list[str], list[str]]:
        """(topics with each partition by its name, partitioned topics), as full names in order.

        Of topics that keep nothing, those that are in use on this broker.
        """
        await self._namespaces.get(tenant, namespace)
        names = await self._records.names(tenant, namespace, domain)
        records = await asyncio.gather(*(self._listed(name) for name in names))
        parents = {name: count for name, count in zip(names, records, strict=True) if count > 0}
        single = {name for name, count in zip(names, records, strict=True) if count == 0}
        single |= {parent.of_partition(i) for parent, count in parents.items() for i in range(count)}
        single |= {name for name in self._used if name[:3] == (domain, tenant, namespace)}
        return sorted(map(str, single)), sorted(map(str, parents))

    async def _listed(self, name: TopicName) -> int:
        """Its number of partitions, -1 when it was deleted meanwhile."""
        try:
            return await self.partitions(name)
        except NotFound:
            return -1


def has_partitions(name: TopicName) -> ConfigurationError:
    """For who uses the parent of partitions as a topic."""
    return ConfigurationError(f"{name} has partitions; use {name.of_partition(0)} and so on")
