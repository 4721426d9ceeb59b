"""Logging: one line per event that an operator can act on; JSON on request.

Rooms log through the standard library (`logging.getLogger(__name__)`) and never configure it; a process calls
`configure` once. Nothing is logged per message or per block. What a line quotes may come from anybody: control
characters are written as escapes, so that nobody makes lines of his own, or steers the terminal of who reads them.

The last lines are kept in memory as well, for `quire support-bundle`: standard error may be anywhere by then.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

_ESCAPES: Final = {code: repr(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}

MALFORMED_CHARS_MAX: Final = 200
"""Of what a peer sent instead of HTTP."""

RECENT_LINES: Final = 1_000
RECENT_CHARS_MAX: Final = 4_000
"""Of each; a stack is longer, and its end is what matters least."""

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
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line)


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


class _Recent(logging.Handler):
    """Keeps lines; the formatting is that of the log itself."""

    def emit(self, record: logging.LogRecord) -> None:
        _recent.append(self.format(record)[:RECENT_CHARS_MAX])


def recent_lines() -> Sequence[str]:
    """The last `RECENT_LINES` of this process, oldest first."""
    return list(_recent)


def configure(level: str = "info", *, as_json: bool = False) -> None:
    """Send the log of this process to standard error, from `level` on."""
    handlers = [logging.StreamHandler(sys.stderr), _Recent()]
    for handler in handlers:
        handler.setFormatter(_JsonFormatter() if as_json else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = handlers
    root.setLevel(level.upper())
    for foreign in ("aiohttp.access", "botocore"):
        logging.getLogger(foreign).setLevel(max(logging.WARNING, root.level))
    logging.getLogger("aiohttp.server").addFilter(malformed_in_a_line)
