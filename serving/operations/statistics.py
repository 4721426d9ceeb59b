"""Statistics of topics: Pulsar's `stats` and `internalStats`, the read plan for Spark, the reasons to keep segments.

All of them are computed on request, from existing counters. `model/statistics` defines the fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from msgspec import UNSET, Struct, UnsetType, convert

from quire.ledger.holes import lost_messages
from quire.ledger.ledgers import Ledgers
from quire.metadata.records import CompactedRecord, SegmentRecord, SegmentState
from quire.metadata.segment_states import segment_state
from quire.runtime.errors import NotFound, QuireError
from quire.serving.model.ports import Position
from quire.serving.model.statistics import (
    ArchivedObject,
    CompactedLedger,
    DamagedSegment,
    InternalStats,
    LedgerStats,
    PartitionedInternalStats,
    PartitionedMetadata,
    PartitionedTopicStats,
    TopicStats,
    earliest,
    oldest_of,
)
from quire.serving.names import TopicName
from quire.serving.operations.fan_out import FanOut, TopicRequest
from quire.serving.ownership.peers import reader_of
from quire.serving.registry.offloading import Offloading
from quire.serving.registry.registry import Registry
from quire.serving.registry.topic_loader import subscriptions_of
from quire.serving.topic.finding import unless_trimmed
from quire.serving.topic.lifecycle.explain import Circumstances, KeptSegment, explain
from quire.serving.topic.services import Services
from quire.serving.topic.time_search import UNLIMITED_MS
from quire.serving.topic.topic import AnyTopic, PersistentTopic, is_persistent

T = TypeVar("T")


class EndPosition(Struct):
    ledger: int
    entry: int


class SegmentPlan(Struct):
    """Storage location and totals of a segment, for the Spark source. Times are in ms since 1970."""

    ledger_id: int
    first_index: int
    last_entry: int
    messages: int
    bytes: int
    first_clock_ms: int
    last_clock_ms: int
    created_ms: int
    sealed_ms: int
    publish_min_ms: int
    publish_max_ms: int
    archive: ArchivedObject | None
    on_bookies: bool
    state: str = ""
    """Value of `SegmentState`."""
    first_entry: int | UnsetType = UNSET
    """First entry that may be in the requested time range; `end_entry` is the entry after the last such entry."""
    end_entry: int | UnsetType = UNSET


class ReadPlan(Struct):
    """Segments of a topic, and its confirmed end; for a partitioned topic, only the number of partitions."""

    topic: str
    partitions: int = 0
    generation: int | UnsetType = UNSET
    segments: list[SegmentPlan] = []
    end: EndPosition | None = None


class Explanation(Struct, rename="camel"):
    """Reasons to keep each segment of a topic, and the policies that determine them."""

    topic: str
    now_ms: int
    retention_ms: int
    retention_bytes: int
    message_ttl_ms: int
    producers_held_off: str
    """Reason why producers are rejected; empty if they are not."""
    segments: list[KeptSegment]


class Statistics:
    def __init__(
        self, registry: Registry, services: Services, fan_out: FanOut, offloading: Offloading | None
    ) -> None:
        self._registry = registry
        self._services = services
        self._fan_out = fan_out
        self._offloading = offloading

    async def stats(self, name: TopicName) -> TopicStats | PartitionedTopicStats:
        """Return Pulsar's `stats` of a topic; for a partitioned topic, the sums over its partitions."""
        if await self._fan_out.partitions(name):
            return await self.partitioned(name)
        return await self._stats_of(name)

    async def _stats_of(self, name: TopicName) -> TopicStats:
        return await _of_topic(await self._registry.open(name), self._services)

    async def partitioned(self, name: TopicName) -> PartitionedTopicStats:
        """Return Pulsar's `partitioned-stats`. Raises `NotFound`."""
        request = TopicRequest(self._stats_of, "GET", "/stats", read=reader_of(TopicStats))
        return PartitionedTopicStats.merge(*await self._ask_partitions(name, request))

    async def internal(self, name: TopicName) -> InternalStats:
        """Return Pulsar's `internalStats`."""
        return await _internal(await self._registry.open_persistent(name), self._services)

    async def partitioned_internal(self, name: TopicName) -> PartitionedInternalStats:
        """Return Pulsar's `partitioned-internalStats`, with the used partitions. Raises `NotFound`."""
        request = TopicRequest(self.internal, "GET", "/internalStats", read=reader_of(InternalStats))
        return PartitionedInternalStats(*await self._ask_partitions(name, request))

    async def _ask_partitions(
        self, name: TopicName, request: TopicRequest[T]
    ) -> tuple[PartitionedMetadata, dict[str, T]]:
        """Return a topic's metadata, and the result of each used partition by its full name."""
        record = await self._fan_out.record(name)
        used = await self._fan_out.used_partitions(name, record)
        answers = await self._fan_out.ask_partitions(used, request, (NotFound,))
        metadata = PartitionedMetadata(record.partitions, record.deleting, record.properties)
        return metadata, {str(one): said for one, said in answers.found.items()}

    async def segments(self, name: TopicName, *, start_ms: int = 0, end_ms: int = 0) -> ReadPlan:
        """Return the read plan of `GET /quire/v1/topics/…/segments`; see `quire.spark_source.plan`.

        With a range of publish times (ms; 0: unlimited), the rows of unarchived segments also contain the entries that
        may be in that range.
        """
        count = await self._fan_out.partitions(name)
        if count:
            return ReadPlan(str(name), count)
        loaded = await self._registry.open_persistent(name)
        found = await plan(loaded, self._services.ledgers)
        if start_ms or end_ms:
            search = loaded.log.time_search
            ranges = await unless_trimmed(loaded.log, lambda: search.ranges(start_ms, end_ms or UNLIMITED_MS))
            for row in found.segments:
                if row.ledger_id in ranges:
                    row.first_entry, row.end_entry = ranges[row.ledger_id]
        return found

    async def explain(self, name: TopicName) -> Explanation:
        """Explain why each segment is kept, and until when; see `quire.serving.topic.lifecycle.explain`."""
        loaded = await self._registry.open_persistent(name)
        offloading = self._offloading
        failures = {} if offloading is None else offloading.offloader.attempts.failures(loaded.name)
        kept = [one.ledger_id for one in loaded.log.segment_list.totals() if one.on_bookies]
        return _explained(loaded, self._services, failures, await self._services.ledgers.wals_of(kept))


