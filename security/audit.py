"""Who did what, or tried to: a line of JSON for each refusal, failure to log in, and administrative change.

    {"time": "2026-01-31T12:00:00.000Z", "event": "denied", "role": "app", "method": "token", "address": "/10.0.0.7:47",
     "action": "PRODUCER", "on": "topic persistent://t/n/orders", "outcome": "…"}

`event` is `login-failed`, `denied`, `changed`, `failed` (an administrative change that did not succeed), or `revoked`
(a producer or consumer that was closed). What was presented is never in it: callers have only sentences, which quote no
secret. Texts that come from clients are cut; JSON escapes what could make a line of its own.

The file is renamed at `bytes_max`, and the oldest beyond `files_kept` is deleted. A line that cannot be written is
told in the log once, and the service goes on: a full disk must not shut everybody out.
"""

from __future__ import annotations

import json
import logging
from logging.handlers import RotatingFileHandler
from typing import Final

from quire.runtime.clock import Clock, iso_time
from quire.runtime.errors import ConfigurationError
from quire.security.configuration import Audit
from quire.security.identity import Identity

EVENTS: Final = ("login-failed", "denied", "changed", "failed", "revoked")
TEXT_CHARS_MAX: Final = 500
_log = logging.getLogger(__name__)


class _File(RotatingFileHandler):
    is_failing = False

    def handleError(self, record: logging.LogRecord) -> None:
        if not self.is_failing:
            _log.exception(
                "the audit file %s cannot be written; lines are lost until it can", self.baseFilename
            )
        self.is_failing = True


class AuditLog:
    """Where there is no file, lines go nowhere."""

    def __init__(self, settings: Audit | None, clock: Clock) -> None:
        """Raises `ConfigurationError` when the file cannot be opened."""
        self._clock = clock
        self._file: _File | None = None
        self.events_total = dict.fromkeys(EVENTS, 0)
        """For metrics."""
        if settings is not None:
            try:
                self._file = _File(
                    settings.file,
                    maxBytes=settings.bytes_max,
                    backupCount=settings.files_kept,
                    encoding="utf-8",
                )
            except OSError as error:
                raise ConfigurationError(
                    f"cannot write the audit file {settings.file}: {error.strerror}"
                ) from None

    def record(
        self, event: str, who: Identity | None, address: str, action: str, on: str = "", outcome: str = ""
    ) -> None:
        """`who` is None for somebody who was not let in."""
        self.events_total[event] += 1
        if self._file is None:
            return
        line = {
            "time": iso_time(self._clock.now_ms()),
            "event": event,
            "role": "" if who is None else str(who),
            "method": "" if who is None else who.method,
            "address": address,
            "action": action,
            "on": on,
            "outcome": outcome,
        }
        text = json.dumps({name: value[:TEXT_CHARS_MAX] for name, value in line.items()})
        self._file.handle(logging.LogRecord("audit", logging.INFO, "", 0, text, (), None))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
