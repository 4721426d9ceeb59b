"""Why each segment of a topic is still here and when it will go: what trimming and the archive decide, in words.

A segment leaves the topic when nothing keeps it any more: it is not written to, every durable subscription is past it,
retention is over, compaction has read it, and no earlier segment stays. Its copy on the bookies leaves sooner: when the
archive has it, after a lag. Each of these is one *reason* here, with the moment in which it ends where that is
known. `docs/retention.md` tells the same to people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from quire.metadata.records import RetentionPolicy, SegmentRecord
from quire.serving.model.ports import Position
from quire.serving.settings import BrokerSettings
from quire.serving.topic.lifecycle.retention import is_retained

NAMES_MAX: Final = 5


@dataclass(frozen=True)
class Reason:
    """Something that keeps a segment. `until_ms`: when it ends by the wall clock; None when that depends on others."""

    by: str
    """active, subscription, retention, compaction or order; of the bookies' copy also archive, lag or damage."""
    why: str
    until_ms: int | None = None

    def row(self) -> dict[str, Any]:
        return {"by": self.by, "why": self.why, "untilMs": self.until_ms}


@dataclass(frozen=True)
class Circumstances:
    """All that decides. `segments` oldest first, the active one (not sealed) last, its totals as confirmed so far."""

    segments: Sequence[SegmentRecord]
    marks: Mapping[str, Position]
    """Mark-delete positions of the durable subscriptions."""
    retention: RetentionPolicy
    compacted_to: Position | None
    """What compaction has read; None when the topic is not compacted."""
    settings: BrokerSettings
    has_archive: bool
    now_ms: int
    damage: Mapping[int, str] = field(default_factory=dict)
    """What is wrong with a segment's object in the archive, by ledger."""
    failures: Mapping[int, str] = field(default_factory=dict)
    """Why a segment could not be archived the last time, by ledger."""
    wals: Mapping[int, str] = field(default_factory=dict)
    """The write-ahead log on object storage that has a segment, by ledger; bookies have the others."""


def explain(case: Circumstances) -> list[dict[str, Any]]:
    """A row for each segment: where it lies, what keeps it, and what keeps the bookies' copy."""
    rows = []
    newer_bytes = sum(segment.bytes for segment in case.segments)
    is_earlier_kept = False
    for segment in case.segments:
        newer_bytes -= segment.bytes
        reasons = _reasons(case, segment, newer_bytes)
        if not reasons and is_earlier_kept:
            reasons = [Reason("order", "an earlier segment is kept, and segments go oldest first")]
        is_earlier_kept = bool(reasons)
        rows.append(
            {
                "ledgerId": segment.ledger_id,
                "messages": segment.messages,
                "bytes": segment.bytes,
                "firstMs": segment.first_clock_ms,
                "lastMs": segment.last_clock_ms,
                "archived": segment.archive is not None,
                "onBookies": segment.on_bookies,
                "keptBy": [reason.row() for reason in reasons],
                "bookies": _bookies(case, segment).row(),
                "damage": case.damage.get(segment.ledger_id, ""),
            }
        )
    return rows


def _reasons(case: Circumstances, segment: SegmentRecord, newer_bytes: int) -> list[Reason]:
    if not segment.is_sealed:
        return [_active(case, segment)]
    found = [
        _subscriptions(case, segment),
        _retention(case, segment, newer_bytes),
        _compaction(case, segment),
    ]
    return [reason for reason in found if reason is not None]


def _active(case: Circumstances, segment: SegmentRecord) -> Reason:
    settings = case.settings
    return Reason(
        "active",
        f"it is written to; it is sealed at {settings.segment_bytes_max} bytes ({segment.bytes} now) "
        "or at its age, if it holds messages",
        segment.created_ms + settings.segment_age_ms_max if segment.last_entry >= 0 else None,
    )


def _subscriptions(case: Circumstances, segment: SegmentRecord) -> Reason | None:
    end = (segment.ledger_id, segment.last_entry)
    behind = sorted((mark, name) for name, mark in case.marks.items() if mark < end)
    if not behind:
        return None
    shown = [f"{name} (acknowledged up to {mark[0]}:{mark[1]})" for mark, name in behind[:NAMES_MAX]]
    more = f" and {len(behind) - NAMES_MAX} more" if len(behind) > NAMES_MAX else ""
    return Reason("subscription", f"not acknowledged by {', '.join(shown)}{more}")


def _retention(case: Circumstances, segment: SegmentRecord, newer_bytes: int) -> Reason | None:
    policy = case.retention
    if policy.retention_ms < 0 and policy.retention_bytes < 0:
        return Reason("retention", "retention is for ever: nothing limits it by time or by size")
    if not is_retained(segment, newer_bytes, policy, case.now_ms):
        return None
    words, until_ms = [], None
    if policy.retention_ms > 0:
        until_ms = segment.sealed_ms + policy.retention_ms
        words.append(f"for {policy.retention_ms // 1000} s after it was sealed")
    if policy.retention_bytes > 0:
        left = policy.retention_bytes - newer_bytes - segment.bytes
        words.append(f"while it is within the newest {policy.retention_bytes} bytes ({left} more may follow)")
    return Reason("retention", f"retention keeps it {' and '.join(words)}", until_ms)


def _compaction(case: Circumstances, segment: SegmentRecord) -> Reason | None:
    if case.compacted_to is None or case.compacted_to >= (segment.ledger_id, segment.last_entry):
        return None
    return Reason("compaction", "the topic is compacted, and no compaction has read this segment yet")


def _bookies(case: Circumstances, segment: SegmentRecord) -> Reason:
    """What becomes of the bookies' copy, or that of the write-ahead log."""
    wal = case.wals.get(segment.ledger_id)
    copy = f"the copy in {wal}" if wal else "the bookies' copy"
    if not segment.is_sealed:
        return Reason("active", f"{copy} is the only one: it is written to")
    if not segment.on_bookies:
        return Reason("archive", f"{copy} is deleted: the archive serves it")
    if not case.has_archive and segment.archive is None:
        return Reason("archive", f"this broker has no archive: {copy} is kept as long as the topic is")
    settings = case.settings
    if segment.archive is None and (failure := case.failures.get(segment.ledger_id)):
        return Reason("archive", f"it could not be archived, and that is tried again: {failure}")
    if segment.archive is None:
        return Reason(
            "archive",
            "it is not archived yet: that happens when every replica has flushed it, and not before",
            segment.sealed_ms + settings.archive_delay_ms,
        )
    if case.damage.get(segment.ledger_id):
        return Reason("damage", f"its object in the archive is damaged: {copy} is kept until a repair")
    until_ms = segment.archive.archived_ms + settings.archive_lag_ms
    return Reason("lag", f"it is archived, and {copy} goes after a lag", until_ms)
