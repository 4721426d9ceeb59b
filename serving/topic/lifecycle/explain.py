"""Explanation of why each segment is kept: the decisions of trimming and archiving, in words.

A segment is trimmed when all of these hold:

- it is not the active one;
- every durable subscription has acknowledged all of it;
- its retention has ended;
- compaction has read it;
- a durable deduplication snapshot includes it;
- all earlier segments are trimmed.

The copy on the bookies is deleted earlier: `archive_lag_ms` after the segment was archived. Each condition that does
not hold is one *reason*, with the time at which it ends, if known. `docs/retention.md` explains the same to operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from quire.metadata.records import RetentionPolicy, SegmentRecord
from quire.serving.model.ports import Position
from quire.serving.settings import BrokerSettings
from quire.serving.topic.lifecycle.retention import is_retained

NAMES_MAX: Final = 5


class Reason(Struct, rename="camel", frozen=True):
    """Reason to keep a segment. `until_ms` is the wall-clock time (ms) at which it ends; None if that is not known."""

    by: str
    """One of active, subscription, retention, compaction, deduplication, order.

    For the bookies' copy also archive, lag and damage.
    """
    why: str
    until_ms: int | None = None


class KeptSegment(Struct, rename="camel"):
    """Segment with the reasons to keep it. Times are in ms since 1970, by the broker's clock."""

    ledger_id: int
    messages: int
    bytes: int
    first_ms: int
    last_ms: int
    archived: bool
    on_bookies: bool
    kept_by: list[Reason]
    bookies: Reason
    """Reason to keep the bookies' copy."""
    damage: str
    """Damage of the archived object."""


@dataclass(frozen=True)
class Circumstances:
    """Input of `explain`. `segments` are oldest first; the active one is last, unsealed, with confirmed totals."""

    segments: Sequence[SegmentRecord]
    marks: Mapping[str, Position]
    """Mark-delete positions of the durable subscriptions."""
    retention: RetentionPolicy
    compacted_to: Position | None
    """Compaction horizon; None if the topic is not compacted."""
    deduplicated_to: Position | None
    """Position of the last durable deduplication snapshot; None if the topic does not deduplicate."""
    settings: BrokerSettings
    has_archive: bool
    archive_lag_ms: int
    now_ms: int
    damage: Mapping[int, str] = field(default_factory=dict)
    """Damage of a segment's object in the archive, by ledger id."""
    failures: Mapping[int, str] = field(default_factory=dict)
    """Error of the last attempt to archive a segment, by ledger id."""
    wals: Mapping[int, str] = field(default_factory=dict)
    """Name of the object-storage write-ahead log that stores a segment, by ledger id; bookies store the others."""


def explain(case: Circumstances) -> list[KeptSegment]:
    """Return the reasons to keep each segment, and the reason to keep the bookies' copy."""
    rows = []
    newer_bytes = sum(segment.bytes for segment in case.segments)
    is_earlier_kept = False
    for segment in case.segments:
        newer_bytes -= segment.bytes
        reasons = _reasons(case, segment, newer_bytes)
        if not reasons and is_earlier_kept:
            reasons = [Reason("order", "an earlier segment is kept, and segments are trimmed oldest first")]
        is_earlier_kept = bool(reasons)
        rows.append(
            KeptSegment(
                ledger_id=segment.ledger_id,
                messages=segment.messages,
                bytes=segment.bytes,
                first_ms=segment.first_clock_ms,
                last_ms=segment.last_clock_ms,
                archived=segment.archive is not None,
                on_bookies=segment.on_bookies,
                kept_by=reasons,
                bookies=_bookies(case, segment),
                damage=case.damage.get(segment.ledger_id, ""),
            )
        )
    return rows


def _reasons(case: Circumstances, segment: SegmentRecord, newer_bytes: int) -> list[Reason]:
    if not segment.is_sealed:
        return [_active(case, segment)]
    found = [
        _subscriptions(case, segment),
        _retention(case, segment, newer_bytes),
        _compaction(case, segment),
        _deduplication(case, segment),
    ]
    return [reason for reason in found if reason is not None]


def _active(case: Circumstances, segment: SegmentRecord) -> Reason:
    settings = case.settings
    return Reason(
        "active",
        f"it is the active segment; it is sealed at {settings.segment_bytes_max} bytes ({segment.bytes} now) "
        "or at its maximum age, if it contains messages",
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
        return Reason("retention", "retention is unlimited: the policy has no limit by time or by size")
    if not is_retained(segment, newer_bytes, policy, case.now_ms):
        return None
    words, until_ms = [], None
    if policy.retention_ms > 0:
        until_ms = segment.sealed_ms + policy.retention_ms
        words.append(f"until {policy.retention_ms // 1000} s after it was sealed")
    if policy.retention_bytes > 0:
        left = policy.retention_bytes - newer_bytes - segment.bytes
        words.append(f"while it is within the newest {policy.retention_bytes} bytes ({left} bytes left)")
    return Reason("retention", f"retention keeps it {' and '.join(words)}", until_ms)


def _compaction(case: Circumstances, segment: SegmentRecord) -> Reason | None:
    if case.compacted_to is None or case.compacted_to >= (segment.ledger_id, segment.last_entry):
        return None
    return Reason("compaction", "the topic is compacted, and no compaction has read this segment yet")


def _deduplication(case: Circumstances, segment: SegmentRecord) -> Reason | None:
    if case.deduplicated_to is None or case.deduplicated_to >= (segment.ledger_id, segment.last_entry):
        return None
    return Reason("deduplication", "no durable deduplication snapshot includes this segment")


def _bookies(case: Circumstances, segment: SegmentRecord) -> Reason:
    """Explain the state of the copy on the bookies, or in the write-ahead log."""
    wal = case.wals.get(segment.ledger_id)
    copy = f"the copy in {wal}" if wal else "the bookies' copy"
    if not segment.is_sealed:
        return Reason("active", f"{copy} is the only one: the segment is active")
    if not segment.on_bookies:
        return Reason("archive", f"{copy} is deleted: the archive serves it")
    if not case.has_archive and segment.archive is None:
        return Reason("archive", f"this broker has no archive, so {copy} is deleted only with the segment")
    settings = case.settings
    if segment.archive is None and (failure := case.failures.get(segment.ledger_id)):
        return Reason("archive", f"archiving failed and will be retried: {failure}")
    if segment.archive is None:
        return Reason(
            "archive",
            "it is not archived yet: archiving starts after every replica has flushed it",
            segment.sealed_ms + settings.archive_delay_ms,
        )
    if case.damage.get(segment.ledger_id):
        return Reason(
            "damage", f"its object in the archive is damaged: {copy} is kept until the object is repaired"
        )
    until_ms = segment.archive.archived_ms + case.archive_lag_ms
    return Reason("lag", f"it is archived, and {copy} is deleted after the archive lag", until_ms)
