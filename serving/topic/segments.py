"""A topic's segments: the list in the metadata store, changed only by version, and what was confirmed since.

All but the last segment are sealed: their totals are final. The last one is *active* while this broker writes to its
ledger; its totals are counted here and written down when it is sealed. Every change is one transaction that names
the version it rests on. The first conflict means that another broker changed the list, so it owns the topic now:
`lost` turns true, `on_lost` is told, and every later change raises `Fenced`. An unknown outcome counts as a conflict,
because whoever loads the topic again sees what happened.

Positions are resolved by comparing, never by counting on a ledger to be listed: an empty segment is dropped from the
list when the next one begins, and a cursor may still point into it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from quire.metadata import topics
from quire.metadata.records import ArchivePointer, SegmentRecord, TopicRecord
from quire.metadata.segment_states import SegmentEvent, check
from quire.metadata.store import MetadataStore
from quire.runtime.errors import Fenced, NotFound, OutcomeUnknown, VersionConflict
from quire.serving.model.ports import Position, SegmentView

_Change = Callable[[topics.Topic], Awaitable[topics.Topic]]

NO_LEDGER: Final = -1


@dataclass(slots=True)
class Active:
    """The segment that is being written, as far as it is confirmed. Times are the broker's clock in ms."""

    ledger_id: int
    first_index: int
    created_ms: int
    last_entry: int = -1
    messages: int = 0
    bytes: int = 0
    first_clock_ms: int = 0
    last_clock_ms: int = 0

    def record(self) -> SegmentRecord:
        """As it stands in the list while it is active."""
        return SegmentRecord(
            ledger_id=self.ledger_id, first_index=self.first_index, created_ms=self.created_ms
        )

    def sealed(self, now_ms: int) -> SegmentRecord:
        """As it stands in the list for good."""
        return replace(
            self.record(),
            sealed_ms=now_ms,
            last_entry=self.last_entry,
            messages=self.messages,
            bytes=self.bytes,
            first_clock_ms=self.first_clock_ms,
            last_clock_ms=self.last_clock_ms,
        )

    def view(self) -> SegmentView:
        return SegmentView(self.ledger_id, self.last_entry, self.first_index, self.messages, self.bytes)


