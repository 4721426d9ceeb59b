"""Pruning of segments that contain no message of a time range. Performs no I/O.

Times are publish times, by producers' clocks. A segment's record contains its least and greatest publish time once the
segment is archived or was searched by time. A segment without them is always read. The brokers' clocks cannot exclude
it, because producers' clocks may differ from them by any amount, and a query must return the same rows before and after
archiving.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def may_contain(segment: Mapping[str, Any], start_ms: int | None, end_ms: int | None) -> bool:
    """Return whether a segment may contain messages published in `[start_ms, end_ms)`."""
    least_ms, greatest_ms = segment.get("publish_min_ms"), segment.get("publish_max_ms")
    if not least_ms or not greatest_ms:
        return True
    if start_ms is not None and greatest_ms < start_ms:
        return False
    return end_ms is None or bool(least_ms < end_ms) or least_ms == 1  # a recorded 1 may mean 0 or any time