# -- stats -------------------------------------------------------------------------------------------------


async def _of_topic(loaded: AnyTopic, services: Services) -> TopicStats:
    now_s = services.clock.monotonic()
    subscriptions = {one.name: await one.stats.describe() for one in subscriptions_of(loaded)}
    every = subscriptions.values()
    received, limiter = loaded.received, loaded.applied.publish_limiter
    rate, throughput = received.per_second(now_s)
    age_s, oldest = oldest_of(
        (one.oldest_backlog_message_age_seconds, name) for name, one in subscriptions.items()
    )
    found = TopicStats(
        msg_rate_in=rate,
        msg_throughput_in=throughput,
        msg_rate_out=sum(one.msg_rate_out for one in every),
        msg_throughput_out=sum(one.msg_throughput_out for one in every),
        bytes_in_counter=received.bytes,
        msg_in_counter=received.messages,
        bytes_out_counter=sum(one.bytes_out_counter for one in every),
        msg_out_counter=sum(one.msg_out_counter for one in every),
        average_msg_size=received.bytes / received.messages if received.messages else 0.0,
        storage_size=0,
        offloaded_storage_size=0,
        publish_rate_limited_times=0 if limiter is None else limiter.waits,
        backlog_size=max((one.backlog_size for one in every), default=0),
        earliest_msg_publish_time_in_backlogs=earliest(
            one.earliest_msg_publish_time_in_backlog for one in every
        ),
        oldest_backlog_message_age_seconds=age_s,
        oldest_backlog_message_subscription_name=oldest,
        publishers=[producer.stats() for producer in loaded.producers.all()],
        subscriptions=subscriptions,
        deduplication_status="Disabled" if loaded.log.dedup is None else "Enabled",
    )
    if is_persistent(loaded):
        _add_storage(found, loaded, services)
    else:
        found.msg_drop_rate = sum(one.msg_drop_rate or 0.0 for one in every)
        found.msg_drop_counter = sum(one.msg_drop_counter or 0 for one in every)
    return found


def _add_storage(stats: TopicStats, topic: PersistentTopic, services: Services) -> None:
    """Add the fields that only persistent topics have."""
    segments, lost = topic.log.segment_list, services.ledgers.lost()
    stats.storage_size = sum(view.bytes for view in topic.log.segments())
    stats.offloaded_storage_size = sum(one.bytes for one in segments.sealed if one.archive is not None)
    stats.damaged_segments = [
        DamagedSegment(topic.name, one.ledger_id, ArchivedObject.of(one), damage)
        for one in segments.sealed
        if (damage := damage_of(one, services))
    ]
    stats.lost_for_good = [
        str(lost[view.ledger_id]) for view in topic.log.segments() if view.ledger_id in lost
    ]
    stats.topic_creation_time_stamp = segments.record.created_ms
    stats.last_publish_time_stamp = segments.last_clock_ms()


def damage_of(segment: SegmentRecord, services: Services) -> str:
    """Return the damage that this broker found in the segment's archived object; an empty string if there is none."""
    archive, pointer = services.archive, segment.archive
    return "" if archive is None or pointer is None else archive.damaged.get(pointer.name, "")


# -- segments ----------------------------------------------------------------------------------------------