class Segments:
    """The list of one loaded topic."""

    def __init__(
        self, store: MetadataStore, snapshot: topics.Topic, on_lost: Callable[[], None] = lambda: None
    ) -> None:
        self._store = store
        self._on_lost = on_lost
        self._snapshot = snapshot
        self._change = asyncio.Lock()
        self.active: Active | None = None
        self.lost = False
        self._sealed: list[SegmentRecord] = []
        self._views: list[SegmentView] = []
        self._ids: list[int] = []
        self._index()

    def _index(self) -> None:
        """Arrange the snapshot for look-ups; to be called after each change of it."""
        self._sealed = [segment for segment in self._snapshot.segments if segment.is_sealed]
        self._views = [
            SegmentView(one.ledger_id, one.last_entry, one.first_index, one.messages, one.bytes)
            for one in self._sealed
        ]
        self._ids = [one.ledger_id for one in self._sealed]
        if self.active is not None:
            self._ids.append(self.active.ledger_id)

    # -- reading ---------------------------------------------------------------------------------------

    @property
    def record(self) -> TopicRecord:
        return self._snapshot.record

    @property
    def sealed(self) -> Sequence[SegmentRecord]:
        """Oldest first."""
        return self._sealed

    @property
    def listed(self) -> Sequence[SegmentRecord]:
        """All segments as they stand in the list, oldest first."""
        return self._snapshot.segments

    @property
    def unsealed(self) -> SegmentRecord | None:
        """The segment that a former owner left open; it must be recovered before a new one begins."""
        segments = self._snapshot.record.segments
        if self.active is None and segments and not segments[-1].is_sealed:
            return segments[-1]
        return None

    def totals(self) -> list[SegmentRecord]:
        """All segments with what is confirmed of each, oldest first; the last one is not sealed while it is active.

        Of one moment: whoever waits for anything between two looks may miss the segment that rolls meanwhile.
        """
        return [*self._sealed, *([] if self.active is None else [self.active.sealed(0)])]

    def views(self) -> list[SegmentView]:
        return [*self._views, self.active.view()] if self.active is not None else list(self._views)

    def find(self, ledger_id: int) -> SegmentRecord | None:
        """The sealed segment of `ledger_id`, None when it is not (or no longer) one."""
        at = bisect_left(self._ids, ledger_id)
        return self._sealed[at] if at < len(self._sealed) and self._ids[at] == ledger_id else None

    def first_position(self) -> Position:
        """The oldest entry that is here, or the next to be written."""
        return Position(self._ids[0], 0) if self._ids else Position(NO_LEDGER, -1)

    def last_position(self) -> Position:
        """The last confirmed entry; (ledger, -1) when there is none."""
        active = self.active
        if active is not None and (active.last_entry >= 0 or not self._sealed):
            return Position(active.ledger_id, active.last_entry)
        if not self._sealed:
            return Position(NO_LEDGER, -1)
        return Position(self._sealed[-1].ledger_id, self._sealed[-1].last_entry)

    def next_position(self, position: Position) -> Position:
        """The one behind `position`, in the next segment if that one ends there."""
        ledger_id, entry_id = position
        active = self.active
        if active is not None and ledger_id >= active.ledger_id:
            return Position(ledger_id, entry_id + 1)
        segment = self.find(ledger_id)
        if segment is not None and entry_id < segment.last_entry:
            return Position(ledger_id, entry_id + 1)
        at = bisect_right(self._ids, ledger_id)
        return Position(self._ids[at], 0) if at < len(self._ids) else Position(ledger_id, entry_id + 1)

    def next_index(self) -> int:
        """Topic-wide index of the message behind the last confirmed one."""
        if self.active is not None:
            return self.active.first_index + self.active.messages
        if self._sealed:
            return self._sealed[-1].first_index + self._sealed[-1].messages
        return self._snapshot.record.segments[-1].first_index if self._snapshot.record.segments else 0

    def last_clock_ms(self) -> int:
        if self.active is not None and self.active.last_clock_ms:
            return self.active.last_clock_ms
        return self._sealed[-1].last_clock_ms if self._sealed else 0

    async def reach(self) -> None:
        """Return when the metadata store answers about the list. Raises `Unavailable`, `Fenced` when it is lost."""
        self._refuse_if_lost()
        try:
            await self._store.get(self._snapshot.path)
        except NotFound:
            pass  # the next change finds out

    # -- changing --------------------------------------------------------------------------------------

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
            self.active = opened
            return rolled

        await self._apply(roll)

    async def seal(self, sealed: SegmentRecord, commit: topics.Commit | None = None) -> None:
        """Write down how the last segment ended, without a next one: the topic is being unloaded.

        `commit` closes its ledger in the same transaction.
        """

        async def close(snapshot: topics.Topic) -> topics.Topic:
            check(snapshot.record.segments[-1], SegmentEvent.SEALED, sealed)
            closed = await topics.replace_segment(self._store, snapshot, sealed, commit)
            self.active = None
            return closed

        await self._apply(close)

    @property
    def can_drop_active(self) -> bool:
        """The active segment is empty, and what stays in the list tells all that a next one must know."""
        active, inline = self.active, self._snapshot.record.segments
        if active is None or active.last_entry >= 0:
            return False
        return len(inline) > 1 or (active.first_index == 0 and not self._snapshot.older)

    async def drop_active(self, commit: topics.Commit) -> None:
        """Take the active segment off the list: the topic is being unloaded. `commit` removes its ledger, too."""

        async def drop(snapshot: topics.Topic) -> topics.Topic:
            check(snapshot.record.segments[-1], SegmentEvent.DROPPED, None)
            dropped = await topics.drop_last(self._store, snapshot, commit)
            self.active = None
            return dropped

        await self._apply(drop)

    @property
    def greatest_id(self) -> int:
        """No ledger of the topic has had a greater id; -1 before the first one."""
        record = self._snapshot.record
        return max(record.last_dropped, record.segments[-1].ledger_id if record.segments else -1)

    async def archived(self, ledger_id: int, pointer: ArchivePointer) -> None:
        """Record where a sealed segment lies in the archive. Raises `NotFound` when it was trimmed meanwhile."""
        await self._edit(ledger_id, SegmentEvent.ARCHIVED, lambda segment: replace(segment, archive=pointer))

    async def off_bookies(self, ledger_id: int) -> None:
        """Record that the bookies' copy is no longer to be read; its deletion may follow."""
        await self._edit(ledger_id, SegmentEvent.RELEASED, lambda segment: replace(segment, on_bookies=False))

    async def trim(self, first_kept_ledger: int) -> list[SegmentRecord]:
        """Drop the segments before `first_kept_ledger` from the list; answers them, for deletion."""
        dropped = [segment for segment in self._sealed if segment.ledger_id < first_kept_ledger]
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
            await topics.delete(self._store, self._snapshot)

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

        `active` belongs to the snapshot: only a change may set it, when its turn has come.
        """
        async with self._change:
            self._refuse_if_lost()
            try:
                self._snapshot = await change(self._snapshot)
            except (VersionConflict, OutcomeUnknown) as error:
                self.lost = True
                asyncio.get_running_loop().call_soon(self._on_lost)
                raise Fenced(f"topic {self.record.name} is another broker's now ({error})") from error
            except NotFound:
                # Either the segment was trimmed, or the record itself is gone.
                raise
            self._index()

    def _refuse_if_lost(self) -> None:
        if self.lost:
            raise Fenced(f"topic {self.record.name} is another broker's now")


def _end_of(sealed: SegmentRecord) -> tuple[SegmentEvent, SegmentRecord | None]:
    """What becomes of the last segment when the next one begins: an empty one leaves the list."""
    return (SegmentEvent.SEALED, sealed) if sealed.last_entry >= 0 else (SegmentEvent.DROPPED, None)
