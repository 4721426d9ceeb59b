"""Load shedding: the loop that reports this broker's loads, and hands over or splits bundles (`balance`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from quire.runtime.clock import Clock
from quire.runtime.errors import OutcomeUnknown, QuireError, Unavailable
from quire.serving.ownership.balance import Balancer
from quire.serving.ownership.port import BundleHost
from quire.serving.ownership.registration import BrokerRegistration
from quire.serving.ownership.reports import Reports
from quire.serving.ownership.table import BundleTable

REPORT_S: Final = 3.0
"""Interval of rounds, in seconds; a report is only written if it changed considerably."""

UNFIT_LOOK_S: Final = 1.0
"""Interval of rounds, in seconds, while some broker cannot write."""

RECENT_MS: Final = 120_000
"""Time, in ms, for which load shedding does not move a newly acquired bundle: its rates are not known yet."""

_log = logging.getLogger(__name__)


class LoadShedding:
    """Load shedding of one broker; `release` hands over a bundle, `give_up` gives up all bundles, both for a reason."""

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
        """Port to this broker, set by `ClusterOwnership.start`."""
        self.moves_total = 0
        self.splits_total = 0

    def limit_moves(self, per_minute_max: int) -> None:
        """Change the maximum number of bundles that are handed over or split per minute."""
        self._balancer.moves_per_minute_max = per_minute_max

    async def run(self) -> None:
        """Repeat rounds forever."""
        while True:
            await self._until_next()
            try:
                await self.shed()
            except (Unavailable, OutcomeUnknown) as error:
                _log.debug("cannot report loads, retrying: error=%s", error)
            except QuireError as error:  # for example, a bundle was lost while others were handed over
                _log.info("cannot shed load, retrying: error=%s", error)

    def shed_soon(self) -> None:
        """Start the next round now, because this broker's ability to write changed."""
        self._soon.set()

    async def _until_next(self) -> None:
        try:
            async with asyncio.timeout(UNFIT_LOOK_S if self._reports.cannot_write() else REPORT_S):
                await self._soon.wait()
        except TimeoutError:
            pass
        self._soon.clear()

    async def shed(self) -> None:
        """Report this broker's loads, and hand over excess bundles. Raises `Unavailable`, `OutcomeUnknown`."""
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
            await self._give_away(bundle, "the event loop of its former broker lagged")
        elif (bundle := self._balancer.to_split(loads, now, self.host.divisible())) is not None:
            _log.info("splitting a bundle with too much load for a hand-over: bundle=%s", bundle)
            self.splits_total += 1
            await self.host.split(bundle)

    async def _give_away(self, bundle: str, why: str) -> None:
        self.moves_total += 1
        await self._release(bundle, why)

    async def report(self) -> None:
        """Report this broker's loads while its session is held. Raises `Unavailable`, `OutcomeUnknown`."""
        if self._registration.is_held:
            await self._reports.write()
