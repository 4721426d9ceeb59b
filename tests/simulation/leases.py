"""Check that a broker cut off from the metadata store gives up its bundles before its session expires by its clock.

A violation would lose no messages, because the next owner fences the ledgers. But until it meets a fence, the former
owner would serve topics concurrently with the new owner: consumers would get messages that were acknowledged at the new
owner, and lookups would return the wrong broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quire.serving.ownership.cluster_ownership import ClusterOwnership

from .broker_host import BrokerHost
from .world import World

LOOK_S: Final = 0.25
TOLERANCE: Final = 1.1
"""Factor that allows for a slow clock of a broker."""


class LeaseWatch:
    def __init__(self, world: World, brokers: Sequence[BrokerHost]) -> None:
        self._world = world
        self._brokers = brokers
        self._away_since: dict[object, float] = {}
        """Time at which each current disconnection of a running process was first seen."""

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
