"""One subscription: consumers attach to it, it is moved (seek), and it ends. Its `pump` dispatches.

Attach, seek and unsubscribe exclude each other by a lock: each closes over an await of the cursor's record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from quire.runtime.clock import Clock
from quire.runtime.errors import NotFound
from quire.serving.model.ports import (
    ConsumerBusy,
    ConsumerPort,
    NotAllowed,
    Position,
    TopicPort,
    was_unloaded,
)
from quire.serving.model.positions import preceding
from quire.serving.model.request import SubscribeRequest, SubscriptionKind
from quire.serving.subscription import seek
from quire.serving.subscription.byte_index import ByteIndex
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.cursor.cursor_record import bits_of
from quire.serving.subscription.cursor.cursor_store import CursorStore
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.limits import check_consumers_of
from quire.serving.subscription.pump import Pump
from quire.serving.subscription.stats import SubscriptionStats
from quire.wire import pulsar_pb2 as pb

LEFT_ALONE_S = 60.0
"""How long a subscription that is not durable waits for its reader after a seek, which closed it."""


class Subscription:
    """A subscription of a loaded topic (a `SubscriptionPort`). `ended` is called when it is there no longer."""

    def __init__(
        self,
        topic: TopicPort,
        pump: Pump,
        store: CursorStore,
        clock: Clock,
        ended: Callable[[Subscription], None],
        byte_index: ByteIndex,
        *,
        is_durable: bool,
    ) -> None:
        self.topic = topic
        self.pump = pump
        self.name = self.cursor.key.subscription
        self.is_durable = is_durable
        """Without consumers it stays."""
        self.stats = SubscriptionStats(topic, pump, byte_index, clock, is_durable=is_durable)
        self.is_deleted = self._is_closed = False
        self.is_on_all_partitions = True
        """False after a SUBSCRIBE made it, until partitions added meanwhile have it, too: nobody was told of it yet."""
        self._store = store
        self._clock = clock
        self._ended = ended
        self._lock = asyncio.Lock()
        self._arrivals = 0
        self._seeks = 0

    def move_to(self, store: CursorStore) -> None:
        """See `Subscriptions.move_to`."""
        self._store = self.pump.store = store
        self.pump.delayed.move_to(store)
        self.pump.meter.count_for(store.totals)

    @property
    def cursor(self) -> Cursor:
        return self.pump.dispatcher.cursor

    @property
    def mark_delete(self) -> Position:
        return self.cursor.mark_delete

    @property
    def consumers(self) -> list[Consumer]:
        return list(self.pump.dispatcher.consumers)

    async def backlog(self) -> int:
        """Messages that are confirmed and not acknowledged, exactly."""
        return await self.stats.backlog()

    # -- attaching -------------------------------------------------------------------------------------

    async def attach(
        self, request: SubscribeRequest, port: ConsumerPort, check: Callable[[], None] = lambda: None
    ) -> Consumer:
        """A new consumer. Raises `ConsumerBusy`, `NotAllowed`, `TooManyConsumers`, and what `_check_is_here` does.

        `check` says whether its topic takes one more.
        """
        async with self._lock:
            await self._read_as_asked(request)
            self._check_is_here()
            check()
            check_consumers_of(self, self.topic)
            self.pump.dispatch_by(request.kind, request.sharing)
            self.pump.apply_policies()
            self._arrivals += 1
            consumer = Consumer(self, port, request, self._arrivals, self._clock.now_ms())
            self.pump.attach(consumer)
            return consumer

    def _check_is_here(self) -> None:
        """Raises `NotFound` when the subscription just ended, `Unavailable` when its topic was unloaded meanwhile.

        Whoever loads the topic again reads the cursor as it was kept: what is done to this one does nothing to that,
        or, kept in the store, undoes what was acknowledged there.
        """
        if self.is_deleted:
            raise NotFound(f"subscription {self.name} was deleted")
        if self._is_closed:
            raise was_unloaded(self.topic.name)

    async def _read_as_asked(self, request: SubscribeRequest) -> None:
        """Read the topic, or what compaction has left of it, as the consumer asks; all have to ask alike."""
        single = request.kind in (SubscriptionKind.EXCLUSIVE, SubscriptionKind.FAILOVER)
        if request.read_compacted and not single:
            raise NotAllowed("compacted data can be read by exclusive and failover subscriptions only")
        view = await self.topic.compacted_view() if request.read_compacted else None
        is_compacted = self.pump.view is not None
        if self.consumers:
            if (view is not None) != is_compacted:
                raise ConsumerBusy(
                    f"subscription {self.name} has consumers that read compacted data, or all of it"
                )
        elif view is not None or is_compacted:
            self.pump.read_from(view)

    def detach(self, consumer: Consumer) -> None:
        """A consumer is gone."""
        self.pump.detach(consumer)
        if not (self.pump.dispatcher.consumers or self.is_durable):
            self._end()

    # -- seeking ---------------------------------------------------------------------------------------

    async def seek(self, to: pb.MessageIdData) -> None:
        """Deliver from `to` on, inclusively. Closes all consumers first; durable when it returns."""
        async with self._lock:
            self._check_is_here()
            self.pump.disconnect()
            await self._move_to(seek.position_of(to, self.pump.segments), to)
        self._expect_somebody()

    async def seek_time(self, time_ms: int) -> None:
        """Deliver from the first message on that was published at `time_ms` or later; else as `seek`."""
        async with self._lock:
            self._check_is_here()
            self.pump.disconnect()
            position = await seek.position_at_time(self.topic, time_ms)
            self._check_is_here()
            await self._move_to(position)
        self._expect_somebody()

    async def _move_to(self, position: Position, named: pb.MessageIdData | None = None) -> None:
        """`position` is next; of its batch only the messages that `named` has in its `ack_set`, if any."""
        dispatcher = self.pump.dispatcher
        self.cursor.reset(preceding(position))
        dispatcher.reset()
        if named is not None and named.ack_set and position == (named.ledgerId, named.entryId):
            dispatcher.acknowledge_partly(position, bits_of(named.ack_set), named.batch_size)
        self.pump.pass_gaps()
        await self._store.save(self.cursor)
        self.tell_end()

    def _expect_somebody(self) -> None:
        """A reader that sought comes back to its subscription; one that does not leaves nothing behind."""
        if not self.is_durable:
            self._seeks += 1
            asyncio.get_running_loop().call_later(LEFT_ALONE_S, self._end_if_left, self._seeks)

    def _end_if_left(self, seeks: int) -> None:
        if seeks == self._seeks and not self.is_deleted and not self.consumers:
            self._end()

    async def skip_all(self) -> None:
        """Acknowledge everything that is there."""
        await self.skip_up_to(self.pump.topic.last_confirmed)

    async def skip_up_to(self, position: Position) -> None:
        """Acknowledge all entries up to and with `position`; consumers stay. Durable when it returns."""
        self._check_is_here()
        for segment in self.pump.topic.segments():
            is_last = segment.ledger_id == position.ledger_id
            last = min(position.entry_id, segment.last_entry) if is_last else segment.last_entry
            if self.mark_delete.ledger_id <= segment.ledger_id <= position.ledger_id:
                self.pump.dispatcher.acknowledge(segment.ledger_id, range(last + 1))
        await self._store.save(self.cursor)
        self.tell_end()
        self.pump.wake()

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Durable when it returns."""
        self._check_is_here()
        self.cursor.properties = dict(properties)
        self.cursor.is_reset = True  # properties are written with the whole of a cursor
        await self._store.save(self.cursor)

    # -- ending ----------------------------------------------------------------------------------------

    def tell_end(self) -> None:
        """Tell the consumers if the topic takes no more messages and all is acknowledged."""
        self.pump.tell_end()

    async def unsubscribe(self, consumer: Consumer, *, force: bool = False) -> None:
        """Delete the subscription. Raises `ConsumerBusy` when it has others than `consumer`, unless `force`."""
        if self.consumers != [consumer] and not force:
            raise ConsumerBusy(f"subscription {self.name} has other consumers: close them first")
        consumer.is_open = False
        self.pump.dispatcher.detach(consumer)
        await self.delete()

    async def delete(self) -> None:
        """Close all consumers and delete the cursor; durable when it returns."""
        async with self._lock:
            self._check_is_here()
            await self._delete()

    async def _delete(self) -> None:
        self.pump.disconnect()
        self._end()
        await self._store.delete(self.cursor)

    async def withdraw(self, consumer: Consumer | None) -> None:
        """Delete it as if it had never been made, unless others than `consumer` were told of it, or are about to be."""
        if consumer is not None:
            consumer.close()
        async with self._lock:
            is_over = self.is_deleted or self._is_closed
            if not (is_over or self.consumers or self.is_on_all_partitions):
                await self._delete()

    def close(self) -> None:
        """The topic is unloaded."""
        self._is_closed = True
        self.pump.disconnect()
        self.pump.close()

    def _end(self) -> None:
        self.is_deleted = True
        self.pump.close()
        self._ended(self)