async def _internal(loaded: PersistentTopic, services: Services) -> InternalStats:
    log, views = loaded.log, loaded.log.segments()
    active, entries = log.segment_list.active, sum(view.last_entry + 1 for view in views)
    return InternalStats(
        entries_added_counter=entries,
        number_of_entries=entries,
        number_of_messages=sum(view.messages for view in views),
        total_size=sum(view.bytes for view in views),
        current_ledger_entries=active.last_entry + 1 if active else 0,
        current_ledger_size=active.bytes if active else 0,
        last_confirmed_entry="{}:{}".format(*log.last_confirmed),
        state="Terminated" if log.is_terminated else "LedgerOpened" if active else "Closed",
        ledgers=[await _ledger(segment, services) for segment in log.segment_list.totals()],
        compacted_ledger=_compacted(log.compaction.record),
        cursors={one.name: one.stats.of_cursor() for one in subscriptions_of(loaded) if one.is_durable},
    )


async def _ledger(segment: SegmentRecord, services: Services) -> LedgerStats:
    error = services.ledgers.lost().get(segment.ledger_id)
    return LedgerStats(
        ledger_id=segment.ledger_id,
        entries=segment.last_entry + 1,
        messages=segment.messages,
        size=segment.bytes,
        first_index=segment.first_index,
        created_ms=segment.created_ms,
        sealed_ms=segment.sealed_ms,
        offloaded=segment.archive is not None,
        on_bookies=segment.on_bookies,
        state=await state_of(segment, services.ledgers),
        archive=ArchivedObject.of(segment),
        lost_messages=await _lost_messages(segment, services.ledgers),
        lost_for_good="" if error is None else str(error),
        damage=damage_of(segment, services),
    )


async def state_of(segment: SegmentRecord, ledgers: Ledgers) -> SegmentState:
    """Return the state of a segment between the bookies and the archive."""
    if not segment.is_sealed or segment.archive is not None:
        return segment_state(segment, is_flushed=True)
    try:
        is_flushed = await ledgers.is_flushed(segment.ledger_id)
    except QuireError:
        is_flushed = False
    return segment_state(segment, is_flushed=is_flushed)


async def _lost_messages(segment: SegmentRecord, ledgers: Ledgers) -> int:
    """Return the number of messages of a segment that were lost for good and given up."""
    lost = 0 if segment.archive is None else segment.archive.lost_messages
    if segment.on_bookies and not lost:
        try:
            lost = lost_messages(await ledgers.info(segment.ledger_id))
        except QuireError:
            pass
    return lost


def _compacted(record: CompactedRecord | None) -> CompactedLedger:
    if record is None:
        return CompactedLedger()
    horizon = f"{record.horizon_ledger}:{record.horizon_entry}"
    return CompactedLedger(record.ledger_id, record.entries, record.bytes, horizon=horizon)


async def plan(loaded: PersistentTopic, ledgers: Ledgers) -> ReadPlan:
    """Return a read plan for Spark: where each segment is stored, and the confirmed end; see `quire.spark_source.plan`.

    The segments and the end are read without an `await` in between; the states are determined afterwards.
    """
    end = loaded.log.last_confirmed
    segments = [one for one in loaded.log.segment_list.totals() if one.last_entry >= 0]
    assert _is_whole(segments, end), f"the read plan of {loaded.name} up to {end} is incomplete: {segments}"
    return ReadPlan(
        loaded.name,
        generation=loaded.log.segment_list.record.generation,
        segments=[_plan_row(segment, await state_of(segment, ledgers)) for segment in segments],
        end=EndPosition(*end),
    )


def _is_whole(segments: Sequence[SegmentRecord], end: Position) -> bool:
    """Return whether the segments follow each other without gaps and the last one ends at `end`."""
    if not segments:
        return end.entry_id < 0
    last = segments[-1]
    follow = all(one.first_index + one.messages == then.first_index for one, then in pairwise(segments))
    return follow and end == (last.ledger_id, last.last_entry)


def _plan_row(segment: SegmentRecord, state: SegmentState) -> SegmentPlan:
    row = convert(segment, SegmentPlan, from_attributes=True)
    row.state = state
    return row


def _explained(
    loaded: PersistentTopic, services: Services, failures: Mapping[int, str], wals: Mapping[int, str]
) -> Explanation:
    """Explain the segments. `failures` (archiving errors) and `wals` (name of the write-ahead log) are by ledger id."""
    policies, refusal = loaded.applied.policies, loaded.round_state.refusal
    case = Circumstances(
        segments=loaded.log.segment_list.totals(),
        marks={one.name: one.mark_delete for one in loaded.subscriptions if one.is_durable},
        retention=policies.retention,
        compacted_to=loaded.log.compaction.keeps,
        deduplicated_to=None if loaded.log.dedup is None else loaded.log.dedup.keeps,
        settings=services.settings,
        has_archive=services.archive is not None,
        archive_lag_ms=policies.archive_lag_ms,
        now_ms=services.clock.now_ms(),
        damage={one.ledger_id: damage_of(one, services) for one in loaded.log.segment_list.sealed},
        failures=failures,
        wals=wals,
    )
    return Explanation(
        topic=loaded.name,
        now_ms=case.now_ms,
        retention_ms=policies.retention.retention_ms,
        retention_bytes=policies.retention.retention_bytes,
        message_ttl_ms=policies.message_ttl_ms,
        producers_held_off="" if refusal is None else refusal[1],
        segments=explain(case),
    )
