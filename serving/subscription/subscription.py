"""One subscription: the shell around its cursor and its dispatcher.

    confirmed(block) ─┐                       ┌─▶ frames ─▶ ConsumerPort.deliver, once per consumer and turn
    flow, resumed    ─┼─▶ pump: wanted? take ─┤
    redeliver, close ─┘   a block, offer it   └─▶ nothing at hand: fetch (BlockSource), and pump when it is there

    acknowledge      ──▶  dispatcher (counts) ─▶ cursor ─▶ store: one record at the end of the turn

A block that was just confirmed goes straight from the publisher's turn to the consumers when the subscription has
read everything before it; that is the whole data path, and it does nothing per message and little per entry.
Otherwise the pump asks for the block that holds the wanted entry. It deals at most `DEAL_BYTES_PER_TURN` in a turn, so
that one subscription that catches up does not hold up all others, and goes on in the next. The only timer rings when
the next of what is delayed is due (`delays`).

A subscription that reads compacted data has the topic's compacted view for its topic. What that leaves out counts as
acknowledged, so nothing else here knows of it.

Attach, seek and unsubscribe exclude each other by a lock: each closes over an await of the cursor's record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from pyroaring import BitMap

from quire.runtime.clock import Clock
from quire.runtime.errors import NotFound
from quire.runtime.limits import (
    CONSUMERS_PER_SUBSCRIPTION_MAX,
    DEAL_BYTES_PER_BLOCK_MIN,
    DEAL_BYTES_PER_ENTRY_MIN,
    DEAL_BYTES_PER_TURN,
)
from quire.runtime.tasks import Tasks
from quire.serving.model.ports import (
    CompactedPort,
    ConsumerBusy,
    ConsumerPort,
    NotAllowed,
    Position,
    TopicPort,
    was_unloaded,
)
from quire.serving.model.positions import Segments, preceding
from quire.serving.model.request import Done, KeySharing, SubscribeRequest, SubscriptionKind
from quire.serving.subscription import counting, lag, seek, stats
from quire.serving.subscription.acknowledging import acknowledge_each, acknowledge_up_to
from quire.serving.subscription.byte_index import ByteIndex
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.cursor.cursor_record import bits_of
from quire.serving.subscription.cursor.cursor_store import CursorStore
from quire.serving.subscription.delivery.block_source import BlockSource, ReadLimit
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import BlockView, frames
from quire.serving.subscription.delivery.meter import Meter
from quire.serving.subscription.dispatch.dispatcher import Dispatcher
from quire.serving.subscription.dispatch.exclusive import Exclusive
from quire.serving.subscription.dispatch.key_shared import KeyShared
from quire.serving.subscription.dispatch.kinds import dispatcher_of
from quire.serving.subscription.dispatch_rate_limiter import DispatchRateLimiter
from quire.serving.subscription.later import Later
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer, is_blank

LEFT_ALONE_S = 60.0
"""How long a subscription that is not durable waits for its reader after a seek, which closed it."""


class Subscription:
    """A subscription of a loaded topic (a `SubscriptionPort`). `store` is None when it is not durable."""

    def __init__(
        self,
        topic: TopicPort,
        cursor: Cursor,
        store: CursorStore | None,
        clock: Clock,
        tasks: Tasks,
        partition: int = -1,
        ended: Callable[[Subscription], None] = lambda _: None,
        byte_index: ByteIndex | None = None,
        read_limit: ReadLimit | None = None,
    ) -> None:
        self.name = cursor.key.subscription
        self.topic = topic
        """The topic, or its compacted view."""
        self.plain = topic
        """The topic itself."""
        self._view: CompactedPort | None = None
        self._tasks = tasks
        self._later = Later(cursor, store, clock, self.wake)
        self._limiter: DispatchRateLimiter | None = None
        self.is_deleted = self._is_closed = False
        self.is_on_all_partitions = True
        """False after a SUBSCRIBE made it, until partitions added meanwhile have it, too: nobody was told of it yet."""
        self.meter = Meter()
        self.byte_index = byte_index or ByteIndex()
        self._oldest: tuple[Position, int] | None = None
        """The entry behind mark-delete as it was last looked at, and when that was published."""
        self.cursor = cursor
        self._store = store
        self._clock = clock
        self._partition = partition
        self._ended = ended
        self._segments = Segments(lambda: self.topic.segments())
        self.dispatcher: Dispatcher = Exclusive(cursor, self._segments)
        self._read_limit = read_limit or ReadLimit()
        self._source = BlockSource(topic, self, tasks, self._read_limit)
        self._lock = asyncio.Lock()
        self._arrivals = 0
        self._output: dict[Consumer, list[Buffer]] = {}
        self._is_pumping = False
        self.lost_messages = 0
        """Messages that were lost and given up, and passed over since the topic was loaded."""
        self._seeks = 0
        self._pump_again = False

    @property
    def mark_delete(self) -> Position:
        return self.cursor.mark_delete

    @property
    def is_durable(self) -> bool:
        return self._store is not None

    @property
    def kind(self) -> SubscriptionKind:
        """As the last consumer asked; exclusive before any did."""
        return self.dispatcher.kind

    @property
    def consumers(self) -> list[Consumer]:
        return list(self.dispatcher.consumers)

    @property
    def last_read_error(self) -> str:
        """Why reading fails at present; "" when it does not."""
        return self._source.last_error

    def monotonic(self) -> float:
        return self._clock.monotonic()

    @property
    def delayed_entries(self) -> int:
        """What was read and waits for its time of delivery."""
        return len(self._later)

    @property
    def reads_compacted(self) -> bool:
        return self._view is not None

    # -- dealing ---------------------------------------------------------------------------------------

    def confirmed(self, view: BlockView) -> None:
        """A block of the topic was confirmed; the tail cache has it. All subscriptions of the topic share `view`."""
        wanted = self.dispatcher.wanted()
        if wanted is None:
            return
        self._later.look_at_clock()
        is_next = wanted == (view.ledger_id, view.first_entry)
        if is_next and not self._is_pumping and self._limiter is None:
            self._source.drop()
            self._deal(view)
            self._deliver()
            self._later.dealt()
        else:
            self.wake()

    def wake(self) -> None:
        """Something may have become possible: permits, room in a socket, a block that was fetched."""
        if self._is_pumping:
            self._pump_again = True
            return
        self._is_pumping = True
        try:
            self._pump()
        finally:
            self._is_pumping = False

    def _pump(self) -> None:
        self._pump_again = True
        self._later.look_at_clock()
        while self._pump_again:
            self._pump_again = False
            bytes_dealt = 0
            while bytes_dealt < DEAL_BYTES_PER_TURN:
                view = self._next_block()
                if view is None or not (self._limiter is None or self._limiter.may_deal()):
                    break
                # What was only looked at is work too, and so is what is small.
                least = DEAL_BYTES_PER_BLOCK_MIN + DEAL_BYTES_PER_ENTRY_MIN * view.header.entry_count
                bytes_dealt += max(self._deal(view) or view.bytes, least)
            self._deliver()
            self._later.dealt()
            if bytes_dealt >= DEAL_BYTES_PER_TURN:
                asyncio.get_running_loop().call_soon(self.wake)
                return

    def _next_block(self) -> BlockView | None:
        """The block that is wanted, if it is at hand; else it is fetched, if it is there at all."""
        dispatcher = self.dispatcher
        wanted = dispatcher.wanted()
        if wanted is None:
            self._source.rest()
            return None
        view = self._source.take(wanted)
        if view is not None:
            if self._view is not None:
                self._pass_left_out(self._view, view)
            if is_blank(view.header) and self._pass_lost(view):
                return self._next_block()
            return view
        if wanted == dispatcher.read and dispatcher.normalise():
            return self._next_block()
        if wanted <= self.topic.last_confirmed:
            self._source.fetch(wanted)
        return None

    def _deal(self, view: BlockView) -> int:
        """Deal what `view` has for consumers that are ready; the bytes dealt."""
        limiter = self._limiter
        if limiter is not None:
            wanted = self.dispatcher.wanted()
            assert wanted is not None
            view = limiter.cut(view, wanted)
        total = messages = 0
        for delivery in self.dispatcher.offer(view):
            parts = frames(delivery, self._partition)
            size = sum(map(len, parts))
            total += size
            messages += delivery.messages
            again = delivery.redelivery_count > 0
            delivery.consumer.meter.count(delivery.messages, size, redelivered=again)
            self.meter.count(delivery.messages, size, redelivered=again)
            self._output.setdefault(delivery.consumer, []).extend(parts)
        if limiter is not None:
            limiter.passed(messages, total)
        return total

    def _deliver(self) -> None:
        output, self._output = self._output, {}
        for consumer, parts in output.items():
            if consumer.is_open:
                consumer.port.deliver(parts)

    # -- policies, and what is delayed -----------------------------------------------------------------

    def heed_policies(self) -> None:
        """Others hold from now on, or for another kind of dispatcher."""
        former, limits = self._limiter, self.topic.dispatch_limits
        if limits is not (None if former is None else former.limits):
            self._limiter = None if limits is None else DispatchRateLimiter(limits, self._clock, self.wake)
            if former is not None:
                former.stop()
                self.wake()
        policy = self.topic.delayed_delivery
        if self._later.heed(self.dispatcher, policy, is_surveyed=not self.reads_compacted):
            self.wake()

    @property
    def is_rate_limited(self) -> bool:
        """It waits until a dispatch rate lets it deal more."""
        return self._limiter is not None and self._limiter.is_waiting

    def trimmed(self) -> None:
        """What would be read next is gone from the topic: what is gone counts as acknowledged."""
        first = self.topic.first_position()
        self.dispatcher.skip_to(first)
        self._changed()

    # -- what consumers do -----------------------------------------------------------------------------

    def acknowledge(
        self, consumer: Consumer, ids: Iterable[pb.MessageIdData], *, cumulative: bool, done: Done | None
    ) -> None:
        """See `Consumer.ack`."""
        before, unacked = self.cursor.mark_delete, self.dispatcher.unacked
        if not cumulative:
            acknowledge_each(self.dispatcher, ids)
        elif self.kind in (SubscriptionKind.SHARED, SubscriptionKind.KEY_SHARED):
            if done is not None:
                label = self.kind.label
                done(
                    NotAllowed(f"a {label} subscription takes no cumulative acknowledgement: give single ids")
                )
            return
        else:
            for one in ids:
                acknowledge_up_to(self.dispatcher, one)
        self._changed(done)
        acked = unacked - self.dispatcher.unacked
        self.meter.acked += acked
        consumer.meter.acked += acked
        if self.cursor.mark_delete != before:
            self.topic.acknowledged_up_to(self.name)
        if self.dispatcher.may_go_on:
            self.dispatcher.may_go_on = False
            self.wake()

    def redeliver(self, consumer: Consumer, ids: Iterable[pb.MessageIdData]) -> None:
        """See `Consumer.redeliver`."""
        by_ledger: dict[int, list[int]] = {}
        for one in ids:
            by_ledger.setdefault(one.ledgerId, []).append(one.entryId)
        self.dispatcher.redeliver(consumer, by_ledger or None)
        self._changed()
        self.wake()

    def detach(self, consumer: Consumer) -> None:
        """A consumer is gone."""
        self._output.pop(consumer, None)
        if len(self.dispatcher.consumers) == 1:
            self._later.write()
        self.dispatcher.detach(consumer)
        self._notify()
        if self.dispatcher.consumers:
            self.wake()
        else:
            self._source.clear()
            if not self.is_durable:
                self._end()

    def _changed(self, done: Done | None = None) -> None:
        if self._store is not None:
            self._store.changed(self.cursor, done)
        elif done is not None:
            done(None)

    # -- attaching, seeking, ending --------------------------------------------------------------------

    async def attach(self, request: SubscribeRequest, port: ConsumerPort) -> Consumer:
        """A new consumer. Raises `ConsumerBusy`, `NotAllowed`, and what `_check_is_here` does."""
        async with self._lock:
            await self._look_at(request)
            self._check_is_here()
            if len(self.consumers) >= CONSUMERS_PER_SUBSCRIPTION_MAX:
                raise ConsumerBusy(
                    f"subscription {self.name} has {CONSUMERS_PER_SUBSCRIPTION_MAX} consumers, and takes no more: "
                    "close some"
                )
            self._become(request.kind, request.sharing)
            self.heed_policies()
            self._arrivals += 1
            consumer = Consumer(
                self,
                port,
                request.consumer_id,
                request.consumer_name,
                request.priority_level,
                arrival=self._arrivals,
                address=request.address,
                connected_ms=self._clock.now_ms(),
                metadata=request.metadata,
                key_ranges=request.key_ranges,
            )
            self.dispatcher.attach(consumer)
            self._notify()
            return consumer

    def _check_is_here(self) -> None:
        """Raises `NotFound` when the subscription just ended, `Unavailable` when its topic was unloaded meanwhile.

        Whoever loads the topic again reads the cursor as it was kept: what is done to this one does nothing to that,
        or, kept in the store, undoes what was acknowledged there.
        """
        if self.is_deleted:
            raise NotFound(f"subscription {self.name} was deleted")
        if self._is_closed:
            raise was_unloaded(self.plain.name)

    async def _look_at(self, request: SubscribeRequest) -> None:
        """Read the topic, or what compaction has left of it, as the consumer asks; all have to ask alike."""
        single = request.kind in (SubscriptionKind.EXCLUSIVE, SubscriptionKind.FAILOVER)
        if request.read_compacted and not single:
            raise NotAllowed("compacted data can be read by exclusive and failover subscriptions only")
        view = await self.plain.compacted_view() if request.read_compacted else None
        if self.dispatcher.consumers:
            if (view is not None) != self.reads_compacted:
                raise ConsumerBusy(
                    f"subscription {self.name} has consumers that read compacted data, or all of it"
                )
            return
        if view is None and not self.reads_compacted:
            return
        self._view, self.topic = view, view or self.plain
        self._source.close()
        self._source = BlockSource(self.topic, self, self._tasks, self._read_limit)
        self.dispatcher.reset()
        self._pass_gaps()

    def _pass_gaps(self) -> None:
        """What compaction left out counts as acknowledged."""
        if self._view is not None:
            for ledger_id, entries in self._view.gaps():
                self.dispatcher.acknowledge(ledger_id, entries)
            self._changed()

    def _pass_left_out(self, view: CompactedPort, block: BlockView) -> None:
        """The same for messages of batches, when these are about to be dealt."""
        for position, left, messages in view.left_of(block.ledger_id, block.first_entry, block.stop_entry):
            self.dispatcher.acknowledge_partly(position, left, messages)

    def _pass_lost(self, block: BlockView) -> bool:
        """Entries that were lost and given up count as acknowledged. Whether any did not yet."""
        entries = BitMap(range(block.first_entry, block.stop_entry))
        left = self.cursor.unacknowledged(block.ledger_id, entries)
        if not left:
            return False
        self.lost_messages += block.messages_of(left)
        before = self.cursor.mark_delete
        self.dispatcher.acknowledge(block.ledger_id, left)
        self._changed()
        if self.cursor.mark_delete != before:
            self.topic.acknowledged_up_to(self.name)
        return True

    def _become(self, kind: SubscriptionKind, sharing: KeySharing) -> None:
        """Without consumers a subscription takes any kind."""
        former = self.dispatcher
        if kind is former.kind and (not isinstance(former, KeyShared) or former.sharing == sharing):
            return
        if former.consumers:
            connected = f" ({former.sharing})" if isinstance(former, KeyShared) else ""
            wanted = f" ({sharing})" if kind is SubscriptionKind.KEY_SHARED else ""
            raise ConsumerBusy(
                f"subscription {self.name} is connected as {self.kind.label}{connected}, "
                f"not {kind.label}{wanted}"
            )
        self.dispatcher = dispatcher_of(kind, self.cursor, self._segments, self._partition, sharing)

    def _notify(self) -> None:
        """Tell who is active, when the answer to the request that changed it is on its way."""
        notices, self.dispatcher.notices = self.dispatcher.notices, []
        for consumer, is_active in notices:
            asyncio.get_running_loop().call_soon(_tell, consumer, is_active)

    async def seek(self, to: pb.MessageIdData) -> None:
        """Deliver from `to` on, inclusively. Closes all consumers first; durable when it returns."""
        async with self._lock:
            self._check_is_here()
            self.disconnect()
            await self._move_to(seek.position_of(to, self._segments), to)
        self._expect_somebody()

    async def seek_time(self, time_ms: int) -> None:
        """Deliver from the first message on that was published at `time_ms` or later; else as `seek`."""
        async with self._lock:
            self._check_is_here()
            self.disconnect()
            position = await seek.position_at_time(self.plain, time_ms)
            self._check_is_here()
            await self._move_to(position)
        self._expect_somebody()

    def _expect_somebody(self) -> None:
        """A reader that sought comes back to its subscription; one that does not leaves nothing behind."""
        if not self.is_durable:
            self._seeks += 1
            asyncio.get_running_loop().call_later(LEFT_ALONE_S, self._end_if_left, self._seeks)

    def _end_if_left(self, seeks: int) -> None:
        if seeks == self._seeks and not self.is_deleted and not self.dispatcher.consumers:
            self._end()

    async def skip_all(self) -> None:
        """Acknowledge everything that is there."""
        await self.skip_up_to(self.topic.last_confirmed)

    async def skip_up_to(self, position: Position) -> None:
        """Acknowledge all entries up to and with `position`; consumers stay. Durable when it returns."""
        self._check_is_here()
        for segment in self.topic.segments():
            is_last = segment.ledger_id == position.ledger_id
            last = min(position.entry_id, segment.last_entry) if is_last else segment.last_entry
            if self.cursor.mark_delete.ledger_id <= segment.ledger_id <= position.ledger_id:
                self.dispatcher.acknowledge(segment.ledger_id, range(last + 1))
        if self._store is not None:
            await self._store.save(self.cursor)
        self.topic.acknowledged_up_to(self.name)
        self.wake()

    def tell_end(self) -> None:
        """The topic takes no more messages: tell the consumers, if all is acknowledged."""
        if self.topic.next_position(self.cursor.mark_delete) > self.topic.last_confirmed:
            for consumer in self.dispatcher.consumers:
                consumer.port.reached_end()

    async def unsubscribe(self, consumer: Consumer, *, force: bool = False) -> None:
        """Delete the subscription. Raises `ConsumerBusy` when it has others than `consumer`, unless `force`."""
        if self.dispatcher.consumers != [consumer] and not force:
            raise ConsumerBusy(f"subscription {self.name} has other consumers: close them first")
        consumer.is_open = False
        self.dispatcher.detach(consumer)
        await self.delete()

    async def delete(self) -> None:
        """Close all consumers and delete the cursor; durable when it returns."""
        async with self._lock:
            self._check_is_here()
            await self._delete()

    async def _delete(self) -> None:
        self.disconnect()
        self._end()
        if self._store is not None:
            await self._store.delete(self.cursor)
        self.topic.acknowledged_up_to(self.name)

    async def withdraw(self, consumer: Consumer | None) -> None:
        """Delete it as if it had never been made, unless others than `consumer` were told of it, or are about to be."""
        if consumer is not None:
            consumer.close()
        async with self._lock:
            is_over = self.is_deleted or self._is_closed
            if not (is_over or self.consumers or self.is_on_all_partitions):
                await self._delete()

    def disconnect(self) -> None:
        """CLOSE_CONSUMER to all: they will look the topic up and subscribe again."""
        self._later.write()
        for consumer in list(self.dispatcher.consumers):
            consumer.is_open = False
            self.dispatcher.detach(consumer)
            consumer.port.close()
        self.dispatcher.notices.clear()
        self._output.clear()
        self._source.clear()

    def close(self) -> None:
        """The topic is unloaded. Its parts let go of it: circles would stay, see `Topic`."""
        self._is_closed = True
        self.disconnect()
        self._source.close()
        self._silence()
        self._segments.freeze()

    async def _move_to(self, position: Position, named: pb.MessageIdData | None = None) -> None:
        """`position` is next; of its batch only the messages that `named` has in its `ack_set`, if any."""
        self.cursor.reset(preceding(position))
        self.dispatcher.reset()
        if named is not None and named.ack_set and position == (named.ledgerId, named.entryId):
            self.dispatcher.acknowledge_partly(position, bits_of(named.ack_set), named.batch_size)
        self._pass_gaps()
        self._source.clear()
        if self._store is not None:
            await self._store.save(self.cursor)
        self.topic.acknowledged_up_to(self.name)

    def _end(self) -> None:
        self.is_deleted = True
        self._source.close()
        self._ended(self)
        self._silence()

    def _silence(self) -> None:
        self._later.stop()
        if self._limiter is not None:
            self._limiter.stop()

    # -- counting --------------------------------------------------------------------------------------

    async def backlog(self) -> int:
        """Messages that are confirmed and not acknowledged, exactly."""
        return await counting.backlog(self.topic, self.dispatcher)

    def oldest_unacknowledged(self) -> Position:
        """The entry behind mark-delete; it may not be written yet."""
        return self._segments.clamp(self._segments.following(self.cursor.mark_delete))

    async def oldest_published_ms(self) -> int | None:
        """When the oldest unacknowledged message was published, in ms since 1970; None when there is none."""
        position = self.oldest_unacknowledged()
        if position > self.topic.last_confirmed:
            return None
        if self._oldest is None or self._oldest[0] != position:
            self._oldest = position, await lag.published_ms(self.topic, position)
        return self._oldest[1]

    async def stats(self) -> dict[str, Any]:
        """As Pulsar's subscription stats; see `stats`."""
        return await stats.describe(self, self._clock.now_ms())

    def describe(self, consumer: Consumer) -> dict[str, Any]:
        """As Pulsar's consumer stats."""
        return stats.describe_consumer(self.dispatcher, consumer, self)

    def cursor_stats(self) -> dict[str, Any]:
        """As Pulsar's cursor stats, in `internalStats`."""
        return counting.cursor_stats(self.cursor, self.dispatcher.read)


def _tell(consumer: Consumer, is_active: bool) -> None:
    if consumer.is_open:
        consumer.port.active_changed(is_active)
