"""Logging: one line per event that an operator can act on; JSON on request.

Rooms log through the standard library (`logging.getLogger(__name__)`) and never configure it; a process calls
`configure` once. Nothing is logged per message or per block.
"""

from __future__ import annotations

import json
import logging
import sys
import time


class _TextFormatter(logging.Formatter):
    default_msec_format = "%s.%03d"

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
        return json.dumps(line)


def configure(level: str = "info", *, as_json: bool = False) -> None:
    """Send the log of this process to standard error, from `level` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if as_json else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for foreign in ("aiohttp.access", "botocore"):
        logging.getLogger(foreign).setLevel(max(logging.WARNING, root.level))
