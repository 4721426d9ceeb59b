"""The end of a turn of the event loop: what is put off until then is done by one call, in the order of asking.

What is asked for meanwhile belongs to the same end. So what ends a turn in steps (topics cut blocks, the outbox sends
them to bookies) takes no turn for each: that would be another look at the sockets, and another moment in which the loop
lets go of the interpreter and must get it back from the threads that work for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)


class EndOfTurn:
    """One for an event loop."""

    __slots__ = ("_works",)

    def __init__(self) -> None:
        self._works: list[Callable[[], None]] = []

    def call(self, work: Callable[[], None]) -> None:
        """Do `work` when this turn is over."""
        if not self._works:
            asyncio.get_running_loop().call_soon(self._run)
        self._works.append(work)

    def _run(self) -> None:
        try:
            for work in self._works:  # which grows meanwhile
                try:
                    work()
                except Exception:
                    _log.exception("a mistake of ours at the end of a turn; the others go on")
        finally:
            self._works = []
