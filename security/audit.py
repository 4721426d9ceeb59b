"""Who did what, or tried to: a line of JSON for each refusal, failure to log in, and administrative change.

    {"time": "2026-01-31T12:00:00.000Z", "event": "denied", "role": "app", "method": "token", "address": "/10.0.0.7:47",
     "action": "PRODUCER", "on": "topic persistent://t/n/orders", "outcome": "…", "request": "17"}

    event                    what                                                      file
    login-failed, denied     what anybody can bring about who reaches a port           `audit.jsonl`
    changed, failed          an administrative change, and one that did not succeed    `audit-changes.jsonl`
    revoked                  a connection, producer or consumer that a change closed   `audit-changes.jsonl`
    not-written              so many refusals came at once that some have no line      `audit.jsonl`
    not-published            the topic took no lines for so long that some are not there

Each file is renamed at `bytes_max`, and the oldest beyond `files_kept` is deleted: so who floods us with refusals
pushes out refusals, and no change. He does not write as fast as he can ask either: refusals have `LINES_A_S_MAX` a
second, of one host or network `LINES_OF_ONE_A_S_MAX`; the next line is preceded by one that says how many are missing.

For a topic the same lines wait in `unpublished`, in order, until somebody publishes them (`cli/audit_topic`): the
oldest `UNPUBLISHED_MAX`, and then one that says how many did not find room.

What was presented is never in a line: callers have only sentences, which quote no secret. Texts that come from clients
are cut; JSON escapes what could make a line of its own. A line that cannot be written is told in the log once, and the
service goes on: a full disk must not shut everybody out.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, deque
from collections.abc import Mapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

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
                "the audit file %s cannot be written; lines are lost until it can", self.baseFilename
            )
        self.is_failing = True


class AuditLog:
    """Without a file and a topic lines go nowhere."""

    def __init__(self, settings: Audit | None, clock: Clock) -> None:
        """Raises `ConfigurationError` when a file cannot be opened."""
        settings = settings or Audit()
        self._clock = clock
        self._refusals = self._changes = None
        if settings.file:
            self._refusals = _opened(settings.file, settings)
            self._changes = _opened(changes_beside(settings.file), settings)
        self._has_topic = bool(settings.topic)
        self.unpublished: deque[str] = deque()
        """What the topic has not taken yet; whoever publishes a line removes it."""
        self.has_unpublished = asyncio.Event()
        self.events_total = dict.fromkeys(EVENTS, 0)
        self._unwritten = self._unpublished = 0
        """How many lines are missing that nobody was told of."""
        self._second = 0
        self._of_this_second: Counter[str] = Counter()

    def metrics(self) -> Values:
        """How often what was to be written down; also what was not."""
        return {"quire_security_events_total": {(event,): n for event, n in self.events_total.items()}}

    def record(
        self,
        event: str,
        who: Identity | None,
        address: str,
        action: str,
        on: str = "",
        outcome: str = "",
        request: str = "",
    ) -> None:
        """`who` is None for somebody who was not let in; `request` is what its client calls it."""
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
        """Whoever shows it does not come as far as to say anything."""
        self.record("login-failed", None, address, "TLS", outcome=why)

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
            self._write("not-written", outcome=f"{count} refusals that came at once have no line")

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
            outcome = f"{self._unpublished} lines did not come here, for the topic took none for too long"
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
    """Where administrative changes go: `audit-changes.jsonl` beside `audit.jsonl`."""
    path = Path(file)
    return str(path.with_name(f"{path.stem}-changes{path.suffix}"))


def _opened(file: str, settings: Audit) -> _File:
    try:
        return _File(file, maxBytes=settings.bytes_max, backupCount=settings.files_kept, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot write the audit file {file}: {error.strerror}") from None
