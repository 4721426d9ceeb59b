"""Shrinking of a failing plan while it violates the same invariant: fewer events, a shorter history, fewer clients.

Events are removed by halves, quarters and so on (delta debugging), then one by one. Each candidate is run as a history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from .plan import Plan


def shrink(plan: Plan, fails: Callable[[Plan], bool], runs_max: int = 300) -> Plan:
    """Return the smallest plan found for which `fails` is true; at most `runs_max` plans are tried."""
    assert fails(plan)
    runs = 0
    progress = True
    while progress:
        progress = False
        for candidate in _smaller(plan):
            runs += 1
            if runs > runs_max:
                return plan
            if fails(candidate):
                plan, progress = candidate, True
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    last_s = max((event.at_s for event in plan.events), default=0.0)
    for seconds in (plan.seconds / 2, last_s + 0.5):
        if 1.0 <= seconds < plan.seconds:
            kept = tuple(event for event in plan.events if event.at_s < seconds)
            yield replace(plan, seconds=seconds, events=kept)
    size = len(plan.events)
    while size := size // 2:
        for start in range(0, len(plan.events), size):
            yield replace(plan, events=plan.events[:start] + plan.events[start + size :])
    for name in ("clients", "brokers"):
        if getattr(plan, name) > 1:
            yield replace(plan, **{name: getattr(plan, name) - 1})
    if plan.bookies > plan.write_quorum:
        yield replace(plan, bookies=plan.bookies - 1, lossy=min(plan.lossy, plan.bookies - 2))
    if plan.metadata_lag_ms:
        yield replace(plan, metadata_lag_ms=0.0)
    if plan.retention_ms >= 0 or plan.retention_bytes >= 0:
        yield replace(plan, retention_ms=-1, retention_bytes=-1)
    if plan.loss:
        yield replace(plan, loss=0.0)
