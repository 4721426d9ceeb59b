"""Which bundles a broker gives away: a core. Loads in, moves out.

The unit of load: one published message a second, or 1 KiB a second of them; a loaded topic counts a hundredth, an
owned bundle one. What consumers read follows from what is published, nearly enough.

Every broker sees the same reports and judges itself alone, so there is no coordinator: only the most loaded broker
gives away, and only when

- it has more than `EXCESS` above the average and more than `SLACK` besides (hysteresis: both the noise of rates and
  the cost of a move, a pause for the topics, are worth more than a perfect balance),
- it was so in `LOOKS` looks in a row,
- the move improves things: the least loaded broker, with the bundle, has less than this one has without it. So one
  hot bundle never wanders around,
- and the budget of moves per minute is not spent.

The next lookup decides which broker takes the bundle: the least loaded one of that moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Final

EXCESS: Final = 0.25
SLACK: Final = 100.0
LOOKS: Final = 2
BUNDLE: Final = 1.0
TOPIC: Final = 0.01
MINUTE_S: Final = 60.0

Loads = Mapping[str, Mapping[str, float]]
"""Of each broker, its bundles and the load of each."""


def load_of(topics: int, messages_per_s: float, bytes_per_s: float) -> float:
    """The load of one bundle."""
    return BUNDLE + TOPIC * topics + messages_per_s + bytes_per_s / 1024


def least_loaded(totals: Mapping[str, float]) -> str:
    """The broker with the smallest load; of equals the first by name."""
    return min(totals, key=lambda broker: (totals[broker], broker))


class Balancer:
    """Judges for one broker, `me`. Times are monotonic seconds."""

    def __init__(self, me: str, moves_per_minute_max: int) -> None:
        self._me = me
        self._budget = moves_per_minute_max
        self._moved_at: deque[float] = deque()
        self._looks = 0

    def plan(self, loads: Loads, now: float, recent: Collection[str] = ()) -> list[str]:
        """Bundles to give away now, largest first. `recent`: those that came a moment ago and stay."""
        totals = {broker: sum(bundles.values()) for broker, bundles in loads.items()}
        if not self._has_too_much(totals):
            self._looks = 0
            return []
        self._looks += 1
        if self._looks < LOOKS:
            return []
        mine = {bundle: load for bundle, load in loads[self._me].items() if bundle not in recent}
        moves: list[str] = []
        for _ in range(self._moves_left(now)):
            bundle = self._best_move(mine, totals)
            if bundle is None:
                break
            load = mine.pop(bundle)
            totals[least_loaded(totals)] += load
            totals[self._me] -= load
            self._moved_at.append(now)
            moves.append(bundle)
            if not self._has_too_much(totals):
                break
        return moves

    def _has_too_much(self, totals: Mapping[str, float]) -> bool:
        if len(totals) < 2 or self._me not in totals:
            return False
        mine = totals[self._me]
        average = sum(totals.values()) / len(totals)
        is_most = mine >= max(totals.values())
        return is_most and mine > average * (1 + EXCESS) + SLACK

    def _best_move(self, mine: Mapping[str, float], totals: Mapping[str, float]) -> str | None:
        """The largest bundle that does not merely change places with the excess."""
        room = (totals[self._me] - totals[least_loaded(totals)]) / 2
        fitting = [bundle for bundle, load in mine.items() if load <= room]
        return max(fitting, key=lambda bundle: (mine[bundle], bundle), default=None)

    def _moves_left(self, now: float) -> int:
        while self._moved_at and now - self._moved_at[0] >= MINUTE_S:
            self._moved_at.popleft()
        return self._budget - len(self._moved_at)
