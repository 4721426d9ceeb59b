"""Shared dispatcher: sends entries round-robin to all consumers; they are acknowledged individually. Performs no I/O.

`multi_consumer` lists the states of an entry. Waiting entries are dispatched before new ones. A block is split into
runs for the ready consumers of the best priority level: each is sent a run of about its share, not single messages.
A stream of small blocks goes to one consumer after the other. A lower level (a higher number) is sent entries only
while no consumer of a better level is ready. All chunks of a message go to one consumer (`shared_queue`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import groupby

from pyroaring import BitMap

from quire.runtime.limits import FIRST_CHUNK_BYTES_MIN, LOOK_AHEAD_ENTRIES_MAX
from quire.serving.model.ports import Position
from quire.serving.model.positions import Segments
from quire.serving.model.request import SubscriptionKind
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import BlockView, Delivery
from quire.serving.subscription.dispatch.multi_consumer import MultiConsumer
from quire.serving.subscription.dispatch.pending_acks import can_take
from quire.serving.subscription.dispatch.runs import Run, messages_left, sorted_runs
from quire.serving.subscription.dispatch.shared_queue import SharedQueue
from quire.wire.chunks import Chunk

SHARE_MESSAGES_MIN = 16
"""Minimum share of a consumer, in messages, because each share needs a call to encode its frame headers."""


class Shared(MultiConsumer):
    """Dispatcher that distributes entries among all consumers."""

    kind = SubscriptionKind.SHARED
    queue: SharedQueue

    def __init__(self, cursor: Cursor, segments: Segments) -> None:
        super().__init__(cursor, segments, SharedQueue())
        self._turn = 0
        self._share = SHARE_MESSAGES_MIN
        self._put_aside = BitMap()
        """Entries of the offered block that were put aside."""

    def _next_consumer(self) -> Consumer | None:
        """Return the next ready consumer of the best priority level, round-robin; None if no consumer is ready."""
        best, best_rank = None, (0, False, 0)
        for consumer in self.consumers:
            if can_take(consumer):
                rank = consumer.priority_level, consumer.arrival < self._turn, consumer.arrival
                if best is None or rank < best_rank:
                    best, best_rank = consumer, rank
        return best

    def wanted(self) -> Position | None:
        if self.pending.is_blocked or not any(map(can_take, self.consumers)):
            return None
        first = self.queue.first()
        if first is not None:
            return first
        aside = self.queue.aside
        is_enough = aside and sum(map(len, aside.values())) >= LOOK_AHEAD_ENTRIES_MAX
        return None if is_enough else self.read.position

    def offer(self, view: BlockView) -> list[Delivery]:
        self._share = self._share_of(view)
        if self.queue:
            again = self.queue.within(view)
            if again:
                return self._offer_again(view, again)
        assert view.holds(*self.read.position)
        start = self.read.position.entry_id - view.first_entry
        deliveries, stop = self._dispatch(view, self.delayed.runs(view, start))
        unacked = sum([delivery.messages for delivery in deliveries])
        if self._put_aside:
            unacked += messages_left(self.cursor, view, self._put_aside)
            self._put_aside = BitMap()
        self.delayed.move_over(view, start, stop, unacked)
        return deliveries

    def _share_of(self, view: BlockView) -> int:
        """Return the number of messages of `view` to send to each ready consumer."""
        messages = view.messages(0, view.count)
        if messages <= SHARE_MESSAGES_MIN:
            return SHARE_MESSAGES_MIN
        levels = [c.priority_level for c in self.consumers if c.is_ready]
        return max(SHARE_MESSAGES_MIN, -(-messages // max(1, levels.count(min(levels, default=0)))))

    def _offer_again(self, view: BlockView, again: BitMap) -> list[Delivery]:
        """Dispatch `again`, the waiting entries of `view`."""
        deliveries, _ = self._dispatch(view, sorted_runs(self.cursor, view, again))
        self._put_aside = BitMap()
        for delivery in deliveries:
            self.queue.remove(view.ledger_id, delivery.entries())
        return deliveries

    def _dispatch(self, view: BlockView, runs: Iterable[Run]) -> tuple[list[Delivery], int]:
        """Dispatch `runs` in order.

        Return the deliveries, and the offset at which it stopped (the block's end if all runs were dispatched).
        """
        chunks = view.chunks(0 if self.queue.begun else FIRST_CHUNK_BYTES_MIN) and view.chunks(0)
        deliveries: list[Delivery] = []
        for run in _split_at_chunks(runs, chunks) if chunks else runs:
            chunk = chunks.get(run.start)
            rest: Run | None = run
            while rest is not None:
                consumer = self._next_consumer()
                if consumer is None:
                    return deliveries, rest.start
                if chunk is not None:
                    deliveries += self._dispatch_chunk(view, run, chunk, consumer)
                    break
                delivery, rest = rest.take(consumer, view, min(consumer.permits, self._share))
                self._hold(delivery)
                deliveries.append(delivery)
        return deliveries, view.count

    def _dispatch_chunk(self, view: BlockView, run: Run, chunk: Chunk, consumer: Consumer) -> list[Delivery]:
        """Dispatch a chunk to its message's holder (to `consumer` if there is none), or put it aside."""
        at = Position(view.ledger_id, view.first_entry + run.start)
        entry = BitMap((at.entry_id,))
        self.queue.remove(at.ledger_id, entry)
        begun = self.queue.begun.get(chunk.uuid)
        if begun is not None:
            consumer = begun.holder
        if not can_take(consumer):
            self.queue.put_aside(consumer, at)
            self._put_aside |= entry
            return []
        delivery, _ = run.take(consumer, view, 1)
        self._hold(delivery)
        if chunk.is_first:
            self.queue.message_begins(chunk.uuid, consumer, at)
        elif chunk.is_last:
            self.queue.message_ends(chunk.uuid)
        return [delivery]

    def _hold(self, delivery: Delivery) -> None:
        self.pending.add(delivery)
        self._turn = delivery.consumer.arrival + 1


def _split_at_chunks(runs: Iterable[Run], chunks: Container[int]) -> Iterator[Run]:
    """Split `runs` so that each of `chunks` is a separate run."""
    for run in runs:
        offsets = run.offsets or range(run.start, run.stop)
        for is_chunk, group in groupby(offsets, chunks.__contains__):
            some = list(group)
            for part in [[at] for at in some] if is_chunk else [some]:
                scattered = part if run.offsets and not is_chunk else ()
                yield run._replace(start=part[0], stop=part[-1] + 1, offsets=scattered)
