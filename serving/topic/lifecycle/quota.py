"""Backlog quotas: limits on unacknowledged messages, and the action when one is exceeded. Performs no I/O.

The actions are those of Pulsar's [backlog quotas]:

| action | effect on producers | effect on subscriptions |
|---|---|---|
| producer_request_hold | closed, and rejected with an error code at which clients wait and retry | |
| producer_exception | closed, and rejected with an error code at which clients fail their pending messages | |
| consumer_backlog_eviction | | messages beyond the quota count as acknowledged |

A quota limits bytes, age, or both; it is exceeded if either limit is. Only durable subscriptions have a backlog. The
backlog's bytes are those of the segments after the slowest mark-delete position. Of the segment that contains that
position, a share of the bytes counts, by the number of entries after it. This estimate needs no read.

[backlog quotas]: https://pulsar.apache.org/docs/next/cookbooks-retention-expiry/#backlog-quotas
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from quire.metadata.records import BacklogQuota
from quire.runtime.errors import QuireError
from quire.serving.model.ports import Position, SegmentView
from quire.wire import pulsar_pb2 as pb

HOLD: Final = "producer_request_hold"
EXCEPTION: Final = "producer_exception"
EVICTION: Final = "consumer_backlog_eviction"


class BacklogHeld(QuireError):
    """Rejection of producers until subscriptions have reduced their backlog; clients retry by themselves."""

    server_error = pb.ProducerBlockedQuotaExceededError


class BacklogExceeded(QuireError):
    """Rejection of producers until subscriptions have reduced their backlog; clients fail their pending messages."""

    server_error = pb.ProducerBlockedQuotaExceededException


REFUSALS: Final[dict[str, type[QuireError]]] = {HOLD: BacklogHeld, EXCEPTION: BacklogExceeded}


def backlog_bytes(segments: Sequence[SegmentView], mark_delete: Position) -> int:
    """Estimate the bytes after a mark-delete position; `segments` are oldest first."""
    total = 0
    for segment in segments:
        if segment.ledger_id > mark_delete.ledger_id:
            total += segment.bytes
        elif segment.ledger_id == mark_delete.ledger_id and segment.last_entry >= 0:
            left = segment.last_entry - mark_delete.entry_id
            total += segment.bytes * left // (segment.last_entry + 1)
    return total


def first_within(segments: Sequence[SegmentView], limit_bytes: int) -> Position:
    """Estimate the position after which the segments have `limit_bytes`.

    Return (-1, -1) if all segments together are smaller.
    """
    left = limit_bytes
    for segment in reversed(segments):
        if segment.bytes > left:
            entries = (segment.last_entry + 1) * left // segment.bytes
            return Position(segment.ledger_id, segment.last_entry + 1 - entries)
        left -= segment.bytes
    return Position(-1, -1)


def refusal(
    quotas: Iterable[BacklogQuota], backlog_bytes: int, is_older: Iterable[bool]
) -> tuple[type[QuireError], str] | None:
    """Return the error type and text of the first exceeded quota that rejects producers, or None.

    `is_older` contains, for each quota, whether a subscription's backlog has a message older than the quota's age
    limit.
    """
    for quota, older in zip(quotas, is_older, strict=True):
        kind = REFUSALS.get(quota.action)
        if kind is None:
            continue
        if 0 <= quota.limit_bytes < backlog_bytes:
            return kind, (
                f"the backlog of {backlog_bytes} bytes exceeds the backlog quota of "
                f"{quota.limit_bytes} bytes: consume and acknowledge messages, or raise the quota"
            )
        if older:
            return kind, (
                f"a subscription's backlog has messages older than the {quota.limit_ms} ms of the backlog "
                "quota: consume and acknowledge messages, or raise the quota"
            )
    return None
