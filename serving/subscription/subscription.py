"""Subscription of a loaded topic: attach, seek, skip and delete. Its `pump` dispatches messages.

A lock serialises attach, seek and delete, because each awaits a write of the cursor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

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
from quire.serving.model.positions import Segments, preceding
from quire.serving.model.request import SubscribeRequest, SubscriptionKind
from quire.serving.subscription.byte_index import ByteIndex
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.cursor.cursor_record import bits_of
from quire.serving.subscription.cursor.cursor_store import CursorStore
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.limits import check_consumers_of
from quire.serving.subscription.pump import Pump
from quire.serving.subscription.skipping import first_messages
from quire.serving.subscription.stats import SubscriptionReporter
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb

LEFT_ALONE_S = 60.0
"""Time, in seconds, within which a reader must attach again after a seek; then its subscription is deleted."""


class Subscription:
    """Subscription of a loaded topic (a `SubscriptionPort`). `ended` is called when it is deleted."""

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
        """True if the subscription also exists without consumers."""
        self.stats = SubscriptionReporter(topic, pump, byte_index, clock, is_durable=is_durable)
        self.is_deleted = self._is_closed = False
        self.is_on_all_partitions = True
        """False from the creation by SUBSCRIBE until it also exists on partitions that were added meanwhile.

        The client is answered after that.
        """
        self._store = store
        self._clock = clock
        self.last_used_s = clock.monotonic()
        """Monotonic time, in seconds, of the last attach, detach or seek; initially the time of load or creation."""
        self._ended = ended
        self._lock = asyncio.Lock()
        self._arrivals = 0
        self._seeks = 0

    def move_to(self, store: CursorStore) -> None:
        """Write the cursor to another store from now on; see `Subscriptions.move_to`."""
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

    # -- attaching -------------------------------------------------------------------------------------

    async def attach(
        self, request: SubscribeRequest, port: ConsumerPort, check: Callable[[], None] = lambda: None
    ) -> Consumer:
        """Attach a new consumer.

        Raises `ConsumerBusy`, `NotAllowed`, `TooManyConsumers`, `NotFound`, `Unavailable`. `check` raises if the topic
        has too many consumers.
        """
        async with self._lock:
            await self._read_as_asked(request)
            self._check_is_here()
            check()
            check_consumers_of(self, self.topic)
            self.pump.dispatch_by(request.kind, request.sharing)
            if not self.pump.dispatcher.consumers:  # otherwise this dispatcher has the policies already
                self.pump.apply_policies()
            self.last_used_s = self._clock.monotonic()
            self._arrivals += 1
            consumer = Consumer(port, request, self._arrivals, self._clock.now_ms())
            self.pump.attach(consumer)
            return consumer

    def _check_is_here(self) -> None:
        """Check that the subscription still exists.

        Raises `NotFound` if it was deleted, `Unavailable` if its topic was unloaded. The next load of the topic reads
        the stored cursor. A later change of this cursor object would be lost or, if it reached the store, would undo
        acknowledgements.
        """
        if self.is_deleted:
            raise NotFound(f"subscription {self.name} was deleted")
        if self._is_closed:
            raise was_unloaded(self.topic.name)

    async def _read_as_asked(self, request: SubscribeRequest) -> None:
        """Read the topic or its compacted view, as requested.

        Raises `ConsumerBusy` if attached consumers read the other one.
        """
        single = request.kind in (SubscriptionKind.EXCLUSIVE, SubscriptionKind.FAILOVER)
        if request.read_compacted and not single:
            raise NotAllowed("readCompacted requires an Exclusive or Failover subscription")
        view = await self.topic.compacted_view() if request.read_compacted else None
        is_compacted = self.pump.view is not None
        if self.consumers:
            if (view is not None) != is_compacted:
                raise ConsumerBusy(
                    f"subscription {self.name} has consumers with a different readCompacted setting: close them first"
                )
        elif view is not None or is_compacted:
            self.pump.read_from(view)

    def detach(self, consumer: Consumer) -> None:
        """Remove a consumer, unless it was removed before. Does not call its port."""
        if not consumer.is_open:
            return
        consumer.is_open = False
        self.last_used_s = self._clock.monotonic()
        self.pump.detach(consumer)
        if not (self.pump.dispatcher.consumers or self.is_durable):
            self._end()

    # -- seeking ---------------------------------------------------------------------------------------

    async def seek(self, to: pb.MessageIdData) -> None:
        """Seek to message id `to`, which is delivered next.

        Closes all consumers first; returns when the change is durable.
        """
        async with self._lock:
            self._check_is_here()
            self.pump.disconnect()
            await self._move_to(position_of(to, self.pump.segments), to)
        self._expect_reader()

    async def seek_time(self, time_ms: int) -> None:
        """Seek to the first message published at `time_ms` or later; see `seek`.

        Consumers are closed only after the search, which may take a second, so a failed search changes nothing.
        """
        async with self._lock:
            self._check_is_here()
            position = await self.topic.find_time(time_ms)
            self._check_is_here()
            self.pump.disconnect()
            await self._move_to(position)
        self._expect_reader()

    async def _move_to(self, position: Position, named: pb.MessageIdData | None = None) -> None:
        """Move the cursor so that `position` is read next.

        If `named` has an `ack_set`, only the messages of that batch with a set bit are unacknowledged.
        """
        self.last_used_s = self._clock.monotonic()
        dispatcher = self.pump.dispatcher
        self.cursor.reset(preceding(position))
        dispatcher.reset()
        if named is not None and named.ack_set and position == (named.ledgerId, named.entryId):
            dispatcher.acknowledge_partly(position, bits_of(named.ack_set), named.batch_size)
        self.pump.pass_gaps()
        await self._store.save(self.cursor)
        self.tell_end()

    def _expect_reader(self) -> None:
        """Delete a non-durable subscription later, unless its reader returns after the seek."""
        if not self.is_durable:
            self._seeks += 1
            asyncio.get_running_loop().call_later(LEFT_ALONE_S, self._end_if_left, self._seeks)

    def _end_if_left(self, seeks: int) -> None:
        if seeks == self._seeks and not self.is_deleted and not self.consumers:
            self._end()

    async def skip_up_to(self, position: Position, part: pb.MessageIdData | None = None) -> None:
        """Acknowledge all entries up to and including `position`, and some messages of the batch `part`.

        Of `part`, the messages whose bits are not set in its `ack_set` are acknowledged. Consumers stay attached.
        Returns when the change is durable.
        """
        self._check_is_here()
        for segment in self.pump.topic.segments():
            is_last = segment.ledger_id == position.ledger_id
            last = min(position.entry_id, segment.last_entry) if is_last else segment.last_entry
            if self.mark_delete.ledger_id <= segment.ledger_id <= position.ledger_id:
                self.pump.dispatcher.acknowledge(segment.ledger_id, range(last + 1))
        if part is not None and part.ack_set:
            at = Position(part.ledgerId, part.entryId)
            self.pump.dispatcher.acknowledge_partly(at, bits_of(part.ack_set), part.batch_size)
        await self._store.save(self.cursor)
        self.tell_end()
        self.pump.wake()

    async def skip(self, count: int | None) -> None:
        """Acknowledge the first `count` unacknowledged messages, or all if `count` is None; see `skip_up_to`."""
        if count is None:
            await self.skip_up_to(self.pump.topic.last_confirmed)
            return
        async with self._lock:
            self._check_is_here()
            skipped = await first_messages(self.pump.topic, self.cursor, count)
            self._check_is_here()
            for ledger_id, entries in skipped.entries.items():
                if entries:
                    self.pump.dispatcher.acknowledge(ledger_id, entries)
            if skipped.part is not None:
                self.pump.dispatcher.acknowledge_partly(*skipped.part)
            await self._store.save(self.cursor)
        self.tell_end()
        self.pump.wake()

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the properties. Returns when the change is durable."""
        self._check_is_here()
        self.cursor.properties = dict(properties)
        self.cursor.is_reset = True  # properties are written only with the whole cursor
        await self._store.save(self.cursor)

    # -- ending ----------------------------------------------------------------------------------------

    def tell_end(self) -> None:
        """Notify the consumers if the topic is terminated and all its messages are acknowledged."""
        self.pump.tell_end()

    async def unsubscribe(self, consumer: Consumer, *, force: bool = False) -> None:
        """Delete the subscription. Raises `ConsumerBusy` if it has consumers other than `consumer`, unless `force`."""
        if self.consumers != [consumer] and not force:
            raise ConsumerBusy(f"subscription {self.name} has other consumers: close them first")
        consumer.is_open = False
        self.pump.dispatcher.detach(consumer)
        await self.delete()

    async def delete(self, *, even_used: bool = True) -> None:
        """Close all consumers and delete the cursor, durably.

        Raises `ConsumerBusy` if there are consumers, unless `even_used`.
        """
        async with self._lock:
            self._check_is_here()
            if self.consumers and not even_used:
                raise ConsumerBusy(f"subscription {self.name} has consumers: close them first")
            await self._delete()

    async def _delete(self) -> None:
        self.pump.disconnect()
        self._end()
        await self._store.delete(self.cursor)

    async def withdraw(self, consumer: Consumer | None) -> None:
        """Detach `consumer`; undo the creation unless consumers remain or all partitions have the subscription."""
        if consumer is not None:
            self.detach(consumer)
        async with self._lock:
            is_over = self.is_deleted or self._is_closed
            if not (is_over or self.consumers or self.is_on_all_partitions):
                await self._delete()

    def close(self) -> None:
        """Close all consumers, because the topic is unloaded."""
        self._is_closed = True
        self.pump.disconnect()
        self.pump.close()

    def _end(self) -> None:
        self.is_deleted = True
        self.pump.close()
        self._ended(self)


class Attachment(NamedTuple):
    """Consumer, and the subscription to which it is attached."""

    subscription: Subscription
    consumer: Consumer


def position_of(id_data: pb.MessageIdData, segments: Segments) -> Position:
    """Return the first entry to read after a seek to `id_data`, or for a reader that starts at `id_data`.

    This is the entry that contains the message. A reader's client skips unwanted messages itself: earlier messages of
    the batch, and the message with this id unless the start is inclusive. The broker does not know which messages are
    unwanted.
    """
    return segments.clamp(Position(*commands.position(id_data)))
