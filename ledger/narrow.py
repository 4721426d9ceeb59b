"""Open ledgers that have fewer copies than they should are widened when there are bookies again.

A fragment narrows when a bookie is lost and no other is there, and a ledger may begin narrow. Its blocks are safe, but
against one loss less; so as soon as a bookie offers itself the ledger goes on with it, by a change like any other.
A tick serves so many ledgers that ten thousand of them do not all
write to the metadata store at once.

What lies in the closed fragments is repair's: who closes a ledger of which some copy may be missing, or lack blocks
that its ack quorum has, reports it as under-replicated (`LedgerContext.closed`).
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final, Protocol

INTERVAL_S: Final = 1.0
WIDENED_PER_TICK_MAX: Final = 64


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
