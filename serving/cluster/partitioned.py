"""A partitioned topic grows as one thing, with the subscriptions that it has, whichever brokers are at it.

Its record says first that it grows (`GrowthRecord`); then each durable subscription that any of its partitions has is
made on the new ones, from their beginning; and only then the record shows them. So a message that goes to a new
partition has its subscriptions waiting, though their consumers look for partitions once a minute, and ask for the
latest. A request that is repeated after a crash goes on where the first one ended. Until the record shows them the new
partitions are not listed, but a client that names one may use it.

    record: growth = [first, end) ─▶ subscriptions of the old are made on the new ─▶ record: partitions = end

A durable subscription that a client makes meanwhile is seen by the growth, or sees it (`subscribed`): it is made on the
new partitions as well before the client is answered. The same holds for two minutes afterwards, for a client
that had asked for the number of partitions before. A subscription that is deleted while its topic grows may have to be
deleted again: it may have been made on the new partitions a moment later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeGuard
from urllib.parse import quote

from msgspec.structs import replace

from quire.metadata import topics
from quire.metadata.records import GrowthRecord, TopicRecord
from quire.runtime.errors import (
    AlreadyExists,
    ConfigurationError,
    NotFound,
    Unavailable,
)
from quire.serving.cluster.fan_out import FanOut, TopicRequest
from quire.serving.cluster.registry import Registry
from quire.serving.cluster.topic_loader import subscriptions_of
from quire.serving.model.ports import EARLIEST, LATEST, Position
from quire.serving.names import TopicName
from quire.serving.subscription.cursor.cursor import NO_PROPERTIES
from quire.serving.topic.services import Services
from quire.serving.topic.topic import AnyTopic
from quire.wire import commands

GROWN_MS: Final = 120_000
"""How long after it has asked for the number of partitions a client may subscribe; its own patience is 30 s."""


class Partitioned:
    def __init__(self, registry: Registry, services: Services, fan_out: FanOut) -> None:
        self._registry = registry
        self._records = registry.records
        self._services = services
        self._fan_out = fan_out

    # -- growing ---------------------------------------------------------------------------------------

    async def grow(self, name: TopicName, count: int) -> None:
        """Give it partitions until there are `count`; one that has as many stays.

        Raises `ConfigurationError`, `TooManyTopics`.
        """
        namespace = await self._registry.catalogue.namespace(name)
        there = (await self._records.load(name)).record.partitions
        added = [name.of_partition(index) for index in range(there, count)]
        async with self._registry.catalogue.limit.room(namespace, added):
            while (record := await self._begin_to_grow(name, count)).extent > record.partitions:
                await self._prepare(name, record)
                await self._records.change(name, self._show)

    async def _begin_to_grow(self, name: TopicName, count: int) -> TopicRecord:
        """The record that says so. A growth that is under way comes first."""
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
                raise Unavailable(f"{name} was given partitions by another request; try again")
            first = now.growth.first if self._is_recent(now.growth) else now.partitions
            at_ms = self._services.clock.now_ms()
            return replace(now, growth=GrowthRecord(first=first, end=count, at_ms=at_ms))

        return await self._records.change(name, begin)

    def _is_recent(self, growth: GrowthRecord | None) -> TypeGuard[GrowthRecord]:
        """There may be clients that know of fewer partitions."""
        return growth is not None and self._services.clock.now_ms() - growth.at_ms < GROWN_MS

    async def _prepare(self, name: TopicName, record: TopicRecord) -> None:
        """Make the durable subscriptions of the shown partitions, with their properties, on those that are added."""
        if not name.is_persistent:
            return
        old = [name.of_partition(index) for index in range(record.partitions)]
        there = await self._records.find_all(old)
        listed = (await self._fan_out.each(there, self._durable(), (NotFound,))).found
        new = [name.of_partition(index) for index in range(record.partitions, record.extent)]
        found = {subscription: its for one in listed.values() for subscription, its in one.items()}
        for subscription in sorted(found):
            await self._make_everywhere(new, subscription, EARLIEST, found[subscription])

    def _show(self, record: TopicRecord) -> TopicRecord:
        if record.growth is None or record.extent == record.partitions:
            return record
        growth = replace(record.growth, at_ms=self._services.clock.now_ms())
        return replace(record, partitions=growth.end, growth=growth)

    async def make_missed(self, name: TopicName) -> None:
        """Make the records of those partitions that were never used; their brokers need not know. Raises `NotFound`."""
        record = await self._fan_out.record(name)
        namespace = await self._registry.catalogue.namespace(name)
        for partition in map(name.of_partition, range(record.partitions if name.is_persistent else 0)):
            await self._registry.catalogue.find_or_create(partition, namespace, True)

    # -- subscriptions ---------------------------------------------------------------------------------

    def list_subscriptions(self) -> TopicRequest[list[str]]:
        """Which durable subscriptions a topic has, in order."""

        async def here(topic: TopicName) -> list[str]:
            found = subscriptions_of(await self._registry.open(topic))
            return sorted(one.name for one in found if one.is_durable)

        return TopicRequest(here, "GET", "/subscriptions")

    def _durable(self) -> TopicRequest[Mapping[str, Mapping[str, str]]]:
        """The properties of each durable subscription of a topic."""

        async def here(topic: TopicName) -> Mapping[str, Mapping[str, str]]:
            found = subscriptions_of(await self._registry.open(topic))
            return {one.name: one.cursor.properties for one in found if one.is_durable}

        def read(stats: dict[str, Any]) -> Mapping[str, Mapping[str, str]]:
            found: dict[str, dict[str, Any]] = stats["subscriptions"]
            return {name: one["subscriptionProperties"] for name, one in found.items() if one["isDurable"]}

        return TopicRequest(here, "GET", "/stats", read=read)

    async def make(
        self,
        name: TopicName,
        subscription: str,
        start: Position,
        properties: Mapping[str, str] = NO_PROPERTIES,
    ) -> None:
        """Make a subscription on all partitions, also those that are added meanwhile or were never used.

        Raises `AlreadyExists` when all have it.
        """
        made, done = 0, 0
        while (count := (await self._fan_out.record(name)).extent) > done:
            some = [name.of_partition(index) for index in range(done, count)]
            made += await self._make_everywhere(some, subscription, start, properties)
            done = count
        if not made:
            raise AlreadyExists(f"subscription {subscription} of {name} exists already")

    async def subscribed(
        self,
        name: TopicName,
        subscription: str,
        properties: Mapping[str, str] = NO_PROPERTIES,
        *,
        earliest: bool,
    ) -> None:
        """A durable subscription was made on this one partition: make it on those that its client may not know."""
        if name.parent is None or not name.is_persistent:
            return
        await self._services.store.sync()  # a growth that has looked before has said before that it is one
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
        """How many did not have it."""

        async def here(partition: TopicName) -> None:
            loaded = await self._registry.open(partition, create=True)
            await create_subscription(loaded, subscription, start, properties)

        where = {"ledgerId": start.ledger_id, "entryId": start.entry_id, "properties": dict(properties)}
        path = f"/subscription/{quote(subscription, safe='')}"
        request = TopicRequest(here, "PUT", path, where)
        return len((await self._fan_out.each(partitions, request, (AlreadyExists,))).found)


def _refuse_growth(name: TopicName, record: TopicRecord, count: int) -> None:
    if record.deleting:
        raise topics.being_deleted(name)
    if not record.partitions:
        raise ConfigurationError(f"{name} has no partitions, and a topic cannot be given any later")
    if count < record.partitions:
        raise ConfigurationError(f"{name} has {record.partitions} partitions; there can only be more")
    if count < record.extent:
        raise ConfigurationError(
            f"{name} is being given {record.extent} partitions; ask for as many at least"
        )


async def create_subscription(
    topic: AnyTopic, name: str, start: Position, properties: Mapping[str, str] = NO_PROPERTIES
) -> None:
    """Raises `AlreadyExists`."""
    subscriptions = subscriptions_of(topic)
    if start in (EARLIEST, LATEST):
        await subscriptions.create(name, earliest=start == EARLIEST, properties=properties)
    else:
        await subscriptions.create(name, at=commands.message_id(*start), properties=properties)
