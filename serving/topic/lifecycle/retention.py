"""Retention: which sealed segments a topic no longer has to keep. No I/O.

A segment may go when every durable subscription has acknowledged all of it and it is neither younger than the
retention time nor within the retention size (counted from the newest segment back). Only a prefix of the list goes.
-1 keeps for ever, 0 keeps nothing beyond the acknowledgements. A topic without subscriptions keeps by retention
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quire.metadata.records import RetentionPolicy, SegmentRecord
from quire.serving.model.ports import Position


def trimmable(
    sealed: Sequence[SegmentRecord],
    active_bytes: int,
    mark_deletes: Iterable[Position],
    retention: RetentionPolicy,
    now_ms: int,
) -> int:
    """How many of the oldest segments may go; `sealed` is oldest first."""
    if retention.retention_ms < 0 and retention.retention_bytes < 0:
        return 0
    oldest = min(mark_deletes, default=None)
    newer_bytes = active_bytes + sum(segment.bytes for segment in sealed)
    count = 0
    for segment in sealed:
        newer_bytes -= segment.bytes
        acknowledged = oldest is None or oldest >= (segment.ledger_id, segment.last_entry)
        if not acknowledged or is_retained(segment, newer_bytes, retention, now_ms):
            break
        count += 1
    return count


def is_retained(segment: SegmentRecord, newer_bytes: int, retention: RetentionPolicy, now_ms: int) -> bool:
    """By time and by size; -1 in one of the two leaves the decision to the other. Not for -1 in both."""
    if retention.retention_ms == 0 or retention.retention_bytes == 0:
        return False
    young = retention.retention_ms > 0 and now_ms - segment.sealed_ms < retention.retention_ms
    within = retention.retention_bytes > 0 and newer_bytes + segment.bytes <= retention.retention_bytes
    if retention.retention_ms < 0:
        return within
    if retention.retention_bytes < 0:
        return young
    return young and within
