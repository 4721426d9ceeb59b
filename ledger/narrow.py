"""Open ledgers that have fewer copies than they should are widened when there are bookies again.

A fragment narrows when a bookie is lost and no other is there, and a ledger may begin narrow. Its blocks are safe, but
against one loss less; so as soon as a bookie offers itself the ledger goes on with it, by a change like any other.
A tick serves so many ledgers that ten thousand of them do not all
write to the metadata store at once.

What lies in the closed fragments is repair's, which looks at all ledgers when a bookie came. A ledger that was open at
that moment, or that lost a bookie because a connection broke while none went, would wait for the round of the day. So
who closes a ledger of which some copy may be missing, or lack blocks that its ack quorum has, knocks at repair's
door (`Knock`): it was narrow, it changed its ensemble, a bookie still owed answers, or a recovery ended it, which
cannot know what was owed. So does who could not delete a ledger though its bookies are up.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import Final, Protocol

from quire.metadata import paths
from quire.metadata.records import LedgerRecord
from quire.metadata.store import MetadataStore
from quire.metadata.wish import touch
from quire.runtime.errors import QuireError
from quire.runtime.tasks import Tasks

_log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
WIDENED_PER_TICK_MAX: Final = 64
KNOCK_INTERVAL_S: Final = 5.0
LAST_KNOCK_S: Final = 2.0
"""How long a process that ends waits for the store to hear of it."""


class Widened(Protocol):
    """What this file knows of a writer."""

    def widen(self) -> None:
        """Ask for more bookies; nothing happens when there are none."""
        ...


class Narrow:
    """The narrow ledgers of a process, in the order in which they are served."""

    def __init__(self) -> None:
        self._writers: dict[Widened, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, writer: Widened) -> None:
        self._writers[writer] = None
        if self._timer is None:
            self._arm()

    def forget(self, writer: Widened) -> None:
        self._writers.pop(writer, None)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        served = list(islice(self._writers, WIDENED_PER_TICK_MAX))
        for writer in served:
            if writer in self._writers:  # widening one may have ended another
                self._writers[writer] = self._writers.pop(writer)  # to the end of the line
                writer.widen()
        if self._writers:
            self._arm()


class Knock:
    """Tells repair that closed ledgers may lack copies, or blocks in them: at once, then every few seconds at most."""

    def __init__(self, store: MetadataStore, tasks: Tasks) -> None:
        self._store = store
        self._tasks = tasks
        self._is_due = False
        self._is_knocking = False

    def closed(self, record: LedgerRecord, *, is_whole: bool) -> None:
        """`record` has just been closed by this process. `is_whole`: every bookie it names now answered every block."""
        if is_whole and [len(each.bookies) for each in record.fragments] == [record.write_quorum]:
            return
        self.knock()

    def knock(self) -> None:
        """Ask for a round over all ledgers, soon."""
        self._is_due = True
        if not self._is_knocking:
            self._is_knocking = True
            self._tasks.start(self._knock(), "tell repair what may lack copies")

    async def stop(self) -> None:
        """Knock a last time if a knock is due; else what may lack copies would wait for the round of the day."""
        if self._is_due:
            self._is_due = False
            try:
                async with asyncio.timeout(LAST_KNOCK_S):
                    await touch(self._store, paths.REPAIR_NARROW)
            except (QuireError, TimeoutError) as error:
                _log.info("repair is not told what may lack copies: %s", error)

    async def _knock(self) -> None:
        try:
            while self._is_due:
                self._is_due = False
                try:
                    await touch(self._store, paths.REPAIR_NARROW)
                except QuireError:
                    self._is_due = True  # the store is away
                await asyncio.sleep(KNOCK_INTERVAL_S)
        finally:
            self._is_knocking = False
