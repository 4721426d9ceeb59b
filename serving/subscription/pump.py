"""The pump: the dispatch loop of one subscription, and what its consumers say to it.

    confirmed(block) ─┐                       ┌─▶ frames ─▶ ConsumerPort.deliver, once per consumer and turn
    flow, resumed    ─┼─▶ wanted? take a      ┤
    redeliver, close ─┘   block, offer it     └─▶ nothing at hand: fetch (BlockSource), and go on when it is there

    acknowledge      ──▶  dispatcher (counts) ─▶ cursor ─▶ store: one record at the end of the turn

A block that was just confirmed goes straight from the publisher's turn to the consumers when the subscription has
read everything before it; that is the whole data path, and it does nothing per message and little per entry.
Otherwise the pump asks for the block that holds the wanted entry. It dispatches at most `DEAL_BYTES_PER_TURN` in a
turn, so that one subscription that catches up does not hold up all others, and goes on in the next. The only timer
rings when the next of what is delayed is due (`delayed_delivery`).

A subscription that reads compacted data has the topic's compacted view for its topic. What that leaves out, and what
was lost and given up, counts as acknowledged, so nothing else here knows of it.
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
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import BlockView, frames, numbered_entries
from quire.serving.subscription.delivery.meter import Meter
from quire.serving.subscription.dispatch.kinds import changed_to, dispatcher_of
from quire.serving.subscription.dispatch_rate_limiter import DispatchRateLimiter
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer, is_blank


class Pump:
    """Moves the blocks of a topic to the consumers of one subscription. `partition` is -1 for a topic that is none."""

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
        """The compacted view of the topic, if that is what is read."""
        self.store = store
        self._clock = clock
        self._partition = partition
        self.segments = Segments(lambda: self.topic.segments())
        self.dispatcher = dispatcher_of(SubscriptionKind.EXCLUSIVE, cursor, self.segments)
        self.source = BlockSource(topic, self, tasks, read_limit or ReadLimit())
        self.delayed = DelayedDelivery(cursor, store, clock, self.wake)
        self._limiter: DispatchRateLimiter | None = None
        self.meter = Meter(store.totals)
        self.lost_messages = 0
        """Messages that were lost and given up, and passed over since the topic was loaded."""
        self._output: dict[Consumer, list[Buffer]] = {}
        self._is_running = self._run_again = False

    @property
    def topic(self) -> TopicPort:
        """What is read: the topic, or its compacted view."""
        return self._topic if self.view is None else self.view

    @property
    def is_rate_limited(self) -> bool:
        """It waits until a dispatch rate lets it dispatch more."""
        return self._limiter is not None and self._limiter.is_waiting

    def stats(self, now_s: float) -> dict[str, float]:
        """What went out, and how fast; `now_s` is monotonic."""
        return self.meter.stats(now_s)

    # -- dispatching -----------------------------------------------------------------------------------

    def confirmed(self, view: BlockView) -> None:
        """A block of the topic was confirmed; the tail cache has it. All subscriptions of the topic share `view`."""
        wanted = self.dispatcher.wanted()
        if wanted is None:
            return
        self.delayed.look_at_clock()
        is_next = wanted == (view.ledger_id, view.first_entry)
        if is_next and not self._is_running and self._limiter is None:
            self.source.drop()
            self._dispatch(view)
            self._deliver()
        else:
            self.wake()

    def wake(self) -> None:
        """Something may have become possible: permits, room in a socket, a block that was fetched."""
        if self._is_running:
            self._run_again = True
            return
        self._is_running = True
        try:
            self._run()
        finally:
            self._is_running = False

    def _run(self) -> None:
        self._run_again = True
        self.delayed.look_at_clock()
        while self._run_again:
            self._run_again = False
            dispatched_bytes = 0
            while dispatched_bytes < DEAL_BYTES_PER_TURN:
                view = self._next_block()
                if view is None or not (self._limiter is None or self._limiter.may_dispatch()):
                    break
                # What was only looked at is work too, and so is what is small.
                least = DEAL_BYTES_PER_BLOCK_MIN + DEAL_BYTES_PER_ENTRY_MIN * view.header.entry_count
                dispatched_bytes += max(self._dispatch(view) or view.bytes, least)
            self._deliver()
            if dispatched_bytes >= DEAL_BYTES_PER_TURN:
                asyncio.get_running_loop().call_soon(self.wake)
                return

    def _next_block(self) -> BlockView | None:
        """The block that is wanted, if it is at hand; else it is fetched, if it is there at all."""
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
        """Dispatch what `view` has for consumers that are ready; the bytes of it."""
        limiter = self._limiter
        if limiter is not None:
            wanted = self.dispatcher.wanted()
            assert wanted is not None
            view = limiter.cut(view, wanted)
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
            waited_ms = self._clock.now_ms() - (view.header.clock_ms or maxsize)
            self.meter.count_block(messages, messages_again, total, waited_ms)
        return total

    def _deliver(self) -> None:
        """Write what was dispatched, and look after what was found to be delayed."""
        output, self._output = self._output, {}
        for consumer, parts in output.items():
            if consumer.is_open:
                consumer.port.deliver(parts)
        self.delayed.dispatched()

    # -- what is read ----------------------------------------------------------------------------------

    def read_from(self, view: CompactedPort | None) -> None:
        """Read the compacted view, or (None) all of the topic. Nobody is connected."""
        self.view = view
        self.source = self.source.instead(self.topic)
        self.dispatcher.reset()
        self.pass_gaps()

    def pass_gaps(self) -> None:
        """What compaction left out counts as acknowledged."""
        if self.view is not None:
            for ledger_id, entries in self.view.gaps():
                self.dispatcher.acknowledge(ledger_id, entries)
            self.store.changed(self.dispatcher.cursor)

    def _pass_left_out(self, block: BlockView) -> None:
        """The same for messages of batches, when these are about to be dispatched."""
        if self.view is not None:
            left_out = self.view.left_of(block.ledger_id, block.first_entry, block.stop_entry)
            for position, left, messages in left_out:
                self.dispatcher.acknowledge_partly(position, left, messages)

    def _pass_lost(self, block: BlockView) -> bool:
        """Entries that were lost and given up count as acknowledged. Whether any did not yet."""
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
        """What would be read next is gone from the topic: what is gone counts as acknowledged."""
        self.dispatcher.skip_to(self.topic.first_position())
        self.store.changed(self.dispatcher.cursor)

    # -- what consumers say ----------------------------------------------------------------------------

    def acknowledge(
        self, consumer: Consumer, ids: Iterable[pb.MessageIdData], *, cumulative: bool, done: Done | None
    ) -> None:
        """See `Consumer.ack`."""
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

    def redeliver(self, consumer: Consumer, ids: Iterable[pb.MessageIdData]) -> None:
        """See `Consumer.redeliver`."""
        by_ledger: dict[int, list[int]] = {}
        for one in ids:
            by_ledger.setdefault(one.ledgerId, []).append(one.entryId)
        self.dispatcher.redeliver(consumer, by_ledger or None)
        self.store.changed(self.dispatcher.cursor)
        self.wake()

    # -- who consumes, and how -------------------------------------------------------------------------

    def dispatch_by(self, kind: SubscriptionKind, sharing: KeySharing) -> None:
        """Without consumers a subscription takes any kind. Raises `ConsumerBusy`."""
        self.dispatcher = changed_to(kind, self.dispatcher, self._partition, sharing)

    def attach(self, consumer: Consumer) -> None:
        """A consumer connected. Raises `ConsumerBusy` and `ConsumerAssignError`."""
        self.dispatcher.attach(consumer)
        consumer.heed(self._topic.policies)
        self._notify()

    def detach(self, consumer: Consumer) -> None:
        """A consumer is gone; what it holds is dispatched to others."""
        self._output.pop(consumer, None)
        if len(self.dispatcher.consumers) == 1:
            self.delayed.write()
        self.dispatcher.detach(consumer)
        self._notify()
        if self.dispatcher.consumers:
            self.wake()
        else:
            self.source.clear()

    def disconnect(self) -> None:
        """CLOSE_CONSUMER to all: they will look the topic up and subscribe again."""
        self.delayed.write()
        for consumer in list(self.dispatcher.consumers):
            consumer.is_open = False
            self.dispatcher.detach(consumer)
            consumer.port.close()
        self.dispatcher.notices.clear()
        self._output.clear()
        self.source.clear()

    def tell_end(self) -> None:
        """Tell the consumers if the topic takes no more messages and all is acknowledged."""
        topic, dispatcher = self.topic, self.dispatcher
        if topic.is_terminated and topic.next_position(dispatcher.cursor.mark_delete) > topic.last_confirmed:
            for consumer in dispatcher.consumers:
                consumer.port.reached_end()

    def _notify(self) -> None:
        """Tell who is active, when the answer to the request that changed it is on its way."""
        notices, self.dispatcher.notices = self.dispatcher.notices, []
        for consumer, is_active in notices:
            asyncio.get_running_loop().call_soon(_tell, consumer, is_active)

    # -- policies, and the end -------------------------------------------------------------------------

    def apply_policies(self) -> None:
        """Others hold from now on, or for another kind of dispatcher."""
        former, limits = self._limiter, self.topic.dispatch_limits
        if limits is not (None if former is None else former.limits):
            self._limiter = None if limits is None else DispatchRateLimiter(limits, self._clock, self.wake)
            if former is not None:
                former.stop()
                self.wake()
        changed = [consumer.heed(self._topic.policies) for consumer in self.dispatcher.consumers]
        if any(changed):
            self.wake()
        if self.delayed.apply_policy(
            self.dispatcher, self._topic.policies.delayed_delivery, is_kept=self.view is None
        ):
            self.wake()

    def close(self) -> None:
        """Read, wait and wake no more. The parts let go of it: circles would stay, see `Topic`."""
        self.source.close()
        self.delayed.stop()
        if self._limiter is not None:
            self._limiter.stop()
        self.segments.freeze()


def _tell(consumer: Consumer, is_active: bool) -> None:
    if consumer.is_open:
        consumer.port.active_changed(is_active)
