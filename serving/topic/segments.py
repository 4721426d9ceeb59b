"""A topic's segments: the list in the metadata store, and the active segment's totals. Performs no I/O.

All but the last segment are sealed: their totals are final. The last one is *active* while this broker writes to its
ledger. Its totals are counted here, and recorded when it is sealed; `meta_store` makes all changes of the list.

Positions are resolved by comparison, because their ledger may not be in the list: an empty segment is removed from the
list when the next one begins, and a cursor may still point into it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from quire.metadata import topics
from quire.metadata.records import SegmentRecord, TopicRecord
from quire.serving.model.ports import Position, SegmentView

NO_LEDGER: Final = -1


@dataclass(slots=True)
class Active:
    """Totals of the confirmed part of the active segment. Times are by the broker's clock, in ms since 1970."""

    ledger_id: int
    first_index: int
    created_ms: int
    last_entry: int = -1
    messages: int = 0
    bytes: int = 0
    first_clock_ms: int = 0
    last_clock_ms: int = 0

    def record(self) -> SegmentRecord:
        """Return the segment's record for the list while it is active."""
        return SegmentRecord(
            ledger_id=self.ledger_id, first_index=self.first_index, created_ms=self.created_ms
        )

    def sealed(self, now_ms: int) -> SegmentRecord:
        """Return the segment's final record for the list."""
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
        return SegmentView(
            self.ledger_id,
            self.last_entry,
            self.first_index,
            self.messages,
            self.bytes,
            self.first_clock_ms,
            self.last_clock_ms,
        )


class Segments:
    """List of segments of one loaded topic."""

    def __init__(self, snapshot: topics.Topic) -> None:
        self.active: Active | None = None
        self.change(snapshot)

    def change(self, snapshot: topics.Topic) -> None:
        """Replace the list by `snapshot`.

        `active`, unless None, is the segment of the new list that is being written.
        """
        self.snapshot = snapshot
        self._sealed = [segment for segment in snapshot.segments if segment.is_sealed]
        self._views = [
            SegmentView(
                one.ledger_id,
                one.last_entry,
                one.first_index,
                one.messages,
                one.bytes,
                one.first_clock_ms,
                one.last_clock_ms,
            )
            for one in self._sealed
        ]
        self._ids = [one.ledger_id for one in self._sealed]
        if self.active is not None:
            self._ids.append(self.active.ledger_id)

    @property
    def record(self) -> TopicRecord:
        return self.snapshot.record

    @property
    def sealed(self) -> Sequence[SegmentRecord]:
        """Sealed segments, oldest first."""
        return self._sealed

    @property
    def listed(self) -> Sequence[SegmentRecord]:
        """All segments as the metadata store lists them, oldest first."""
        return self.snapshot.segments

    @property
    def unsealed(self) -> SegmentRecord | None:
        """Segment that a former owner left unsealed; it must be recovered before a new segment begins."""
        segments = self.snapshot.record.segments
        if self.active is None and segments and not segments[-1].is_sealed:
            return segments[-1]
        return None

    def totals(self) -> list[SegmentRecord]:
        """Return all segments with their confirmed totals, oldest first; an active segment is last, and not sealed.

        The list is consistent. A caller that reads `sealed` and `active` separately, with an await in between, may miss
        a segment that is rolled meanwhile.
        """
        return [*self._sealed, *([] if self.active is None else [self.active.sealed(0)])]

    def views(self) -> list[SegmentView]:
        return [*self._views, self.active.view()] if self.active is not None else list(self._views)

    def find(self, ledger_id: int) -> SegmentRecord | None:
        """Return the sealed segment of `ledger_id`; None if there is none."""
        at = bisect_left(self._ids, ledger_id)
        return self._sealed[at] if at < len(self._sealed) and self._ids[at] == ledger_id else None

    def first_position(self) -> Position:
        """Return the position of the oldest entry; if the topic is empty, of the next entry to be written."""
        return Position(self._ids[0], 0) if self._ids else Position(NO_LEDGER, -1)

    def last_position(self) -> Position:
        """Return the position of the last confirmed entry; (ledger id, -1) if there is none."""
        active = self.active
        if active is not None and (active.last_entry >= 0 or not self._sealed):
            return Position(active.ledger_id, active.last_entry)
        if not self._sealed:
            return Position(NO_LEDGER, -1)
        return Position(self._sealed[-1].ledger_id, self._sealed[-1].last_entry)

    def next_position(self, position: Position) -> Position:
        """Return the position after `position`, which is in the next segment if this segment ends there."""
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
        """Return the topic-wide index of the message after the last confirmed one."""
        if self.active is not None:
            return self.active.first_index + self.active.messages
        if self._sealed:
            return self._sealed[-1].first_index + self._sealed[-1].messages
        return self.snapshot.record.segments[-1].first_index if self.snapshot.record.segments else 0

    def last_clock_ms(self) -> int:
        if self.active is not None and self.active.last_clock_ms:
            return self.active.last_clock_ms
        return self._sealed[-1].last_clock_ms if self._sealed else 0

    @property
    def can_drop_active(self) -> bool:
        """True if the active segment is empty, and the list without it still determines the next message's index."""
        active, inline = self.active, self.snapshot.record.segments
        if active is None or active.last_entry >= 0:
            return False
        return len(inline) > 1 or (active.first_index == 0 and not self.snapshot.older)

    @property
    def greatest_id(self) -> int:
        """Greatest ledger id that the topic ever had; -1 before the first one."""
        record = self.snapshot.record
        return max(record.last_dropped, record.segments[-1].ledger_id if record.segments else -1)
