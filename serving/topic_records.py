"""The records of topics in the metadata store: made, found, listed, given more partitions, deleted.

A partitioned topic is a record with a number of partitions and no segments; that of a partition, or of a topic that has
none, holds its list of segments (`metadata.topics`).
"""

from __future__ import annotations

from msgspec.structs import replace

from quire.metadata import paths, topics
from quire.metadata.records import TopicRecord, decode
from quire.metadata.store import MetadataStore
from quire.runtime.clock import Clock
from quire.runtime.errors import AlreadyExists, ConfigurationError, NotFound
from quire.serving.names import TopicName


class TopicRecords:
    """See the top of the file. Whether a topic may be made is asked before."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def find(self, name: TopicName) -> TopicRecord | None:
        """The topic's record, None when there is none. Its older segments may lie in manifests."""
        try:
            value = (await self._store.get(name.path)).value
        except NotFound:
            return None
        return decode(TopicRecord, value, name.path)

    async def load(self, name: TopicName) -> topics.Topic:
        """The topic's record, with its version and all its segments. Raises `NotFound`."""
        return await topics.load(self._store, name.path)

    async def names(self, tenant: str, namespace: str, domain: str = "persistent") -> list[TopicName]:
        """The topics that have a record of their own, parents of partitions among them: one read."""
        children = await self._store.children(paths.topics_of(tenant, namespace, domain))
        return [TopicName(domain, tenant, namespace, paths.decode(child)) for child in children]

    async def create(self, name: TopicName, partitions: int = 0) -> topics.Topic:
        """A topic that somebody else has just made serves as well, but for a partitioned one: `AlreadyExists`."""
        now_ms = self._clock.now_ms()
        # A later incarnation of the same name gets a later generation, so old cursors are never taken for its own.
        record = TopicRecord(name=str(name), created_ms=now_ms, generation=now_ms, partitions=partitions)
        try:
            return await topics.create(self._store, name.path, record)
        except AlreadyExists:
            if partitions:
                raise AlreadyExists(f"topic {name} exists already") from None
            return await self.load(name)

    async def grow(self, name: TopicName, partitions: int) -> None:
        """Give a partitioned topic more partitions."""
        snapshot = await self.load(name)
        if not snapshot.record.partitions:
            raise ConfigurationError(f"{name} has no partitions, and a topic cannot be given any later")
        if partitions < snapshot.record.partitions:
            raise ConfigurationError(
                f"{name} has {snapshot.record.partitions} partitions; there can only be more"
            )
        await topics.update(self._store, snapshot, replace(snapshot.record, partitions=partitions))

    async def delete(self, name: TopicName) -> None:
        """Of a partitioned topic, whose partitions are gone."""
        await topics.delete(self._store, await self.load(name))
