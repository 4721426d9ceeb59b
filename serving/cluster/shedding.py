"""Load shedding: this broker tells what its bundles cost, gives away what is too much, or splits it (`balance`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from quire.runtime.clock import Clock
from quire.runtime.errors import OutcomeUnknown, QuireError, Unavailable
from quire.serving.cluster.balance import Balancer
from quire.serving.cluster.port import BundleHost
from quire.serving.cluster.registration import BrokerRegistration
from quire.serving.cluster.reports import Reports
from quire.serving.cluster.table import BundleTable

REPORT_S: Final = 3.0
"""How often loads are looked at; written when they changed enough to matter."""

UNFIT_LOOK_S: Final = 1.0
"""How often while a broker cannot write, whichever."""

RECENT_MS: Final = 120_000
"""A bundle that came a moment ago is not given away: rates need time to be true."""

_log = logging.getLogger(__name__)


class LoadShedding:
    """`release` gives away a bundle, `give_up` all of them; both are told why."""

    def __init__(
        self,
        clock: Clock,
        registration: BrokerRegistration,
        table: BundleTable,
        reports: Reports,
        moves_per_minute_max: int,
        release: Callable[[str, str], Awaitable[None]],
        give_up: Callable[[str], Awaitable[None]],
    ) -> None:
        self._clock = clock
        self._registration = registration
        self._table = table
        self._reports = reports
        self._balancer = Balancer(registration.broker_id, moves_per_minute_max)
        self._release = release
        self._give_up = give_up
        self._soon = asyncio.Event()
        self.host: BundleHost
        """From the start on."""
        self.moves_total = 0
        self.splits_total = 0

    async def run(self) -> None:
        """Look at the loads for ever."""
        while True:
            await self._until_next()
            try:
                await self.look()
            except (Unavailable, OutcomeUnknown) as error:
                _log.debug("loads are told later: %s", error)
            except QuireError as error:  # a bundle went while others were handed over
                _log.info("loads are looked at again later: %s", error)

    def look_soon(self) -> None:
        """Whether this broker can write has changed."""
        self._soon.set()

    async def _until_next(self) -> None:
        try:
            async with asyncio.timeout(UNFIT_LOOK_S if self._reports.cannot_write() else REPORT_S):
                await self._soon.wait()
        except TimeoutError:
            pass
        self._soon.clear()

    async def look(self) -> None:
        """Report this broker's loads, and give away what is too much. Raises `Unavailable`, `OutcomeUnknown`."""
        await self.report()
        if self._balancer.must_give_up(self._reports.unfit(), self._clock.monotonic()) and len(self._table):
            await self._give_up(self._reports.why_unfit())
        if self._reports.why_unfit():
            return
        young = self._clock.now_ms() - RECENT_MS
        recent = [
            name for name in self._table.names() if (held := self._table.get(name)) and held.since_ms > young
        ]
        loads, now = self._reports.loads(), self._clock.monotonic()
        moves = self._balancer.plan(loads, now, recent)
        for move in moves:
            await self._give_away(move, "this broker has more load than the others")
        if moves:
            return
        bundle: str | None
        if (bundle := self._balancer.to_relieve(loads, self._reports.lags(), now, recent)) is not None:
            await self._give_away(bundle, "the event loop of its broker lagged")
        elif (bundle := self._balancer.to_split(loads, now, self.host.divisible())) is not None:
            _log.info("splitting bundle %s: it has too much load to be moved", bundle)
            self.splits_total += 1
            await self.host.split(bundle)

    async def _give_away(self, bundle: str, why: str) -> None:
        self.moves_total += 1
        await self._release(bundle, why)

    async def report(self) -> None:
        """Raises as `look`."""
        if self._registration.is_held:
            await self._reports.write()
