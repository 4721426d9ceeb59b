"""Audit log: one line of JSON for each refusal, failed authentication, and administrative change.

    {"time": "2026-01-31T12:00:00.000Z", "event": "denied", "role": "app", "method": "token", "address": "/10.0.0.7:47",
     "action": "PRODUCER", "on": "topic persistent://t/n/orders", "outcome": "…", "request": "17"}

    event                    meaning                                                   file
    login-failed, denied     a failure that any client can cause             `audit.jsonl`
    changed, failed          a successful and a failed administrative change    `audit-changes.jsonl`
    revoked                  a connection, producer or consumer that a change closed   `audit-changes.jsonl`
    not-written              the number of refusals beyond the rate limit              `audit.jsonl`
    not-published            the number of lines that could not be published

Each file is rotated at `bytes_max`, and the oldest file beyond `files_kept` is deleted. So a flood of refusals
displaces only older refusals. Refusals are limited to `LINES_A_S_MAX` lines a second, and `LINES_OF_ONE_A_S_MAX` for
one host or network. A line with the number of omitted refusals precedes the next line.

Lines for a topic wait in `unpublished`, in order, until they are published (`process/audit_topic`). At most
`UNPUBLISHED_MAX` lines wait; further lines are omitted, and a line with their number follows.

No line contains credentials: callers pass sentences that quote no secret. Texts from clients are truncated, and JSON
escapes line breaks. A line that cannot be written is reported in the process's log once, and the service continues,
because a full disk must not lock out all clients.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, deque
from collections.abc import Mapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final, NamedTuple

from quire.runtime.clock import Clock, iso_time
from quire.runtime.errors import ConfigurationError
from quire.runtime.metrics import Values
from quire.runtime.network import network_of
from quire.security.configuration import Audit
from quire.security.identity import Identity

REFUSALS: Final = ("login-failed", "denied")
CHANGES: Final = ("changed", "failed", "revoked")
EVENTS: Final = (*REFUSALS, *CHANGES, "not-written", "not-published")
TEXT_CHARS_MAX: Final = 500
LINES_A_S_MAX: Final = 200
LINES_OF_ONE_A_S_MAX: Final = 50
UNPUBLISHED_MAX: Final = 10_000
_log = logging.getLogger(__name__)


class _File(RotatingFileHandler):
    is_failing = False

    def write(self, line: str) -> None:
        self.handle(logging.LogRecord("audit", logging.INFO, "", 0, line, (), None))

    def handleError(self, record: logging.LogRecord) -> None:
        if not self.is_failing:
            _log.exception(
                "the audit file %s cannot be written; audit lines are lost until it is writable",
                self.baseFilename,
            )
        self.is_failing = True


class Caller(NamedTuple):
    """Client whose request a line records; `who` is None without authentication."""

    who: Identity | None
    address: str
    action: str
    request: str = ""
    """Id that the client gave the request."""


class AuditLog:
    """Audit log of a process. Without a file and a topic, lines are discarded."""

    def __init__(self, settings: Audit | None, clock: Clock) -> None:
        """Open the files. Raises `ConfigurationError` if one cannot be opened."""
        settings = settings or Audit()
        self._clock = clock
        self._refusals = self._changes = None
        if settings.file:
            self._refusals = _opened(settings.file, settings)
            self._changes = _opened(changes_beside(settings.file), settings)
        self._has_topic = bool(settings.topic)
        self.unpublished: deque[str] = deque()
        """Lines that are not published yet; the publisher removes a line after publishing it."""
        self.has_unpublished = asyncio.Event()
        self.events_total = dict.fromkeys(EVENTS, 0)
        self._unwritten = self._unpublished = 0
        """Number of omitted lines that no line has reported yet."""
        self._second = 0
        self._of_this_second: Counter[str] = Counter()

    def metrics(self) -> Values:
        """Return counters of events, and of omitted lines."""
        return {"quire_security_events_total": {(event,): n for event, n in self.events_total.items()}}

    def record(self, event: str, caller: Caller, on: str = "", outcome: str = "") -> None:
        """Write an event."""
        who, address, action, request = caller
        self.events_total[event] += 1
        if event in REFUSALS and not self._may_write(address):
            self.events_total["not-written"] += 1
            self._unwritten += 1
            return
        self._tell_unwritten()
        self._write(
            event,
            role="" if who is None else str(who),
            method="" if who is None else who.method,
            address=address,
            action=action,
            on=on,
            outcome=outcome,
            request=request,
        )

    def bad_certificate(self, address: str, why: str) -> None:
        """Record a refused certificate; its client cannot send a request."""
        self.record("login-failed", Caller(None, address, "TLS"), outcome=why)

    def _may_write(self, address: str) -> bool:
        second = int(self._clock.monotonic())
        if second != self._second:
            self._second = second
            self._of_this_second.clear()
        one = network_of(address)
        if self._of_this_second.total() >= LINES_A_S_MAX or self._of_this_second[one] >= LINES_OF_ONE_A_S_MAX:
            return False
        self._of_this_second[one] += 1
        return True

    def _tell_unwritten(self) -> None:
        count, self._unwritten = self._unwritten, 0
        if count:
            self._write(
                "not-written", outcome=f"{count} refusals were omitted, because they exceeded the rate limit"
            )

    def _write(self, event: str, **fields: str) -> None:
        line = self._line(event, fields)
        file = self._changes if event in CHANGES else self._refusals
        if file is not None:
            file.write(line)
        if not self._has_topic:
            return
        if len(self.unpublished) >= UNPUBLISHED_MAX:
            self.events_total["not-published"] += 1
            self._unpublished += 1
            return
        if self._unpublished:
            outcome = f"{self._unpublished} lines were omitted, because publishing to this topic failed for too long"
            self.unpublished.append(self._line("not-published", {"outcome": outcome}))
            self._unpublished = 0
        self.unpublished.append(line)
        self.has_unpublished.set()

    def _line(self, event: str, fields: Mapping[str, str]) -> str:
        said = {name: value[:TEXT_CHARS_MAX] for name, value in fields.items()}
        return json.dumps({"time": iso_time(self._clock.now_ms()), "event": event, **said})

    def close(self) -> None:
        self._tell_unwritten()
        for file in (self._refusals, self._changes):
            if file is not None:
                file.close()


def changes_beside(file: str) -> str:
    """Return the path of the file for administrative changes: `audit-changes.jsonl` beside `audit.jsonl`."""
    path = Path(file)
    return str(path.with_name(f"{path.stem}-changes{path.suffix}"))


def _opened(file: str, settings: Audit) -> _File:
    try:
        return _File(file, maxBytes=settings.bytes_max, backupCount=settings.files_kept, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot write the audit file {file}: {error.strerror}") from None
