"""Logging: one line per event that an operator can act on, as text or JSON.

Modules log through the standard library (`logging.getLogger(__name__)`), and never configure it; a process calls
`configure` once. Nothing is logged per message or per block. Quoted values are untrusted: control characters are
escaped, so that a peer cannot forge lines, or control an operator's terminal.

In a burst, lines of one kind are suppressed after the first `LIKE_IT_MAX`; a summary line has their number. A kind is a
logger, a level and a message template. In JSON, a line has the template as `event`, and its values as fields, or as a
list if they have no names.

The last lines are also kept in memory for `quire support-bundle`, because it cannot know where standard error goes.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

from quire.runtime import slow

_ESCAPES: Final = {code: repr(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}

MALFORMED_CHARS_MAX: Final = 200
"""Characters of a malformed request that are logged."""

RECENT_LINES: Final = 1_000
RECENT_CHARS_MAX: Final = 4_000
"""Characters kept of each line; a longer stack is truncated."""

LIKE_IT_MAX: Final = 20
LIKE_IT_S: Final = 10.0
"""Lines of one kind per `LIKE_IT_S` seconds; further ones are suppressed."""

KINDS_MAX: Final = 1_000
"""Maximum number of kinds in memory, because each line of a library may be a kind of its own."""

_recent: Final[deque[str]] = deque(maxlen=RECENT_LINES)


class _TextFormatter(logging.Formatter):
    default_msec_format = "%s.%03d"

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).translate(_ESCAPES)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the template and the values of a line."""
    if isinstance(record.args, Mapping):
        return {"event": str(record.msg), "fields": dict(record.args)}
    return {"event": str(record.msg), "args": list(record.args)} if record.args else {}


def malformed_in_a_line(record: logging.LogRecord) -> bool:
    """Log malformed HTTP as one line without a traceback, because it is the peer's error."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and type(error).__module__ == "aiohttp.http_exceptions":
        if not logging.getLogger(record.name).isEnabledFor(logging.INFO):
            return False
        peer = record.args[0] if isinstance(record.args, tuple) and record.args else "a peer"
        said = " ".join(str(error).split())[:MALFORMED_CHARS_MAX]
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        record.msg, record.args = "%s sent malformed HTTP: %s", (peer, said)
        record.exc_info = record.exc_text = None
    return True


@dataclass(slots=True)
class _Kind:
    """Lines of one kind since `began_s`; `last` is the last suppressed one."""

    began_s: float
    count: int = 0
    last: logging.LogRecord | None = None


class Repeats(logging.Filter):
    """Filter that passes `LIKE_IT_MAX` lines of a kind per `LIKE_IT_S`, then logs the suppressed number.

    A timer thread logs it, because there may be no further line. Thread-safe.
    """

    def __init__(self, write: Callable[[logging.LogRecord], object]) -> None:
        super().__init__()
        self._write = write
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, int, str], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:  # debug lines are never suppressed
            return True
        kind, now_s = (record.name, record.levelno, str(record.msg)), time.monotonic()
        with self._lock:
            found = self._kinds.get(kind)
            if found is None or now_s - found.began_s >= LIKE_IT_S:
                self._kinds.pop(kind, None)
                while len(self._kinds) >= KINDS_MAX:
                    self._kinds.pop(next(iter(self._kinds)))
                found = self._kinds[kind] = _Kind(now_s)
            found.count += 1
            if found.count <= LIKE_IT_MAX:
                return True
            found.last = record
            if found.count == LIKE_IT_MAX + 1:
                timer = threading.Timer(LIKE_IT_S - (now_s - found.began_s), self._tell, (kind, found))
                timer.daemon = True
                timer.start()
            return False

    def _tell(self, kind: tuple[str, int, str], found: _Kind) -> None:
        with self._lock:
            if self._kinds.get(kind) is found:
                del self._kinds[kind]
            more, last = found.count - LIKE_IT_MAX, found.last
        assert last is not None
        said = {"more": more, "seconds": LIKE_IT_S, "last": last.getMessage()}
        template = "%(more)d more like it in %(seconds)g s, the last: %(last)s"
        self._write(
            logging.LogRecord(last.name, last.levelno, last.pathname, last.lineno, template, (said,), None)
        )


class _Lines(logging.StreamHandler[Any]):
    """Handler that writes to standard error, and keeps the last lines."""

    def write(self, record: logging.LogRecord) -> None:
        """Write a line like `handle`, but without filters."""
        with self.lock or nullcontext():
            self.emit(record)

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        _recent.append(line[:RECENT_CHARS_MAX])
        return line


def recent_lines() -> Sequence[str]:
    """Return the last `RECENT_LINES` lines of this process, oldest first."""
    return list(_recent)


def configure(level: str = "info", *, as_json: bool = False, slow_ms: int = 0) -> None:
    """Log to standard error, from `level` on.

    `slow_ms` is the bound of slow operations (`slow`); 0 disables their log.
    """
    handler = _Lines(sys.stderr)
    handler.setFormatter(_JsonFormatter() if as_json else _TextFormatter())
    handler.addFilter(Repeats(handler.write))
    logging.getLogger().handlers[:] = [handler]
    set_level(level, slow_ms=slow_ms)
    logging.getLogger("aiohttp.server").addFilter(malformed_in_a_line)


def set_level(level: str, *, slow_ms: int) -> None:
    """Log from `level` on, and slow operations from `slow_ms` on, also after `configure`."""
    slow.BOUND.s = slow_ms / 1000 if slow_ms else math.inf
    root = logging.getLogger()
    root.setLevel(level.upper())
    for foreign in ("aiohttp.access", "botocore"):
        logging.getLogger(foreign).setLevel(max(logging.WARNING, root.level))
