"""Timers for redelivery: negative acks after their delay, and messages that are not acknowledged in time.

The delay after a negative ack is `nack_delay_ms * nack_multiplier ** redelivery_count`, at most `nack_delay_max_ms`, so
a multiplier above 1 increases it with each redelivery. An entry also becomes due if it is neither acknowledged nor
negatively acknowledged within `ack_timeout_ms` (if set) after its first message was handed to the application.

Due entries are passed to `again`, together if they are due at the same time. A broker redelivers entries as a whole,
but without their acknowledged messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Final

from quire.client.settings import ConsumerSettings
from quire.wire import pulsar_pb2 as pb

Place = tuple[int, int]
Ids = Sequence[pb.MessageIdData]
DOUBLINGS_MAX: Final = 64
"""Maximum exponent of the multiplier, so that its power does not overflow a float."""


def delay_ms(settings: ConsumerSettings, redelivery_count: int) -> float:
    """Return the delay in ms after a negative ack of a message that was redelivered `redelivery_count` times."""
    grown = settings.nack_delay_ms * settings.nack_multiplier ** min(redelivery_count, DOUBLINGS_MAX)
    return min(grown, max(settings.nack_delay_max_ms, settings.nack_delay_ms))


class Redelivery:
    """Timers of the entries of one partition that are to be redelivered."""

    def __init__(self, settings: ConsumerSettings, again: Callable[[dict[Place, Ids]], None]) -> None:
        self._settings = settings
        self._again = again
        self._loop = asyncio.get_running_loop()
        self._nacked: dict[Place, Ids] = {}
        self._heap: list[tuple[float, Place]] = []
        """(due time in s, place) of negatively acknowledged entries; those no longer in `_nacked` are skipped."""
        self._held: dict[Place, tuple[float, Ids]] = {}
        """Entries handed out and not acknowledged, oldest first; used only with an ack timeout."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0

    def nack(self, place: Place, ids: Ids, redelivery_count: int) -> None:
        """Schedule the redelivery of an entry after the nack delay."""
        self._held.pop(place, None)
        if place not in self._nacked:
            self._nacked[place] = ids
            heappush(
                self._heap, (self._loop.time() + delay_ms(self._settings, redelivery_count) / 1000, place)
            )
            self._watch()

    def handed_out(self, place: Place, ids: Ids) -> None:
        """Start the ack timeout of an entry when its first message is handed to the application."""
        if place not in self._held:
            self._held[place] = self._loop.time() + self._settings.ack_timeout_ms / 1000, ids
            self._watch()

    def acknowledged(self, place: Place) -> None:
        """Cancel the timers of an entry that was acknowledged."""
        self._held.pop(place, None)
        self._nacked.pop(place, None)

    def acknowledged_up_to(self, place: Place) -> None:
        for held in [one for one in self._held if one <= place]:
            del self._held[held]

    def forget(self) -> None:
        """Cancel the timers of all entries, because the broker redelivers all of them, or on closing."""
        self._nacked.clear()
        self._heap.clear()
        self._held.clear()

    def stop(self) -> None:
        self.forget()
        if self._timer is not None:
            self._timer.cancel()

    # -- Time --

    def _next_s(self) -> float | None:
        """Return the event loop time in seconds at which the next entry is due, or None."""
        while self._heap and self._heap[0][1] not in self._nacked:
            heappop(self._heap)
        times = [self._heap[0][0]] if self._heap else []
        if self._held:
            times.append(next(iter(self._held.values()))[0])
        return min(times, default=None)

    def _watch(self) -> None:
        due_s = self._next_s()
        if due_s is None or (self._timer is not None and self._timer_s <= due_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_s = self._loop.call_at(due_s, self._fire), due_s

    def _fire(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        due: dict[Place, Ids] = {}
        while self._heap and self._heap[0][0] <= now_s:
            _, place = heappop(self._heap)
            if (ids := self._nacked.pop(place, None)) is not None:
                due[place] = ids
        while self._held:
            place, (deadline_s, ids) = next(iter(self._held.items()))
            if deadline_s > now_s:
                break
            del self._held[place]
            due[place] = ids
        if due:
            self._again(due)
        self._watch()
