"""Widening of narrow ledgers: an open ledger with too few copies gets more when bookies are available.

A fragment becomes narrow when a bookie fails and no replacement is running; a ledger may also start narrow. Its blocks
are confirmed by the ack quorum, but tolerate fewer losses. As soon as a bookie is available, an ordinary ensemble
change adds it. The number of changes per tick has a limit, so that ten thousand ledgers do not write to the metadata
store at once.

Repair widens closed fragments: the process that closes a ledger reports it as under-replicated if a copy may be missing
or incomplete (`LedgerContext.closed`).
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final, Protocol

INTERVAL_S: Final = 1.0
"""Time between two ticks, in seconds."""
WIDENED_PER_TICK_MAX: Final = 64
"""Maximum number of ledgers that are widened per tick; each costs one write to the metadata store."""


class Widened(Protocol):
    """Interface through which this module calls a writer."""

    def widen(self) -> None:
        """Add bookies to the ensemble, if more are available."""
        ...


class Narrow:
    """Writers of this process's narrow ledgers, in the order in which they are widened."""

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
            if writer in self._writers:  # an earlier `widen` in this loop may have ended this writer
                self._writers[writer] = self._writers.pop(writer)  # to the end of the queue
                writer.widen()
        if self._writers:
            self._arm()
