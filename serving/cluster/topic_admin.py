"""What an operator asks of a topic, or of all partitions of one. Off the data path; errors are `runtime.errors`'."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from quire.metadata.records import TopicRecord
from quire.runtime.errors import AlreadyExists, ConfigurationError, NotFound
from quire.serving.cluster.deletion import Deletion, refuse_if_used
from quire.serving.cluster.fan_out import FanOut, TopicRequest
from quire.serving.cluster.registry import Registry
from quire.serving.model.ports import Position
from quire.serving.names import TopicName
from quire.serving.subscription import seek
from quire.serving.subscription.peek import entry_at
from quire.serving.topic.finding import position_of
from quire.serving.topic.lifecycle.quota import backlog_bytes


class TopicAdmin:
    def __init__(self, registry: Registry, deletion: Deletion, fan_out: FanOut) -> None:
        self._registry = registry
        self._deletion = deletion
        self._fan_out = fan_out

    async def delete(
        self, name: TopicName, *, force: bool = False, parent_generation: int | None = None
    ) -> None:
        """Raises `NotFound`, and `InUse` while it has clients, unless `force`.

        `parent_generation`: it goes with its parent, and is not deleted when it is another one's partition.
        """
        if parent_generation is not None:
            await self._deletion.delete_partition(name, parent_generation)
            return
        if await self._registry.catalogue.partitions(name):
            raise ConfigurationError(f"{name} has partitions; delete it as a partitioned topic")
        loaded = self._registry.find(name)
        if loaded is not None and not force:
            refuse_if_used(loaded)
        await self._deletion.delete(name)

    async def unload(self, name: TopicName) -> None:
        """Close it, or all its partitions; its clients look it up again. Raises `NotOwner`, `NotFound`."""

        async def here(one: TopicName) -> None:
            if self._registry.find(one) is None:
                await self._registry.ownership.require(one)
            await self._registry.unload(one)

        await self._fan_out.whole(name, TopicRequest(here, "PUT", "/unload"))

    # -- its properties --------------------------------------------------------------------------------

    async def properties(self, name: TopicName) -> dict[str, str]:
        """What clients or operators wrote down of it; of a partition its parent's. Raises `NotFound`."""
        holder = await self._holder(name)
        record = await self._registry.records.find(holder)
        if record is None:
            raise NotFound(f"there is no topic {holder}")
        return record.properties

    async def change_properties(
        self, name: TopicName, change: Callable[[dict[str, str]], dict[str, str]]
    ) -> None:
        """Replace them by `change` of them. Raises `NotFound`, `NotOwner`."""
        holder = await self._holder(name)

        def changed(record: TopicRecord) -> TopicRecord:
            return replace(record, properties=change(record.properties))

        if await self._registry.catalogue.partitions(holder):
            await self._registry.records.change(holder, changed)
        else:
            await (await self._registry.open_persistent(holder)).log.meta_store.update(changed)

    async def _holder(self, name: TopicName) -> TopicName:
        """The topic whose record says what is written down of this one."""
        await self._fan_out.partitions(name)
        if name.parent is not None:
            parent = await self._registry.records.find(name.parent)
            if parent is not None and name.partition < parent.extent:
                return name.parent
        return name

    # -- its end, and what later messages replace --------------------------------------------------------

    async def terminate(self, name: TopicName) -> Position:
        """No more messages, for good. Returns the last position."""
        await self._fan_out.refuse_parent(name, "an end")
        return await (await self._registry.open_persistent(name)).terminate()

    async def seal(self, name: TopicName) -> None:
        """End the segment that is written to and go on in a new one, so that it can be archived; an empty one stays."""
        await self._fan_out.refuse_parent(name, "the end of a segment")
        rolling = (await self._registry.open_persistent(name)).log.writing.roll()
        if rolling is not None:
            await asyncio.shield(rolling)

    async def terminate_partitions(self, name: TopicName) -> dict[int, Position]:
        """The same for every partition; returns the last position of each, by its number."""

        def read(said: dict[str, int]) -> Position:
            return Position(said["ledgerId"], said["entryId"])

        record = await self._fan_out.record(name)
        names = [name.of_partition(index) for index in range(record.partitions)]
        last = await self._fan_out.each(names, TopicRequest(self.terminate, "POST", "/terminate", read=read))
        return {one.partition: position for one, position in last.found.items()}

    async def compact(self, name: TopicName) -> None:
        """Begin to compact it, or all of its partitions. Raises `AlreadyExists` while that is under way."""

        async def here(one: TopicName) -> None:
            topic = await self._registry.open_persistent(one)
            topic.log.compaction.start(topic.subscriptions)

        await self._fan_out.whole(name, TopicRequest(here, "PUT", "/compaction"), (AlreadyExists,))

    async def compaction_status(self, name: TopicName) -> dict[str, Any]:
        """As Pulsar's: `status` and `lastError`; of a partitioned topic RUNNING before ERROR before SUCCESS."""

        async def here(one: TopicName) -> dict[str, Any]:
            compaction = (await self._registry.open_persistent(one)).log.compaction
            return {"status": str(compaction.status), "lastError": compaction.error}

        found = await self._fan_out.whole(name, TopicRequest(here, "GET", "/compaction"))
        for status in ("RUNNING", "ERROR", "SUCCESS"):
            for one in found:
                if one["status"] == status:
                    return one
        return found[0] if found else {"status": "NOT_RUN", "lastError": ""}

    # -- where a message is ----------------------------------------------------------------------------

    async def position_of_index(self, name: TopicName, index: int) -> Position:
        """The entry that holds the message with this topic-wide index. Raises `NotFound` when there is none."""
        log = (await self._registry.open_persistent(name)).log
        first = log.segments()[0].first_index if log.segments() else 0
        if not first <= index < log.confirmed_index:
            raise NotFound(f"{name} has messages {first} to {log.confirmed_index - 1}, and not {index}")
        return await position_of(log, index)

    async def position_at_time(self, name: TopicName, time_ms: int) -> Position:
        """The first entry that was published at `time_ms` or later; after the last one when there is none."""
        return await seek.position_at_time((await self._registry.open_persistent(name)).log, time_ms)

    async def backlog_size(self, name: TopicName, position: Position) -> int:
        """About how many bytes follow an entry; whole segments are counted exactly."""
        await self._fan_out.refuse_parent(name, "the bytes after a message")
        log = (await self._registry.open_persistent(name)).log
        return max(0, backlog_bytes(log.segments(), position))

    async def examine(self, name: TopicName, number: int, *, is_last: bool) -> tuple[Position, bytes]:
        """The `number`th entry (from 1) that is kept, or the one so far from the end. Raises `NotFound`."""
        await self._fan_out.refuse_parent(name, "a look at messages")
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
        """The entry at a position. Raises `NotFound`."""
        await self._fan_out.refuse_parent(name, "a look at messages")
        return await entry_at((await self._registry.open_persistent(name)).log, position)
