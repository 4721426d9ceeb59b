"""Shared: entries go round robin to all consumers, each acknowledged by itself. A core.

Where an entry is, and how it gets there, stands in `multi_consumer`. What waits in the queue is dispatched before
anything new. A block is split by runs among the ready consumers of the best priority level, each gets a run of about
its share, not single messages; a stream of small blocks goes round consumer by consumer. A lower level (a higher
number) gets something only while nobody of a better one is ready. All chunks of a message go to one consumer
(`shared_queue`).
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
"""A run is not split below this: one by one costs a frame header call each."""


class Shared(MultiConsumer):
    """All consumers are dispatched entries."""

    kind = SubscriptionKind.SHARED
    queue: SharedQueue

    def __init__(self, cursor: Cursor, segments: Segments) -> None:
        super().__init__(cursor, segments, SharedQueue())
        self._turn = 0
        self._share = SHARE_MESSAGES_MIN
        self._put_aside = BitMap()
        """Of the block that is offered, what was put aside."""

    def _taker(self) -> Consumer | None:
        """The ready consumer of the best level that has any, from the one whose turn it is."""
        best, best_rank = None, (0, False, 0)
        for consumer in self.consumers:
            if can_take(consumer):
                rank = consumer.priority_level, consumer.arrival < self._turn, consumer.arrival
                if best is None or rank < best_rank:
                    best, best_rank = consumer, rank
        return best

    def wanted(self) -> Position | None:
        if self._taker() is None:
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
        """How many messages of `view` each ready consumer should get."""
        messages = view.messages(0, view.count)
        if messages <= SHARE_MESSAGES_MIN:
            return SHARE_MESSAGES_MIN
        levels = [c.priority_level for c in self.consumers if c.is_ready]
        return max(SHARE_MESSAGES_MIN, -(-messages // max(1, levels.count(min(levels, default=0)))))

    def _offer_again(self, view: BlockView, again: BitMap) -> list[Delivery]:
        """Dispatch `again`, which waits, of `view`."""
        deliveries, _ = self._dispatch(view, sorted_runs(self.cursor, view, again))
        self._put_aside = BitMap()
        for delivery in deliveries:
            self.queue.remove(view.ledger_id, delivery.entries())
        return deliveries

    def _dispatch(self, view: BlockView, runs: Iterable[Run]) -> tuple[list[Delivery], int]:
        """Dispatch `runs` in order; the offset where it had to stop, the block's end when all were dispatched."""
        chunks = view.chunks(0 if self.queue.begun else FIRST_CHUNK_BYTES_MIN) and view.chunks(0)
        deliveries: list[Delivery] = []
        for run in _pieces(runs, chunks) if chunks else runs:
            chunk = chunks.get(run.start)
            rest: Run | None = run
            while rest is not None:
                consumer = self._taker()
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
        """Dispatch a chunk to the holder of its message, or put it aside; without a holder to `consumer`."""
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


def _pieces(runs: Iterable[Run], chunks: Container[int]) -> Iterator[Run]:
    """`runs` cut so that each of `chunks` is a run by itself."""
    for run in runs:
        offsets = run.offsets or range(run.start, run.stop)
        for is_chunk, group in groupby(offsets, chunks.__contains__):
            some = list(group)
            for part in [[at] for at in some] if is_chunk else [some]:
                scattered = part if run.offsets and not is_chunk else ()
                yield run._replace(start=part[0], stop=part[-1] + 1, offsets=scattered)
