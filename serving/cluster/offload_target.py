"""The segments of the loaded topics as the archive's driver sees them, and how what was done is recorded."""

from __future__ import annotations

from collections.abc import Iterable

from quire.ledger.ledgers import Ledgers
from quire.metadata.records import ArchivePointer, SegmentRecord
from quire.runtime.errors import Fenced, NotFound
from quire.serving.cluster.registry import Registry
from quire.serving.names import TopicName
from quire.serving.topic.reading import CombinedReader, TopicReader
from quire.serving.topic.topic import PersistentTopic, is_persistent
from quire.tiering.archive import Archive, SegmentReader
from quire.tiering.offload import OffloadTopic


class LoadedSegments:
    """An `OffloadTarget`."""

    def __init__(self, archive: Archive, ledgers: Ledgers, registry: Registry) -> None:
        self._archive = archive
        self._ledgers = ledgers
        self._registry = registry

    def topics(self) -> Iterable[OffloadTopic]:
        return (OffloadTopic(topic.name, _all_segments(topic)) for topic in self._registry.loaded())

    async def is_flushed(self, ledger_id: int) -> bool:
        return await self._ledgers.is_flushed(ledger_id)

    async def open_reader(self, ledger_id: int) -> SegmentReader:
        return await self._ledgers.open(ledger_id)

    async def open_combined(self, topic: str, ledger_id: int) -> SegmentReader:
        segments = self._loaded(topic).log.segment_list
        return CombinedReader(TopicReader(segments, self._ledgers, self._archive), ledger_id)

    async def record_archived(self, topic: str, ledger_id: int, pointer: ArchivePointer) -> None:
        await self._loaded(topic).log.meta_store.archived(ledger_id, pointer)

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
            raise Fenced(f"topic {topic} is not loaded any more")
        return found


def _all_segments(topic: PersistentTopic) -> list[SegmentRecord]:
    """Oldest first, the active one as it stands in the list."""
    segments = topic.log.segment_list
    active = segments.active
    return [*segments.sealed, *([] if active is None else [active.record()])]
