"""Backlog quotas: how much subscriptions leave lying, and what is done when it is too much. A core.

| action | producers | subscriptions |
|---|---|---|
| producer_request_hold | are closed, and refused by a code that lets clients wait and try again | nothing |
| producer_exception | are closed, and refused by a code that fails what the client has queued | nothing |
| consumer_backlog_eviction | nothing | what is over the quota counts as acknowledged |

A quota limits bytes, age, or both; one over its limit is enough. Only durable subscriptions have a backlog. Its bytes
are those of the segments behind the slowest mark-delete position; of the segment it lies in, the share of its
entries, so that the question costs no read and is at most a segment's spread of entry sizes off.
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
    """Nobody may publish until subscriptions have caught up; clients try again by themselves."""

    server_error = pb.ProducerBlockedQuotaExceededError


class BacklogExceeded(QuireError):
    """Nobody may publish until subscriptions have caught up, and what clients have queued fails."""

    server_error = pb.ProducerBlockedQuotaExceededException


REFUSALS: Final[dict[str, type[QuireError]]] = {HOLD: BacklogHeld, EXCEPTION: BacklogExceeded}


def backlog_bytes(segments: Sequence[SegmentView], mark_delete: Position) -> int:
    """Bytes behind a mark-delete position; `segments` oldest first."""
    total = 0
    for segment in segments:
        if segment.ledger_id > mark_delete.ledger_id:
            total += segment.bytes
        elif segment.ledger_id == mark_delete.ledger_id and segment.last_entry >= 0:
            left = segment.last_entry - mark_delete.entry_id
            total += segment.bytes * left // (segment.last_entry + 1)
    return total


def first_within(segments: Sequence[SegmentView], limit_bytes: int) -> Position:
    """Where a backlog of at most `limit_bytes` begins: an entry, or the end of the last segment."""
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
    """Why nobody may publish now, by the first quota that is exceeded; `is_older` says it of each quota's age."""
    for quota, older in zip(quotas, is_older, strict=True):
        kind = REFUSALS.get(quota.action)
        if kind is None:
            continue
        if 0 <= quota.limit_bytes < backlog_bytes:
            return kind, (
                f"subscriptions have {backlog_bytes} bytes to acknowledge, and the backlog quota is "
                f"{quota.limit_bytes}: let them catch up, or raise the quota"
            )
        if older:
            return kind, (
                f"a subscription has messages older than {quota.limit_ms} ms to acknowledge, which is the backlog "
                "quota: let it catch up, or raise the quota"
            )
    return None
