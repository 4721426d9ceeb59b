"""What an operator asks of the archive: by any broker, of the whole cluster or of what that broker owns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

from quire.runtime.errors import ConfigurationError
from quire.serving.cluster.fan_out import FanOut
from quire.serving.cluster.offloading import Offloading
from quire.serving.cluster.peers import added_up

ARCHIVE: Final = "/quire/v1/archive"
RUN_S: Final = 3_600.0
"""How long other brokers may take to archive everything; a person who waits for it gives up later than that."""


class ArchiveAdmin:
    """`offloading` is None where there is no archive; then all of it is refused."""

    def __init__(self, offloading: Offloading | None, fan_out: FanOut) -> None:
        self._offloading = offloading
        self._fan_out = fan_out

    async def run(self, *, seal: bool, here: bool) -> dict[str, Any]:
        """Archive everything now; with `seal` also what is still being written. With `here`, what this broker owns."""
        if here:
            return await self._work().run(seal=seal)
        mine = self._work().run(seal=seal, even_unowned=True)
        report, silent = await self._everywhere(mine, f"run?seal={str(seal).lower()}&here=true")
        return added_up([report, {"failed": silent}])

    async def repair(self, *, here: bool) -> dict[str, Any]:
        """Upload again what is damaged in the archive and still on bookies; `here` as in `run`."""
        if here:
            return await self._work().repair()
        report, _ = await self._everywhere(self._work().repair(even_unowned=True), "repair?here=true")
        return report

    async def _everywhere(self, mine: Awaitable[dict[str, Any]], what: str) -> tuple[dict[str, Any], int]:
        """The sum of this broker's report and those of all others, and how many of them did not answer."""
        others = self._fan_out.others("POST", f"{ARCHIVE}/{what}", timeout_s=RUN_S)
        report, answers = await asyncio.gather(mine, others)
        return added_up([report, *answers.said, {"errors": answers.silent}]), len(answers.silent)

    async def status(self, *, here: bool) -> dict[str, Any]:
        """What is under way and what fails; without `here` with the number of segments in each state."""
        work = self._work()
        if here:
            return work.status()
        answers = await self._fan_out.others("GET", f"{ARCHIVE}/status?here=true")
        status = added_up([work.status(), *answers.said, {"failing": answers.silent}])
        return {**status, "segments": await work.count_by_state()}

    async def progress(self, *, here: bool) -> list[dict[str, Any]]:
        """How far what operators asked for is: an item for each work and broker, added up by who reads it."""
        mine = self._work().under_way.as_list()
        if here:
            return mine
        answers = await self._fan_out.others("GET", f"{ARCHIVE}/progress?here=true")
        return [*mine, *(one for said in answers.said for one in said)]

    async def verify(self, *, delete_orphans: bool) -> dict[str, Any]:
        """Read every object back, and find those that no record names."""
        return await self._work().verify(delete_orphans=delete_orphans)

    def _work(self) -> Offloading:
        if self._offloading is None:
            raise ConfigurationError("this broker has no archive; start it with --archive URL")
        return self._offloading
