"""The broker's side of the archive: which topics are loaded for it, and what operators ask of it.

`tiering.offload` decides and performs, on the segments of loaded topics (`offload_target`). A topic without
clients since the start is not loaded, and its sealed segments would wait for ever, so those with work left are loaded
one by one in the background, and all of them at once when an operator asks for a run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

from quire.metadata.records import SegmentRecord
from quire.runtime.errors import CorruptionError, Fenced, NotFound, QuireError
from quire.runtime.metrics import Values
from quire.serving.cluster.offload_target import LoadedSegments
from quire.serving.cluster.peers import added_up
from quire.serving.cluster.port import NotOwner
from quire.serving.cluster.registry import Registry
from quire.serving.names import TopicName
from quire.serving.topic.services import Services
from quire.tiering.archive import Archive
from quire.tiering.inventory import count_by_state
from quire.tiering.offload import Offloader, RepairReport
from quire.tiering.progress import UnderWay
from quire.tiering.scrub import Recorded, recorded_segments, scrub

ADOPT_AFTER_S: Final = 10.0
"""Topics with work left are looked for when the rush of a start is over."""

_log = logging.getLogger(__name__)


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

    def start(self) -> None:
        self.offloader.start()
        self.adopt()

    def adopt(self) -> None:
        """Load, a little later, the topics that came here and have segments to archive: once for all that came."""
        if self._adopting is None or self._adopting.done():
            self._adopting = self._services.tasks.start(self._adopt(), "look for segments to archive")

    async def stop(self) -> None:
        await self.offloader.stop()

    # -- what an operator asks -------------------------------------------------------------------------

    async def run(self, *, seal: bool, even_unowned: bool = False) -> dict[str, Any]:
        """Archive everything now; with `seal` also what is still being written. What fails is in the report.

        Topics of this broker; with `even_unowned`, those that no broker owns are taken for it, too.
        """
        with self.under_way.work("run") as progress:
            errors = [error async for error in self._load_unfinished(seal, even_unowned)]
            if seal:
                rolls = [
                    roll
                    for topic in self._registry.loaded()
                    if (roll := topic.log.writing.roll()) is not None
                ]
                await asyncio.gather(*rolls)
            report = await self.offloader.run_once(progress)
        return added_up([report.as_dict(), {"failed": len(errors), "errors": errors}])

    def status(self) -> dict[str, Any]:
        """What is under way here, and what fails."""
        return self.offloader.status()

    async def count_by_state(self) -> dict[str, dict[str, int]]:
        """The segments of all topics of the cluster, by their states."""
        return await count_by_state(self._services.store, self._seems_flushed)

    async def _seems_flushed(self, ledger_id: int) -> bool:
        try:
            return await self._services.ledgers.is_flushed(ledger_id)
        except QuireError:
            return False  # trimmed meanwhile, or it cannot be told now

    def metrics(self) -> Values:
        totals, archive = self.offloader.totals, self._archive
        return {
            "quire_tiering_segments_archived_total": totals.archived,
            "quire_tiering_bytes_archived_total": totals.archived_bytes,
            "quire_tiering_segments_released_total": totals.released,
            "quire_tiering_segments_waiting": totals.waiting,
            "quire_tiering_segments_failing": self.offloader.failing,
            "quire_tiering_objects_damaged": len(archive.damaged),
            "quire_tiering_upload_latency_seconds": archive.upload_s,
            "quire_tiering_read_latency_seconds": archive.cache.read_s,
            "quire_tiering_cache_bytes": archive.cache.bytes_held,
        }

    async def verify(self, *, delete_orphans: bool) -> dict[str, Any]:
        """Read every object back, and find those that no record names."""
        with self.under_way.work("verify") as progress:
            report = await scrub(
                self._archive,
                lambda: recorded_segments(self._services.store),
                self._services.clock,
                delete_orphans=delete_orphans,
                progress=progress,
            )
        return report.as_dict()

    async def repair(self, *, even_unowned: bool = False) -> dict[str, Any]:
        """Prove every archived object of this broker's topics, and upload again what is damaged, where bookies have it.

        With `even_unowned` also those of topics that no broker owns. What cannot be repaired is in the report.
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
        return report.as_dict()

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
            pass  # it was deleted meanwhile, or is looked after elsewhere
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
            _log.warning("segments to archive will be looked for again: %s", why)
            self.adopt()
        self.offloader.wake()

    async def _load_unfinished(self, even_open: bool, even_unowned: bool) -> AsyncIterator[str]:
        """Load what has work left; yields a sentence for each topic for which that fails."""
        async for name in self._unfinished(even_open, even_unowned):
            try:
                await self._registry.open(name)
            except NotOwner:
                continue  # it went to another broker, which looks after it
            except QuireError as error:
                yield f"{name} cannot be loaded, so it is not archived: {error}"

    async def _unfinished(self, even_open: bool, even_unowned: bool) -> AsyncIterator[TopicName]:
        """Topics of this broker that are not loaded and have segments to archive or delete; with `even_open`, to seal.

        With `even_unowned` also those of others: a topic's owner is seen when it is opened.
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
        """By the newest segments, then by all: an old one may have failed while those after it succeeded."""
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
            return False  # it was deleted meanwhile
        return any(_is_work(segment, even_open) for segment in older)


def _is_work(segment: SegmentRecord, even_open: bool) -> bool:
    """To be archived, or to be released by the bookies; with `even_open` also to be sealed."""
    if not segment.is_sealed:
        return even_open
    return segment.last_entry >= 0 and (segment.archive is None or segment.on_bookies)
