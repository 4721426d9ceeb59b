"""Requests of operators about a topic or all its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from quire.metadata.records import TopicRecord
from quire.runtime.errors import AlreadyExists, ConfigurationError, NotFound
from quire.serving.model.ports import Position
from quire.serving.model.statistics import CompactionStatus
from quire.serving.names import TopicName
from quire.serving.operations.deletion import Deletion, refuse_if_used
from quire.serving.operations.fan_out import FanOut, TopicRequest
from quire.serving.operations.topic_storage import TopicStorage
from quire.serving.ownership.peers import reader_of
from quire.serving.registry import topic_deletion
from quire.serving.registry.offloading import Offloading
from quire.serving.registry.registry import Registry
from quire.serving.subscription.peek import entry_at
from quire.serving.topic.finding import position_of
from quire.serving.topic.lifecycle.quota import backlog_bytes


class TopicAdmin:
    def __init__(
        self, registry: Registry, deletion: Deletion, fan_out: FanOut, offloading: Offloading | None
    ) -> None:
        self._registry = registry
        self._deletion = deletion
        self._fan_out = fan_out
        self.storage = TopicStorage(registry, fan_out, offloading)
        """Requests about stored data."""

    async def delete(
        self, name: TopicName, *, force: bool = False, parent_generation: int | None = None
    ) -> None:
        """Delete a topic. Raises `NotFound`, and `InUse` if it has clients, unless `force`.

        With `parent_generation`, the topic is a partition, which is deleted only if its parent has that generation.
        """
        if parent_generation is not None:
            await self._deletion.delete_partition(name, parent_generation)
            return
        if await self._registry.catalogue.partitions(name):
            raise ConfigurationError(f"topic {name} is partitioned; delete it as a partitioned topic")
        loaded = self._registry.find(name)
        if loaded is not None and not force:
            refuse_if_used(loaded)
        await topic_deletion.delete(self._registry, name)

    async def unload(self, name: TopicName) -> None:
        """Unload the topic, or all its partitions; its clients look it up again. Raises `NotOwner`, `NotFound`."""

        async def here(one: TopicName) -> None:
            if self._registry.find(one) is None:
                await self._registry.ownership.require(one)
            await self._registry.unload(one)

        await self._fan_out.ask_topic(name, TopicRequest(here, "PUT", "/unload"))

    # -- properties ------------------------------------------------------------------------------------

    async def properties(self, name: TopicName) -> dict[str, str]:
        """Return the properties of a topic; for a partition, its parent's. Raises `NotFound`."""
        holder = await self._holder(name)
        record = await self._registry.records.find(holder)
        if record is None:
            raise NotFound(f"topic {holder} does not exist")
        return record.properties

    async def change_properties(
        self, name: TopicName, change: Callable[[dict[str, str]], dict[str, str]]
    ) -> None:
        """Apply `change` to the properties. Raises `NotFound`, `NotOwner`."""
        holder = await self._holder(name)

        def changed(record: TopicRecord) -> TopicRecord:
            return replace(record, properties=change(record.properties))

        if await self._registry.catalogue.partitions(holder):
            await self._registry.records.change(holder, changed)
        else:
            await (await self._registry.open_persistent(holder)).log.meta_store.update(changed)

    async def _holder(self, name: TopicName) -> TopicName:
        """Return the topic whose record contains the properties of `name`: a partition's parent, or `name` itself."""
        await self._fan_out.partitions(name)
        if name.parent is not None:
            parent = await self._registry.records.find(name.parent)
            if parent is not None and name.partition < parent.extent:
                return name.parent
        return name

    # -- termination and compaction --------------------------------------------------------------------

    async def terminate(self, name: TopicName) -> Position:
        """Terminate a topic, which then accepts no more messages. Return its last position."""
        await self._fan_out.refuse_parent(name, "an end")
        return await (await self._registry.open_persistent(name)).terminate()

    async def seal(self, name: TopicName) -> None:
        """Seal the active segment, so that it can be archived, and begin a new one; an empty segment is not sealed."""
        await self._fan_out.refuse_parent(name, "sealing a segment")
        rolling = (await self._registry.open_persistent(name)).log.writing.roll()
        if rolling is not None:
            await asyncio.shield(rolling)

    async def terminate_partitions(self, name: TopicName) -> dict[int, Position]:
        """Terminate every partition; return the last position of each by its partition index."""

        def read(said: dict[str, int]) -> Position:
            return Position(said["ledgerId"], said["entryId"])

        record = await self._fan_out.record(name)
        names = [name.of_partition(index) for index in range(record.partitions)]
        last = await self._fan_out.ask_partitions(
            names, TopicRequest(self.terminate, "POST", "/terminate", read=read)
        )
        return {one.partition: position for one, position in last.found.items()}

    async def compact(self, name: TopicName) -> None:
        """Start the compaction of a topic, or of all its partitions.

        Raises `AlreadyExists` if all are being compacted.
        """

        async def here(one: TopicName) -> None:
            topic = await self._registry.open_persistent(one)
            topic.log.compaction.start(topic.subscriptions)

        await self._fan_out.ask_topic(name, TopicRequest(here, "PUT", "/compaction"), (AlreadyExists,))

    async def compaction_status(self, name: TopicName) -> CompactionStatus:
        """Return the status of compaction; for a partitioned topic, the first of RUNNING, ERROR, SUCCESS found."""

        async def here(one: TopicName) -> CompactionStatus:
            compaction = (await self._registry.open_persistent(one)).log.compaction
            return CompactionStatus(compaction.status, compaction.error)

        request = TopicRequest(here, "GET", "/compaction", read=reader_of(CompactionStatus))
        found = await self._fan_out.ask_topic(name, request)
        in_order = (
            one for status in ("RUNNING", "ERROR", "SUCCESS") for one in found if one.status == status
        )
        return next(in_order, CompactionStatus())

    # -- positions and messages ------------------------------------------------------------------------

    async def position_of_index(self, name: TopicName, index: int) -> Position:
        """Return the position of the entry that contains the message with this topic-wide index. Raises `NotFound`."""
        log = (await self._registry.open_persistent(name)).log
        first = log.segments()[0].first_index if log.segments() else 0
        if not first <= index < log.confirmed_index:
            raise NotFound(
                f"{name} has messages {first} to {log.confirmed_index - 1}, so message {index} does not exist"
            )
        return await position_of(log, index)

    async def position_at_time(self, name: TopicName, time_ms: int) -> Position:
        """Return the position of the first entry published at `time_ms` or later.

        If there is no such entry, return the position after the last entry.
        """
        return await (await self._registry.open_persistent(name)).log.find_time(time_ms)

    async def backlog_size(self, name: TopicName, position: Position) -> int:
        """Return the number of bytes after an entry; the number of bytes in the entry's own segment is an estimate."""
        await self._fan_out.refuse_parent(name, "the backlog size after a message")
        log = (await self._registry.open_persistent(name)).log
        return max(0, backlog_bytes(log.segments(), position))

    async def examine(self, name: TopicName, number: int, *, is_last: bool) -> tuple[Position, bytes]:
        """Return the `number`th stored entry, from 1, counted from the beginning or the end. Raises `NotFound`."""
        await self._fan_out.refuse_parent(name, "peeking")
        log = (await self._registry.open_persistent(name)).log
        views = log.segments()
        left = number - 1
        for view in reversed(views) if is_last else views:
            if left <= view.last_entry:
                at = Position(view.ledger_id, view.last_entry - left if is_last else left)
                return at, await entry_at(log, at)
            left -= view.last_entry + 1
        raise NotFound(f"topic {name} has fewer entries than {number}")

    async def message(self, name: TopicName, position: Position) -> bytes:
        """Return the entry at a position. Raises `NotFound`."""
        await self._fan_out.refuse_parent(name, "peeking")
        return await entry_at((await self._registry.open_persistent(name)).log, position)
