"""Retries without a limit, with exponential back-off, until a store gives a definite answer.

Definite answers are: success, a missing or damaged object, a changed record, and denied access. After a time-out or a
temporary error the request is repeated, first after 50 ms, later every two seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from quire.runtime.errors import DiskError, DiskFull, OutcomeUnknown, QuireError, Unavailable, Unreadable

T = TypeVar("T")
_log = logging.getLogger(__name__)

FIRST_WAIT_S: Final = 0.05
"""Delay in seconds before the second attempt; it doubles up to `LAST_WAIT_S`."""
LAST_WAIT_S: Final = 2.0
LOGGED_FROM_S: Final = 1.0
"""Length of a wait in seconds from which it is logged; only the first such wait is logged."""

UNANSWERED: Final = (Unavailable, OutcomeUnknown, DiskFull, DiskError)
"""Errors of a store that does not answer, or that refuses a request temporarily."""


async def until_answered(
    work: Callable[[], Awaitable[T]], what: str, *, unreadable_tries: int | None = None
) -> T:
    """Repeat `work()` until it does not raise one of `UNANSWERED`; return its result. Raises all other errors.

    With `unreadable_tries`, `Unreadable` is raised after that many attempts.
    """
    wait_s, is_logged, unreadable = FIRST_WAIT_S, False, 0
    while True:
        try:
            return await work()
        except UNANSWERED as error:
            unreadable += isinstance(error, Unreadable)
            if unreadable == unreadable_tries:
                raise
            if wait_s >= LOGGED_FROM_S and not is_logged:
                _log.warning("%s: no answer from the store, trying again: %s", what, error)
                is_logged = True
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, LAST_WAIT_S)


def as_quire_error(error: Exception, what: str) -> QuireError:
    """Return `error` if it is a `QuireError`; log any other exception, and return a `QuireError` for it."""
    if isinstance(error, QuireError):
        return error
    _log.error("%s failed: internal error", what, exc_info=error)
    return QuireError(f"{what} failed: internal error: {error!r}; the log has its traceback")
