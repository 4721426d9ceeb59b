"""What a log does to its list of segments in the metadata store: changes by version, one after the other.

Every change is one transaction that names the version it rests on. The first conflict means that another broker changed
the list, so it owns the topic now: `lost` turns true, `on_lost` is told, and every later change raises `Fenced`. An
unknown outcome counts as a conflict, because whoever loads the topic again sees what happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from quire.metadata import topics
from quire.metadata.records import ArchivePointer, SegmentRecord, TopicRecord
from quire.metadata.segment_states import SegmentEvent, check
from quire.metadata.store import MetadataStore
from quire.runtime.errors import Fenced, NotFound, OutcomeUnknown, VersionConflict
from quire.serving.topic.segments import Active, Segments

_Change = Callable[[topics.Topic], Awaitable[topics.Topic]]


class MetaStore:
    """That of one loaded topic, whose `segments` are the list as it was after the last change."""

    def __init__(self, store: MetadataStore, snapshot: topics.Topic) -> None:
        self._store = store
        self._change = asyncio.Lock()
        self.segments = Segments(snapshot)
        self.lost = False
        self.on_lost: Callable[[], None] = lambda: None

    async def reach(self) -> None:
        """Return when the metadata store answers about the list. Raises `Unavailable`, `Fenced` when it is lost."""
        self._refuse_if_lost()
        try:
            await self._store.get(self.segments.snapshot.path)
        except NotFound:
            pass  # the next change finds out

    async def begin(
        self, sealed: SegmentRecord | None, opened: Active, commit: topics.Commit | None = None
    ) -> None:
        """Write down how the last segment ended, and that `opened` follows it. Only then may it be written to.

        `commit` makes the ledger of `opened` in the same transaction.
        """

        async def roll(snapshot: topics.Topic) -> topics.Topic:
            if sealed is not None:
                check(snapshot.record.segments[-1], *_end_of(sealed))
            check(None, SegmentEvent.BEGUN, opened.record())
            try:
                rolled = await topics.roll(self._store, snapshot, sealed, opened.record(), commit)
            except NotFound as error:
                raise VersionConflict(f"its record is gone: {error}") from error
            self.segments.active = opened
            return rolled

        await self._apply(roll)

    async def seal(self, sealed: SegmentRecord, commit: topics.Commit | None = None) -> None:
        """Write down how the last segment ended, without a next one: the topic is being unloaded.

        `commit` closes its ledger in the same transaction.
        """

        async def close(snapshot: topics.Topic) -> topics.Topic:
            check(snapshot.record.segments[-1], SegmentEvent.SEALED, sealed)
            closed = await topics.replace_segment(self._store, snapshot, sealed, commit)
            self.segments.active = None
            return closed

        await self._apply(close)

    async def drop_active(self, commit: topics.Commit) -> None:
        """Take the active segment off the list: the topic is being unloaded. `commit` removes its ledger, too."""

        async def drop(snapshot: topics.Topic) -> topics.Topic:
            check(snapshot.record.segments[-1], SegmentEvent.DROPPED, None)
            dropped = await topics.drop_last(self._store, snapshot, commit)
            self.segments.active = None
            return dropped

        await self._apply(drop)

    async def archived(self, ledger_id: int, pointer: ArchivePointer) -> None:
        """Record where a sealed segment lies in the archive. Raises `NotFound` when it was trimmed meanwhile."""
        await self._edit(ledger_id, SegmentEvent.ARCHIVED, lambda segment: replace(segment, archive=pointer))

    async def off_bookies(self, ledger_id: int) -> None:
        """Record that the bookies' copy is no longer to be read; its deletion may follow."""
        await self._edit(ledger_id, SegmentEvent.RELEASED, lambda segment: replace(segment, on_bookies=False))

    async def trim(self, first_kept_ledger: int) -> list[SegmentRecord]:
        """Drop the segments before `first_kept_ledger` from the list; returns them, for deletion."""
        dropped = [segment for segment in self.segments.sealed if segment.ledger_id < first_kept_ledger]
        for segment in dropped:
            check(segment, SegmentEvent.TRIMMED, None)
        await self._apply(lambda snapshot: topics.trim_front(self._store, snapshot, first_kept_ledger))
        return dropped

    async def update(self, change: Callable[[TopicRecord], TopicRecord]) -> None:
        """Change what the record says beside the segments."""
        await self._apply(lambda snapshot: topics.update(self._store, snapshot, change(snapshot.record)))

    async def delete(self) -> None:
        """Delete the record; the ledgers must be gone."""
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
        """Make one change after the other, each on the version that the one before left.

        The active segment belongs to the snapshot: only a change may set it, when its turn has come. `NotFound` says
        that the segment was trimmed, or that the record itself is gone.
        """
        async with self._change:
            self._refuse_if_lost()
            try:
                changed = await change(self.segments.snapshot)
            except (VersionConflict, OutcomeUnknown) as error:
                self.lost = True
                asyncio.get_running_loop().call_soon(self.on_lost)
                raise Fenced(
                    f"topic {self.segments.record.name} is another broker's now ({error})"
                ) from error
            self.segments.change(changed)

    def _refuse_if_lost(self) -> None:
        if self.lost:
            raise Fenced(f"topic {self.segments.record.name} is another broker's now")


def _end_of(sealed: SegmentRecord) -> tuple[SegmentEvent, SegmentRecord | None]:
    """What becomes of the last segment when the next one begins: an empty one leaves the list."""
    return (SegmentEvent.SEALED, sealed) if sealed.last_entry >= 0 else (SegmentEvent.DROPPED, None)
