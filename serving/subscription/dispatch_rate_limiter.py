"""Dispatch rate limiter of one subscription: limits each block to the available tokens, and waits for more.

The subscription, its topic and its broker each have a rate, which is a token bucket (`RateLimiter`). Before a block is
offered, `may_dispatch` checks all of them. If a bucket has no tokens, the subscription waits until that bucket has
tokens again. Otherwise `cut` shortens the block to the available tokens, so the dispatcher needs no knowledge of rates;
the dispatched messages and bytes are then taken from all buckets. An entry is never split. If it needs more than the
available tokens, a debt remains, which delays later entries.

A subscription without limits has no limiter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from quire.runtime.clock import Clock
from quire.serving.model.ports import Position
from quire.serving.policy.rate_limiter import UNLIMITED, SubscriptionLimits, dispatch_rate_limiter
from quire.serving.subscription.delivery.delivery import BlockView
from quire.wire import block


class DispatchRateLimiter:
    """Dispatch rate limiter; calls `wake` when more messages may be dispatched."""

    def __init__(self, limits: SubscriptionLimits, clock: Clock, wake: Callable[[], None]) -> None:
        limiter = dispatch_rate_limiter(limits.rate, clock, limits.shared)
        assert limiter is not None
        self._limiter = limiter
        self.limits = limits
        self._wake = wake
        self.is_waiting = False

    def may_dispatch(self) -> bool:
        """Return whether the rates allow a dispatch now. If not, call `wake` when they allow it."""
        if self.is_waiting:
            return False
        if self._limiter.is_open():
            return True
        self.is_waiting = True
        self._limiter.wait(self._resume)
        return False

    def _resume(self) -> None:
        self.is_waiting = False
        self._wake()

    def stop(self) -> None:
        """Drop the reference to the subscription, because it ends or gets a limiter with other limits."""
        self._wake = _nothing

    def cut(self, view: BlockView, wanted: Position) -> BlockView:
        """Return a prefix of `view`, whose entries from `wanted` on need at most the available tokens.

        It contains at least the entry at `wanted`, whatever its size.

        The caller has checked `may_dispatch`.
        """
        messages, byte_count = self._limiter.allowance()
        start = wanted.entry_id - view.first_entry
        stop, _ = view.cover(start, view.count, messages)
        if byte_count < UNLIMITED:
            ends = block.ends(view.buffer, view.header)
            before = ends[start - 1] if start else 0
            stop = min(stop, bisect_left(ends, before + byte_count, start) + 1)
        return view if stop >= view.count else view.head(stop)

    def passed(self, messages: int, byte_count: int) -> None:
        """Take the tokens of the dispatched messages and bytes from all rates."""
        self._limiter.passed(messages, byte_count)


def _nothing() -> None:
    """Do nothing, because the limiter was stopped."""
