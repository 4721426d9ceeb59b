"""Shared: entries are dealt round robin to all consumers, each acknowledged by itself.

Where an entry is, and how it gets there, stands in `holding`. What waits in the queue is dealt before anything new.
Dealing goes by runs: a block is split among the ready consumers of the best priority level, each gets a run of about
its share, not single messages; a stream of small blocks goes round consumer by consumer. A lower level (a higher
number) is dealt something only while nobody of a better one is ready.

All chunks of a message go to the consumer that holds the first one, for a client joins only what it has all of:

    a chunk that is offered                     goes to
    the first of its message                    whose turn it is
    another, of a message that has a holder     its holder; while that is not ready it is put aside, and others go on
    another, of a message without               whose turn it is: the first is acknowledged or gone, nobody can join it

    a message gets a holder     its first chunk is dealt
    and has none any more       its last chunk is dealt; the first is acknowledged, given back, or lost with its holder;
                                `CHUNKED_MESSAGES_MAX` others began after it

What is put aside for a consumer is dealt as soon as that is ready, before anything new, so chunks stay in order. When a
message has no holder any more, what is aside for the former one waits in the queue again: after the first chunk, if
that waits there, and so it follows to whoever gets that.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from pyroaring import BitMap

from quire.runtime.limits import CHUNKED_MESSAGES_MAX, FIRST_CHUNK_BYTES_MIN, LOOK_AHEAD_ENTRIES_MAX
from quire.serving.model.ports import Position
from quire.serving.model.positions import Segments
from quire.serving.model.request import SubscriptionKind
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.cursor.entry_set import EntrySet
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import BlockView, Delivery
from quire.serving.subscription.dispatch.dispatcher import Run
from quire.serving.subscription.dispatch.holding import Holding
from quire.wire.chunks import Chunk

SHARE_MESSAGES_MIN = 16
"""A run is not split below this: dealing one by one costs a frame header call each."""


class _Begun(NamedTuple):
    """A message in chunks: who holds its first one, and where that is."""

    holder: Consumer
    first: Position


class Shared(Holding):
    """All consumers are dealt entries."""

    kind = SubscriptionKind.SHARED

    def __init__(self, cursor: Cursor, segments: Segments) -> None:
        self._turn = 0
        self._share = SHARE_MESSAGES_MIN
        self.begun: dict[str, _Begun] = {}
        """Of messages in chunks that have a holder, by their uuid, the oldest first."""
        self.aside: dict[Consumer, EntrySet] = {}
        """Chunks that wait for the holder of their message, which was not ready; they are not in the queue."""
        self._passed_aside = BitMap()
        """Of the block that is offered, what was put aside."""
        super().__init__(cursor, segments)

    def _can_take(self, consumer: Consumer) -> bool:
        return self.has_room(consumer) and consumer.is_ready

    def _taker(self) -> Consumer | None:
        """The ready consumer of the best level that has any, from the one whose turn it is."""
        best, best_rank = None, (0, False, 0)
        for consumer in self.consumers:
            if self._can_take(consumer):
                rank = consumer.priority_level, consumer.arrival < self._turn, consumer.arrival
                if best is None or rank < best_rank:
                    best, best_rank = consumer, rank
        return best

    def _quota(self, consumer: Consumer) -> int:
        return min(consumer.permits, self._share)

    def _held(self, delivery: Delivery) -> None:
        consumer, view = delivery.consumer, delivery.view
        consumer.unacked += delivery.messages
        if delivery.offsets:
            consumer.holds.add(view.ledger_id, delivery.entries())
        else:
            first = view.first_entry
            consumer.holds.add_span(view.ledger_id, first + delivery.start, first + delivery.stop)
        self._turn = consumer.arrival + 1

    # -- dealing ---------------------------------------------------------------------------------------

    @property
    def has_waiting(self) -> bool:
        return bool(self.queue or self.aside)

    def wanted(self) -> Position | None:
        if self._taker() is None:
            return None
        if self.aside:
            return self._wanted_beside()
        return self.queue.min() if self.queue else self.read

    def _wanted_beside(self) -> Position | None:
        """While chunks are aside: the first of the queue and of those whose holder is ready, before anything new."""
        again = [some.min() for one, some in self.aside.items() if self._can_take(one)]
        if self.queue:
            again.append(self.queue.min())
        if again:
            return min(again)
        return self.read if sum(map(len, self.aside.values())) < LOOK_AHEAD_ENTRIES_MAX else None

    def offer(self, view: BlockView) -> list[Delivery]:
        self._share = self._share_of(view)
        if self.queue or self.aside:
            again = self._again(view)
            if again:
                return self._offer_again(view, again)
        return super().offer(view)

    def _share_of(self, view: BlockView) -> int:
        """How many messages of `view` each ready consumer should get."""
        messages = view.messages(0, view.count)
        if messages <= SHARE_MESSAGES_MIN:
            return SHARE_MESSAGES_MIN
        levels = [c.priority_level for c in self.consumers if c.is_ready]
        return max(SHARE_MESSAGES_MIN, -(-messages // max(1, levels.count(min(levels, default=0)))))

    def _again(self, view: BlockView) -> BitMap:
        """What of `view` waits and may be dealt now."""
        place = view.ledger_id, view.first_entry, view.stop_entry
        again = self.queue.within(*place)
        for consumer, some in self.aside.items():
            if self._can_take(consumer):
                again |= some.within(*place)
        return again

    def _offer_again(self, view: BlockView, again: BitMap) -> list[Delivery]:
        """Deal `again`, which waits, of `view`."""
        deliveries, _ = self._deal(view, self.sorted_runs(view, again))
        self._passed_aside = BitMap()
        for delivery in deliveries:
            self._waits_no_longer(view.ledger_id, delivery.entries())
        return deliveries

    def _deal(self, view: BlockView, runs: Iterable[Run]) -> tuple[list[Delivery], int]:
        if not self.begun and not view.chunks(FIRST_CHUNK_BYTES_MIN):
            return super()._deal(view, runs)
        chunks = view.chunks(0)
        if not chunks:
            return super()._deal(view, runs)
        deliveries: list[Delivery] = []
        for piece in _pieces(runs, chunks):
            chunk = chunks.get(piece.start)
            if chunk is None:
                dealt, stop = super()._deal(view, [piece])
                deliveries += dealt
                if stop < view.count:
                    return deliveries, stop
            elif self._taker() is None:
                return deliveries, piece.start
            else:
                deliveries += self._deal_chunk(view, piece, chunk)
        return deliveries, view.count

    def _pass(self, view: BlockView, start: int, stop: int, unacked: int) -> None:
        if self._passed_aside:
            unacked += self._messages_of(view, self._passed_aside)
            self._passed_aside = BitMap()
        super()._pass(view, start, stop, unacked)

    # -- chunks ----------------------------------------------------------------------------------------

    def _deal_chunk(self, view: BlockView, run: Run, chunk: Chunk) -> list[Delivery]:
        """Deal a chunk to the holder of its message, or put it aside; somebody is ready."""
        at = Position(view.ledger_id, view.first_entry + run.start)
        entry = BitMap((at.entry_id,))
        self._waits_no_longer(at.ledger_id, entry)
        begun = self.begun.get(chunk.uuid)
        consumer = begun.holder if begun is not None else self._taker()
        assert consumer is not None
        if not self._can_take(consumer):
            self.aside.setdefault(consumer, EntrySet()).add(at.ledger_id, entry)
            self._passed_aside |= entry
            return []
        delivery, _ = run.take(consumer, view, 1)
        consumer.permits -= delivery.messages
        self._held(delivery)
        if chunk.is_first:
            self._begins(chunk.uuid, _Begun(consumer, at))
        elif chunk.is_last:
            self._has_no_holder(chunk.uuid)
        return [delivery]

    def _begins(self, uuid: str, begun: _Begun) -> None:
        """The first chunk of a message was dealt; its producer may have sent it again, to the same holder then."""
        self.begun.pop(uuid, None)
        self.begun[uuid] = begun
        if len(self.begun) > CHUNKED_MESSAGES_MAX:
            self._has_no_holder(next(iter(self.begun)))

    def _has_no_holder(self, uuid: str) -> None:
        """Not any more: what is aside for the one that it had is placed anew."""
        begun = self.begun.pop(uuid, None)
        aside = self.aside.pop(begun.holder, None) if begun is not None else None
        for ledger_id, entries in aside.items() if aside is not None else ():
            self._enqueue(ledger_id, entries)

    def _waits_no_longer(self, ledger_id: int, entries: BitMap) -> None:
        """Neither in the queue nor aside."""
        self.queue.remove(ledger_id, entries)
        if self.aside:
            for some in self.aside.values():
                some.remove(ledger_id, entries)
            self.aside = {one: some for one, some in self.aside.items() if some}

    def _left(self, ledger_id: int, entries: BitMap) -> None:
        if not self.begun:
            return
        firsts = [(uuid, begun.first) for uuid, begun in self.begun.items()]
        for uuid in [uuid for uuid, (ledger, entry) in firsts if ledger == ledger_id and entry in entries]:
            self._has_no_holder(uuid)

    def _released(self, ledger_id: int, entries: BitMap) -> None:
        if self.aside:
            self._waits_no_longer(ledger_id, entries)
        super()._released(ledger_id, entries)

    def _drop_queue(self) -> None:
        super()._drop_queue()
        self.begun.clear()
        self.aside.clear()


def _pieces(runs: Iterable[Run], chunks: Container[int]) -> Iterator[Run]:
    """`runs` cut so that each of `chunks` is a run by itself."""
    for run in runs:
        offsets = run.offsets or range(run.start, run.stop)
        for is_chunk, group in groupby(offsets, chunks.__contains__):
            some = list(group)
            for part in [[at] for at in some] if is_chunk else [some]:
                scattered = part if run.offsets and not is_chunk else ()
                yield run._replace(start=part[0], stop=part[-1] + 1, offsets=scattered)
