"""The broker's side of the archive: which segments there are, and how what was done is recorded.

`tiering.offload` decides and performs; here it finds the loaded topics. A topic that nobody has used since the start
is not loaded, and its sealed segments would wait for ever, so those with work left are loaded one by one in the
background, and all of them at once when an operator asks for a run. A topic that rests while its bookies keep what is
archived is loaded again when they need not any more, or have no room (`recall`); whoever else takes its bundle
meanwhile looks for such topics anyway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

from quire.metadata.records import ArchivePointer, SegmentRecord
from quire.runtime.errors import CorruptionError, Fenced, NotFound, QuireError
from quire.serving.cluster.peers import added_up
from quire.serving.cluster.port import NotOwner
from quire.serving.cluster.registry import Registry
from quire.serving.names import TopicName
from quire.serving.policy.namespaces import Namespaces
from quire.serving.topic.reading import CombinedReader, TopicReader
from quire.serving.topic.services import Services
from quire.serving.topic.topic import Topic
from quire.tiering.archive import Archive, SegmentReader
from quire.tiering.inventory import all_topics, count_by_state
from quire.tiering.offload import Offloader, OffloadTopic, RepairReport
from quire.tiering.scrub import recorded_segments, scrub

RECALLS_A_TICK: Final = 200
"""Topics that are loaded together because their rest is over."""

RECALL_AGAIN_MS: Final = 60_000

ADOPT_AFTER_S: Final = 10.0
"""Topics with work left are looked for when the rush of a start is over."""

_log = logging.getLogger(__name__)


class Offloading:
    """An `OffloadTarget`."""

    def __init__(
        self,
        archive: Archive,
        services: Services,
        registry: Registry,
        namespaces: Namespaces,
        is_short_of_space: Callable[[], bool],
    ) -> None:
        self._archive = archive
        self._services = services
        self._registry = registry
        self._namespaces = namespaces
        self._repairing = asyncio.Lock()
        self._adopting: asyncio.Task[None] | None = None
        self._recalls: dict[TopicName, int] = {}
        """When topics that rest are to be loaded again, in ms since 1970."""
        settings = services.settings
        self._is_short_of_space = is_short_of_space
        self.offloader = Offloader(
            archive,
            self,
            services.clock,
            lag_ms=settings.archive_lag_ms,
            delay_ms=settings.archive_delay_ms,
            is_short_of_space=is_short_of_space,
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

    async def run(self, *, seal: bool, or_nobodys: bool = False) -> dict[str, Any]:
        """Archive everything now; with `seal` also what is still being written. What fails is in the report.

        Topics of this broker; with `or_nobodys`, those that no broker owns are taken for it, too.
        """
        errors = [error async for error in self._load_unfinished(seal, or_nobodys)]
        if seal:
            rolls = [roll for topic in self._registry.loaded() if (roll := topic.roll()) is not None]
            await asyncio.gather(*rolls)
        report = await self.offloader.run_once()
        return added_up([report.as_dict(), {"failed": len(errors), "errors": errors}])

    def status(self) -> dict[str, Any]:
        """What is under way here, and what fails."""
        return self.offloader.status()

    async def count_by_state(self) -> dict[str, dict[str, int]]:
        """The segments of all topics of the cluster, by their states."""
        return await count_by_state(self._services.store, self._seems_flushed)

    async def _seems_flushed(self, ledger_id: int) -> bool:
        try:
            return await self.is_flushed(ledger_id)
        except QuireError:
            return False  # trimmed meanwhile, or nobody can tell now

    def metrics(self) -> dict[str, float]:
        totals = self.offloader.totals
        return {
            "quire_tiering_segments_archived_total": totals.archived,
            "quire_tiering_bytes_archived_total": totals.archived_bytes,
            "quire_tiering_segments_released_total": totals.released,
            "quire_tiering_segments_waiting": totals.waiting,
            "quire_tiering_objects_damaged": len(self._archive.damaged),
        }

    async def verify(self, *, delete_orphans: bool) -> dict[str, Any]:
        """Read every object back, and find those that no record names."""
        report = await scrub(
            self._archive,
            lambda: recorded_segments(self._services.store),
            self._services.clock,
            delete_orphans=delete_orphans,
        )
        return report.as_dict()

    async def repair(self, *, or_nobodys: bool = False) -> dict[str, Any]:
        """Prove every archived object of this broker's topics, and upload again what is damaged, where bookies have it.

        With `or_nobodys` also those of topics that no broker owns. What cannot be repaired is in the report.
        """
        report = RepairReport()
        async with self._repairing:
            async for listed in all_topics(self._services.store):
                name = TopicName.parse(listed.record.name)
                for segment in listed.segments:
                    if segment.archive is None:
                        continue
                    try:
                        if not or_nobodys and not await self._registry.is_here(name):
                            break
                        await self._repair(name, segment.ledger_id, segment.archive, report)
                    except CorruptionError as error:
                        report.damaged.append(str(error))
                    except (NotFound, NotOwner, Fenced):
                        break  # it was deleted, or is looked after elsewhere
                    except QuireError as error:
                        report.errors.append(f"segment {segment.ledger_id} of {name}: {error}")
        return report.as_dict()

    async def _repair(
        self, name: TopicName, ledger_id: int, pointer: ArchivePointer, report: RepairReport
    ) -> None:
        await self._registry.require(name)
        report.segments += 1
        try:
            await self._archive.prove(pointer)
        except (NotFound, CorruptionError):
            segment = (await self._registry.open_persistent(name)).segment_list.find(ledger_id)
            if segment is not None and segment.archive is not None:
                report.repaired += await self.offloader.repair(str(name), segment)

    # -- topics that rest --------------------------------------------------------------------------------

    def recall_at(self, name: TopicName, at_ms: int) -> None:
        """The topic was unloaded, and has work at that time."""
        self._recalls[name] = at_ms

    def recall(self) -> None:
        """Load topics whose time has come, all of them while space is short; they rest again when the work is done.

        To be called every few seconds.
        """
        now_ms = self._services.clock.now_ms()
        ahead_ms = self._ahead_ms()
        due = [name for name, at_ms in self._recalls.items() if at_ms <= now_ms + ahead_ms]
        for name in due[:RECALLS_A_TICK]:
            del self._recalls[name]
            self._services.tasks.start(self._recall(name), f"load {name}, which has rested")

    def _ahead_ms(self) -> int:
        """How much sooner than said topics are loaded again: while space is short nothing waits for the lag."""
        return self._services.settings.archive_lag_ms if self._is_short_of_space() else 0

    async def _recall(self, name: TopicName) -> None:
        try:
            await self._registry.open(name, take=False)
        except (NotFound, NotOwner):
            return  # it was deleted, or is looked after elsewhere
        except QuireError as error:
            _log.warning("%s cannot be loaded, so its bookies keep what is archived: %s", name, error)
            self.recall_at(name, self._services.clock.now_ms() + self._ahead_ms() + RECALL_AGAIN_MS)
            return
        self.offloader.wake()

    # -- topics that nobody has used yet ---------------------------------------------------------------

    async def _adopt(self) -> None:
        await asyncio.sleep(ADOPT_AFTER_S)
        self._adopting = None
        try:
            async for error in self._load_unfinished(even_open=False, or_nobodys=False):
                _log.warning("%s", error)
        except QuireError as why:
            _log.warning("segments to archive will be looked for again: %s", why)
            self.adopt()
        self.offloader.wake()

    async def _load_unfinished(self, even_open: bool, or_nobodys: bool) -> AsyncIterator[str]:
        """Load what has work left; yields a sentence for each topic for which that fails."""
        async for name in self._unfinished(even_open, or_nobodys):
            try:
                await self._registry.open(name)
            except NotOwner:
                continue  # it went to another broker, which looks after it
            except QuireError as error:
                yield f"{name} cannot be loaded, so it is not archived: {error}"

    async def _unfinished(self, even_open: bool, or_nobodys: bool) -> AsyncIterator[TopicName]:
        """Topics of ours that are not loaded and have segments to archive or to delete; with `even_open`, to seal.

        With `or_nobodys` also those of others: who owns a topic is seen when it is opened.
        """
        for tenant in await self._namespaces.tenants():
            for namespace in await self._namespaces.list(tenant):
                for name in await self._registry.records.names(tenant, namespace.partition("/")[2]):
                    if self._registry.find(name):
                        continue
                    if not or_nobodys and not await self._registry.is_here(name):
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

    # -- what the driver asks: OffloadTarget -----------------------------------------------------------

    def topics(self) -> Iterable[OffloadTopic]:
        return (OffloadTopic(topic.name, _all_segments(topic)) for topic in self._registry.loaded())

    async def is_flushed(self, ledger_id: int) -> bool:
        return await self._services.ledgers.is_flushed(ledger_id)

    async def open_reader(self, ledger_id: int) -> SegmentReader:
        return await self._services.ledgers.open(ledger_id)

    async def open_combined(self, topic: str, ledger_id: int) -> SegmentReader:
        segments = self._loaded(topic).segment_list
        return CombinedReader(TopicReader(segments, self._services.ledgers, self._archive), ledger_id)

    async def record_archived(self, topic: str, ledger_id: int, pointer: ArchivePointer) -> None:
        await self._loaded(topic).archived(ledger_id, pointer)

    async def record_released(self, topic: str, ledger_id: int) -> None:
        await self._loaded(topic).segment_list.off_bookies(ledger_id)

    async def delete_copy(self, topic: str, ledger_id: int) -> None:
        try:
            await self._services.ledgers.delete(ledger_id)
        except NotFound:
            pass

    def _loaded(self, topic: str) -> Topic:
        found = self._registry.find(TopicName.parse(topic))
        if not isinstance(found, Topic):
            raise Fenced(f"topic {topic} is not loaded any more")
        return found


def _all_segments(topic: Topic) -> list[SegmentRecord]:
    """Oldest first, the active one as it stands in the list."""
    active = topic.segment_list.active
    return [*topic.segment_list.sealed, *([] if active is None else [active.record()])]


def _is_work(segment: SegmentRecord, even_open: bool) -> bool:
    """To be archived, or to be released by the bookies; with `even_open` also to be sealed."""
    if not segment.is_sealed:
        return even_open
    return segment.last_entry >= 0 and (segment.archive is None or segment.on_bookies)
