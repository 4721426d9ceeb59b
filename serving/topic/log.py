"""Log of a persistent topic: a sequence of ledgers, of which the last one is open.

BookKeeper's and Pulsar's equivalent is the managed ledger ([ManagedLedgerImpl]). Its parts are public, and callers use
them directly:

| part | subject |
|---|---|
| `publisher` | runs of SENDs → blocks → receipts |
| `writing` | open ledger |
| `segment_list`, `meta_store` | list of ledgers, and its changes in the metadata store |
| `tail`, `reader` | newest blocks in memory; blocks from the bookies or the archive |
| `time_search` | search by publish time |
| `dedup` | message deduplication |
| `trimming` | deletion of old segments |
| `compaction` | compaction by key |

For subscriptions the log is a `TopicPort`. It holds only a weak reference to its topic, a `Listener`, so a topic
without other references is freed at once, with its log.

[ManagedLedgerImpl]: https://github.com/apache/pulsar/blob/master/managed-ledger/src/main/java/org/apache/bookkeeper/mledger/impl/ManagedLedgerImpl.java
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

UNLOAD_PATIENCE_S: Final = 1.0
"""Time, in seconds, that unloading waits until published messages are confirmed."""


class LedgerLog:
    """Log of one loaded persistent topic. `dedup` is None unless the policies enabled deduplication at the load."""

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
        """Topic epoch in the topic's record at the load."""
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
        self.time_search = finding.TimeSearch(meta_store, reader, services)
        self.tail = services.tail_cache.tail()
        self.dedup_log = dedup_log
        self.dedup = (
            Deduplication(name, segments, reader, publisher, dedup_log, services.clock)
            if is_deduplicating
            else None
        )
        self.compaction = Compaction(name, meta_store, reader, applied, services)
        self.trimming = Trimming(name, meta_store, self.compaction, self.dedup, applied, services)

    def listen(self, listener: Listener, lost: Callable[[], None]) -> None:
        """Set the listener for durable blocks, and the callback that is called when the topic is lost."""
        self.publisher.reports.listen(listener)
        self.meta_store.on_lost = self.writing.on_lost = lost

    # -- life cycle ------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Recover the last ledger, create a new one, and load or remove the deduplication state."""
        await self.writing.begin()
        if self.dedup is None:
            await self.dedup_log.remove(self.name)
        else:
            await self.dedup.begin()

    async def end(self) -> None:
        """Wait for pending receipts, so that clients do not send those messages again; then record the ledger's end."""
        self.compaction.stop()
        await asyncio.wait([self.publisher.flushed()], timeout=UNLOAD_PATIENCE_S)
        await self.writing.end()
        if self.dedup is not None:
            self.dedup.snapshot()

    def abandon(self) -> None:
        """Stop writing and drop unconfirmed messages; clients send them again to the topic's next broker."""
        self.compaction.stop()
        self.writing.abandon()
        self.publisher.drop()
        self.tail.clear()

    async def mark_deleted(self) -> None:
        """Mark the record as being deleted, end the ledger, and remove the deduplication state."""
        self.compaction.stop()
        await self.meta_store.update(lambda record: replace(record, deleting=True))
        await self.writing.end()
        await self.dedup_log.remove(self.name)

    async def delete(self) -> None:
        """Delete the ledgers, the archived objects and, last, the record. A retry continues an interrupted deletion."""
        await self.trimming.discard_all()
        await self.meta_store.delete()

    async def write_epoch(self, epoch: int) -> None:
        """Write a topic epoch to the record after all earlier messages are durable.

        So a new holder of exclusive access can read every message that earlier producers published.
        """
        if not await self.publisher.flushed():
            raise Unavailable(
                f"topic {self.name} was closed before its topic epoch was written; connect again"
            )
        await self.meta_store.update(lambda record: replace(record, topic_epoch=epoch))

    def why_full(self) -> str:
        """Return why the bookies' disks are too full to write to; an empty string if they are not."""
        return self.writing.why_full()

    def keep(self, flights: Sequence[InFlightBlock], *, at_hand: bool) -> None:
        """Cache confirmed blocks if `at_hand`; roll a full segment; count entries for deduplication."""
        active = self.segment_list.active
        assert active is not None
        if at_hand:
            for flight in flights:
                self.tail.put(flight.first, flight.last_entry, flight.block)
        if active.bytes >= self.publisher.reports.segment_bytes_max:
            self.writing.roll()
        if self.dedup is not None:
            self.dedup.written(sum(flight.entry_count for flight in flights))

    # -- TopicPort, for subscriptions ------------------------------------------------------------------

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
        return await finding.unless_trimmed(self, lambda: self.time_search.find(time_ms))

    async def find_clock(self, clock_ms: int) -> Position:
        """Return the position from which a read includes all blocks cut at `clock_ms` (broker's clock) or later."""
        return await finding.unless_trimmed(
            self, lambda: finding.find_clock(self.segment_list, self.reader, clock_ms)
        )

    async def last_message(self) -> tuple[Position, int]:
        return await finding.last_message(self)

    async def compacted_view(self) -> CompactedPort | None:
        return await self.compaction.view(self)
