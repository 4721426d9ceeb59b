"""Load balancing of bundles: decides from all brokers' loads which bundles to move, split or give up. Performs no I/O.

The unit of load is one published message per second, or 1 KiB per second; a loaded topic counts as a hundredth of a
unit, an owned bundle as one unit. Reads are not counted, because they correlate closely enough with publishes.

Every broker sees the same reports and decides about its own bundles only, so there is no coordinator. A broker hands a
bundle over if

- it is the most loaded one, and its load exceeds the average by `EXCESS` and by `SLACK` (hysteresis: rates are noisy,
  and a move pauses the topics),
- that was true in `ROUNDS_MIN` consecutive rounds,
- the move improves the balance: afterwards, the receiving broker has no more load than this one. So a single hot
  bundle does not move from broker to broker,
- and the limit of moves per minute is not reached.

A broker with too much load and no bundle to hand over splits its largest bundle that has more than one topic
(`to_split`). The halves are handed over like any bundle, once their rates are known.

Load does not consider the speed of a machine: on a small or busy machine, the event loop may lag at any load. A broker
that lagged for `LAGS_FOR_S` without interruption hands over its largest bundle, if another broker does not lag. Then it
measures the lag for the same time again (`to_relieve`).

A broker that cannot write, because too few bookies answer it, cannot serve its topics. If another broker can write,
this one gives up all bundles after `UNFIT_FOR_S` (`must_give_up`), and acquires no others. If the bookies answer no
broker, all bundles stay where they are, and each broker retries its writes.

The next lookup chooses the new owner: the least loaded broker at that moment that can write and does not lag.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Final

EXCESS: Final = 0.25
SLACK: Final = 100.0
ROUNDS_MIN: Final = 2
LAG_S: Final = 0.2
"""Event loop lag, in seconds within the last minute, at which a broker counts as lagging.

The watchdog has the same limit.
"""

LAGS_FOR_S: Final = 90.0
"""Time of uninterrupted lag, in seconds, after which a bundle is handed over.

It is longer than the minute for which the watchdog remembers its largest lag, so that one stall is not enough.
"""

UNFIT_FOR_S: Final = 5.0
"""Delay, in seconds, before a broker that cannot write gives up its bundles.

In this time other brokers, which check every two seconds, may report that they cannot write either. Then bundles stay.
"""

BUNDLE: Final = 1.0
TOPIC: Final = 0.01
MINUTE_S: Final = 60.0

Loads = Mapping[str, Mapping[str, float]]
"""Load of each bundle, by broker and bundle."""


def load_of(topics: int, messages_per_s: float, bytes_per_s: float) -> float:
    """Return the load of one bundle."""
    return BUNDLE + TOPIC * topics + messages_per_s + bytes_per_s / 1024


Lags = Mapping[str, float]
"""Largest recent lag of each broker's event loop, in seconds."""


def unfit(brokers: Collection[str], cannot_write: Collection[str]) -> set[str]:
    """Return the brokers that cannot write while another one can; an empty set if no broker can write."""
    found = set(brokers) & set(cannot_write)
    return found if found != set(brokers) else set()


def least_loaded(totals: Mapping[str, float]) -> str:
    """Return the broker with the smallest load; of equal ones, the first by name."""
    return min(totals, key=lambda broker: (totals[broker], broker))


class Balancer:
    """Load balancer of one broker, `me`. Times are monotonic, in seconds."""

    def __init__(self, me: str, moves_per_minute_max: int) -> None:
        self._me = me
        self.moves_per_minute_max = moves_per_minute_max
        self._moved_at: deque[float] = deque()
        self._rounds = 0
        self._lags_since: float | None = None
        self._unfit_since: float | None = None

    def must_give_up(self, unfit: Collection[str], now: float) -> bool:
        """Return whether to give up all bundles, because other brokers can write and this one cannot."""
        if self._me not in unfit:
            self._unfit_since = None
            return False
        if self._unfit_since is None:
            self._unfit_since = now
        return now - self._unfit_since >= UNFIT_FOR_S

    def to_relieve(self, loads: Loads, lags: Lags, now: float, recent: Collection[str] = ()) -> str | None:
        """Choose the bundle to hand over if this broker's event loop lags and another broker's does not."""
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
        """Choose the bundle to split if this broker has too much load and `plan` found no bundle to hand over."""
        totals = {broker: sum(bundles.values()) for broker, bundles in loads.items()}
        if self._rounds < ROUNDS_MIN or not self._has_too_much(totals) or not self._moves_left(now):
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
        """Choose the bundles to hand over now, largest first; bundles in `recent` were acquired recently and stay."""
        totals = {broker: sum(bundles.values()) for broker, bundles in loads.items()}
        if not self._has_too_much(totals):
            self._rounds = 0
            return []
        self._rounds += 1
        if self._rounds < ROUNDS_MIN:
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
        """Choose the largest bundle whose move does not just shift the excess load to another broker."""
        room = (totals[self._me] - totals[least_loaded(totals)]) / 2
        fitting = [bundle for bundle, load in mine.items() if load <= room]
        return max(fitting, key=lambda bundle: (mine[bundle], bundle), default=None)

    def _moves_left(self, now: float) -> int:
        while self._moved_at and now - self._moved_at[0] >= MINUTE_S:
            self._moved_at.popleft()
        return self.moves_per_minute_max - len(self._moved_at)
