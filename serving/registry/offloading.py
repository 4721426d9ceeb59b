"""Broker's side of the archive. It provides the archive with the segments of loaded topics, and runs archive jobs.

`tiering.offload` uploads and releases the segments of loaded topics (`LoadedSegments`). A topic that no client has used
since the broker's start is not loaded, so its sealed segments would never be archived. Therefore the broker loads
topics with segments to archive: one by one in the background, or all of them when an operator requests a run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Final

from quire.ledger.ledgers import Ledgers
from quire.metadata.records import SegmentRecord
from quire.runtime.errors import CorruptionError, Fenced, NotFound, QuireError
from quire.runtime.metrics import Values
from quire.serving.names import TopicName
from quire.serving.ownership.port import NotOwner
from quire.serving.registry.offload_requests import OffloadRequests
from quire.serving.registry.registry import Registry
from quire.serving.topic.reading import CombinedReader, TopicReader
from quire.serving.topic.services import Services
from quire.serving.topic.topic import PersistentTopic, is_persistent
from quire.tiering.archive import Archive, SegmentReader
from quire.tiering.inventory import count_by_state
from quire.tiering.offload import Offloader, OffloadReport, OffloadTopic, RepairReport
from quire.tiering.progress import UnderWay
from quire.tiering.scrub import Recorded, ScrubReport, recorded_segments, scrub
from quire.wire.publish_time import PublishTimes

ADOPT_AFTER_S: Final = 10.0
"""Delay, in seconds, of the search for topics with segments to archive, because clients load many topics after a start.
"""

_log = logging.getLogger(__name__)


class LoadedSegments:
    """Segments of the loaded topics; an `OffloadTarget`."""

    def __init__(self, archive: Archive, ledgers: Ledgers, registry: Registry) -> None:
        self._archive = archive
        self._ledgers = ledgers
        self._registry = registry

    def topics(self) -> Iterable[OffloadTopic]:
        return (
            OffloadTopic(topic.name, _all_segments(topic), topic.applied.policies.archive_lag_ms)
            for topic in self._registry.persistent()
        )

    def generation(self, topic: str) -> int:
        return self._loaded(topic).log.segment_list.record.generation

    async def is_flushed(self, ledger_id: int) -> bool:
        return await self._ledgers.is_flushed(ledger_id)

    async def open_reader(self, ledger_id: int) -> SegmentReader:
        return await self._ledgers.open(ledger_id)

    async def open_combined(self, topic: str, ledger_id: int) -> SegmentReader:
        segments = self._loaded(topic).log.segment_list
        return CombinedReader(TopicReader(segments, self._ledgers, self._archive), ledger_id)

    async def record_archived(self, topic: str, segment: SegmentRecord) -> None:
        await self._loaded(topic).log.meta_store.archived(segment)

    async def record_released(self, topic: str, ledger_id: int) -> None:
        await self._loaded(topic).log.meta_store.off_bookies(ledger_id)

    async def delete_copy(self, topic: str, ledger_id: int) -> None:
        try:
            await self._ledgers.delete(ledger_id)
        except NotFound:
            pass

    def _loaded(self, topic: str) -> PersistentTopic:
        found = self._registry.find(TopicName.parse(topic))
        if found is None or not is_persistent(found):
            raise Fenced(f"topic {topic} is no longer loaded")
        return found


def _all_segments(topic: PersistentTopic) -> list[SegmentRecord]:
    """List the segments, oldest first; the active segment has no totals, as in the topic's record."""
    segments = topic.log.segment_list
    active = segments.active
    return [*segments.sealed, *([] if active is None else [active.record()])]


