"""How much of a block a subscription may dispatch now, where rates limit it. It adds the waiting to the rates.

The subscription's own rate, its topic's and its broker's: each is a `RateLimiter`. Before a block is offered they are
asked once (`may_dispatch`); closed, it waits at the first that is, and the subscription is woken when that has tokens
again. Open, the block is cut to what may pass (`cut`), so the dispatcher knows of no rates and dispatches what it is
offered; what that was is taken from all of them. An entry is never torn: one that is larger than what is left leaves
a debt, and is waited for afterwards.

A subscription that nothing limits has none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from quire.runtime.clock import Clock
from quire.serving.model.ports import Position
from quire.serving.policy.rate_limiter import UNLIMITED, DispatchLimits, dispatch_rate_limiter
from quire.serving.subscription.delivery.delivery import BlockView
from quire.wire import block


class DispatchRateLimiter:
    """`wake` is called when more may be dispatched."""

    def __init__(self, limits: DispatchLimits, clock: Clock, wake: Callable[[], None]) -> None:
        limiter = dispatch_rate_limiter(limits.each, clock, limits.shared)
        assert limiter is not None
        self._limiter = limiter
        self.limits = limits
        self._wake = wake
        self.is_waiting = False

    def may_dispatch(self) -> bool:
        """Whether something may be dispatched now; if not, the subscription is woken when it may ask again."""
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
        """Others take its place, or the subscription ends: it wakes nobody any more."""
        self._wake = _nobody

    def cut(self, view: BlockView, wanted: Position) -> BlockView:
        """`view` as far as it may be dispatched from `wanted` on, at least one entry; `may_dispatch` has said so."""
        messages, byte_count = self._limiter.allowance()
        start = wanted.entry_id - view.first_entry
        stop, _ = view.cover(start, view.count, messages)
        if byte_count < UNLIMITED:
            ends = block.ends(view.buffer, view.header)
            before = ends[start - 1] if start else 0
            stop = min(stop, bisect_left(ends, before + byte_count, start) + 1)
        return view if stop >= view.count else view.head(stop)

    def passed(self, messages: int, byte_count: int) -> None:
        """So much was dispatched."""
        self._limiter.passed(messages, byte_count)


def _nobody() -> None:
    """What one that was stopped wakes."""
