"""Probe of the network from this process to an ack quorum of bookies.

The metadata store lists the same running bookies for every process, but each process must check its own network path to
them. A broker without a path to the bookies keeps its session, and so its topics, but cannot serve them; without a
probe, an idle broker would not notice. A probe is a small request that bookies answer from memory. The caller decides
how to react to `why_not`, usually after several probes.

If too few bookies are running or writable, no process can write, and `why_not` stays empty: `placement` reports that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from quire.ledger.directory import BookieDirectory
from quire.ledger.placement import bookie_id
from quire.metadata.records import BookieRecord, Storage
from quire.runtime.tasks import Tasks
from quire.wire.bookie import LedgerInfoRequest, Status

LOOK_S: Final = 2.0
"""Interval of the probes, in seconds."""
ANSWER_S: Final = 1.5
"""Time-out of a probe in seconds: as long as connecting may take; an answer takes a millisecond."""

NO_LEDGER: Final = 0
"""Ledger id that is never allocated."""

_log = logging.getLogger(__name__)


class Reach:
    """Periodic probe that expects answers from `ack_quorum` bookies. `changed` is called when `why_not` changes."""

    def __init__(self, bookies: BookieDirectory, ack_quorum: int, changed: Callable[[], None]) -> None:
        self._bookies = bookies
        self._ack_quorum = ack_quorum
        self._changed = changed
        self._tasks = Tasks("reach")
        self.why_not = ""
        """Reason why this process cannot write; "" if it can, or if no process can."""

    def start(self) -> None:
        self._tasks.start_every(LOOK_S, self.look, "probe bookies")

    async def stop(self) -> None:
        await self._tasks.stop()

    async def look(self) -> None:
        """Probe all writable bookies, and update `why_not`. Takes at most `ANSWER_S` seconds."""
        there = [record for record in self._bookies.available() if not record.read_only]
        why_not = ""
        if self._bookies.storage is Storage.BOOKIES and len(there) >= self._ack_quorum:
            answers = sum(await asyncio.gather(*map(self._answers, there)))
            if answers < self._ack_quorum:
                why_not = (
                    f"{answers} of {len(there)} writable bookies answer this process, the ack quorum is "
                    f"{self._ack_quorum}: check the network to them"
                )
        if why_not == self.why_not:
            return
        self.why_not = why_not
        if why_not:
            _log.error("this process cannot write: %s", why_not)
        else:
            _log.info("this process can write again: an ack quorum of bookies answers")
        self._changed()

    async def _answers(self, record: BookieRecord) -> bool:
        bookie = bookie_id(record)
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await self._bookies.port(bookie).ask(LedgerInfoRequest(bookie, NO_LEDGER))
        except TimeoutError:
            return False
        return answer.status is not Status.UNREACHABLE
