"""Process `quire standalone` for one measurement, in a directory that is removed afterwards."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_READY = re.compile(r"ready pulsar://127\.0\.0\.1:(\d+) (http://\S+)")


@dataclass
class Server:
    """Running server: its process, its addresses, and the time that its start took."""

    process: subprocess.Popen[str]
    port: int
    http_url: str
    data: Path
    ready_s: float

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(30)


def start(data: Path, *flags: str) -> Server:
    """Start a server on free ports and wait for its `ready` line."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "quire", "standalone", "--data", str(data), "--log-level", "warning"]
    command += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = _READY.match(line)
    if found is None:
        process.kill()
        raise SystemExit(f"the server did not start: {line!r}")
    return Server(process, int(found[1]), found[2], data, time.perf_counter() - begin)


@contextmanager
def fresh(*flags: str, parent: str | None = None) -> Iterator[Server]:
    """Run a server on an empty directory, and remove the directory at the end."""
    data = Path(tempfile.mkdtemp(prefix="quire-bench-", dir=parent))
    server = start(data, *flags)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()
        shutil.rmtree(data, ignore_errors=True)


def drop_page_cache() -> bool:
    """Drop the page cache. Return False without the permission to do so; direct reads are cold in any case."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True
