"""The log of a topic that keeps its messages: the ledgers that it is written to, one after the other, and read from.

Its parts know one thing each, and who wants one of them asks it by itself:

    publisher     runs of SENDs → blocks → receipts    writing     the ledger that is written to
    segment_list  the ledgers                          meta_store  its changes, by version
    tail          the newest blocks                    reader      blocks from bookies or archive
    dedup         what was sent twice                  trimming    what may go
    compaction    the last message of each key

To subscriptions it is a `TopicPort`. It knows its topic as who listens (`listen`) alone, and weakly: a topic that
nobody has any more is gone at once, with its log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from quire.metadata import topics
from quire.runtime.errors import Unavailable
from quire.serving.model.ports import CompactedPort, Position, SegmentView
from quire.serving.names import TopicName
from quire.serving.policy.applied import AppliedPolicies
from quire.serving.policy.rate_limiter import DispatchLimits
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.topic import finding
from quire.serving.topic.compaction.compaction import Compaction
from quire.serving.topic.deduplication import Deduplication, DedupLog
from quire.serving.topic.lifecycle.trimming import Trimming
from quire.serving.topic.meta_store import MetaStore
from quire.serving.topic.publish import Listener, Publisher, Reports
from quire.serving.topic.reading import TopicReader
from quire.serving.topic.runs import InFlightBlock
from quire.serving.topic.services import Services
from quire.serving.topic.writing import Writing
from quire.wire.block import Buffer

TIME_SKEW_MS: Final = 10_000
"""How far a client's clock may be ahead of the broker's for seek by time to find its messages."""

UNLOAD_PATIENCE_S: Final = 1.0
"""How long unloading waits for what was published to be confirmed."""


class LedgerLog:
    """`dedup` is None while the policies do not ask for it."""

    def __init__(
        self,
        name: str,
        services: Services,
        snapshot: topics.Topic,
        applied: AppliedPolicies,
        dedup_log: DedupLog,
    ) -> None:
        self.name = name
        self.tracing: Final = services.tracing
        self.topic_epoch: Final = snapshot.record.topic_epoch
        """As it was before the load."""
        self._applied = applied
        self.meta_store = meta_store = MetaStore(services.store, snapshot)
        self.segment_list = segments = meta_store.segments
        is_deduplicating = applied.policies.deduplication
        self.publisher = publisher = Publisher(
            services.turn,
            services.shares.of(TopicName.parse(name).tenant),
            Reports(
                services.turn,
                services.settings.segment_bytes_max,
                is_heard=is_deduplicating or services.tracing is not None,
            ),
        )
        self.writing = Writing(name, services, meta_store, publisher, applied)
        self.reader = reader = TopicReader(segments, services.ledgers, services.archive)
        self.tail = services.tail_cache.tail()
        self.dedup_log = dedup_log
        self.dedup = (
            Deduplication(name, segments, reader, publisher, dedup_log, services.clock)
            if is_deduplicating
            else None
        )
        self.compaction = Compaction(name, meta_store, reader, applied, services)
        self.trimming = Trimming(name, meta_store, self.compaction, applied, services)

    def listen(self, listener: Listener, lost: Callable[[], None]) -> None:
        """Say who is told of blocks that are durable, and what is called when the topic is lost."""
        self.publisher.reports.listen(listener)
        self.meta_store.on_lost = self.writing.on_lost = lost

    # -- life ------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Recover the last ledger, begin an own one, and remember what producers sent."""
        await self.writing.begin()
        if self.dedup is None:
            await self.dedup_log.remove(self.name)
        else:
            await self.dedup.begin()

    async def end(self) -> None:
        """Answer what was taken, else the clients would send it twice, and write down how the ledger ended."""
        self.compaction.stop()
        await asyncio.wait([self.publisher.flushed()], timeout=UNLOAD_PATIENCE_S)
        await self.writing.end()
        if self.dedup is not None:
            self.dedup.snapshot()

    def abandon(self) -> None:
        """Nothing more is written, and nothing unconfirmed answered: the clients send it again where the topic is."""
        self.compaction.stop()
        self.writing.abandon()
        self.publisher.drop()
        self.tail.clear()

    async def mark_deleted(self) -> None:
        """Write down that the topic is being deleted, write nothing else, and forget what producers sent."""
        self.compaction.stop()
        await self.meta_store.update(lambda record: replace(record, deleting=True))
        await self.writing.end()
        await self.dedup_log.remove(self.name)

    async def delete(self) -> None:
        """Remove the ledgers, the archived objects and, last, the record. Tried again, it goes on."""
        await self.trimming.discard_all()
        await self.meta_store.delete()

    async def write_epoch(self, epoch: int) -> None:
        """After all that others have published: who is told that it is alone finds that in the topic."""
        if not await self.publisher.flushed():
            raise Unavailable(f"topic {self.name} was closed meanwhile")
        await self.meta_store.update(lambda record: replace(record, topic_epoch=epoch))

    def why_full(self) -> str:
        """Why nothing can be written now, if it is for want of room; empty when there is some."""
        return self.writing.why_full()

    def keep(self, flights: Sequence[InFlightBlock], *, at_hand: bool) -> None:
        """Keep blocks that were confirmed `at_hand` for subscriptions, if there are any; roll a full segment."""
        active = self.segment_list.active
        assert active is not None
        if at_hand:
            for flight in flights:
                self.tail.put(flight.first, flight.last_entry, flight.block)
        if active.bytes >= self.publisher.reports.segment_bytes_max:
            self.writing.roll()
        if self.dedup is not None:
            self.dedup.written(sum(flight.entry_count for flight in flights))

    # -- what subscriptions see: TopicPort -------------------------------------------------------------

    @property
    def policies(self) -> TopicPolicies:
        return self._applied.policies

    @property
    def dispatch_limits(self) -> DispatchLimits | None:
        return self._applied.dispatch_limits

    @property
    def is_terminated(self) -> bool:
        return self.segment_list.record.terminated

    @property
    def last_confirmed(self) -> Position:
        return self.segment_list.last_position()

    @property
    def confirmed_index(self) -> int:
        return self.segment_list.next_index()

    def segments(self) -> Sequence[SegmentView]:
        return self.segment_list.views()

    def first_position(self) -> Position:
        return self.segment_list.first_position()

    def next_position(self, position: Position) -> Position:
        return self.segment_list.next_position(position)

    def cached(self, position: Position) -> Sequence[Buffer]:
        return self.tail.find(position)

    async def read(self, position: Position, bytes_max: int) -> Sequence[Buffer]:
        if position > self.last_confirmed:
            return ()
        return await self.reader.read(position, bytes_max)

    async def index_of(self, position: Position) -> int:
        return await finding.index_of(self, position)

    async def find_time(self, time_ms: int) -> Position:
        return await self.find_clock(time_ms - TIME_SKEW_MS)

    async def find_clock(self, clock_ms: int) -> Position:
        """Where reading must begin so that no block is missed that was cut at `clock_ms` (broker's clock) or later."""
        return await finding.unless_trimmed(
            self, lambda: finding.find_clock(self.segment_list, self.reader, clock_ms)
        )

    async def last_message(self) -> tuple[Position, int]:
        return await finding.last_message(self)

    async def compacted_view(self) -> CompactedPort | None:
        return await self.compaction.view(self)
