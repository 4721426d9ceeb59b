"""What is made of files that change while we run: certificates that are renewed, keys that are replaced.

It is asked for where it is used, and looks at its files once in `LOOK_S`: when they have changed, it is made anew.
Files that cannot be used, such as a certificate whose key is not written yet, change nothing: that is told once, and
looked at again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from quire.runtime.errors import ConfigurationError
from quire.runtime.tls import changes_of

LOOK_S: Final = 1.0

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Followed(Generic[T]):
    """What `make` makes of `files`, as they are now. Raises `ConfigurationError` when it is made."""

    def __init__(
        self, make: Callable[[], T], files: Sequence[str], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._files = files
        self._now = now
        self._looked_at = now()
        self._seen = self._look()
        self._made = make()

    def current(self) -> T:
        """To be asked for at each use."""
        now = self._now()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            seen = self._look()
            if seen != self._seen:
                self._change(seen)
        return self._made

    def _look(self) -> list[tuple[int, int, int]]:
        return [changes_of(file) for file in self._files]

    def _change(self, seen: list[tuple[int, int, int]]) -> None:
        self._seen = seen
        try:
            self._made = self._make()
        except ConfigurationError as error:
            _log.error("files have changed and cannot be used, so what they said before holds: %s", error)
        else:
            _log.info("files have changed: %s", ", ".join(self._files))
