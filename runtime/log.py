"""Logging: one line per event that an operator can act on; JSON on request.

Rooms log through the standard library (`logging.getLogger(__name__)`) and never configure it; a process calls
`configure` once. Nothing is logged per message or per block. What a line quotes may come from anybody: control
characters are written as escapes, so that nobody makes lines of his own, or steers the terminal of who reads them.

Lines of one kind that come at once are left out after the first `LIKE_IT_MAX`, and counted: one says how many were more
like it. A kind is a place in the code with a level: what differs are the things that it names. In JSON a line has the
kind as `event`, and what it names as fields, or as a list where they have no names.

The last lines are kept in memory as well, for `quire support-bundle`: standard error may be anywhere by then.
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
"""Of what a peer sent instead of HTTP."""

RECENT_LINES: Final = 1_000
RECENT_CHARS_MAX: Final = 4_000
"""Of each; a stack is longer, and its end is what matters least."""

LIKE_IT_MAX: Final = 20
LIKE_IT_S: Final = 10.0
"""So many lines of one kind in so many seconds."""

KINDS_MAX: Final = 1_000
"""Libraries write lines that are each of a kind of their own."""

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
    """The kind of the line, and what it names."""
    if isinstance(record.args, Mapping):
        return {"event": str(record.msg), "fields": dict(record.args)}
    return {"event": str(record.msg), "args": list(record.args)} if record.args else {}


def malformed_in_a_line(record: logging.LogRecord) -> bool:
    """A filter: what a peer sent that is no HTTP is its mistake, not ours, and needs no traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and type(error).__module__ == "aiohttp.http_exceptions":
        if not logging.getLogger(record.name).isEnabledFor(logging.INFO):
            return False
        peer = record.args[0] if isinstance(record.args, tuple) and record.args else "a peer"
        said = " ".join(str(error).split())[:MALFORMED_CHARS_MAX]
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        record.msg, record.args = "%s sent what is no HTTP: %s", (peer, said)
        record.exc_info = record.exc_text = None
    return True


@dataclass(slots=True)
class _Kind:
    """Lines of one kind, since `began_s`; the last is one that was left out."""

    began_s: float
    count: int = 0
    last: logging.LogRecord | None = None


class Repeats(logging.Filter):
    """Lets `LIKE_IT_MAX` lines of a kind through in `LIKE_IT_S`, and tells afterwards how many more there were.

    A timer's thread tells it, for there may be no next line. Safe to be called from any thread.
    """

    def __init__(self, write: Callable[[logging.LogRecord], object]) -> None:
        super().__init__()
        self._write = write
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, int, str], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:  # somebody wants to see everything
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
    """Standard error, and the last lines."""

    def write(self, record: logging.LogRecord) -> None:
        """As `handle`, whatever filters say."""
        with self.lock or nullcontext():
            self.emit(record)

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        _recent.append(line[:RECENT_CHARS_MAX])
        return line


def recent_lines() -> Sequence[str]:
    """The last `RECENT_LINES` of this process, oldest first."""
    return list(_recent)


def configure(level: str = "info", *, as_json: bool = False, slow_ms: int = 0) -> None:
    """Send the log of this process to standard error, from `level` on; `slow_ms`: see `slow`, 0 for nothing."""
    handler = _Lines(sys.stderr)
    handler.setFormatter(_JsonFormatter() if as_json else _TextFormatter())
    handler.addFilter(Repeats(handler.write))
    slow.BOUND.s = slow_ms / 1000 if slow_ms else math.inf
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for foreign in ("aiohttp.access", "botocore"):
        logging.getLogger(foreign).setLevel(max(logging.WARNING, root.level))
    logging.getLogger("aiohttp.server").addFilter(malformed_in_a_line)
