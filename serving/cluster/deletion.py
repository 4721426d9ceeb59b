"""How topics are deleted, and partitioned topics with all their partitions.

The record of a topic is marked first, and goes last; the name cannot be used in between. A deletion that was broken
off is finished by the broker that meets the mark.

Of a partitioned topic no partition is made once it is marked, for that needs an unmarked parent in the same transaction
(`topic_records`). Then the partitions go, each with its owner, then the record. A partition is deleted for its
parent's sake only if it is of the incarnation that was marked: a broker that finishes late deletes nothing of the next
topic of that name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from quire.metadata import topics
from quire.metadata.records import TopicRecord
from quire.metadata.store import CHANGE_ATTEMPTS
from quire.runtime.errors import InUse, NotFound, QuireError, Unavailable, VersionConflict
from quire.serving.cluster.fan_out import FanOut, TopicRequest
from quire.serving.cluster.registry import Registry
from quire.serving.cluster.topic_loader import subscriptions_of
from quire.serving.names import TopicName
from quire.serving.topic.services import Services
from quire.serving.topic.topic import AnyTopic, PersistentTopic, is_persistent

RETRY_S: Final = 10.0

_log = logging.getLogger(__name__)


class Deletion:
    def __init__(self, registry: Registry, services: Services, fan_out: FanOut) -> None:
        self._registry = registry
        self._records = registry.records
        self._services = services
        self._fan_out = fan_out
        self._finishing: set[TopicName] = set()
        """Topics whose deletion was broken off and is being finished here."""
        registry.catalogue.on_deleting = self._go_on

    async def delete(
        self, name: TopicName, unless: Callable[[PersistentTopic], bool] = lambda _: False
    ) -> None:
        """Delete a topic with all that it has, `unless` that is true when no producer or consumer can come any more.

        Raises `NotFound`; `Unavailable`: try again.
        """
        while True:
            topic = await self._registry.open_to_delete(name)
            if not topic.is_closed and not self._registry.is_closing(name):
                break  # else another request was faster
        if is_persistent(topic) and unless(topic):
            return
        try:
            await self._registry.close(name, lambda: topic.delete(lambda: self._forget(name)))
        except QuireError:
            self._go_on(name)
            raise

    async def _forget(self, name: TopicName) -> None:
        """Delete the topic's policies and schemas; those of a partition are its parent's and stay as long as that."""
        if name.parent is None or await self._records.find(name.parent) is None:
            await self._registry.policies.forget(name)
            await self._registry.schemas.forget(name)

    # -- partitioned topics ----------------------------------------------------------------------------

    async def delete_partitioned(self, name: TopicName, *, force: bool = False) -> None:
        """Delete it with all partitions. Raises `NotFound`, and `InUse` while it has clients, unless `force`."""
        record = (await self._records.load(name)).record
        if not record.partitions:
            raise NotFound(f"{name} has no partitions")
        if not record.deleting and not force:
            await self._refuse_if_used(name, record)
        marked = await self._records.change(name, lambda now: replace(now, deleting=True))
        self._finishing.add(name)  # what meets the mark here leaves it to this call
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

        def read(stats: dict[str, Any]) -> None:
            consumers = (one["consumers"] for one in stats["subscriptions"].values())
            if stats["publishers"] or any(consumers):
                raise _in_use(str(name))

        used = await self._fan_out.used(name, record)
        await self._fan_out.each(used, TopicRequest(here, "GET", "/stats", read=read), (NotFound,))

    async def _delete_partitions(self, name: TopicName, marked: TopicRecord) -> None:
        async def here(partition: TopicName) -> None:
            await self.delete_partition(partition, marked.generation)

        path = f"?force=true&parentGeneration={marked.generation}"
        used = await self._fan_out.used(name, marked)
        await self._fan_out.each(used, TopicRequest(here, "DELETE", path), (NotFound,))
        try:
            await self._delete_parent(name, marked.generation)
        except NotFound:
            pass  # another has met the mark, and was faster

    async def delete_partition(self, partition: TopicName, generation: int) -> None:
        """For the sake of its parent, the one of this `generation`: not if it is another one's. Raises `NotFound`."""

        def is_another(topic: PersistentTopic) -> bool:
            return topic.log.segment_list.record.parent_generation not in (0, generation)

        await self.delete(partition, unless=is_another)

    async def _delete_parent(self, name: TopicName, generation: int) -> None:
        """Delete the record of the partitioned topic of this `generation`, whose partitions are gone, and what it has.

        All in one step: several brokers may be at it, and when the last of them comes to this there may be the next
        topic of that name, with policies and schemas. Raises `NotFound`, `Unavailable`.
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
                continue  # another was at it in this moment
            await policies.refresh(name.tenant, name.namespace, name)
            return
        raise Unavailable(f"what is kept of {name} is being changed by others; delete it again")

    # -- deletions that were broken off ----------------------------------------------------------------

    def _go_on(self, name: TopicName) -> None:
        """Finish a deletion that was broken off: until then the name cannot be used, and the ledgers stay."""
        if name not in self._finishing and not self._registry.is_stopping:
            self._finishing.add(name)
            self._services.tasks.start(self._finish(name), f"go on deleting {name}")

    async def _finish(self, name: TopicName) -> None:
        """Try until it is done, or another broker's, which goes on when it meets the topic."""
        try:
            while not self._registry.is_stopping:
                try:
                    await self._delete_marked(name)
                    return
                except QuireError as error:
                    _log.warning("%s cannot be deleted, trying again: %s", name, error)
                    await asyncio.sleep(RETRY_S)
        finally:
            self._finishing.discard(name)

    async def _delete_marked(self, name: TopicName) -> None:
        """Delete a topic that has the mark. Meanwhile it may have been deleted elsewhere, and made anew."""
        record = await self._records.find(name)
        if record is None or not record.deleting:
            return
        if record.partitions:
            await self._delete_partitions(name, record)
        elif await self._registry.ownership.is_here(name):
            await self.delete(name, unless=lambda topic: not topic.log.segment_list.record.deleting)


def _in_use(name: str) -> InUse:
    """Of a deletion without force of a topic that has clients."""
    return InUse(f"{name} has producers or consumers; close them, or delete it by force")


def refuse_if_used(topic: AnyTopic) -> None:
    """Raise `InUse` while it has producers or consumers."""
    if topic.producers.all() or any(one.consumers for one in subscriptions_of(topic)):
        raise _in_use(topic.name)