class Offloading:
    def __init__(self, archive: Archive, services: Services, registry: Registry) -> None:
        self._archive = archive
        self._services = services
        self._registry = registry
        self._namespaces = registry.catalogue.namespaces
        self._repairing = asyncio.Lock()
        self._adopting: asyncio.Task[None] | None = None
        self.under_way = UnderWay()
        settings = services.settings
        self.target = LoadedSegments(archive, services.ledgers, registry)
        self.offloader = Offloader(
            archive,
            self.target,
            services.clock,
            lag_ms=settings.archive_lag_ms,
            delay_ms=settings.archive_delay_ms,
            is_short_of_space=lambda: services.ledgers.is_short_of_space,
        )
        self.requests = OffloadRequests(self.offloader, services.tasks)

    def start(self) -> None:
        self.offloader.start()
        self.adopt()

    def adopt(self) -> None:
        """Load the topics of acquired bundles that have segments to archive; one search serves several bundles."""
        if self._adopting is None or self._adopting.done():
            self._adopting = self._services.tasks.start(self._adopt(), "look for segments to archive")

    async def stop(self) -> None:
        await self.offloader.stop()

    # -- for operators ---------------------------------------------------------------------------------

    async def run(self, *, seal: bool, even_unowned: bool = False) -> OffloadReport:
        """Archive all segments of this broker's topics now, with `seal` also the active ones. Errors are in the report.

        With `even_unowned`, the broker also acquires topics without an owner.
        """
        with self.under_way.work("run") as progress:
            errors = [error async for error in self._load_unfinished(seal, even_unowned)]
            if seal:
                rolls = [
                    roll
                    for topic in self._registry.persistent()
                    if (roll := topic.log.writing.roll()) is not None
                ]
                await asyncio.gather(*rolls)
            report = await self.offloader.run_once(progress)
        report.add(OffloadReport(failed=len(errors), errors=errors))
        return report

    async def count_by_state(self) -> dict[str, dict[str, int]]:
        """Count the segments of all topics of the cluster by state."""
        return await count_by_state(self._services.store, self._seems_flushed)

    async def _seems_flushed(self, ledger_id: int) -> bool:
        try:
            return await self._services.ledgers.is_flushed(ledger_id)
        except QuireError:
            return False  # The segment was trimmed meanwhile, or its bookies do not answer.

    def metrics(self) -> Values:
        totals, archive = self.offloader.totals, self._archive
        return {
            "quire_tiering_segments_archived_total": totals.archived,
            "quire_tiering_bytes_archived_total": totals.archived_bytes,
            "quire_tiering_segments_released_total": totals.released,
            "quire_tiering_segments_waiting": totals.waiting,
            "quire_tiering_segments_failing": self.offloader.attempts.failing,
            "quire_tiering_objects_damaged": len(archive.damaged),
            "quire_tiering_upload_latency_seconds": archive.upload_s,
            "quire_tiering_read_latency_seconds": archive.cache.read_s,
            "quire_tiering_cache_bytes": archive.cache.bytes_held,
        }

    async def verify(self, *, delete_orphans: bool) -> ScrubReport:
        """Read and verify every object of the archive, and find objects that no record references."""
        with self.under_way.work("verify") as progress:
            return await scrub(
                self._archive,
                self._services.clock,
                delete_orphans=delete_orphans,
                progress=progress,
                record_times=self._record_times,
            )

    async def _record_times(self, one: Recorded, times: PublishTimes) -> None:
        """Record a segment's publish times, if this broker owns the topic: only the owner may change its record."""
        name = TopicName.parse(one.topic)
        try:
            if await self._registry.ownership.is_here(name):
                topic = await self._registry.open_persistent(name)
                await topic.log.meta_store.measured(one.ledger_id, times)
        except QuireError as error:
            _log.info("%s: cannot record its publish times: %s", one.what, error)

    async def repair(self, *, even_unowned: bool = False) -> RepairReport:
        """Verify every archived object of this broker's topics, and upload damaged ones again from the bookies.

        With `even_unowned`, also the objects of topics without an owner. Objects that cannot be repaired are in the
        report.
        """
        report = RepairReport()
        with self.under_way.work("repair") as progress:
            async with self._repairing:
                recorded = await recorded_segments(self._services.store)
                mine = [one for one in recorded if await self._is_mine(one, report, even_unowned)]
                progress.of = len(mine)
                for one in mine:
                    await self._repair(one, report)
                    progress.done += 1
        return report

    async def _is_mine(self, one: Recorded, report: RepairReport, even_unowned: bool) -> bool:
        name = TopicName.parse(one.topic)
        try:
            if not even_unowned:
                return await self._registry.ownership.is_here(name)
            await self._registry.ownership.require(name)
        except (NotFound, NotOwner, Fenced):
            return False
        except QuireError as error:
            report.errors.append(f"segment {one.ledger_id} of {name}: {error}")
            return False
        return True

    async def _repair(self, one: Recorded, report: RepairReport) -> None:
        name = TopicName.parse(one.topic)
        try:
            await self._registry.ownership.require(name)
            report.segments += 1
            await self._repair_if_damaged(name, one, report)
        except CorruptionError as error:
            report.damaged.append(str(error))
        except (NotFound, NotOwner, Fenced):
            pass  # The topic was deleted meanwhile, or another broker owns it.
        except QuireError as error:
            report.errors.append(f"segment {one.ledger_id} of {name}: {error}")

    async def _repair_if_damaged(self, name: TopicName, one: Recorded, report: RepairReport) -> None:
        repair = self.offloader.repair
        try:
            await self._archive.prove(one.pointer)
            repair = self.offloader.repair_label
            await self._archive.prove_label(one.topic, one.ledger_id, one.pointer)
        except (NotFound, CorruptionError):
            segment = (await self._registry.open_persistent(name)).log.segment_list.find(one.ledger_id)
            if segment is not None and segment.archive is not None:
                report.repaired += await repair(str(name), segment)

    # -- topics that are not loaded yet ----------------------------------------------------------------

    async def _adopt(self) -> None:
        await asyncio.sleep(ADOPT_AFTER_S)
        self._adopting = None
        try:
            async for error in self._load_unfinished(even_open=False, even_unowned=False):
                _log.warning("%s", error)
        except QuireError as why:
            _log.warning("search for segments to archive failed, retrying: error=%s", why)
            self.adopt()
        self.offloader.wake()

    async def _load_unfinished(self, even_open: bool, even_unowned: bool) -> AsyncIterator[str]:
        """Load the topics with segments to archive or release; yield an error text for each failure."""
        async for name in self._unfinished(even_open, even_unowned):
            try:
                await self._registry.open(name)
            except NotOwner:
                continue  # Another broker owns the topic now.
            except QuireError as error:
                yield f"{name} cannot be loaded, so it is not archived: {error}"

    async def _unfinished(self, even_open: bool, even_unowned: bool) -> AsyncIterator[TopicName]:
        """Yield this broker's unloaded topics with segments to archive or release or, with `even_open`, to seal.

        With `even_unowned`, also topics of other brokers: the owner is checked when a topic is opened.
        """
        for tenant in await self._namespaces.tenants():
            for namespace in await self._namespaces.list(tenant):
                for name in await self._registry.records.names(tenant, namespace.partition("/")[2]):
                    if self._registry.find(name):
                        continue
                    if not even_unowned and not await self._registry.ownership.is_here(name):
                        continue
                    if await self._has_work(name, even_open):
                        yield name

    async def _has_work(self, name: TopicName, even_open: bool) -> bool:
        """Return whether the topic has a segment to archive or release or, with `even_open`, to seal.

        All segments are checked, because the archiving of an old one may have failed while later ones succeeded.
        """
        record = await self._registry.records.find(name)
        if record is None:
            return False
        if any(_is_work(segment, even_open) for segment in record.segments):
            return True
        if not record.manifests:
            return False
        try:
            older = (await self._registry.records.load(name)).segments
        except NotFound:
            return False  # The topic was deleted meanwhile.
        return any(_is_work(segment, even_open) for segment in older)


def _is_work(segment: SegmentRecord, even_open: bool) -> bool:
    """Return whether a segment must be archived or released or, with `even_open`, sealed."""
    if not segment.is_sealed:
        return even_open
    return segment.last_entry >= 0 and (segment.archive is None or segment.on_bookies)
