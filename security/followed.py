"""Objects built from files that change while the process runs, such as renewed certificates and replaced keys.

`current` checks the files at most once in `LOOK_S`, and builds the object again when they have changed. If the new
files are unusable, such as a certificate whose key is not written yet, the old object is kept, an error is logged once,
and the next change is tried.
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
    """Result of `make` for the current `files`. Creating it raises `ConfigurationError` if they are unusable."""

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
        """Return the current object; call it for each use."""
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
            _log.error("changed security files are unusable, so the previous ones stay in use: %s", error)
        else:
            _log.info("reloaded security files after a change: %s", ", ".join(self._files))
