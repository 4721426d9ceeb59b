"""Retention: the choice of sealed segments that may be trimmed. Performs no I/O.

A segment may be trimmed when every durable subscription has acknowledged all of it and the retention policy does not
keep it. The policy keeps a segment that is both younger than the retention time and within the retention size, counted
from the newest segment back. Only a prefix of the list is trimmed. A limit of -1 is unlimited, 0 keeps no acknowledged
segment. In a topic without subscriptions only the policy decides. These are the rules of Pulsar's [retention policies].

[retention policies]: https://pulsar.apache.org/docs/next/cookbooks-retention-expiry/#retention-policies
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
    """Return how many of the oldest segments may be trimmed; `sealed` is oldest first."""
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
    """Return whether the retention time and the retention size both keep a segment.

    If one limit is -1, only the other one decides. The caller handles the case that both are -1.
    """
    if retention.retention_ms == 0 or retention.retention_bytes == 0:
        return False
    young = retention.retention_ms > 0 and now_ms - segment.sealed_ms < retention.retention_ms
    within = retention.retention_bytes > 0 and newer_bytes + segment.bytes <= retention.retention_bytes
    if retention.retention_ms < 0:
        return within
    if retention.retention_bytes < 0:
        return young
    return young and within
