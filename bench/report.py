"""Common output format of benchmarks, and resource usage of a process."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.calibration import calibration

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """Resource usage of a process: CPU seconds, current and peak memory, and bytes read from and written to disk."""

    cpu_s: float
    resident_bytes: int
    peak_bytes: int
    written_bytes: int
    read_bytes: int


def usage(pid: int) -> Usage:
    """Return a process's resource usage so far, from `/proc`."""
    root = Path("/proc") / str(pid)
    stat = (root / "stat").read_text().rpartition(")")[2].split()
    status = _fields((root / "status").read_text())
    io = _fields((root / "io").read_text())
    return Usage(
        cpu_s=(int(stat[11]) + int(stat[12])) / _TICK,
        resident_bytes=status["VmRSS"] * 1024,
        peak_bytes=status["VmHWM"] * 1024,
        written_bytes=io["write_bytes"],
        read_bytes=io["read_bytes"],
    )


def _fields(text: str) -> dict[str, int]:
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        first = rest.split()[:1]
        if first and first[0].isdigit():
            found[name] = int(first[0])
    return found


def show(question: str, **figures: Any) -> None:
    """Print one result as one line of JSON, with floats rounded to significant places."""
    rounded = {
        name: round(value, 3 if abs(value) < 100 else 0) if isinstance(value, float) else value
        for name, value in figures.items()
    }
    print(json.dumps({"question": question, **rounded}), flush=True)


def machine() -> dict[str, Any]:
    """Return a description of the machine, and its current speed (`calibration`)."""
    return {
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **calibration(),
    }


def ask(questions: Mapping[str, Callable[[], None]]) -> None:
    """Run the measurements named on the command line, or all. Print the machine's speed before each of them."""
    for name in sys.argv[1:] or questions:
        if name not in questions:
            raise SystemExit(f"no question {name!r}; there are {', '.join(questions)}")
        show("machine", **machine())
        questions[name]()
