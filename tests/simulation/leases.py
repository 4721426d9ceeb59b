"""A broker that is cut off from the metadata store owns nothing any more when its session's time is over by its clock.

Nobody loses a message when one does not keep that, for the next owner fences. But until a client of its happens to meet
the fence it would serve beside the owner: consumers are given what others have acknowledged, lookups lead astray.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quire.serving.cluster.ownership import ClusterOwnership

from .broker_host import BrokerHost
from .world import World

LOOK_S: Final = 0.25
TOLERANCE: Final = 1.1
"""A broker's clock may be a little slow."""


class LeaseWatch:
    def __init__(self, world: World, brokers: Sequence[BrokerHost]) -> None:
        self._world = world
        self._brokers = brokers
        self._away_since: dict[object, float] = {}
        """For each absence of a process that runs, when it was first seen."""

    def start(self) -> None:
        self._look()

    def _look(self) -> None:
        now = self._world.loop.time()
        away = [host for host in self._brokers if self._runs_alone(host)]
        self._away_since = {_absence(host): self._away_since.get(_absence(host), now) for host in away}
        for host in away:
            self._check(host, now - self._away_since[_absence(host)])
        self._world.later(LOOK_S, self._look)

    def _runs_alone(self, host: BrokerHost) -> bool:
        process, store = host.process, host.store
        return process is not None and not process.is_halted and store is not None and store.is_away

    def _check(self, host: BrokerHost, away_s: float) -> None:
        assert host.store is not None
        if away_s <= host.store.session_timeout_ms / 1000 * TOLERANCE + LOOK_S or host.broker is None:
            return
        self._world.saw("broker alone for longer than its session")
        ownership = host.broker.ownership
        assert isinstance(ownership, ClusterOwnership)
        bundles = ownership._table.names()
        self._world.check(
            not bundles, "lease", f"{host.host} is cut off for {away_s:.1f} s and still serves {bundles}"
        )


def _absence(host: BrokerHost) -> object:
    assert host.store is not None
    return host.process, host.store.absences
