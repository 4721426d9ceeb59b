"""Load shedding: this broker tells the others what its bundles cost, and gives away what is too much (`balance`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from quire.runtime.clock import Clock
from quire.runtime.errors import OutcomeUnknown, QuireError, Unavailable
from quire.serving.cluster.balance import Balancer
from quire.serving.cluster.registration import BrokerRegistration
from quire.serving.cluster.reports import Reports
from quire.serving.cluster.table import BundleTable

REPORT_S: Final = 3.0
"""How often loads are looked at; written when they changed enough to matter."""

RECENT_MS: Final = 120_000
"""A bundle that came a moment ago is not given away: rates need time to be true."""

_log = logging.getLogger(__name__)


class LoadShedding:
    """`release` gives away a bundle, and is told why."""

    def __init__(
        self,
        clock: Clock,
        registration: BrokerRegistration,
        table: BundleTable,
        reports: Reports,
        moves_per_minute_max: int,
        release: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self._clock = clock
        self._registration = registration
        self._table = table
        self._reports = reports
        self._balancer = Balancer(registration.broker_id, moves_per_minute_max)
        self._release = release
        self.moves_total = 0

    async def run(self) -> None:
        """Look at the loads for ever."""
        while True:
            await asyncio.sleep(REPORT_S)
            try:
                await self.look()
            except (Unavailable, OutcomeUnknown) as error:
                _log.debug("loads are told later: %s", error)
            except QuireError as error:  # a bundle went while others were handed over
                _log.info("loads are looked at again later: %s", error)

    async def look(self) -> None:
        """Report this broker's loads, and give away what is too much. Raises `Unavailable`, `OutcomeUnknown`."""
        await self.report()
        young = self._clock.now_ms() - RECENT_MS
        recent = [
            name for name in self._table.names() if (held := self._table.get(name)) and held.since_ms > young
        ]
        for bundle in self._balancer.plan(self._reports.loads(), self._clock.monotonic(), recent):
            self.moves_total += 1
            await self._release(bundle, "this broker has more load than the others")

    async def report(self) -> None:
        """Raises as `look`."""
        if self._registration.is_held:
            await self._reports.write()
