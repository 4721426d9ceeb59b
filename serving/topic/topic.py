"""A loaded topic: the one object that sessions publish to and subscriptions read from.

It joins the parts of this folder, each of which knows one thing:

    publish   runs of SENDs → blocks → receipts        writing    the ledger that is written to
    segments  the list, by version                     reading    blocks from bookies or archive
    tail_cache  the newest blocks                      dedup      what was sent twice
    producers   who may publish                        retention  what may go

and it implements `TopicPort` for subscriptions (`quire.serving.model.ports`). Its life is in `lifecycle/states`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import Final

from msgspec.structs import replace

from quire.metadata import topics
from quire.metadata.records import ArchivePointer, DelayedDeliveryPolicy, SegmentRecord
from quire.runtime.errors import DiskFull, NotFound, QuireError, Unavailable
from quire.serving.model.ports import CompactedPort, Position, SegmentView, was_unloaded
from quire.serving.model.rates import Totals
from quire.serving.names import TopicName
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.topic import finding
from quire.serving.topic.compaction.compaction import Compaction
from quire.serving.topic.deduplication import Deduplication, DedupLog
from quire.serving.topic.entrance import Entrance
from quire.serving.topic.governed import Governed
from quire.serving.topic.lifecycle.rest import Rest
from quire.serving.topic.lifecycle.retention import trimmable
from quire.serving.topic.lifecycle.states import IN_USE, Event
from quire.serving.topic.lifecycle.upkeep import Upkeep
from quire.serving.topic.producers import Admission, TopicTerminated
from quire.serving.topic.publish import Flight, Publisher
from quire.serving.topic.reading import TopicReader
from quire.serving.topic.segments import Active, Segments
from quire.serving.topic.services import Services
from quire.serving.topic.writing import Writing
from quire.wire import block as blocks
from quire.wire.block import Buffer
from quire.wire.frame import Send, SendRun

TIME_SKEW_MS: Final = 10_000
"""How far a client's clock may be ahead of the broker's for seek by time to find its messages."""

SHED_AFTER_S: Final = 60.0
SHED_EVERY_S: Final = 0.001
"""One after the other: a bundle's thousands would take a second of one turn."""

PARTS: Final = (
    "compaction",
    "producers",
    "rest",
    "segment_list",
    "subscriptions",
    "upkeep",
    "_dedup",
    "_publisher",
    "_reader",
    "_writing",
)
"""What a topic that was dropped lets go of."""

UNLOAD_PATIENCE_S: Final = 1.0
"""How long unloading waits for what was published to be confirmed."""

_log = logging.getLogger(__name__)


