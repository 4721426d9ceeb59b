"""Deferred callbacks, which run at the end of a *turn*, that is, of one iteration of the event loop, in order.

Callbacks that these callbacks defer run in the same turn. So work in several steps (topics cut blocks, the outbox sends
them to bookies) takes one turn. More turns would poll the sockets again, and release the interpreter to helper threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)


class EndOfTurn:
    """Deferred callbacks of one event loop."""

    __slots__ = ("_works",)

    def __init__(self) -> None:
        self._works: list[Callable[[], None]] = []

    def call(self, work: Callable[[], None]) -> None:
        """Call `work` at the end of this turn."""
        if not self._works:
            asyncio.get_running_loop().call_soon(self._run)
        self._works.append(work)

    def _run(self) -> None:
        try:
            for work in self._works:  # the list may grow during the loop
                try:
                    work()
                except Exception:
                    _log.exception(
                        "internal error in a callback at the end of a turn; the other callbacks continue"
                    )
        finally:
            self._works = []
