"""A store that is slow or refuses is waited for, for as long as it takes; only proof ends anything.

Proof is what an answer proves: an object that is not there or is damaged, a record that somebody changed, a store that
bars us. Else the same again, after 50 ms, and at last each two seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from quire.runtime.errors import DiskError, DiskFull, OutcomeUnknown, Unavailable

T = TypeVar("T")
_log = logging.getLogger(__name__)

FIRST_WAIT_S: Final = 0.05
LAST_WAIT_S: Final = 2.0
TOLD_FROM_S: Final = 1.0
"""The first wait of this length is told in the log."""

UNANSWERED: Final = (Unavailable, OutcomeUnknown, DiskFull, DiskError)
"""What a store raises that does not answer, or refuses for now."""


async def until_answered(work: Callable[[], Awaitable[T]], what: str) -> T:
    """What `work()` returns, once the store answers. Raises what an answer proves."""
    wait_s, is_told = FIRST_WAIT_S, False
    while True:
        try:
            return await work()
        except UNANSWERED as error:
            if wait_s >= TOLD_FROM_S and not is_told:
                _log.warning("the %s waits for an answer: %s", what, error)
                is_told = True
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, LAST_WAIT_S)
