"""What of one subscription is to be delivered later: the shell around `delays`.

It has the clock and the one timer, which rings when the next entry is due; and it writes down what was found
(`survey`), so that nobody has to read the same backlog twice: after so many delayed entries, or so many bytes while any
are waiting, and whenever the dispatcher is about to forget (the last consumer leaves, the topic is unloaded).
Subscriptions without delayed entries, not durable ones and those that read compacted data write nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quire.metadata.records import DelayedDeliveryPolicy
from quire.runtime.clock import Clock
from quire.serving.subscription.alarm import Alarm
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.cursor.cursor_store import CursorStore
from quire.serving.subscription.delayed.delays import Delays
from quire.serving.subscription.dispatch.dispatcher import Dispatcher
from quire.serving.subscription.dispatch.holding import Holding

SURVEY_ENTRIES: Final = 50_000
SURVEY_BYTES: Final = 64 << 20
"""Delayed entries, and bytes read, that may have to be read again after a crash."""

SURVEY_HELD_BYTES_MAX: Final = 32 << 20
"""A survey that takes more is not continued: what lies behind it will be read again."""


class Later:
    """`delays` is None while times of delivery do not count."""

    def __init__(
        self, cursor: Cursor, store: CursorStore | None, clock: Clock, due: Callable[[], None]
    ) -> None:
        self.delays: Delays | None = None
        self._holding: Holding | None = None
        self._cursor = cursor
        self._store = store
        self._clock = clock
        self._due = due
        self._alarm = Alarm(clock, self._ring)
        self._is_surveyed = False

    def __len__(self) -> int:
        """Entries that were read and wait for their time."""
        return 0 if self.delays is None else len(self.delays)

    def heed(self, dispatcher: Dispatcher, policy: DelayedDeliveryPolicy, *, is_surveyed: bool) -> bool:
        """Let times count, or not, as the policy says; only where nothing is in order. Whether more is due now."""
        self._is_surveyed = is_surveyed and self._store is not None
        self._holding = dispatcher if isinstance(dispatcher, Holding) else None
        if self._holding is None or not policy.active:
            self.delays = None
            return self._holding is not None and self._holding.release_all()
        if self._holding.delays is None or not dispatcher.consumers:
            self.delays = self._holding.delays = Delays(policy.tick_ms, policy.delay_ms_max)
            self.look_at_clock()
            if self._is_surveyed and not dispatcher.consumers:
                self._holding.restore(self._cursor.survey)
        return False

    def look_at_clock(self) -> None:
        """What is due by now is not delayed. Call it before dealing."""
        if self.delays is not None:
            self.delays.now_ms = self._clock.now_ms()

    def dealt(self) -> None:
        """Something may have been found: ring for it, write it down."""
        if self.delays:
            self._alarm.ring_at(self.delays.next_ms())
            holding = self._holding
            assert holding is not None
            if holding.later_found >= SURVEY_ENTRIES or holding.bytes_passed >= SURVEY_BYTES:
                self.write()

    def write(self) -> None:
        """Write down what was found since the last time, if any of it is still to come."""
        if not self.delays or not self._is_surveyed or self._holding is None:
            return
        assert self._store is not None
        if self._has_room():
            for piece in self._holding.survey():
                self._store.found(self._cursor, piece)
        else:
            self._holding.later_found = self._holding.bytes_passed = 0

    def _has_room(self) -> bool:
        survey = self._cursor.survey
        if survey.held_bytes() > SURVEY_HELD_BYTES_MAX:
            survey.prune(self._cursor.mark_delete, self._cursor.unacknowledged)
        return survey.held_bytes() <= SURVEY_HELD_BYTES_MAX

    def _ring(self) -> None:
        if self._holding is not None and self.delays is not None:
            self.look_at_clock()
            self._holding.release()
            self._due()

    def stop(self) -> None:
        """Ring no more, and know nobody."""
        self._alarm.end()
        self._due = _nobody


def _nobody() -> None:
    """To whom something is due when the subscription has ended."""
