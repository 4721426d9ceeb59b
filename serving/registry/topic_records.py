"""Records of topics in the metadata store.

A partitioned topic is a record with a number of partitions and no segments. The record of a partition, or of a topic
without partitions, contains its list of segments (`metadata.topics`). A partition's record is created in one
transaction with a check of its parent's record. So no partition exists that its parent does not have, or that was
created while its parent was being deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from secrets import randbits
from typing import Final

from msgspec.structs import replace

from quire.metadata import paths, topics
from quire.metadata.records import TopicRecord, decode
from quire.metadata.store import CHANGE_ATTEMPTS, Check, MetadataStore
from quire.runtime.clock import Clock
from quire.runtime.errors import AlreadyExists, NotFound, Unavailable, VersionConflict
from quire.serving.names import TopicName, refuse_dots
from quire.serving.policy.namespaces import Namespaces

READS_AT_ONCE: Final = 200
NAMES_A_TURN: Final = 1_000
"""Number of names decoded in one event loop iteration; they take about a millisecond."""
GENERATION_BITS: Final = 52
"""Number of random bits of a generation, after a leading 1.

Numbers in JSON are exact below 2^53. Generations of older versions of Quire, wall-clock times in ms, are below 2^52.
"""


class TopicRecords:
    """Records of topics. Callers check in advance whether a topic may be created."""

    def __init__(self, store: MetadataStore, clock: Clock, namespaces: Namespaces) -> None:
        self._store = store
        self._clock = clock
        self._namespaces = namespaces

    async def find(self, name: TopicName) -> TopicRecord | None:
        """Return the topic's record, or None. Its older segments may be in manifests."""
        try:
            value = (await self._store.get(name.path)).value
        except NotFound:
            return None
        return decode(TopicRecord, value, name.path)

    async def find_all(self, names: Iterable[TopicName]) -> dict[TopicName, TopicRecord]:
        """Return the records of those topics that have one."""
        wanted, found = list(names), dict[TopicName, TopicRecord]()
        for start in range(0, len(wanted), READS_AT_ONCE):
            some = wanted[start : start + READS_AT_ONCE]
            records = zip(some, await asyncio.gather(*map(self.find, some)), strict=True)
            found |= {name: record for name, record in records if record is not None}
        return found

    async def load(self, name: TopicName) -> topics.Topic:
        """Return the topic's record, with its version and all its segments. Raises `NotFound`."""
        try:
            return await topics.load(self._store, name.path)
        except NotFound:
            raise NotFound(f"topic {name} does not exist") from None

    async def names(self, tenant: str, namespace: str, domain: str = "persistent") -> list[TopicName]:
        """List the topics that have a record, including partitioned topics, with one read."""
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
        """Create a topic other than a partition; if it exists and `partitions` is 0, return the existing record.

        Raises `AlreadyExists`; `NotFound` if the namespace does not exist or is being deleted; `ConfigurationError` for
        the names `.` and `..`.
        """
        refuse_dots("topic", name.local)
        record = replace(self._new(name), partitions=partitions, properties=dict(properties or {}))
        for _ in range(CHANGE_ATTEMPTS):
            there = await self._namespaces.while_there(name.tenant, name.namespace)
            try:
                return await topics.create(self._store, name.path, record, there)
            except AlreadyExists:
                if partitions:
                    raise AlreadyExists(f"topic {name} already exists") from None
                return await self.load(name)
            except (VersionConflict, NotFound):
                await self._namespaces.refresh(name.tenant, name.namespace)
        raise Unavailable(
            f"namespace {name.tenant}/{name.namespace} is being changed by other requests; try again"
        )

    async def create_partition(self, name: TopicName, parent: topics.Topic) -> topics.Topic:
        """Create a partition of `parent`. Raises `VersionConflict` or `NotFound` if the parent changed meanwhile."""
        record = replace(self._new(name), parent_generation=parent.record.generation)
        try:
            return await topics.create(self._store, name.path, record, Check(parent.path, parent.version))
        except AlreadyExists:
            return await self.load(name)

    def _new(self, name: TopicName) -> TopicRecord:
        """Return a record with a new generation, so that an earlier incarnation's cursors are never used for this one.

        The generation is random: two clocks may return the same number, and a counter would repeat numbers after a loss
        of metadata.
        """
        generation = 1 << GENERATION_BITS | randbits(GENERATION_BITS)
        return TopicRecord(name=str(name), created_ms=self._clock.now_ms(), generation=generation)

    async def change(self, name: TopicName, change: Callable[[TopicRecord], TopicRecord]) -> TopicRecord:
        """Replace a partitioned topic's record by the result of `change`; retry after a concurrent change."""
        while True:
            snapshot = await self.load(name)
            changed = change(snapshot.record)
            if changed == snapshot.record:
                return changed
            try:
                return (await topics.update(self._store, snapshot, changed)).record
            except VersionConflict:
                continue
