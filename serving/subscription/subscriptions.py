"""Subscriptions of one topic, by name: created on demand, and restored when the topic is loaded.

A durable subscription exists while the state log contains its cursor: from the time at which the cursor's first record
is durable until the record of its deletion is durable. The broker answers the SUBSCRIBE that created it when the first
record is durable. A non-durable subscription (of a reader) lasts as long as its consumer, and is not stored. A lock
serialises creations, so a concurrent SUBSCRIBE of the same name finds the subscription that the first one created.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Mapping, Sequence, Sized
from typing import Any, ClassVar

from quire.runtime.clock import Clock
from quire.runtime.errors import AlreadyExists, NotFound
from quire.runtime.tasks import Tasks
from quire.serving.model.ports import (
    LATEST,
    ConsumerPort,
    EmptyName,
    NotAllowed,
    Position,
    TopicPort,
    was_unloaded,
)
from quire.serving.model.positions import Segments, preceding
from quire.serving.model.request import Done, SubscribeRequest, SubscriptionKind
from quire.serving.subscription.byte_index import ByteIndex
from quire.serving.subscription.cursor.cursor import NO_PROPERTIES, Cursor, CursorKey
from quire.serving.subscription.cursor.cursor_store import CursorStore
from quire.serving.subscription.delivery import coalescing
from quire.serving.subscription.delivery.block_source import ReadLimit
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.limits import check_consumers, check_creation, check_subscriptions, check_type
from quire.serving.subscription.pump import Pump
from quire.serving.subscription.subscription import Attachment, Subscription, position_of
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import BlockHeader, Buffer

__all__ = [
    "Consumer",
    "CursorStore",
    "Done",
    "SubscribeRequest",
    "Subscription",
    "SubscriptionKind",
    "Subscriptions",
]

_log = logging.getLogger(__name__)


class Subscriptions:
    """All subscriptions of a loaded topic. `partition` is -1 if the topic is not a partition.

    All subscriptions of a broker share `read_limit`.
    """

    PUMP: ClassVar[type[Pump]] = Pump
    SUBSCRIPTION: ClassVar[type[Subscription]] = Subscription

    def __init__(
        self,
        topic: TopicPort,
        store: CursorStore,
        generation: int,
        clock: Clock,
        partition: int = -1,
        read_limit: ReadLimit | None = None,
    ) -> None:
        self._topic = topic
        self._store = store
        self._generation = generation
        self._clock = clock
        self._partition = partition
        self._read_limit = read_limit or ReadLimit()
        self._segments = Segments(topic.segments)
        self._by_name: dict[str, Subscription] = {}
        self.names: Sized = self._by_name
        self._creating = asyncio.Lock()
        self._making: dict[asyncio.Future[Subscription], None] = {}
        self._tasks = Tasks("subscriptions")
        self._byte_index = ByteIndex()
        self._is_closed = False
        self.last_ended_s = clock.monotonic()
        """Monotonic time, in seconds, at which a subscription last ended; initially the time of the topic's load."""

    def load(self) -> None:
        """Restore the durable subscriptions that the store contains for this topic and generation."""
        for cursor in self._store.of_topic(self._topic.name):
            if cursor.key.generation == self._generation:
                self._add(cursor)

    def move_to(self, store: CursorStore) -> None:
        """Use another store from now on, to which the topic's cursors were moved."""
        self._store = store
        for subscription in self:
            subscription.move_to(store)

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(list(self._by_name.values()))

    def get(self, name: str) -> Subscription | None:
        return self._by_name.get(name)

    def confirmed(self, blocks: Sequence[tuple[Buffer, BlockHeader]]) -> None:
        """Dispatch consecutive blocks of the topic that were just confirmed; the tail cache contains these blocks."""
        if not self._by_name:
            return
        for view in coalescing.views(blocks):
            for subscription in list(self._by_name.values()):
                try:
                    subscription.pump.confirmed(view)
                except Exception:
                    # An internal error of one subscription must not fail the publisher or other subscriptions.
                    _log.exception(
                        "internal error while dispatching: subscription=%s topic=%s",
                        subscription.name,
                        self._topic.name,
                    )

    def policies_changed(self) -> None:
        """Apply the topic's changed policies."""
        for subscription in self:
            subscription.pump.apply_policies()

    def compacted(self) -> None:
        """Disconnect readers of compacted data; they subscribe again, and read the new compaction result."""
        for subscription in self:
            if subscription.pump.view is not None:
                subscription.pump.disconnect()

    # -- creating and ending ---------------------------------------------------------------------------

    async def subscribe(self, request: SubscribeRequest, port: ConsumerPort) -> Attachment:
        """Attach a consumer to a subscription, which is created (durably) if it does not exist.

        Raises the errors of `check_policies`, `ConsumerBusy`, `NotAllowed`, `TooManyConsumers`, `TooManySubscriptions`,
        `Unavailable`, and the errors of the state log.
        """
        if not request.subscription:
            raise EmptyName
        self.check_policies(request)
        while True:
            subscription = self._by_name.get(request.subscription)
            if subscription is None:
                check_consumers(self._topic, self)
                subscription = await self._whole(self._make_for(request))
            if subscription.is_durable != request.durable:
                word = "durable" if subscription.is_durable else "non-durable"
                raise NotAllowed(
                    f"subscription {request.subscription} is {word}, which conflicts with the durability in the request"
                )
            try:
                consumer = await subscription.attach(
                    request, port, lambda: check_consumers(self._topic, self)
                )
                return Attachment(subscription, consumer)
            except NotFound:
                continue  # the subscription ended during `attach`: create it again

    def check_policies(self, request: SubscribeRequest) -> None:
        """Check that the topic's policies allow the request. Raises `NotAllowed`, `SubscriptionNotFound`."""
        check_type(self._topic, request.kind)
        if request.durable and request.subscription not in self._by_name:
            check_creation(self._topic, request.subscription)

    async def create(
        self,
        name: str,
        *,
        earliest: bool = False,
        at: pb.MessageIdData | None = None,
        properties: Mapping[str, str] = NO_PROPERTIES,
        is_on_all_partitions: bool = True,
    ) -> Subscription:
        """Create a durable subscription without a consumer. Raises `AlreadyExists`."""
        return await self._whole(self._create(name, earliest, at, properties, is_on_all_partitions))

    async def _create(
        self,
        name: str,
        earliest: bool,
        at: pb.MessageIdData | None,
        properties: Mapping[str, str],
        is_on_all_partitions: bool,
    ) -> Subscription:
        async with self._creating:
            if name in self._by_name:
                raise AlreadyExists(f"subscription {name} of {self._topic.name} already exists")
            check_subscriptions(self._topic, self._by_name)
            asked = None if at is None else position_of(at, self._segments)
            made = await self._make(name, asked or self._initial(earliest=earliest), properties)
            made.is_on_all_partitions = is_on_all_partitions
            return made

    async def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a subscription. Raises `NotFound`, and `ConsumerBusy` if it has consumers, unless `force`."""
        subscription = self._by_name.get(name)
        if subscription is None:
            raise NotFound(f"topic {self._topic.name} has no subscription {name}")
        await subscription.delete(even_used=force)

    def close(self) -> None:
        """Send CLOSE_CONSUMER to every consumer, because the topic is unloaded."""
        self._is_closed = True
        for subscription in self:
            subscription.close()
        self._by_name.clear()
        self._store.rest(self._topic.name)

    async def forget(self) -> None:
        """Delete the cursors of all subscriptions, because the topic is deleted."""
        self.close()
        cursors = self._store.of_topic(self._topic.name)
        await asyncio.gather(*[self._store.delete(cursor) for cursor in cursors])

    async def _make_for(self, request: SubscribeRequest) -> Subscription:
        async with self._creating:
            found = self._by_name.get(request.subscription)
            if found is not None:
                return found
            if request.durable:
                check_creation(self._topic, request.subscription)
            check_subscriptions(self._topic, self._by_name)
            view = await self._topic.compacted_view() if request.read_compacted else None
            position = await self._first_for(request, view or self._topic)
            if request.durable:
                made = await self._make(request.subscription, position, request.properties)
                made.is_on_all_partitions = False
                return made
            key = CursorKey(self._topic.name, self._generation, request.subscription)
            return self._add(Cursor(key, preceding(position)), is_durable=False)

    async def _whole(self, making: Coroutine[Any, Any, Subscription]) -> Subscription:
        """Await `making`, and let it finish if the caller is cancelled: no subscription is created only partly."""
        task = asyncio.ensure_future(making)
        self._making[task] = None
        task.add_done_callback(self._made)
        return await asyncio.shield(task)

    def _made(self, task: asyncio.Future[Subscription]) -> None:
        self._making.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            _log.info("cannot create a subscription: topic=%s error=%s", self._topic.name, task.exception())

    async def _make(self, name: str, position: Position, properties: Mapping[str, str]) -> Subscription:
        self._check_is_open()
        key = CursorKey(self._topic.name, self._generation, name)
        cursor = self._store.create(key, preceding(position), properties)
        await self._store.save(cursor)
        return self._add(cursor)

    async def _first_for(self, request: SubscribeRequest, topic: TopicPort) -> Position:
        """Return the first entry that a new subscription reads; `topic` is this topic or its compacted view."""
        segments = Segments(topic.segments)
        if request.start_rollback_s > 0:
            since_ms = self._clock.now_ms() - 1000 * request.start_rollback_s
            return await self._topic.find_time(since_ms)
        if request.start is not None and not request.durable:
            return position_of(request.start, segments)
        return segments.clamp(topic.first_position() if request.initial_earliest else LATEST)

    def _initial(self, *, earliest: bool) -> Position:
        return self._segments.clamp(self._topic.first_position() if earliest else LATEST)

    def _check_is_open(self) -> None:
        """Check that the topic is still loaded; a subscription created later would be missing in its next load.

        Raises `Unavailable`.
        """
        if self._is_closed:
            raise was_unloaded(self._topic.name)

    def _add(self, cursor: Cursor, *, is_durable: bool = True) -> Subscription:
        self._check_is_open()
        read = self._store, self._clock, self._tasks, self._partition, self._read_limit
        pump = self.PUMP(self._topic, cursor, *read)
        made = self.SUBSCRIPTION(
            self._topic,
            pump,
            self._store,
            self._clock,
            self._remove,
            self._byte_index,
            is_durable=is_durable,
        )
        self._by_name[made.name] = made
        return made

    def _remove(self, subscription: Subscription) -> None:
        self.last_ended_s = self._clock.monotonic()
        if self._by_name.get(subscription.name) is subscription:
            del self._by_name[subscription.name]
