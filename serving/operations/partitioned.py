"""Growth of a partitioned topic with its subscriptions, by any number of brokers.

First, the topic's record announces the growth (`GrowthRecord`). Then each durable subscription of any partition is
created on the new partitions, from their beginning. Finally, the record lists the new partitions. So each message of a
new partition is delivered to all subscriptions, although their consumers look for new partitions only once a minute and
subscribe at the latest message. A request that is repeated after a crash resumes the interrupted growth. Before the
record lists the new partitions, they are not shown to clients, but a client may use one by its name.

record: growth = [first, end) ─▶ subscriptions are created on the new partitions ─▶ record: partitions = end

A durable subscription that a client creates meanwhile is either included in the growth, or its creation finds the
growth (`extend_subscription`): in both cases it exists on the new partitions before the client gets its response. The
same holds for two minutes after the growth, for a client that read the number of partitions before. A subscription that
is deleted while its topic grows may have to be deleted again, because the growth may create it on the new partitions a
moment later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeGuard

from msgspec.structs import replace

from quire.metadata import topics
from quire.metadata.records import GrowthRecord, TopicRecord
from quire.runtime.errors import (
    AlreadyExists,
    ConfigurationError,
    NotFound,
    Unavailable,
)
from quire.serving.model.ports import EARLIEST, LATEST, Position
from quire.serving.model.statistics import TopicStats
from quire.serving.names import TopicName
from quire.serving.operations.fan_out import FanOut, TopicRequest
from quire.serving.ownership.peers import reader_of
from quire.serving.registry.registry import Registry
from quire.serving.registry.topic_loader import subscriptions_of
from quire.serving.subscription.cursor.cursor import NO_PROPERTIES
from quire.serving.topic.services import Services
from quire.serving.topic.topic import AnyTopic
from quire.wire import commands, topic_name

GROWN_MS: Final = 120_000
"""Time, in ms, within which a client subscribes after reading the number of partitions; its own time-out is 30 s."""


class Partitioned:
    def __init__(self, registry: Registry, services: Services, fan_out: FanOut) -> None:
        self._registry = registry
        self._records = registry.records
        self._services = services
        self._fan_out = fan_out

    # -- growth ----------------------------------------------------------------------------------------

    async def grow(self, name: TopicName, count: int) -> None:
        """Add partitions until there are `count`; do nothing if the topic has that many.

        Raises `ConfigurationError`, `TooManyTopics`.
        """
        namespace = await self._registry.catalogue.namespace(name)
        there = (await self._records.load(name)).record.partitions
        added = [name.of_partition(index) for index in range(there, count)]
        async with self._registry.catalogue.limit.room(namespace, added):
            while (record := await self._begin_to_grow(name, count)).extent > record.partitions:
                await self._prepare(name, record)
                await self._records.change(name, self._show_added)

    async def _begin_to_grow(self, name: TopicName, count: int) -> TopicRecord:
        """Write the growth to the topic's record, and return the record.

        If another growth is in progress, return its record unchanged: the caller must finish that growth first.
        """
        record = (await self._records.load(name)).record
        _refuse_growth(name, record, count)
        if record.extent == record.partitions < count:
            await self._registry.catalogue.require_none(
                map(name.of_partition, range(record.partitions, count))
            )

        def begin(now: TopicRecord) -> TopicRecord:
            _refuse_growth(name, now, count)
            if now.extent > now.partitions or now.partitions == count:
                return now
            if now.partitions != record.partitions:
                raise Unavailable(f"another request added partitions to {name}; try again")
            first = now.growth.first if self._is_recent(now.growth) else now.partitions
            at_ms = self._services.clock.now_ms()
            return replace(now, growth=GrowthRecord(first=first, end=count, at_ms=at_ms))

        return await self._records.change(name, begin)

    def _is_recent(self, growth: GrowthRecord | None) -> TypeGuard[GrowthRecord]:
        """Return whether clients may still use the former number of partitions."""
        return growth is not None and self._services.clock.now_ms() - growth.at_ms < GROWN_MS

    async def _prepare(self, name: TopicName, record: TopicRecord) -> None:
        """Create the durable subscriptions of the listed partitions, with their properties, on the new partitions."""
        if not name.is_persistent:
            return
        old = [name.of_partition(index) for index in range(record.partitions)]
        there = await self._records.find_all(old)
        listed = (await self._fan_out.ask_partitions(there, self._durable(), (NotFound,))).found
        new = [name.of_partition(index) for index in range(record.partitions, record.extent)]
        found = {subscription: its for one in listed.values() for subscription, its in one.items()}
        for subscription in sorted(found):
            await self._make_everywhere(new, subscription, EARLIEST, found[subscription])

    def _show_added(self, record: TopicRecord) -> TopicRecord:
        if record.growth is None or record.extent == record.partitions:
            return record
        growth = replace(record.growth, at_ms=self._services.clock.now_ms())
        return replace(record, partitions=growth.end, growth=growth)

    async def make_missing(self, name: TopicName) -> None:
        """Create the missing records of partitions that were never used. Raises `NotFound`."""
        record = await self._fan_out.record(name)
        namespace = await self._registry.catalogue.namespace(name)
        for partition in map(name.of_partition, range(record.partitions if name.is_persistent else 0)):
            await self._registry.catalogue.find_or_create(partition, namespace, True)

    # -- subscriptions ---------------------------------------------------------------------------------

    def list_subscriptions(self) -> TopicRequest[list[str]]:
        """Return a request for the names of a topic's durable subscriptions, sorted."""

        async def here(topic: TopicName) -> list[str]:
            found = subscriptions_of(await self._registry.open(topic))
            return sorted(one.name for one in found if one.is_durable)

        return TopicRequest(here, "GET", "/subscriptions")

    def _durable(self) -> TopicRequest[Mapping[str, Mapping[str, str]]]:
        """Return a request for the properties of each durable subscription of a topic."""

        async def here(topic: TopicName) -> Mapping[str, Mapping[str, str]]:
            found = subscriptions_of(await self._registry.open(topic))
            return {one.name: one.cursor.properties for one in found if one.is_durable}

        def read(said: Any) -> Mapping[str, Mapping[str, str]]:
            found = reader_of(TopicStats)(said).subscriptions
            return {name: one.subscription_properties for name, one in found.items() if one.is_durable}

        return TopicRequest(here, "GET", "/stats", read=read)

    async def create_subscription(
        self,
        name: TopicName,
        subscription: str,
        start: Position,
        properties: Mapping[str, str] = NO_PROPERTIES,
    ) -> None:
        """Create a subscription on all partitions, including partitions that are being added or were never used.

        Raises `AlreadyExists` if all partitions have the subscription already.
        """
        made, done = 0, 0
        while (count := (await self._fan_out.record(name)).extent) > done:
            some = [name.of_partition(index) for index in range(done, count)]
            made += await self._make_everywhere(some, subscription, start, properties)
            done = count
        if not made:
            raise AlreadyExists(f"subscription {subscription} of {name} already exists")

    async def extend_subscription(
        self,
        name: TopicName,
        subscription: str,
        properties: Mapping[str, str] = NO_PROPERTIES,
        *,
        earliest: bool,
    ) -> None:
        """Create a partition's durable subscription also on new partitions that the client may not know yet."""
        if name.parent is None or not name.is_persistent:
            return
        await (
            self._services.store.sync()
        )  # The read below then finds any growth that listed the subscriptions before this one existed.
        record = await self._records.find(name.parent)
        if record is None or name.partition >= record.extent:
            return
        growth = record.growth
        if growth is not None and (record.extent > record.partitions or self._is_recent(growth)):
            added = [name.parent.of_partition(index) for index in range(growth.first, growth.end)]
            others = [one for one in added if one != name]
            start = EARLIEST if earliest else LATEST
            await self._make_everywhere(others, subscription, start, properties)

    async def _make_everywhere(
        self,
        partitions: Iterable[TopicName],
        subscription: str,
        start: Position,
        properties: Mapping[str, str],
    ) -> int:
        """Create a subscription on partitions; return the number of partitions that did not have it."""

        async def here(partition: TopicName) -> None:
            loaded = await self._registry.open(partition, create=True)
            await create_subscription(loaded, subscription, start, properties)

        where = {"ledgerId": start.ledger_id, "entryId": start.entry_id, "properties": dict(properties)}
        path = f"/subscription/{topic_name.escaped_subscription(subscription)}"
        request = TopicRequest(here, "PUT", path, where)
        return len((await self._fan_out.ask_partitions(partitions, request, (AlreadyExists,))).found)


def _refuse_growth(name: TopicName, record: TopicRecord, count: int) -> None:
    if record.deleting:
        raise topics.being_deleted(name)
    if not record.partitions:
        raise ConfigurationError(f"topic {name} is not partitioned, and cannot become partitioned later")
    if count < record.partitions:
        raise ConfigurationError(
            f"topic {name} has {record.partitions} partitions; the number can only be increased"
        )
    if count < record.extent:
        raise ConfigurationError(
            f"topic {name} is growing to {record.extent} partitions; request at least that number"
        )


async def create_subscription(
    topic: AnyTopic, name: str, start: Position, properties: Mapping[str, str] = NO_PROPERTIES
) -> None:
    """Create a subscription of one topic. Raises `AlreadyExists`."""
    subscriptions = subscriptions_of(topic)
    if start in (EARLIEST, LATEST):
        await subscriptions.create(name, earliest=start == EARLIEST, properties=properties)
    else:
        await subscriptions.create(name, at=commands.message_id(*start), properties=properties)
