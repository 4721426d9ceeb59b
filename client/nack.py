"""What is to come again, and when: negative acks after their delay, and messages that nobody acknowledged in time.

A negative ack waits, and longer each time the same message comes again, when the settings have a multiplier: the
delay is `nack_delay_ms * nack_multiplier ** redelivery_count`, up to `nack_delay_max_ms`. With `ack_timeout_ms` the
time of every message runs from when its user got it until its entry is acknowledged, or nacked.

What is due is given to `again`, all that falls due at once together. Entries are the unit: a broker delivers them
whole, without the messages that are acknowledged.
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
"""Redelivery counts beyond it change nothing more: the longest delay is long reached."""


def delay_ms(settings: ConsumerSettings, redelivery_count: int) -> float:
    """How long a message that was redelivered so often waits after a negative ack."""
    grown = settings.nack_delay_ms * settings.nack_multiplier ** min(redelivery_count, DOUBLINGS_MAX)
    return min(grown, max(settings.nack_delay_max_ms, settings.nack_delay_ms))


class Redelivery:
    """The entries of one partition that are to come again."""

    def __init__(self, settings: ConsumerSettings, again: Callable[[dict[Place, Ids]], None]) -> None:
        self._settings = settings
        self._again = again
        self._loop = asyncio.get_running_loop()
        self._nacked: dict[Place, Ids] = {}
        self._heap: list[tuple[float, Place]] = []
        """(due, place) of what is nacked; a place that is not nacked any more is passed over."""
        self._held: dict[Place, tuple[float, Ids]] = {}
        """What users have and did not acknowledge, the oldest first; only with a time-out."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0

    def nack(self, place: Place, ids: Ids, redelivery_count: int) -> None:
        """Have an entry again after the delay."""
        self._held.pop(place, None)
        if place not in self._nacked:
            self._nacked[place] = ids
            heappush(
                self._heap, (self._loop.time() + delay_ms(self._settings, redelivery_count) / 1000, place)
            )
            self._watch()

    def handed_out(self, place: Place, ids: Ids) -> None:
        """The user has a message of the entry now."""
        if place not in self._held:
            self._held[place] = self._loop.time() + self._settings.ack_timeout_ms / 1000, ids
            self._watch()

    def acknowledged(self, place: Place) -> None:
        """The entry need not come again."""
        self._held.pop(place, None)
        self._nacked.pop(place, None)

    def acknowledged_up_to(self, place: Place) -> None:
        for held in [one for one in self._held if one <= place]:
            del self._held[held]

    def forget(self) -> None:
        """The broker sends all of it again, or none of it is wanted any more."""
        self._nacked.clear()
        self._heap.clear()
        self._held.clear()

    def stop(self) -> None:
        self.forget()
        if self._timer is not None:
            self._timer.cancel()

    # -- Time --

    def _next_s(self) -> float | None:
        """When something is due."""
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
