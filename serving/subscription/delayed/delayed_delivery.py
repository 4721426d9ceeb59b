"""What of one subscription is to be delivered later: the shell around `delays`.

It has the clock and the one timer, which rings when the next entry is due; and it writes down what was found
(`survey`), so that nobody has to read the same backlog twice: after so many delayed entries, or so many bytes while any
are waiting, and whenever the dispatcher is about to forget (the last consumer leaves, the topic is unloaded).
Subscriptions without delayed entries, not durable ones and those that read compacted data write nothing.

What is due later than an hour is looked for again in between: wall clocks are set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from quire.metadata.records import DelayedDeliveryPolicy
from quire.runtime.clock import Clock
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.cursor.cursor_store import CursorStore
from quire.serving.subscription.delayed.delayed_entries import DelayedEntries
from quire.serving.subscription.delayed.delays import Delays
from quire.serving.subscription.dispatch.dispatcher import Dispatcher
from quire.serving.subscription.dispatch.multi_consumer import MultiConsumer

SURVEY_ENTRIES: Final = 50_000
SURVEY_BYTES: Final = 64 << 20
"""Delayed entries, and bytes read, that may have to be read again after a crash."""

SURVEY_HELD_BYTES_MAX: Final = 32 << 20
"""A survey that takes more is not continued: what lies after it will be read again."""

TIMER_S_MAX: Final = 3600.0


class DelayedDelivery:
    """`delays` is None while times of delivery do not count. `due` is called when something has become due."""

    def __init__(self, cursor: Cursor, store: CursorStore, clock: Clock, due: Callable[[], None]) -> None:
        self.delays: Delays | None = None
        self._entries: DelayedEntries | None = None
        self._cursor = cursor
        self._store = store
        self._clock = clock
        self._due = due
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        """When the timer rings, in ms since 1970; 0 when it is not set."""
        self._is_kept = False
        """What is found is written down."""

    def move_to(self, store: CursorStore) -> None:
        """See `Subscriptions.move_to`."""
        self._store = store

    def __len__(self) -> int:
        """Entries that were read and wait for their time."""
        return 0 if self.delays is None else len(self.delays)

    def apply_policy(self, dispatcher: Dispatcher, policy: DelayedDeliveryPolicy, *, is_kept: bool) -> bool:
        """Let times count, or not, as the policy says; only where nothing is in order. Whether more is due now."""
        self._is_kept = is_kept and self._cursor.id != 0
        self._entries = dispatcher.delayed if isinstance(dispatcher, MultiConsumer) else None
        if self._entries is None or not policy.active:
            self.delays = None
            return self._entries is not None and self._entries.release_all()
        if self._entries.delays is None or not dispatcher.consumers:
            self.delays = self._entries.delays = Delays(policy.tick_ms, policy.delay_ms_max)
            self.look_at_clock()
            if self._is_kept and not dispatcher.consumers:
                self._entries.restore(self._cursor.survey)
        return False

    def look_at_clock(self) -> None:
        """What is due by now is not delayed. Call it before dispatching."""
        if self.delays is not None:
            self.delays.now_ms = self._clock.now_ms()

    def dispatched(self) -> None:
        """Something may have been found: set the timer for it, write it down."""
        if self.delays:
            self._set_timer(self.delays.next_ms())
            entries = self._entries
            assert entries is not None
            if entries.found_count >= SURVEY_ENTRIES or entries.bytes_read >= SURVEY_BYTES:
                self.write()

    def write(self) -> None:
        """Write down what was found since the last time, if any of it is still to come."""
        if not self.delays or not self._is_kept or self._entries is None:
            return
        if self._has_room():
            for piece in self._entries.survey():
                self._store.found(self._cursor, piece)
        else:
            self._entries.found_count = self._entries.bytes_read = 0

    def _has_room(self) -> bool:
        survey = self._cursor.survey
        if survey.held_bytes() > SURVEY_HELD_BYTES_MAX:
            survey.prune(self._cursor.mark_delete, self._cursor.unacknowledged)
        return survey.held_bytes() <= SURVEY_HELD_BYTES_MAX

    def _set_timer(self, due_ms: int | None) -> None:
        """Ring at `due_ms` since 1970 instead of when it was set to; None leaves it as it is."""
        if due_ms is None or due_ms == self._timer_ms:
            return
        self._stop_timer()
        delay_s = min(max(0, due_ms - self._clock.now_ms()) / 1000, TIMER_S_MAX)
        self._timer_ms = due_ms
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_ms = 0
        if self._entries is not None and self.delays is not None:
            self.look_at_clock()
            self._entries.release()
            self._due()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def stop(self) -> None:
        """Ring no more, and know nobody."""
        self._stop_timer()
        self.delays, self._due = None, _nobody


def _nobody() -> None:
    """To whom something is due when the subscription has ended."""
