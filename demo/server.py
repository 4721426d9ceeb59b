"""Server of the demo: a `quire standalone` process, which is killed and restarted with the same data and ports."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from quire.runtime.errors import Unavailable

STOP_S = 20.0


class DemoServer:
    """Server process with one data directory; its ports are fixed after the first start.

    Leaving the `with` block kills the process.
    """

    def __init__(self, quire: Sequence[str], directory: Path) -> None:
        self._quire = quire
        self.data = directory / "data"
        self.log = directory / "server.log"
        self.service_url = "pulsar://127.0.0.1:0"
        self.http_url = "http://127.0.0.1:0"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> float:
        """Start the server and wait until it is ready; return the time taken in seconds. Raises `Unavailable`."""
        began = time.monotonic()
        listen, http = (url.partition("://")[2] for url in (self.service_url, self.http_url))
        flags = ["--data", str(self.data), "--listen", listen, "--http", http, "--deduplication", "true"]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [*self._quire, "standalone", *flags],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        words = self._process.stdout.readline().split()
        if words[:1] != ["ready"]:
            raise Unavailable(
                f"the demo's server did not start; the last line of its log: {self._last_words()}"
            )
        self.service_url, self.http_url = words[1:3]
        return time.monotonic() - began

    def kill(self) -> None:
        """Kill the process with SIGKILL to simulate a crash."""
        self._end(signal.SIGKILL)

    def stop(self) -> float:
        """Stop the process with SIGTERM; return the time taken in seconds."""
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> float:
        process, self._process = self._process, None
        if process is None:
            return 0.0
        began = time.monotonic()
        process.send_signal(how)
        process.wait(STOP_S)
        if process.stdout is not None:
            process.stdout.close()
        return time.monotonic() - began

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "(empty)"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
