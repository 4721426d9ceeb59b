"""Deletion of partitioned topics with all their partitions, and recovery of interrupted deletions.

The record of a topic is marked first and deleted last; the name cannot be used in between. A broker that finds the
mark of an interrupted deletion finishes the deletion.

No partition of a marked topic can be created, because its creation requires an unmarked parent in the same transaction
(`topic_records`). The owners then delete the partitions; the topic's record is deleted afterwards. A partition is
deleted with its parent only if it belongs to the marked incarnation, so that a delayed broker deletes nothing of a new
topic of that name.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from msgspec.structs import replace

from quire.metadata import topics
from quire.metadata.records import TopicRecord
from quire.metadata.store import CHANGE_ATTEMPTS
from quire.runtime.errors import InUse, NotFound, QuireError, Unavailable, VersionConflict
from quire.serving.model.statistics import TopicStats
from quire.serving.names import TopicName
from quire.serving.operations.fan_out import FanOut, TopicRequest
from quire.serving.ownership.peers import reader_of
from quire.serving.registry import topic_deletion
from quire.serving.registry.registry import Registry
from quire.serving.registry.topic_loader import subscriptions_of
from quire.serving.topic.services import Services
from quire.serving.topic.topic import AnyTopic, PersistentTopic

RETRY_S: Final = 10.0

_log = logging.getLogger(__name__)


class Deletion:
    def __init__(self, registry: Registry, services: Services, fan_out: FanOut) -> None:
        self._registry = registry
        self._records = registry.records
        self._services = services
        self._fan_out = fan_out
        self._finishing: set[TopicName] = set()
        """Topics whose interrupted deletion this broker is finishing."""
        registry.catalogue.on_deleting = self._go_on

    # -- partitioned topics ----------------------------------------------------------------------------

    async def delete_partitioned(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a topic with all partitions. Raises `NotFound`, and `InUse` if it has clients, unless `force`."""
        record = (await self._records.load(name)).record
        if not record.partitions:
            raise NotFound(f"{name} has no partitions")
        if not record.deleting and not force:
            await self._refuse_if_used(name, record)
        marked = await self._records.change(name, lambda now: replace(now, deleting=True))
        self._finishing.add(
            name
        )  # Requests to this broker that find the mark then leave the deletion to this call.
        try:
            await self._delete_partitions(name, marked)
        except QuireError:
            self._finishing.discard(name)
            self._go_on(name)
            raise
        else:
            self._finishing.discard(name)

    async def _refuse_if_used(self, name: TopicName, record: TopicRecord) -> None:
        async def here(partition: TopicName) -> None:
            loaded = self._registry.find(partition)
            if loaded is None:
                await self._registry.ownership.require(partition)
            else:
                refuse_if_used(loaded)

        def read(said: Any) -> None:
            stats = reader_of(TopicStats)(said)
            if stats.publishers or any(one.consumers for one in stats.subscriptions.values()):
                raise _in_use(str(name))

        used = await self._fan_out.used_partitions(name, record)
        await self._fan_out.ask_partitions(used, TopicRequest(here, "GET", "/stats", read=read), (NotFound,))

    async def _delete_partitions(self, name: TopicName, marked: TopicRecord) -> None:
        async def here(partition: TopicName) -> None:
            await self.delete_partition(partition, marked.generation)

        path = f"?force=true&parentGeneration={marked.generation}"
        used = await self._fan_out.used_partitions(name, marked)
        await self._fan_out.ask_partitions(used, TopicRequest(here, "DELETE", path), (NotFound,))
        try:
            await self._delete_parent(name, marked.generation)
        except NotFound:
            pass  # Another broker found the mark, and finished the deletion first.

    async def delete_partition(self, partition: TopicName, generation: int) -> None:
        """Delete a partition whose parent has this `generation`; do nothing if it has another. Raises `NotFound`."""

        def is_another(topic: PersistentTopic) -> bool:
            return topic.log.segment_list.record.parent_generation not in (0, generation)

        await topic_deletion.delete(self._registry, partition, unless=is_another)

    async def _delete_parent(self, name: TopicName, generation: int) -> None:
        """Delete the topic's record, policies and schemas, after its partitions; do nothing for another `generation`.

        One transaction deletes all three, because several brokers may finish the deletion, and the last one may find a
        new topic of that name, with policies and schemas. Raises `NotFound`, `Unavailable`.
        """
        policies, schemas = self._registry.policies, self._registry.schemas
        for _ in range(CHANGE_ATTEMPTS):
            parent = await self._records.load(name)
            if parent.record.generation != generation:
                return
            steps = [*await policies.removal(name), *await schemas.removal(name)]
            try:
                await topics.delete(self._services.store, parent, steps)
            except (NotFound, VersionConflict):
                continue  # Another broker changed the record, the policies or the schemas at the same time.
            await policies.refresh(name.tenant, name.namespace, name)
            return
        raise Unavailable(f"policies or schemas of {name} are being changed by others; delete it again")

    # -- interrupted deletions -------------------------------------------------------------------------

    def _go_on(self, name: TopicName) -> None:
        """Finish an interrupted deletion in the background.

        Until it is finished, the topic's name cannot be used and its ledgers remain.
        """
        if name not in self._finishing and not self._registry.is_stopping:
            self._finishing.add(name)
            self._services.tasks.start(self._finish(name), f"finish the deletion of {name}")

    async def _finish(self, name: TopicName) -> None:
        """Retry until the topic is deleted, or another broker owns it and finishes the deletion."""
        try:
            while not self._registry.is_stopping:
                try:
                    await self._delete_marked(name)
                    return
                except QuireError as error:
                    _log.warning("cannot delete a topic, retrying: topic=%s error=%s", name, error)
                    await asyncio.sleep(RETRY_S)
        finally:
            self._finishing.discard(name)

    async def _delete_marked(self, name: TopicName) -> None:
        """Delete a marked topic, unless another broker deleted it meanwhile or a client created it again."""
        record = await self._records.find(name)
        if record is None or not record.deleting:
            return
        if record.partitions:
            await self._delete_partitions(name, record)
        elif await self._registry.ownership.is_here(name):
            await topic_deletion.delete(
                self._registry, name, unless=lambda topic: not topic.log.segment_list.record.deleting
            )


def _in_use(name: str) -> InUse:
    """Return the error for a deletion, without force, of a topic with clients."""
    return InUse(f"topic {name} has producers or consumers; close them, or delete the topic with force")


def refuse_if_used(topic: AnyTopic) -> None:
    """Raise `InUse` if the topic has producers or consumers."""
    if topic.producers.all() or any(one.consumers for one in subscriptions_of(topic)):
        raise _in_use(topic.name)
