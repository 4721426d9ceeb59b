"""Trimming: deletion of a log's oldest segments, or of all segments when the topic is deleted.

A segment is removed from the list first; then its ledger on the bookies and its object in the archive are deleted. If a
deletion fails, repair or the search for orphaned ledgers deletes the ledger later, and a scrub of the archive deletes
the object.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from quire.metadata.records import RetentionPolicy, SegmentRecord
from quire.runtime.errors import NotFound, QuireError
from quire.serving.model.ports import Position
from quire.serving.policy.applied import AppliedPolicies
from quire.serving.topic.compaction.compaction import Compaction
from quire.serving.topic.deduplication import Deduplication
from quire.serving.topic.lifecycle.retention import trimmable
from quire.serving.topic.meta_store import MetaStore
from quire.serving.topic.services import Services

KEEPS_NOTHING: Final = RetentionPolicy(retention_ms=0, retention_bytes=0)
"""Retention of a topic that is truncated."""

_log = logging.getLogger(__name__)


class Trimming:
    """Trimming of one log, by the rules of `retention`."""

    __slots__ = ("_applied", "_compaction", "_dedup", "_meta_store", "_name", "_segments", "_services")

    def __init__(
        self,
        name: str,
        meta_store: MetaStore,
        compaction: Compaction,
        dedup: Deduplication | None,
        applied: AppliedPolicies,
        services: Services,
    ) -> None:
        self._name = name
        self._meta_store = meta_store
        self._segments = meta_store.segments
        self._compaction = compaction
        self._dedup = dedup
        self._applied = applied
        self._services = services

    async def trim(self, marks: Sequence[Position], *, even_retained: bool = False) -> int:
        """Delete the segments that retention, compaction, deduplication and subscriptions no longer require.

        `marks` are the mark-delete positions of durable subscriptions. With `even_retained`, neither the retention
        policy nor a later compaction keeps a segment, but a running one does. Returns the number of deleted segments.
        """
        retention = KEEPS_NOTHING if even_retained else self._applied.policies.retention
        if retention.retention_ms < 0 and retention.retention_bytes < 0:
            return 0
        is_for_compaction = self._compaction.is_running or not even_retained
        kept = self._compaction.keeps if is_for_compaction else None
        sealed, active = self._segments.sealed, self._segments.active
        count = self._trimmable(marks if kept is None else [*marks, kept], retention)
        if count and self._dedup is not None:
            last = sealed[count - 1]
            self._dedup.snapshot_up_to(Position(last.ledger_id, last.last_entry))
            count = min(count, self._trimmable([self._dedup.keeps], retention))
        if not count or active is None:
            return 0
        first_kept = sealed[count].ledger_id if count < len(sealed) else active.ledger_id
        await self._discard(await self._meta_store.trim(first_kept))
        return count

    def _trimmable(self, marks: Sequence[Position], retention: RetentionPolicy) -> int:
        active = self._segments.active
        return trimmable(
            self._segments.sealed,
            0 if active is None else active.bytes,
            marks,
            retention,
            self._services.clock.now_ms(),
        )

    async def discard_all(self) -> None:
        """Delete all segments' ledgers and objects, and the last compaction's ledger, when the topic is deleted."""
        compacted = self._compaction.record
        results = [] if compacted is None else [SegmentRecord(ledger_id=compacted.ledger_id)]
        await self._discard([*results, *self._segments.listed])

    async def _discard(self, segments: Sequence[SegmentRecord]) -> None:
        """Delete the ledgers and archived objects of segments that are no longer in the topic's list."""
        for segment in segments:
            try:
                await self._services.ledgers.delete(segment.ledger_id)
            except NotFound:
                pass
            except QuireError as error:
                _log.warning(
                    "segment trimmed but its ledger not deleted, repair retries: topic=%s ledger=%d error=%s",
                    self._name,
                    segment.ledger_id,
                    error,
                )
        archive = self._services.archive
        pointers = [segment.archive for segment in segments if segment.archive is not None]
        if archive is None or not pointers:
            return
        try:
            await archive.delete(pointers)
        except QuireError as error:
            _log.warning(
                "segments trimmed but archived objects not deleted, a scrub retries: topic=%s error=%s",
                self._name,
                error,
            )
