"""Operators' requests about the archive. Any broker serves them, for the whole cluster or for its own topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from msgspec.structs import asdict

from quire.runtime.errors import ConfigurationError
from quire.serving.operations.fan_out import FanOut
from quire.serving.ownership.peers import reader_of
from quire.serving.registry.offloading import Offloading
from quire.tiering.offload import OffloadReport, OffloadStatus, RepairReport, Report
from quire.tiering.progress import Progress
from quire.tiering.scrub import ScrubReport

ARCHIVE: Final = "/quire/v1/archive"
RUN_S: Final = 3_600.0
"""Time limit, in seconds, for other brokers to archive everything; shorter than the time-out of the operator's request.
"""


R = TypeVar("R", bound=Report)


class ArchiveStatus(OffloadStatus):
    """Work of all brokers, and the segments and bytes of the cluster in each state."""

    segments: dict[str, dict[str, int]]


class ArchiveAdmin:
    """Requests about the archive. `offloading` is None without an archive; then every request is rejected."""

    def __init__(self, offloading: Offloading | None, fan_out: FanOut) -> None:
        self._offloading = offloading
        self._fan_out = fan_out

    async def run(self, *, seal: bool, here: bool) -> OffloadReport:
        """Archive all segments now, with `seal` also the active ones.

        With `here`, archive only the segments of this broker's topics.
        """
        if here:
            return await self._work().run(seal=seal)
        mine = self._work().run(seal=seal, even_unowned=True)
        report, silent = await self._everywhere(mine, f"run?seal={str(seal).lower()}&here=true")
        report.add(OffloadReport(failed=len(silent), errors=silent))
        return report

    async def repair(self, *, here: bool) -> RepairReport:
        """Upload damaged objects again if bookies still store their data; with `here`, only of this broker's topics."""
        if here:
            return await self._work().repair()
        report, silent = await self._everywhere(self._work().repair(even_unowned=True), "repair?here=true")
        report.add(RepairReport(errors=silent))
        return report

    async def _everywhere(self, mine: Awaitable[R], what: str) -> tuple[R, list[str]]:
        """Return the sum of the reports of all brokers, and the error texts of brokers that did not answer."""
        others = self._fan_out.ask_brokers("POST", f"{ARCHIVE}/{what}", timeout_s=RUN_S)
        report, answers = await asyncio.gather(mine, others)
        for said in answers.said:
            report.add(reader_of(type(report))(said))
        return report, answers.silent

    async def status(self, *, here: bool) -> OffloadStatus | ArchiveStatus:
        """Report the archiving in progress and its errors.

        Without `here`, report the work of all brokers, and the number of segments in each state.
        """
        work = self._work()
        status = work.offloader.status()
        if here:
            return status
        answers = await self._fan_out.ask_brokers("GET", f"{ARCHIVE}/status?here=true")
        for said in answers.said:
            status.add(reader_of(OffloadStatus)(said))
        status.failing += answers.silent
        return ArchiveStatus(**asdict(status), segments=await work.count_by_state())

    async def progress(self, *, here: bool) -> list[Progress]:
        """Report the progress of requested work: one item per broker and kind of work; the caller adds them up."""
        mine = self._work().under_way.works
        if here:
            return mine
        answers = await self._fan_out.ask_brokers("GET", f"{ARCHIVE}/progress?here=true")
        read = reader_of(list[Progress])
        return [*mine, *(one for said in answers.said for one in read(said))]

    async def verify(self, *, delete_orphans: bool) -> ScrubReport:
        """Read and verify every object of the archive, and find objects that no record references."""
        return await self._work().verify(delete_orphans=delete_orphans)

    def _work(self) -> Offloading:
        if self._offloading is None:
            raise ConfigurationError("this broker has no archive; start it with --archive URL")
        return self._offloading
