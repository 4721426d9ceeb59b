"""The records of topics in the metadata store: made, found, listed, changed, deleted.

A partitioned topic is a record with a number of partitions and no segments; that of a partition, or of a topic that has
none, holds its list of segments (`metadata.topics`). A partition's record is made in one transaction with a look at its
parent's, so there is none whose parent does not have it, or was being deleted at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from quire.metadata import paths, topics
from quire.metadata.records import TopicRecord, decode
from quire.metadata.store import CHANGE_ATTEMPTS, Check, MetadataStore
from quire.runtime.clock import Clock
from quire.runtime.errors import AlreadyExists, NotFound, Unavailable, VersionConflict
from quire.serving.names import TopicName
from quire.serving.policy.namespaces import Namespaces

READS_AT_ONCE: Final = 200
NAMES_A_TURN: Final = 1_000
"""In a list of names: a millisecond."""


class TopicRecords:
    """Whether a topic may be made is asked before."""

    def __init__(self, store: MetadataStore, clock: Clock, namespaces: Namespaces) -> None:
        self._store = store
        self._clock = clock
        self._namespaces = namespaces

    async def find(self, name: TopicName) -> TopicRecord | None:
        """The topic's record, None when there is none. Its older segments may lie in manifests."""
        try:
            value = (await self._store.get(name.path)).value
        except NotFound:
            return None
        return decode(TopicRecord, value, name.path)

    async def find_all(self, names: Iterable[TopicName]) -> dict[TopicName, TopicRecord]:
        """Those of the topics that have a record, and their records."""
        wanted, found = list(names), dict[TopicName, TopicRecord]()
        for start in range(0, len(wanted), READS_AT_ONCE):
            some = wanted[start : start + READS_AT_ONCE]
            records = zip(some, await asyncio.gather(*map(self.find, some)), strict=True)
            found |= {name: record for name, record in records if record is not None}
        return found

    async def load(self, name: TopicName) -> topics.Topic:
        """The topic's record, with its version and all its segments. Raises `NotFound`."""
        try:
            return await topics.load(self._store, name.path)
        except NotFound:
            raise NotFound(f"there is no topic {name}") from None

    async def names(self, tenant: str, namespace: str, domain: str = "persistent") -> list[TopicName]:
        """The topics that have a record of their own, parents of partitions among them: one read."""
        children = await self._store.children(paths.topics_of(tenant, namespace, domain))
        found: list[TopicName] = []
        for start in range(0, len(children), NAMES_A_TURN):
            some = children[start : start + NAMES_A_TURN]
            found += [TopicName(domain, tenant, namespace, paths.decode(child)) for child in some]
            await asyncio.sleep(0)
        return found

    async def create(
        self, name: TopicName, partitions: int = 0, properties: Mapping[str, str] | None = None
    ) -> topics.Topic:
        """A topic that is no partition. One that was made a moment before serves as well, but for a partitioned one.

        Raises `AlreadyExists`; `NotFound` when its namespace is gone or going.
        """
        record = replace(self._new(name), partitions=partitions, properties=dict(properties or {}))
        for _ in range(CHANGE_ATTEMPTS):
            there = await self._namespaces.while_there(name.tenant, name.namespace)
            try:
                return await topics.create(self._store, name.path, record, there)
            except AlreadyExists:
                if partitions:
                    raise AlreadyExists(f"topic {name} exists already") from None
                return await self.load(name)
            except (VersionConflict, NotFound):
                await self._namespaces.refresh(name.tenant, name.namespace)
        raise Unavailable(f"namespace {name.tenant}/{name.namespace} is being changed by others; try again")

    async def create_partition(self, name: TopicName, parent: topics.Topic) -> topics.Topic:
        """A partition of `parent`. Raises `VersionConflict` or `NotFound` when that has changed meanwhile."""
        record = replace(self._new(name), parent_generation=parent.record.generation)
        try:
            return await topics.create(self._store, name.path, record, Check(parent.path, parent.version))
        except AlreadyExists:
            return await self.load(name)

    def _new(self, name: TopicName) -> TopicRecord:
        """A later incarnation of the same name gets a later generation, so old cursors are never taken for its own."""
        now_ms = self._clock.now_ms()
        return TopicRecord(name=str(name), created_ms=now_ms, generation=now_ms)

    async def change(self, name: TopicName, change: Callable[[TopicRecord], TopicRecord]) -> TopicRecord:
        """Replace a partitioned topic's record by `change` of it, also when others change it at the same moment."""
        while True:
            snapshot = await self.load(name)
            changed = change(snapshot.record)
            if changed == snapshot.record:
                return changed
            try:
                return (await topics.update(self._store, snapshot, changed)).record
            except VersionConflict:
                continue
