"""What is told of a topic: Pulsar's `stats` and `internalStats`, the plan for Spark, why segments are still here.

Everything is computed on request, from counters that are there anyway. JSON with Pulsar's names, so that its tools
show it; `docs/topics.md` says what among it Pulsar does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from quire.ledger.holes import lost_messages
from quire.ledger.ledgers import Ledgers
from quire.metadata.records import CompactedRecord, SegmentRecord, SegmentState, TopicRecord
from quire.metadata.segment_states import segment_state
from quire.runtime.errors import NotFound, QuireError
from quire.serving.cluster.fan_out import FanOut, TopicRequest
from quire.serving.cluster.offloading import Offloading
from quire.serving.cluster.registry import Registry
from quire.serving.cluster.topic_loader import subscriptions_of
from quire.serving.model.ports import Position
from quire.serving.names import TopicName
from quire.serving.topic.lifecycle.explain import Circumstances, explain
from quire.serving.topic.services import Services
from quire.serving.topic.topic import AnyTopic, PersistentTopic, is_persistent

_SUMMED = (
    "msgRateIn",
    "msgThroughputIn",
    "msgRateOut",
    "msgThroughputOut",
    "bytesInCounter",
    "msgInCounter",
    "bytesOutCounter",
    "msgOutCounter",
    "storageSize",
    "offloadedStorageSize",
)
_SUBSCRIPTION_SUMMED = (
    "msgBacklog",
    "backlogSize",
    "unackedMessages",
    "msgRateOut",
    "msgThroughputOut",
    "msgRateRedeliver",
    "msgOutCounter",
    "bytesOutCounter",
    "lostMessages",
)


class Statistics:
    def __init__(
        self, registry: Registry, services: Services, fan_out: FanOut, offloading: Offloading | None
    ) -> None:
        self._registry = registry
        self._services = services
        self._fan_out = fan_out
        self._offloading = offloading

    async def stats(self, name: TopicName) -> dict[str, Any]:
        """As Pulsar's `stats`; of a partitioned topic the sums of its partitions."""

        async def here(one: TopicName) -> dict[str, Any]:
            return await _of_topic(await self._registry.open(one), self._services)

        if not await self._fan_out.partitions(name):
            return await here(name)
        record, found = await self._ask_partitions(name, TopicRequest(here, "GET", "/stats"))
        return _of_partitions(found, record)

    async def internal(self, name: TopicName) -> dict[str, Any]:
        """As Pulsar's `internalStats`; each of `ledgers` has a `state`, an `archive` and what is wrong with that."""
        return await _internal(await self._registry.open_persistent(name), self._services)

    async def partitioned_internal(self, name: TopicName) -> dict[str, Any]:
        """As Pulsar's `partitioned-internalStats`: those of each partition that was used. Raises `NotFound`."""
        request = TopicRequest(self.internal, "GET", "/internalStats")
        record, found = await self._ask_partitions(name, request)
        return {"metadata": metadata_of(record), "partitions": found}

    async def _ask_partitions(
        self, name: TopicName, request: TopicRequest[dict[str, Any]]
    ) -> tuple[TopicRecord, dict[str, dict[str, Any]]]:
        """A topic's record, and the result of each of its used partitions, by its full name."""
        record = await self._fan_out.record(name)
        used = await self._fan_out.used(name, record)
        answers = await self._fan_out.each(used, request, (NotFound,))
        return record, {str(one): said for one, said in answers.found.items()}

    async def segments(self, name: TopicName) -> dict[str, Any]:
        """The JSON of `GET /quire/v1/topics/…/segments`; see `quire.spark_source.plan`."""
        count = await self._fan_out.partitions(name)
        if count:
            return {"topic": str(name), "partitions": count, "segments": [], "end": None}
        return await plan(await self._registry.open_persistent(name), self._services.ledgers)

    async def explain(self, name: TopicName) -> dict[str, Any]:
        """Why each segment is still here, and when it will go; see `quire.serving.topic.lifecycle.explain`."""
        loaded = await self._registry.open_persistent(name)
        failures = {} if self._offloading is None else self._offloading.offloader.failures(loaded.name)
        kept = [one.ledger_id for one in loaded.log.segment_list.totals() if one.on_bookies]
        return _explained(loaded, self._services, failures, await self._services.ledgers.wals_of(kept))