class Topic(Governed):
    """`subscriptions` is set by the broker before `load`."""

    def __init__(
        self,
        name: TopicName,
        services: Services,
        snapshot: topics.Topic,
        policies: TopicPolicies,
        dedup_log: DedupLog,
        on_lost: Callable[[Topic], None],
        totals: Totals | None = None,
    ) -> None:
        super().__init__(name, services, policies, totals)
        self._on_lost = on_lost
        self._dedup_log = dedup_log
        self.segment_list = Segments(services.store, snapshot, self._lost)
        self._publisher = Publisher(services.turn, services.budget, self)
        self._writing = Writing(
            self.name,
            services,
            self.segment_list,
            self._publisher,
            lambda: self.policies.persistence,
            self._lost,
        )
        self._reader = TopicReader(self.segment_list, services.ledgers, services.archive)
        self._tail = services.tail_cache.tail()
        self._dedup = (
            Deduplication(
                self.name, self.segment_list, self._reader, self._publisher, dedup_log, services.clock
            )
            if policies.deduplication
            else None
        )
        self.compaction = Compaction(self, services)
        self.upkeep = Upkeep(self, services.clock)
        self.refusal: tuple[type[QuireError], str] | None = None
        """Why no producer is let in, if a backlog quota is exceeded."""
        self.producers = Entrance(
            self.name,
            self.segment_list.record.topic_epoch,
            self._write_epoch,
            self.last_sequence_id,
            services.tasks,
        )
        self._flushes: dict[asyncio.Future[bool], None] = {}
        self._is_terminating = False
        self.rest = Rest(self, services)

    # -- life ------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        return self.segment_list.record.generation

    @property
    def is_terminated(self) -> bool:
        return self.segment_list.record.terminated

    @property
    def is_used(self) -> bool:
        """Somebody publishes or consumes."""
        return bool(self.producers.all()) or any(one.consumers for one in self.subscriptions)

    @property
    def has_messages(self) -> bool:
        """It keeps some; acknowledged or not."""
        return any(view.messages for view in self.segments())

    @property
    def deduplicates(self) -> bool:
        return self._dedup is not None

    @property
    def delayed_delivery(self) -> DelayedDeliveryPolicy:
        return self.policies.delayed_delivery

    async def load(self) -> None:
        """Recover the last ledger, begin an own one, and remember what producers sent."""
        try:
            await self._writing.begin()
            if self._dedup is None:
                await self._dedup_log.remove(self.name)
            else:
                await self._dedup.begin()
            if self.is_closed:
                raise was_unloaded(self.name)
        except BaseException:
            self._writing.abandon()
            raise
        self.enter(Event.LOADED)

    async def unload(self) -> None:
        """Close it and let everybody go. The clients will look the topic up again."""
        try:
            await self.close()
        finally:
            self.drop()

    async def close(self) -> None:
        """Answer what was taken, else the clients would send it twice, and write down how the ledger ended.

        What comes from now on is not taken. The producers stay until `drop`: a client that is let go comes back after
        a tenth of a second, twice that when it comes too early, and should find the topic where it goes.
        """
        if self.is_closed:
            return  # it was lost, or deleted, before its turn came
        self.enter(Event.CLOSE)
        self.compaction.stop()
        self.producers.shut()
        self.subscriptions.close()
        await asyncio.wait([self.flushed()], timeout=UNLOAD_PATIENCE_S)
        await self._writing.end()
        if self._dedup is not None:
            self._dedup.snapshot()

    def drop(self, service_url: str = "") -> None:
        """Write nothing more, and forget what is not confirmed: its bytes count no longer.

        The clients are sent to `service_url`, where the topic is now, or to look it up.
        """
        self._end(Event.DROP, service_url)

    def _lost(self) -> None:
        """Another broker owns the topic: whoever met it, nothing of this incarnation goes on."""
        self._end(Event.LOST)
        self._on_lost(self)

    async def delete(self, forget: Callable[[], Awaitable[None]]) -> None:
        """Remove everything: cursors, ledgers, archived objects, the record. Tried again, it goes on.

        `forget` removes what others keep of the topic. The record, which is marked first, goes last: as long as
        anything is left nobody has the name, and whoever meets the topic goes on. A topic whose deletion was
        interrupted is not loaded for that.
        """
        self.enter(Event.DELETE)
        self._send_away()
        try:
            try:
                await self.segment_list.update(lambda record: replace(record, deleting=True))
                await self._writing.end()
            finally:
                self._forget_unconfirmed()
            await self.subscriptions.forget()
            await self._dedup_log.remove(self.name)
            await forget()
            if self.compaction.record is not None:
                await self._discard(SegmentRecord(ledger_id=self.compaction.record.ledger_id))
            for segment in self.segment_list.listed:
                await self._discard(segment)
            await self.segment_list.delete()
        finally:
            self.enter(Event.DELETED)
            self._shed_later()

    def _end(self, event: Event, service_url: str = "") -> None:
        if self.state in IN_USE:
            self.enter(event)
            self._forget_unconfirmed()
            self._send_away(service_url)
            self._shed_later()

    def _send_away(self, service_url: str = "") -> None:
        if self.publish_limiter is not None:
            self.publish_limiter.open()
        self.compaction.stop()
        self.producers.close_all(service_url)
        self.subscriptions.close()

    def _forget_unconfirmed(self) -> None:
        """Nothing more is written, and nothing unconfirmed answered: the clients send it again where the topic is."""
        self._writing.abandon()
        self._publisher.drop()
        self._tail.clear()
        for flush in [one for one in self._flushes if not one.done()]:
            flush.set_result(False)

    def _shed_later(self) -> None:
        """Come apart when whoever still has a hand in it is done.

        The parts know the topic and it knows them. Only the collector would free such circles, and it hardly ever
        walks over what is old (`runtime.memory`): topics that come and go would cost 7 KB each for good.
        """
        loop, services = asyncio.get_running_loop(), self._services
        services.shed_at = max(loop.time() + SHED_AFTER_S, services.shed_at + SHED_EVERY_S)
        loop.call_at(services.shed_at, self._shed)

    def _shed(self) -> None:
        for part in PARTS:
            self.__dict__.pop(part, None)

    async def terminate(self) -> Position:
        """No more messages, for good. Answers the last position; nothing is taken from the first moment on."""
        if not self.is_terminated:
            self._is_terminating = True
            self.producers.close_all()
            try:
                if not await self.flushed():
                    raise Unavailable(f"topic {self.name} was closed meanwhile; terminate it again")
                await self.segment_list.update(lambda record: replace(record, terminated=True))
            finally:
                self._is_terminating = False
            for subscription in self.subscriptions:
                subscription.tell_end()
        return self.last_confirmed

    def flushed(self) -> asyncio.Future[bool]:
        """True when everything published so far is confirmed, False when it was dropped instead."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._flushes[future] = None
        future.add_done_callback(lambda _: self._flushes.pop(future, None))
        self._publisher.when_answered(lambda: None if future.done() else future.set_result(True))
        return future

    # -- publishing ------------------------------------------------------------------------------------

    async def admit(self, admission: Admission) -> None:
        """Let a producer in, or let it wait until its port is told `ready`.

        Raises `ProducerBusy`, `ProducerFenced`, `TopicTerminated`, `BacklogHeld`, `BacklogExceeded`; `Unavailable`
        when the topic was closed; `DiskFull`.
        """
        if self.is_closed:
            raise Unavailable(f"topic {self.name} was closed meanwhile")
        if self.is_terminated or self._is_terminating:
            raise TopicTerminated(f"topic {self.name} was terminated: it takes no more messages")
        self.upkeep.heed_quotas()
        if self.refusal is not None:
            kind, why = self.refusal
            raise kind(f"topic {self.name} takes no messages now: {why}")
        if full := self._writing.why_full():
            raise DiskFull(f"topic {self.name} takes no messages now: {full}")
        await self.producers.admit(admission)

    def apply(self, policies: TopicPolicies) -> None:
        super().apply(policies)
        self.upkeep.heed_quotas()

    async def _write_epoch(self, epoch: int) -> None:
        """After all that others have published: who is told that it is alone finds that in the topic."""
        if not await self.flushed():
            raise Unavailable(f"topic {self.name} was closed meanwhile")
        await self.segment_list.update(lambda record: replace(record, topic_epoch=epoch))

    def last_sequence_id(self, producer: str) -> int:
        return -1 if self._dedup is None else self._dedup.last_sequence_id(producer)

    def publish(self, producer: Admission, run: SendRun) -> None:
        """Take a run of SENDs; the producer gets their receipts in order once they are durable."""
        if not self.takes_from(producer):
            return
        if self._dedup is None:
            self._publisher.publish(producer.port, run.heads, run.entries, run.counts)
        else:
            self._dedup.publish(producer.port, run)

    def publish_chunk(self, producer: Admission, send: Send) -> None:
        """Take one SEND of a chunked message."""
        if not self.takes_from(producer):
            return
        if self._dedup is not None and not self._dedup.admits_chunk(producer.port, send):
            return
        counts = None if send.message_count == 1 else [send.message_count]
        self._publisher.publish(producer.port, [send.head], [send.entry], counts)

    @property
    def is_full(self) -> bool:
        """Nothing should be published now; see `when_drained`."""
        return self._publisher.is_full

    def when_drained(self, done: Callable[[], None]) -> None:
        """Call `done` once when it may be published again, or the topic is dropped."""
        self._publisher.when_drained(done)

    def when_answered(self, done: Callable[[], None]) -> None:
        """Call `done` behind the receipts of everything published so far; never if that is dropped."""
        self._publisher.when_answered(done)

    def when_settled(self, done: Callable[[], None]) -> None:
        """The same, but `done` is called also when what was published is dropped."""
        self.flushed().add_done_callback(lambda _: done())

    def blocks_confirmed(self, flights: Sequence[Flight]) -> None:
        """Blocks are durable and their receipts are written: count them, keep them, tell the subscriptions."""
        active = self.segment_list.active
        assert active is not None and active.ledger_id == flights[0].ledger_id
        if active.last_entry < 0:
            active.first_clock_ms = flights[0].clock_ms
        for flight in flights:
            self._count(flight, active)
        if len(self.subscriptions):
            for flight in flights:
                self._tail.put(
                    Position(flight.ledger_id, flight.first_entry), flight.last_entry, flight.block
                )
            self.subscriptions.confirmed([(flight.block, blocks.peek(flight.block)) for flight in flights])
        if active.bytes >= self._services.settings.segment_bytes_max:
            self._writing.roll()
        if self._dedup is not None:
            self._dedup.written(sum(flight.entry_count for flight in flights))

    def _count(self, flight: Flight, active: Active) -> None:
        """One confirmed block of the active segment."""
        messages, byte_count = flight.message_count, flight.byte_count
        active.last_entry = flight.last_entry
        active.last_clock_ms = flight.clock_ms
        active.messages += messages
        active.bytes += len(flight.block)
        self.messages_in += messages
        self.bytes_in += byte_count
        self._totals.messages_in += messages
        self._totals.bytes_in += byte_count

    # -- what subscriptions see: TopicPort -------------------------------------------------------------

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
        return self._tail.find(position)

    async def read(self, position: Position, bytes_max: int) -> Sequence[Buffer]:
        if position > self.last_confirmed:
            return ()
        return await self._reader.read(position, bytes_max)

    async def index_of(self, position: Position) -> int:
        return await finding.unless_trimmed(self, lambda: finding.index_of(self, position))

    async def position_of(self, index: int) -> Position:
        return await finding.unless_trimmed(self, lambda: finding.position_of(self, index))

    async def find_time(self, time_ms: int) -> Position:
        return await self.find_clock(time_ms - TIME_SKEW_MS)

    async def find_clock(self, wanted_ms: int) -> Position:
        return await finding.unless_trimmed(
            self, lambda: finding.find_clock(self.segment_list, self._reader, wanted_ms)
        )

    async def last_message(self) -> tuple[Position, int]:
        return await finding.unless_trimmed(self, lambda: finding.last_message(self))

    async def compacted_view(self) -> CompactedPort | None:
        return await self.compaction.view()

    def acknowledged_up_to(self, subscription: str) -> None:
        """Trimming looks at all cursors on the broker's tick; but who reads a terminated topic to its end is told."""
        if self.is_terminated:
            for one in self.subscriptions:
                if one.name == subscription:
                    one.tell_end()

    # -- segments: rolling, trimming, the archive --------------------------------------------------------

    def roll(self) -> asyncio.Task[None] | None:
        """Seal the active segment and go on in a new one; None when there is nothing to seal."""
        active = self.segment_list.active
        return self._writing.roll() if active is not None and active.last_entry >= 0 else None

    def roll_if_old(self) -> None:
        active = self.segment_list.active
        now_ms = self._services.clock.now_ms()
        if active is not None and now_ms - active.created_ms >= self._services.settings.segment_age_ms_max:
            self.roll()

    def leave(self, ledger_ids: Container[int]) -> None:
        """Begin another ledger when the active one is among `ledger_ids`, even if it is empty."""
        active = self.segment_list.active
        if active is not None and active.ledger_id in ledger_ids:
            self._writing.roll()

    async def trim(self) -> int:
        """Drop what retention and subscriptions no longer need. Answers how many segments went."""
        if self.is_closed:
            return 0  # its subscriptions are gone from here, not from the topic: as it seems, nobody needs anything
        retention = self.policies.retention
        if retention.retention_ms < 0 and retention.retention_bytes < 0:
            return 0
        sealed = self.segment_list.sealed
        active = self.segment_list.active
        marks = [one.mark_delete for one in self.subscriptions if one.is_durable]
        kept = self.compaction.keeps
        count = trimmable(
            sealed,
            0 if active is None else active.bytes,
            marks if kept is None else [*marks, kept],
            retention,
            self._services.clock.now_ms(),
        )
        if not count or active is None:
            return 0
        first_kept = sealed[count].ledger_id if count < len(sealed) else active.ledger_id
        for segment in await self.segment_list.trim(first_kept):
            await self._discard(segment)
        return count

    async def archived(self, ledger_id: int, pointer: ArchivePointer) -> None:
        await self.segment_list.archived(ledger_id, pointer)

    async def _discard(self, segment: SegmentRecord) -> None:
        """Delete what a segment that no list names any more has left behind: at the bookies, and in the archive.

        A failure leaves the one to repair, or to a search for orphans, and the other to a scrub.
        """
        archive, pointer = self._services.archive, segment.archive
        try:
            await self._services.ledgers.delete(segment.ledger_id)
        except NotFound:
            pass
        except QuireError as error:
            _log.warning("%s: segment %d is trimmed but not deleted: %s", self.name, segment.ledger_id, error)
        if pointer is None or archive is None:
            return
        try:
            await archive.delete(pointer)
        except QuireError as error:
            _log.warning(
                "%s: archive object %s is trimmed but not deleted: %s", self.name, pointer.name, error
            )
