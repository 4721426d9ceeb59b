"""Do as many bookies answer this process as must acknowledge? They are asked, for who writes nothing would not know.

The metadata store tells every process the same of which bookies are up. Whether the way from here to them is open,
each must find out itself: a broker whose network to them is cut holds its session, and so its topics, and serves none.
What is asked is small and is answered from memory. A bookie that does not answer in time counts as silent for this one
look; what follows from that is for whoever asks `why_not`, and takes longer.

Where too few bookies are up, or take writes, nobody can write, and nothing is said here: that is told by `placement`.
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
ANSWER_S: Final = 1.5
"""An answer takes a millisecond; as long as a connection may take."""

NO_LEDGER: Final = 0
"""Ids begin above it."""

_log = logging.getLogger(__name__)


class Reach:
    """`ack_quorum` bookies must answer. `changed` is called when `why_not` is another."""

    def __init__(self, bookies: BookieDirectory, ack_quorum: int, changed: Callable[[], None]) -> None:
        self._bookies = bookies
        self._ack_quorum = ack_quorum
        self._changed = changed
        self._tasks = Tasks("reach")
        self.why_not = ""
        """Why this process cannot write; empty when it can, or when nobody could."""

    def start(self) -> None:
        self._tasks.start_every(LOOK_S, self.look, "looking which bookies answer")

    async def stop(self) -> None:
        await self._tasks.stop()

    async def look(self) -> None:
        """Ask them all, and judge. Takes `ANSWER_S` at most."""
        there = [record for record in self._bookies.available() if not record.read_only]
        why_not = ""
        if self._bookies.storage is Storage.BOOKIES and len(there) >= self._ack_quorum:
            answers = sum(await asyncio.gather(*map(self._answers, there)))
            if answers < self._ack_quorum:
                why_not = (
                    f"{answers} of {len(there)} bookies that take writes answer it, and {self._ack_quorum} must "
                    "acknowledge: look at the network between them"
                )
        if why_not == self.why_not:
            return
        self.why_not = why_not
        if why_not:
            _log.error("this process cannot write: %s", why_not)
        else:
            _log.info("this process can write again: enough bookies answer")
        self._changed()

    async def _answers(self, record: BookieRecord) -> bool:
        bookie = bookie_id(record)
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await self._bookies.port(bookie).ask(LedgerInfoRequest(bookie, NO_LEDGER))
        except TimeoutError:
            return False
        return answer.status is not Status.UNREACHABLE