# -- stats -------------------------------------------------------------------------------------------------


async def _of_topic(loaded: AnyTopic, services: Services) -> dict[str, Any]:
    """As Pulsar's `stats`."""
    now_s = services.clock.monotonic()
    subscriptions = await subscriptions_of(loaded).stats()
    publishers = [_publisher(producer) for producer in loaded.producers.all()]
    received, limiter = loaded.received, loaded.applied.publish_limiter
    rate, throughput = received.per_second(now_s)
    return {
        "msgRateIn": rate,
        "msgThroughputIn": throughput,
        "msgRateOut": _sum(subscriptions, "msgRateOut"),
        "msgThroughputOut": _sum(subscriptions, "msgThroughputOut"),
        "bytesInCounter": received.bytes,
        "msgInCounter": received.messages,
        "bytesOutCounter": int(_sum(subscriptions, "bytesOutCounter")),
        "msgOutCounter": int(_sum(subscriptions, "msgOutCounter")),
        "averageMsgSize": received.bytes / received.messages if received.messages else 0.0,
        **(_storage(loaded, services) if is_persistent(loaded) else _drops(subscriptions)),
        "publishRateLimitedTimes": 0 if limiter is None else limiter.waits,
        "publishers": publishers,
        "subscriptions": subscriptions,
        "replication": {},
        "deduplicationStatus": "Disabled" if loaded.log.dedup is None else "Enabled",
    }


def _of_partitions(partitions: Mapping[str, dict[str, Any]], record: TopicRecord) -> dict[str, Any]:
    """As Pulsar's `partitioned-stats`: the sums of the `stats` of those of its partitions that were used."""
    return {
        **{key: sum(one[key] for one in partitions.values()) for key in _SUMMED},
        "damagedSegments": [one for stats in partitions.values() for one in stats.get("damagedSegments", ())],
        "lostForGood": [one for stats in partitions.values() for one in stats["lostForGood"]],
        "publishers": [one for stats in partitions.values() for one in stats["publishers"]],
        "subscriptions": _merged([stats["subscriptions"] for stats in partitions.values()]),
        "replication": {},
        "metadata": metadata_of(record),
        "partitions": partitions,
    }


def metadata_of(record: TopicRecord) -> dict[str, Any]:
    """As Pulsar's metadata of a partitioned topic."""
    return {"partitions": record.partitions, "deleted": record.deleting, "properties": record.properties}


def _storage(topic: PersistentTopic, services: Services) -> dict[str, Any]:
    archived = (one.bytes for one in topic.log.segment_list.sealed if one.archive is not None)
    damaged = [(one, damage_of(one, services)) for one in topic.log.segment_list.sealed]
    lost = services.ledgers.lost()
    return {
        "storageSize": sum(view.bytes for view in topic.log.segments()),
        "offloadedStorageSize": sum(archived),
        "damagedSegments": [
            {"topic": topic.name, "ledgerId": one.ledger_id, "archive": _archive_row(one), "damage": what}
            for one, what in damaged
            if what
        ],
        "lostForGood": [str(lost[view.ledger_id]) for view in topic.log.segments() if view.ledger_id in lost],
        "topicCreationTimeStamp": topic.log.segment_list.record.created_ms,
        "lastPublishTimeStamp": topic.log.segment_list.last_clock_ms(),
    }


def damage_of(segment: SegmentRecord, services: Services) -> str:
    """What this broker met in the segment's object, when it is damaged or missing; "" when it met nothing."""
    archive, pointer = services.archive, segment.archive
    return "" if archive is None or pointer is None else archive.damaged.get(pointer.name, "")


