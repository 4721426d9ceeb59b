"""Operators' requests about the stored data of a topic or all its partitions: truncating, trimming, offloading."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from quire.runtime.clock import iso_time
from quire.runtime.errors import ConfigurationError, NotFound
from quire.serving.model.internal_info import (
    CursorInfo,
    LedgerInfo,
    ManagedLedgerInfo,
    PartitionedManagedLedgerInfo,
    PlainPosition,
    PositionRange,
)
from quire.serving.model.ports import EARLIEST, LATEST, Position
from quire.serving.model.statistics import BacklogAnalysis, OffloadProcessStatus
from quire.serving.names import TopicName
from quire.serving.operations.fan_out import FanOut, TopicRequest
from quire.serving.ownership.peers import reader_of
from quire.serving.registry.offload_requests import OffloadRequests
from quire.serving.registry.offloading import Offloading
from quire.serving.registry.registry import Registry
from quire.serving.registry.topic_loader import subscriptions_of
from quire.serving.subscription.analysis import Slots, analyze
from quire.serving.subscription.counting import runs_of
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.topic.lifecycle import upkeep
from quire.serving.topic.topic import PersistentTopic
from quire.wire import topic_name

IN_ORDER = ("RUNNING", "ERROR", "SUCCESS")
"""Statuses of partitions: the first one found is the status of the partitioned topic."""


class TopicStorage:
    """Requests about stored data. `offloading` is None without an archive."""

    def __init__(self, registry: Registry, fan_out: FanOut, offloading: Offloading | None) -> None:
        self._registry = registry
        self._fan_out = fan_out
        self._offloading = offloading

    async def truncate(self, name: TopicName) -> None:
        """Delete all messages published so far, acknowledged or not, whatever the retention policy.

        Raises `NotFound`, and `InUse` during a compaction.
        """
        await self._on_each(name, "DELETE", "/truncate", upkeep.truncate)

    async def trim(self, name: TopicName) -> None:
        """Delete acknowledged segments according to the retention policy now. Raises `NotFound`."""
        await self._on_each(name, "POST", "/trim", _trim)

    async def _on_each(
        self, name: TopicName, method: str, path: str, act: Callable[[PersistentTopic], Awaitable[int]]
    ) -> None:
        """Call `act` with a topic or each of its partitions, at their owners."""

        async def here(one: TopicName) -> None:
            await act(await self._registry.open_persistent(one))

        await self._fan_out.ask_topic(name, TopicRequest(here, method, path), (NotFound,))

    # -- archive ---------------------------------------------------------------------------------------

    async def offload(self, name: TopicName, end: Position) -> None:
        """Archive the sealed segments before the segment of `end` now, in the background.

        Raises `NotFound`, `AlreadyExists` during another request, and `ConfigurationError` without an archive.
        """

        async def here(one: TopicName) -> None:
            self._requests().begin(await self._registry.open_persistent(one), end)

        if end != LATEST:
            await self._fan_out.refuse_parent(name, "offloading up to an entry")
        body = {"ledgerId": end.ledger_id, "entryId": end.entry_id}
        await self._fan_out.ask_topic(name, TopicRequest(here, "PUT", "/offload", body))

    async def offload_status(self, name: TopicName) -> OffloadProcessStatus:
        """Return the status of the last request; for a partitioned topic, the first of RUNNING, ERROR, SUCCESS."""

        async def here(one: TopicName) -> OffloadProcessStatus:
            topic = await self._registry.open_persistent(one)
            return OffloadProcessStatus() if self._offloading is None else self._requests().status(topic)

        request = TopicRequest(here, "GET", "/offload", read=reader_of(OffloadProcessStatus))
        found = await self._fan_out.ask_topic(name, request, (NotFound,))
        if not await self._fan_out.partitions(name):
            return found[0]
        worst = (one for status in IN_ORDER for one in found if one.status == status)
        first = next(worst, OffloadProcessStatus())
        return OffloadProcessStatus(first.status, first.last_error)

    def _requests(self) -> OffloadRequests:
        if self._offloading is None:
            raise ConfigurationError("this broker has no archive; start it with --archive URL")
        return self._offloading.requests

    # -- backlog ---------------------------------------------------------------------------------------

    async def analyze(self, topic: TopicName, name: str, start: Position | None) -> BacklogAnalysis:
        """Count a subscription's backlog by reading it, from `start` on or as a whole; add up partitions.

        Raises `NotFound`.
        """

        async def here(one: TopicName) -> BacklogAnalysis:
            opened = await self._registry.open_persistent(one)
            found = subscriptions_of(opened).get(name)
            if found is None:
                raise NotFound(f"topic {one} has no subscription {name}")
            services = opened.round_state.services
            slots = Slots(services.slices, services.time_searches)
            return await analyze(opened.log, found.cursor, start or EARLIEST, services.clock, slots)

        if start is not None:
            await self._fan_out.refuse_parent(topic, "analyzing a backlog from an entry on")
        path = f"/subscription/{topic_name.escaped_subscription(name)}/analyzeBacklog"
        request = TopicRequest(here, "POST", path, read=reader_of(BacklogAnalysis))
        found = await self._fan_out.ask_topic(topic, request, (NotFound,))
        if not found:
            raise NotFound(f"topic {topic} has no subscription {name}")
        if not await self._fan_out.partitions(topic):
            return found[0]
        entries, messages = sum(one.entries for one in found), sum(one.messages for one in found)
        return BacklogAnalysis.of(entries, messages, aborted=any(one.aborted for one in found))

    # -- record ----------------------------------------------------------------------------------------

    async def internal_info(self, name: TopicName) -> ManagedLedgerInfo | PartitionedManagedLedgerInfo:
        """Return a topic's record as Pulsar's `internal-info`, with the used partitions of a partitioned topic."""
        if not await self._fan_out.partitions(name):
            return await self._info(name)
        parent = await self._registry.records.load(name)
        used = await self._fan_out.used_partitions(name, parent.record)
        request = TopicRequest(self._info, "GET", "/internal-info", read=reader_of(ManagedLedgerInfo))
        found = (await self._fan_out.ask_partitions(used, request, (NotFound,))).found
        return PartitionedManagedLedgerInfo(
            version=parent.version,
            creation_date=_date(parent.record.created_ms),
            properties=parent.record.properties,
            partitions={str(one): info for one, info in found.items()},
        )

    async def _info(self, name: TopicName) -> ManagedLedgerInfo:
        topic = await self._registry.open_persistent(name)
        log = topic.log
        snapshot = log.segment_list.snapshot
        return ManagedLedgerInfo(
            version=snapshot.version,
            creation_date=_date(snapshot.record.created_ms),
            ledgers=[
                LedgerInfo(
                    ledger_id=one.ledger_id,
                    entries=one.last_entry + 1 if one.is_sealed else None,
                    size=one.bytes if one.is_sealed else None,
                    timestamp=one.sealed_ms if one.is_sealed else None,
                    is_offloaded=one.archive is not None,
                )
                for one in snapshot.segments
            ],
            terminated_position=PlainPosition(*log.last_confirmed) if log.is_terminated else None,
            cursors={one.name: _cursor_info(one.cursor) for one in subscriptions_of(topic) if one.is_durable},
            properties=snapshot.record.properties,
        )


async def _trim(topic: PersistentTopic) -> int:
    if topic.log.dedup is not None:
        await topic.log.dedup.save_snapshot()  # otherwise entries after the last snapshot would be kept
    return await upkeep.trim(topic)


def _cursor_info(cursor: Cursor) -> CursorInfo:
    return CursorInfo(
        mark_delete=PlainPosition(*cursor.mark_delete),
        individual_deleted_messages=[
            PositionRange(PlainPosition(ledger_id, start - 1), PlainPosition(ledger_id, stop - 1))
            for ledger_id, start, stop in runs_of(cursor)
        ],
    )


def _date(time_ms: int) -> str | None:
    return iso_time(time_ms) if time_ms else None
