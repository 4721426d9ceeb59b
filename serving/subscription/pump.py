"""Pump: the dispatch loop of one subscription, and the commands of its consumers.

    confirmed(block) ─┐                       ┌─▶ frames ─▶ ConsumerPort.deliver, once per consumer and turn
    flow, wake_soon  ─┼─▶ wanted? take a      ┤
    redeliver, detach ┘   block, offer it     └─▶ not cached: fetch (BlockSource), and continue when it has arrived

    acknowledge      ──▶  dispatcher (counts) ─▶ cursor ─▶ store: one record at the end of the turn

A block that was just confirmed is dispatched directly from the publisher's callback if the subscription has
read everything before it; this data path does no work per message and little per entry. Otherwise
the pump requests the block that contains the wanted entry. It dispatches at most `DEAL_BYTES_PER_TURN` in a turn, so
that a subscription with a backlog does not delay all others, and continues in the next turn. The only timer fires when
the next delayed entry is due (`delayed_delivery`).

A subscription that reads compacted data reads the topic's compacted view. Entries that the view omits, and lost entries
that an operator gave up, count as acknowledged, so no other module has to handle them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from sys import maxsize

from pyroaring import BitMap

from quire.runtime.clock import Clock
from quire.runtime.limits import DEAL_BYTES_PER_BLOCK_MIN, DEAL_BYTES_PER_ENTRY_MIN, DEAL_BYTES_PER_TURN
from quire.runtime.tasks import Tasks
from quire.serving.model.ports import CompactedPort, NotAllowed, TopicPort
from quire.serving.model.positions import Segments
from quire.serving.model.request import Done, KeySharing, SubscriptionKind
from quire.serving.subscription.acknowledging import acknowledge_each, acknowledge_up_to
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.cursor.cursor_store import CursorStore
from quire.serving.subscription.delayed.delayed_delivery import DelayedDelivery
from quire.serving.subscription.delivery.block_source import BlockSource, ReadLimit
from quire.serving.subscription.delivery.consumer import Consumer, consumer_closed
from quire.serving.subscription.delivery.delivery import BlockView, frames, numbered_entries
from quire.serving.subscription.delivery.meter import Meter
from quire.serving.subscription.dispatch.kinds import changed_to, dispatcher_of
from quire.serving.subscription.dispatch_rate_limiter import DispatchRateLimiter
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer, is_blank


class Pump:
    """Dispatch loop of one subscription. `partition` is -1 if the topic is not a partition."""

    drops: Meter | None = None
    """Counters of messages of a non-persistent topic that no consumer could receive; None for a persistent topic."""

    def __init__(
        self,
        topic: TopicPort,
        cursor: Cursor,
        store: CursorStore,
        clock: Clock,
        tasks: Tasks,
        partition: int = -1,
        read_limit: ReadLimit | None = None,
    ) -> None:
        self._topic = topic
        self.view: CompactedPort | None = None
        """Compacted view of the topic, if the subscription reads it; otherwise None."""
        self.store = store
        self.clock = clock
        self._partition = partition
        self.segments = Segments(lambda: self.topic.segments())
        self.dispatcher = dispatcher_of(SubscriptionKind.EXCLUSIVE, cursor, self.segments)
        self.source = BlockSource(topic, self, tasks, read_limit or ReadLimit())
        self.delayed = DelayedDelivery(cursor, store, clock, self.wake)
        self.limiter: DispatchRateLimiter | None = None
        self.meter = Meter(store.totals)
        self.lost_messages = 0
        """Number of lost messages that the subscription skipped since the topic was loaded."""
        self._output: dict[Consumer, list[Buffer]] = {}
        self._is_running = self._run_again = False

    @property
    def topic(self) -> TopicPort:
        """Topic to read: the topic itself, or its compacted view."""
        return self._topic if self.view is None else self.view

    # -- dispatching ----------------------------------------------------------------------------------

    def confirmed(self, view: BlockView) -> None:
        """Dispatch a block that was just confirmed and cached. All subscriptions of the topic share `view`."""
        wanted = self.dispatcher.wanted()
        if wanted is None:
            return
        self.delayed.look_at_clock()
        is_next = wanted == (view.ledger_id, view.first_entry)
        is_direct = is_next and not self._is_running and self.limiter is None
        if is_direct and self.dispatcher.fits(view):
            self.source.drop()
            self._dispatch(view)
            self._deliver()
        else:
            self.wake()

    def wake(self) -> None:
        """Dispatch messages, because a consumer got permits or became writable, or a block was fetched."""
        if self._is_running:
            self._run_again = True
            return
        self._is_running = True
        try:
            self._run()
        finally:
            self._is_running = False

    def wake_soon(self) -> None:
        """Schedule one `wake` after this event loop iteration: a connection may detach thousands of consumers."""
        if self._is_running:
            self._run_again = True
        else:
            self._is_running = True  # so that other calls of `wake` join it
            asyncio.get_running_loop().call_soon(_wake, self)

    def _run(self) -> None:
        self._run_again = True
        self.delayed.look_at_clock()
        while self._run_again:
            self._run_again = False
            dispatched_bytes = 0
            while dispatched_bytes < DEAL_BYTES_PER_TURN:
                view = self._next_block()
                if view is None or not (self.limiter is None or self.limiter.may_dispatch()):
                    break
                # Small blocks, and blocks without an entry to dispatch, take time as well.
                least = DEAL_BYTES_PER_BLOCK_MIN + DEAL_BYTES_PER_ENTRY_MIN * view.header.entry_count
                dispatched_bytes += max(self._dispatch(view) or view.header.length, least)
            self._deliver()
            if dispatched_bytes >= DEAL_BYTES_PER_TURN:
                asyncio.get_running_loop().call_soon(self.wake)
                return

    def _next_block(self) -> BlockView | None:
        """Return the wanted block if it is cached; otherwise start to fetch it, if it is confirmed."""
        while (wanted := self.dispatcher.wanted()) is not None:
            view = self.source.take(wanted)
            if view is not None:
                self._pass_left_out(view)
                if not (is_blank(view.header) and self._pass_lost(view)):
                    return view
            elif not (wanted == self.dispatcher.read.position and self.dispatcher.read.normalise()):
                if wanted <= self.topic.last_confirmed:
                    self.source.fetch(wanted)
                return None
        self.source.rest()
        return None

    def _dispatch(self, view: BlockView) -> int:
        """Dispatch entries of `view` to ready consumers. Return the number of dispatched bytes."""
        limiter = self.limiter
        if limiter is not None:
            wanted = self.dispatcher.wanted()
            assert wanted is not None
            view = limiter.cut(view, wanted)
        if not self.dispatcher.fits(view) and (wanted := self.dispatcher.wanted()) is not None:
            view = self.dispatcher.cut(view, wanted)
        total = messages = messages_again = 0
        for delivery in self.dispatcher.offer(view):
            parts = frames(delivery, self._partition)
            size = sum(map(len, parts))
            total += size
            messages += delivery.messages
            again = delivery.redelivery_count > 0
            messages_again += delivery.messages if again else 0
            delivery.consumer.meter.count(delivery.messages, size, redelivered=again)
            self._output.setdefault(delivery.consumer, []).extend(parts)
            if (tracing := self._topic.tracing) is not None:
                tracing.delivered(
                    self._topic.name,
                    self.dispatcher.cursor.key.subscription,
                    view.ledger_id,
                    numbered_entries(delivery),
                    delivery.remaining,
                    delivery.redelivery_count,
                )
        if limiter is not None:
            limiter.passed(messages, total)
        if messages:
            waited_ms = self.clock.now_ms() - (view.header.clock_ms or maxsize)
            self.meter.count_block(messages, messages_again, total, waited_ms)
        return total

    def _deliver(self) -> None:
        """Write the dispatched frames, and set the timer for newly found delayed entries."""
        output, self._output = self._output, {}
        for consumer, parts in output.items():
            if consumer.is_open:
                consumer.port.deliver(parts)
        self.delayed.dispatched()

    # -- compacted and lost entries -------------------------------------------------------------------

    def read_from(self, view: CompactedPort | None) -> None:
        """Read the compacted view or, if None, the topic itself. Precondition: no consumer is attached."""
        self.view = view
        self.source = self.source.instead(self.topic)
        self.dispatcher.reset()
        self.pass_gaps()

    def pass_gaps(self) -> None:
        """Acknowledge the entries that compaction removed."""
        if self.view is not None:
            for ledger_id, entries in self.view.gaps():
                self.dispatcher.acknowledge(ledger_id, entries)
            self.store.changed(self.dispatcher.cursor)

    def _pass_left_out(self, block: BlockView) -> None:
        """Acknowledge the messages that compaction removed from a block's batches, before these are dispatched."""
        if self.view is not None:
            left_out = self.view.left_of(block.ledger_id, block.first_entry, block.stop_entry)
            for position, left, messages in left_out:
                self.dispatcher.acknowledge_partly(position, left, messages)

    def _pass_lost(self, block: BlockView) -> bool:
        """Acknowledge all entries of a block whose data were lost. Return whether any entry was unacknowledged."""
        cursor, entries = self.dispatcher.cursor, BitMap(range(block.first_entry, block.stop_entry))
        left = cursor.unacknowledged(block.ledger_id, entries)
        if not left:
            return False
        self.lost_messages += block.messages_of(left)
        before = cursor.mark_delete
        self.dispatcher.acknowledge(block.ledger_id, left)
        self.store.changed(cursor)
        if cursor.mark_delete != before:
            self.tell_end()
        return True

    def trimmed(self) -> None:
        """Acknowledge the trimmed entries before the topic's first position."""
        self.dispatcher.skip_to(self.topic.first_position())
        self.store.changed(self.dispatcher.cursor)

    # -- commands of consumers ------------------------------------------------------------------------

    def flow(self, consumer: Consumer, permits: int) -> None:
        """Handle FLOW: the client can receive `permits` more messages."""
        if consumer.is_open:
            consumer.permits += permits
            consumer.meter.flowed_ms = self.meter.flowed_ms = self.clock.now_ms()
            self.wake()

    def acknowledge(
        self,
        consumer: Consumer,
        ids: Iterable[pb.MessageIdData],
        *,
        cumulative: bool = False,
        done: Done | None = None,
    ) -> None:
        """Handle ACK. `done`, if given, is called when the acknowledgement is durable or has been rejected."""
        if not consumer.is_open:
            if done is not None:
                done(consumer_closed())
            return
        dispatcher = self.dispatcher
        cursor = dispatcher.cursor
        before, unacked = cursor.mark_delete, dispatcher.read.unacked
        try:
            if cumulative:
                acknowledge_up_to(dispatcher, ids)
            else:
                acknowledge_each(dispatcher, ids)
        except NotAllowed as error:
            if done is not None:
                done(error)
            return
        self.store.changed(cursor, done)
        acked = unacked - dispatcher.read.unacked
        self.meter.count_acked(acked)
        consumer.meter.acked += acked
        if cursor.mark_delete != before:
            self.tell_end()
        if dispatcher.room_was_made:
            dispatcher.room_was_made = False
            self.wake()

    def redeliver(self, consumer: Consumer, ids: Iterable[pb.MessageIdData] = ()) -> None:
        """Handle REDELIVER: redeliver `ids` or, if empty, all unacknowledged messages of the consumer."""
        if not consumer.is_open:
            return
        by_ledger: dict[int, list[int]] = {}
        for one in ids:
            by_ledger.setdefault(one.ledgerId, []).append(one.entryId)
        self.dispatcher.redeliver(consumer, by_ledger or None)
        self.store.changed(self.dispatcher.cursor)
        self.wake()

    # -- consumers and dispatcher ---------------------------------------------------------------------

    def dispatch_by(self, kind: SubscriptionKind, sharing: KeySharing) -> None:
        """Change to a dispatcher of this kind. Raises `ConsumerBusy` if consumers of another kind are attached."""
        self.dispatcher = changed_to(kind, self.dispatcher, self._partition, sharing)

    def attach(self, consumer: Consumer) -> None:
        """Attach a consumer. Raises `ConsumerBusy` and `ConsumerAssignError`."""
        self.dispatcher.attach(consumer)
        consumer.apply_policies(self._topic.policies)
        _notify(self)

    def detach(self, consumer: Consumer) -> None:
        """Detach a consumer; its unacknowledged messages are dispatched to other consumers."""
        self._output.pop(consumer, None)
        if len(self.dispatcher.consumers) == 1:
            self.delayed.write()
        self.dispatcher.detach(consumer)
        _notify(self)
        if self.dispatcher.consumers:
            self.wake_soon()
        else:
            self.source.clear()

    def disconnect(self) -> None:
        """Close all consumers; their clients look the topic up again and subscribe again."""
        self.delayed.write()
        leaving = list(self.dispatcher.consumers)
        self.dispatcher.detach_all()
        for consumer in leaving:
            consumer.is_open = False
            consumer.port.close()
        self.dispatcher.notices.clear()
        self._output.clear()
        self.source.clear()

    def tell_end(self) -> None:
        """Notify the consumers if the topic is terminated and all its messages are acknowledged."""
        topic, dispatcher = self.topic, self.dispatcher
        if topic.is_terminated and topic.next_position(dispatcher.cursor.mark_delete) > topic.last_confirmed:
            for consumer in dispatcher.consumers:
                consumer.port.reached_end()

    # -- policies, and the end ------------------------------------------------------------------------

    def apply_policies(self) -> None:
        """Apply changed policies, or apply the current policies to a new dispatcher."""
        former, of_topic = self.limiter, self.topic.dispatch_limits
        limits = None if of_topic is None else of_topic.of(self.dispatcher.cursor.key.subscription)
        if limits != (None if former is None else former.limits):
            self.limiter = None if limits is None else DispatchRateLimiter(limits, self.clock, self.wake)
            if former is not None:
                former.stop()
                self.wake()
        policies, dispatcher = self._topic.policies, self.dispatcher
        changed = [consumer.apply_policies(policies) for consumer in dispatcher.consumers]
        if dispatcher.limit_unacked(policies.subscription_unacked_max) or any(changed):
            self.wake()
        if self.delayed.apply_policy(dispatcher, policies.delayed_delivery, is_kept=self.view is None):
            self.wake()

    def close(self) -> None:
        """Stop reads and timers, and drop references that would form reference cycles (`runtime.weak`)."""
        self.source.close()
        self.delayed.stop()
        if self.limiter is not None:
            self.limiter.stop()
        self.segments.freeze()


def _wake(pump: Pump) -> None:
    pump._is_running = False
    pump.wake()


def _notify(pump: Pump) -> None:
    """Schedule the notices of a changed active consumer, which follow the response to the request that changed it."""
    notices, pump.dispatcher.notices = pump.dispatcher.notices, []
    for consumer, is_active in notices:
        asyncio.get_running_loop().call_soon(_tell, consumer, is_active)


def _tell(consumer: Consumer, is_active: bool) -> None:
    if consumer.is_open:
        consumer.port.active_changed(is_active)