def _drops(subscriptions: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What a topic that keeps nothing tells instead: messages that consumers could not take, per second and in all."""
    return {
        "storageSize": 0,
        "offloadedStorageSize": 0,
        "damagedSegments": [],
        "lostForGood": [],
        "msgDropRate": _sum(subscriptions, "msgDropRate"),
        "msgDropCounter": int(_sum(subscriptions, "msgDropCounter")),
    }


def _sum(rows: dict[str, dict[str, Any]], key: str) -> float:
    return sum(float(row.get(key, 0)) for row in rows.values())


def _merged(partitions: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The subscriptions of all partitions by name: numbers added, consumers one after the other."""
    merged: dict[str, dict[str, Any]] = {}
    for name, one in ((name, one) for partition in partitions for name, one in partition.items()):
        sums = merged.setdefault(name, {"type": one["type"], "isDurable": one["isDurable"], "consumers": []})
        sums["consumers"] += one["consumers"]
        for key in _SUBSCRIPTION_SUMMED:
            sums[key] = sums.get(key, 0) + one.get(key, 0)
    return merged


def _publisher(port: Any) -> dict[str, Any]:
    """What the session's end of a producer tells of itself; ports of tests tell their name alone."""
    describe = getattr(port, "stats", None)
    return describe() if describe is not None else {"producerName": port.name}


# -- segments ----------------------------------------------------------------------------------------------


async def _internal(loaded: PersistentTopic, services: Services) -> dict[str, Any]:
    views = loaded.log.segments()
    position = loaded.log.last_confirmed
    cursors = {one.name: one.stats.of_cursor() for one in subscriptions_of(loaded) if one.is_durable}
    active = loaded.log.segment_list.active
    return {
        "entriesAddedCounter": sum(view.last_entry + 1 for view in views),
        "numberOfEntries": sum(view.last_entry + 1 for view in views),
        "numberOfMessages": sum(view.messages for view in views),
        "totalSize": sum(view.bytes for view in views),
        "currentLedgerEntries": active.last_entry + 1 if active else 0,
        "currentLedgerSize": active.bytes if active else 0,
        "lastConfirmedEntry": f"{position.ledger_id}:{position.entry_id}",
        "state": "Terminated" if loaded.log.is_terminated else "LedgerOpened" if active else "Closed",
        "ledgers": await _ledgers_of(loaded, services),
        "compactedLedger": _compacted_row(loaded.log.compaction.record),
        "cursors": cursors,
    }


async def _ledgers_of(topic: PersistentTopic, services: Services) -> list[dict[str, Any]]:
    ledgers = services.ledgers
    return [
        {
            **_segment_row(segment, await state_of(segment, ledgers)),
            **await _lost_of(segment, ledgers),
            "damage": damage_of(segment, services),
        }
        for segment in topic.log.segment_list.totals()
    ]


async def state_of(segment: SegmentRecord, ledgers: Ledgers) -> SegmentState:
    """Where a segment is on its way from the bookies to the archive."""
    if not segment.is_sealed or segment.archive is not None:
        return segment_state(segment, is_flushed=True)
    try:
        is_flushed = await ledgers.is_flushed(segment.ledger_id)
    except QuireError:
        is_flushed = False
    return segment_state(segment, is_flushed=is_flushed)


async def _lost_of(segment: SegmentRecord, ledgers: Ledgers) -> dict[str, Any]:
    """What of a segment was lost and given up, and, if a reader met some, what is lost and was not given up yet."""
    error = ledgers.lost().get(segment.ledger_id)
    lost = 0 if segment.archive is None else segment.archive.lost_messages
    if segment.on_bookies and not lost:
        try:
            lost = lost_messages(await ledgers.info(segment.ledger_id))
        except QuireError:
            pass
    return {"lostMessages": lost, "lostForGood": "" if error is None else str(error)}


def _segment_row(segment: SegmentRecord, state: SegmentState) -> dict[str, Any]:
    return {
        "ledgerId": segment.ledger_id,
        "entries": segment.last_entry + 1,
        "messages": segment.messages,
        "size": segment.bytes,
        "firstIndex": segment.first_index,
        "createdMs": segment.created_ms,
        "sealedMs": segment.sealed_ms,
        "offloaded": segment.archive is not None,
        "onBookies": segment.on_bookies,
        "state": str(state),
        "archive": _archive_row(segment),
    }


def _compacted_row(record: CompactedRecord | None) -> dict[str, Any]:
    """As Pulsar's; -1 where the topic was never compacted."""
    if record is None:
        return {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False}
    horizon = f"{record.horizon_ledger}:{record.horizon_entry}"
    return {
        "ledgerId": record.ledger_id,
        "entries": record.entries,
        "size": record.bytes,
        "offloaded": False,
        "horizon": horizon,
    }


async def plan(loaded: PersistentTopic, ledgers: Ledgers) -> dict[str, Any]:
    """What Spark reads: where each segment's bytes are, and the confirmed end; see `quire.spark_source.plan`.

    The segments and the end are of one moment; only where the bytes are is asked for afterwards.
    """
    end = loaded.log.last_confirmed
    segments = [one for one in loaded.log.segment_list.totals() if one.last_entry >= 0]
    assert _is_whole(segments, end), f"the plan of {loaded.name} up to {end} lacks a segment: {segments}"
    return {
        "topic": loaded.name,
        "partitions": 0,
        "end": {"ledger": end.ledger_id, "entry": end.entry_id},
        "segments": [_plan_row(segment, await state_of(segment, ledgers)) for segment in segments],
    }


def _is_whole(segments: Sequence[SegmentRecord], end: Position) -> bool:
    """Each segment goes on with the message after the last of the one before, and the last one ends at `end`."""
    if not segments:
        return end.entry_id < 0
    last = segments[-1]
    follow = all(one.first_index + one.messages == then.first_index for one, then in pairwise(segments))
    return follow and end == (last.ledger_id, last.last_entry)


def _plan_row(segment: SegmentRecord, state: SegmentState) -> dict[str, Any]:
    return {
        "ledger_id": segment.ledger_id,
        "first_index": segment.first_index,
        "last_entry": segment.last_entry,
        "messages": segment.messages,
        "bytes": segment.bytes,
        "first_clock_ms": segment.first_clock_ms,
        "last_clock_ms": segment.last_clock_ms,
        "state": str(state),
        "archive": _archive_row(segment),
        "on_bookies": segment.on_bookies,
    }


def _archive_row(segment: SegmentRecord) -> dict[str, Any] | None:
    pointer = segment.archive
    if pointer is None:
        return None
    return {"store": pointer.store, "name": pointer.name, "bytes": pointer.bytes, "crc": pointer.crc}


def _explained(
    loaded: PersistentTopic, services: Services, failures: Mapping[int, str], wals: Mapping[int, str]
) -> dict[str, Any]:
    """By ledger: `failures`, why a segment could not be archived; `wals`, the write-ahead log that has it."""
    policies, refusal = loaded.applied.policies, loaded.upkeep.refusal
    case = Circumstances(
        segments=loaded.log.segment_list.totals(),
        marks={one.name: one.mark_delete for one in loaded.subscriptions if one.is_durable},
        retention=policies.retention,
        compacted_to=loaded.log.compaction.keeps,
        settings=services.settings,
        has_archive=services.archive is not None,
        now_ms=services.clock.now_ms(),
        damage={one.ledger_id: damage_of(one, services) for one in loaded.log.segment_list.sealed},
        failures=failures,
        wals=wals,
    )
    return {
        "topic": loaded.name,
        "nowMs": case.now_ms,
        "retentionMs": policies.retention.retention_ms,
        "retentionBytes": policies.retention.retention_bytes,
        "messageTtlMs": policies.message_ttl_ms,
        "producersHeldOff": "" if refusal is None else refusal[1],
        "segments": explain(case),
    }
