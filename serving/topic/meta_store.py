"""Changes of a log's list of segments in the metadata store: compare-and-set by version, one at a time.

Every change is one transaction, conditional on the version on which it is based. A version conflict means that another
broker has changed the list and owns the topic now. Then `lost` becomes true, `on_lost` is called, and every later
change raises `Fenced`. An unknown outcome is treated like a conflict: the next load of the topic reads the outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from quire.metadata import topics
from quire.metadata.records import SegmentRecord, TopicRecord
from quire.metadata.segment_states import SegmentEvent, check
from quire.metadata.store import MetadataStore
from quire.runtime.errors import Fenced, NotFound, OutcomeUnknown, VersionConflict
from quire.serving.topic.segments import Active, Segments
from quire.wire.publish_time import PublishTimes

_Change = Callable[[topics.Topic], Awaitable[topics.Topic]]


class MetaStore:
    """List of segments of one loaded topic; `segments` is the list after the last change."""

    def __init__(self, store: MetadataStore, snapshot: topics.Topic) -> None:
        self._store = store
        self._change = asyncio.Lock()
        self.segments = Segments(snapshot)
        self.lost = False
        self.on_lost: Callable[[], None] = lambda: None

    async def reach(self) -> None:
        """Check that the metadata store answers. Raises `Unavailable` if it does not, `Fenced` if the topic is lost."""
        self._refuse_if_lost()
        try:
            await self._store.get(self.segments.snapshot.path)
        except NotFound:
            pass  # The store answered; the next change fails.

    async def begin(
        self, sealed: SegmentRecord | None, opened: Active, commit: topics.Commit | None = None
    ) -> None:
        """Record the end of the last segment, and append `opened` to the list. Do not write to `opened` before.

        `commit` creates the ledger of `opened` in the same transaction.
        """

        async def roll(snapshot: topics.Topic) -> topics.Topic:
            if sealed is not None:
                check(snapshot.record.segments[-1], *_end_of(sealed))
            check(None, SegmentEvent.BEGUN, opened.record())
            try:
                rolled = await topics.roll(self._store, snapshot, sealed, opened.record(), commit)
            except NotFound as error:
                raise VersionConflict(f"the topic's record was deleted: {error}") from error
            self.segments.active = opened
            return rolled

        await self._apply(roll)

    async def seal(self, sealed: SegmentRecord, commit: topics.Commit | None = None) -> None:
        """Record the end of the last segment without appending a new one, at unloading.

        `commit` closes the segment's ledger in the same transaction.
        """

        async def close(snapshot: topics.Topic) -> topics.Topic:
            check(snapshot.record.segments[-1], SegmentEvent.SEALED, sealed)
            closed = await topics.replace_segment(self._store, snapshot, sealed, commit)
            self.segments.active = None
            return closed

        await self._apply(close)

    async def drop_active(self, commit: topics.Commit) -> None:
        """Remove the empty active segment from the list, at unloading.

        `commit` deletes the segment's ledger in the same transaction.
        """

        async def drop(snapshot: topics.Topic) -> topics.Topic:
            check(snapshot.record.segments[-1], SegmentEvent.DROPPED, None)
            dropped = await topics.drop_last(self._store, snapshot, commit)
            self.segments.active = None
            return dropped

        await self._apply(drop)

    async def archived(self, archived: SegmentRecord) -> None:
        """Record a sealed segment's object in the archive, and the publish times found during archiving.

        Raises `NotFound` if the segment was trimmed.
        """

        def change(segment: SegmentRecord) -> SegmentRecord:
            return replace(
                segment,
                archive=archived.archive,
                publish_min_ms=archived.publish_min_ms,
                publish_max_ms=archived.publish_max_ms,
                publish_ahead_ms=archived.publish_ahead_ms,
            )

        await self._edit(archived.ledger_id, SegmentEvent.ARCHIVED, change)

    async def measured(self, ledger_id: int, times: PublishTimes) -> None:
        """Record the publish times of a sealed segment. Raises `NotFound` if the segment was trimmed."""

        def change(segment: SegmentRecord) -> SegmentRecord:
            return replace(
                segment,
                publish_min_ms=times.min_ms,
                publish_max_ms=times.max_ms,
                publish_ahead_ms=times.ahead_ms,
            )

        await self._edit(ledger_id, SegmentEvent.MEASURED, change)

    async def off_bookies(self, ledger_id: int) -> None:
        """Record that a segment's copy on the bookies must not be read any more, so that it may be deleted."""
        await self._edit(ledger_id, SegmentEvent.RELEASED, lambda segment: replace(segment, on_bookies=False))

    async def trim(self, first_kept_ledger: int) -> list[SegmentRecord]:
        """Remove the segments before `first_kept_ledger` from the list, and return them.

        The caller deletes their data.
        """
        dropped = [segment for segment in self.segments.sealed if segment.ledger_id < first_kept_ledger]
        for segment in dropped:
            check(segment, SegmentEvent.TRIMMED, None)
        await self._apply(lambda snapshot: topics.trim_front(self._store, snapshot, first_kept_ledger))
        return dropped

    async def update(self, change: Callable[[TopicRecord], TopicRecord]) -> None:
        """Change fields of the record other than the segments."""
        await self._apply(lambda snapshot: topics.update(self._store, snapshot, change(snapshot.record)))

    async def delete(self) -> None:
        """Delete the record. The caller has deleted the ledgers."""
        async with self._change:
            await topics.delete(self._store, self.segments.snapshot)

    async def _edit(
        self, ledger_id: int, event: SegmentEvent, change: Callable[[SegmentRecord], SegmentRecord]
    ) -> None:
        def changed(before: SegmentRecord) -> SegmentRecord:
            after = change(before)
            check(before, event, after)
            return after

        await self._apply(lambda snapshot: topics.change_segment(self._store, snapshot, ledger_id, changed))

    async def _apply(self, change: _Change) -> None:
        """Apply a change, after the earlier ones, to the version that the previous change returned.

        The active segment belongs to the snapshot, so only a change may set it, while it is applied. `NotFound` means
        that the segment was trimmed, or that the record was deleted.
        """
        async with self._change:
            self._refuse_if_lost()
            try:
                changed = await change(self.segments.snapshot)
            except (VersionConflict, OutcomeUnknown) as error:
                self.lost = True
                asyncio.get_running_loop().call_soon(self.on_lost)
                raise Fenced(
                    f"topic {self.segments.record.name} is owned by another broker now ({error})"
                ) from error
            self.segments.change(changed)

    def _refuse_if_lost(self) -> None:
        if self.lost:
            raise Fenced(f"topic {self.segments.record.name} is owned by another broker now")


def _end_of(sealed: SegmentRecord) -> tuple[SegmentEvent, SegmentRecord | None]:
    """Return the event that ends the last segment when a new one begins; an empty segment is removed from the list."""
    return (SegmentEvent.SEALED, sealed) if sealed.last_entry >= 0 else (SegmentEvent.DROPPED, None)
