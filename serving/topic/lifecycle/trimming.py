"""Dropping what a log no longer has to keep: its oldest segments one day, all of them when the topic is deleted.

A segment leaves the list first. What it leaves behind at the bookies and in the archive is deleted then: a failure
leaves the one to repair, or to a search for orphans, and the other to a scrub.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from quire.metadata.records import SegmentRecord
from quire.runtime.errors import NotFound, QuireError
from quire.serving.model.ports import Position
from quire.serving.policy.applied import AppliedPolicies
from quire.serving.topic.compaction.compaction import Compaction
from quire.serving.topic.lifecycle.retention import trimmable
from quire.serving.topic.meta_store import MetaStore
from quire.serving.topic.services import Services

_log = logging.getLogger(__name__)


class Trimming:
    """One for each log. What decides is in `retention`."""

    __slots__ = ("_applied", "_compaction", "_meta_store", "_name", "_segments", "_services")

    def __init__(
        self,
        name: str,
        meta_store: MetaStore,
        compaction: Compaction,
        applied: AppliedPolicies,
        services: Services,
    ) -> None:
        self._name = name
        self._meta_store = meta_store
        self._segments = meta_store.segments
        self._compaction = compaction
        self._applied = applied
        self._services = services

    async def trim(self, marks: Sequence[Position]) -> int:
        """Drop what retention, compaction and `marks`, durable mark-delete positions, let go.

        Returns how many segments went.
        """
        retention = self._applied.policies.retention
        if retention.retention_ms < 0 and retention.retention_bytes < 0:
            return 0
        sealed, active, kept = self._segments.sealed, self._segments.active, self._compaction.keeps
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
        for segment in await self._meta_store.trim(first_kept):
            await self._discard(segment)
        return count

    async def discard_all(self) -> None:
        """Delete every segment's bytes, and the last result of compaction: the topic is being deleted."""
        compacted = self._compaction.record
        if compacted is not None:
            await self._discard(SegmentRecord(ledger_id=compacted.ledger_id))
        for segment in self._segments.listed:
            await self._discard(segment)

    async def _discard(self, segment: SegmentRecord) -> None:
        """Delete what a segment that no list names any more has left behind: at the bookies, and in the archive."""
        archive, pointer = self._services.archive, segment.archive
        try:
            await self._services.ledgers.delete(segment.ledger_id)
        except NotFound:
            pass
        except QuireError as error:
            _log.warning(
                "%s: segment %d is trimmed but not deleted: %s", self._name, segment.ledger_id, error
            )
        if pointer is None or archive is None:
            return
        try:
            await archive.delete(pointer)
        except QuireError as error:
            _log.warning(
                "%s: archive object %s is trimmed but not deleted: %s", self._name, pointer.name, error
            )
