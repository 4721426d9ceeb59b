"""Which bundles a broker gives away, and which it splits: a core. Loads in, moves out.

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

What is too much to be moved whole is split (`to_split`): the largest bundle, of those that have more than one topic,
when this broker has too much and nothing to give away. The halves move as any bundle does, when their rates are known.

Load is what the topics take, not what the machine gives: a broker whose event loop lags serves badly whatever it
counts, because its machine is smaller or does other things. One that has lagged for `LAGS_FOR_S` without a break gives
away its largest bundle, if another broker does not lag, and looks again for as long (`to_relieve`).

A broker that cannot write, for too few bookies answer it, serves its topics for nobody. When it has been so for
`UNFIT_FOR_S` it gives up all that it has at once (`must_give_up`), and takes nothing meanwhile, but only while another
broker can write: when the bookies are away from all, bundles stay where they are, and each broker goes on by itself.

The next lookup decides which broker takes the bundle: the least loaded one of that moment, of those that can write and
do not lag.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Final

EXCESS: Final = 0.25
SLACK: Final = 100.0
LOOKS: Final = 2
LAG_S: Final = 0.2
"""As the watchdog's: a loop that is so late within a minute makes clients wait."""

LAGS_FOR_S: Final = 90.0
"""The watchdog remembers its largest lag for up to a minute: one stall alone does not last so long."""

UNFIT_FOR_S: Final = 5.0
"""Others tell that they cannot write either within this time: they look every two seconds, and tell at once."""

BUNDLE: Final = 1.0
TOPIC: Final = 0.01
MINUTE_S: Final = 60.0

Loads = Mapping[str, Mapping[str, float]]
"""Of each broker, its bundles and the load of each."""


def load_of(topics: int, messages_per_s: float, bytes_per_s: float) -> float:
    """The load of one bundle."""
    return BUNDLE + TOPIC * topics + messages_per_s + bytes_per_s / 1024


Lags = Mapping[str, float]
"""Of each broker, by how many seconds its event loop was late at most, lately."""


def unfit(brokers: Collection[str], cannot_write: Collection[str]) -> set[str]:
    """Those of `brokers` that cannot write while another one can; none when nobody can."""
    found = set(brokers) & set(cannot_write)
    return found if found != set(brokers) else set()


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
        self._lags_since: float | None = None
        self._unfit_since: float | None = None

    def must_give_up(self, unfit: Collection[str], now: float) -> bool:
        """Whether to let go of all bundles, of which others can make more than this broker."""
        if self._me not in unfit:
            self._unfit_since = None
            return False
        if self._unfit_since is None:
            self._unfit_since = now
        return now - self._unfit_since >= UNFIT_FOR_S

    def to_relieve(self, loads: Loads, lags: Lags, now: float, recent: Collection[str] = ()) -> str | None:
        """The bundle to give away because this broker's loop lags, and another one's does not."""
        if lags.get(self._me, 0.0) < LAG_S or all(lags.get(broker, 0.0) >= LAG_S for broker in loads):
            self._lags_since = None
            return None
        if self._lags_since is None:
            self._lags_since = now
        mine = {bundle: load for bundle, load in loads.get(self._me, {}).items() if bundle not in recent}
        if now - self._lags_since < LAGS_FOR_S or not mine or not self._moves_left(now):
            return None
        self._lags_since = now
        self._moved_at.append(now)
        return max(mine, key=lambda bundle: (mine[bundle], bundle))

    def to_split(self, loads: Loads, now: float, divisible: Collection[str]) -> str | None:
        """The bundle to split, when `plan` had nothing to give away though there is too much."""
        totals = {broker: sum(bundles.values()) for broker, bundles in loads.items()}
        if self._looks < LOOKS or not self._has_too_much(totals) or not self._moves_left(now):
            return None
        room = (totals[self._me] - totals[least_loaded(totals)]) / 2
        large = {
            bundle: load for bundle, load in loads[self._me].items() if load > room and bundle in divisible
        }
        if not large or self._best_move(loads[self._me], totals) is not None:
            return None
        self._moved_at.append(now)
        return max(large, key=lambda bundle: (large[bundle], bundle))

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
