"""Process `quire standalone` that a test starts, kills and restarts with the same data and ports."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

START_S = 20.0
"""Time limit of a start, far longer than any start takes. A process that is not ready by then hangs."""

SMALL = {
    "memtable_bytes": "16MiB",
    "journal_group_bytes_max": "8MiB",
    "journal_segment_bytes": "16MiB",
    "entry_log_bytes": "20MiB",
    "segment_bytes_max": "1MiB",
    "flush_interval_ms": "200ms",
    "archive_delay_ms": "0",
    "archive_lag_ms": "0",
    "disk_reserve_bytes": "1MiB",
}
"""Minimal settings, with which flushes, rolls, archiving and recycling happen every second."""

_READY = re.compile(r"ready pulsar://([^\s]+) (http://\S+)")


class Server:
    """Server with one data directory and one pair of ports, and one process at a time.

    The process writes its log to the file `log` beside the data.
    """

    def __init__(self, directory: Path, **settings: str) -> None:
        self.data = directory / "data"
        self.log = directory / "log"
        self.settings = settings
        self.listen = ""
        self.http_url = ""
        self.process: asyncio.subprocess.Process | None = None

    @property
    def service_url(self) -> str:
        return f"pulsar://{self.listen}"

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.listen.rsplit(":", 1)
        return host, int(port)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def spawn(self, **settings: str) -> None:
        """Start the process without waiting for it. Later starts use the ports of the first start."""
        listen = self.listen or "127.0.0.1:0"
        http = self.http_url.removeprefix("http://") or "127.0.0.1:0"
        given = {"data": str(self.data), "listen": listen, "http": http, **self.settings, **settings}
        flags = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "quire",
                "standalone",
                *flags,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )

    async def ready(self) -> None:
        """Wait for the process's `ready` line. If the process ends before it, fail the test with the process's log."""
        assert self.process is not None and self.process.stdout is not None
        async with asyncio.timeout(START_S):
            line = (await self.process.stdout.readline()).decode()
        found = _READY.match(line)
        assert found, f"the server did not start: {line!r}\n{self.tail()}"
        self.listen, self.http_url = found[1], found[2]

    async def start(self, **settings: str) -> None:
        await self.spawn(**settings)
        await self.ready()

    async def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it has exited."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """Stop the process with SIGTERM, and return its exit code."""
        return await self._end(signal.SIGTERM)

    async def _end(self, how: signal.Signals) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        if process.returncode is None:
            process.send_signal(how)
        async with asyncio.timeout(START_S):
            await process.communicate()
        assert process.returncode is not None
        return process.returncode

    def tail(self, bytes_max: int = 3000) -> str:
        """Return the end of the process's log."""
        return self.log.read_bytes()[-bytes_max:].decode(errors="replace")

    def peak_bytes(self) -> int:
        """Return the peak resident memory of the process (VmHWM)."""
        return self._status_bytes("VmHWM")

    def anonymous_bytes(self) -> int:
        """Return the resident anonymous memory (RssAnon), which does not include the memory-mapped index."""
        return self._status_bytes("RssAnon")

    def _status_bytes(self, name: str) -> int:
        found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None
        return int(found[1]) << 10

    async def rest(self, method: str, path: str, body: object = None) -> Any:
        """Send a REST request, and return the JSON of its response. Raises `HTTPError`."""
        return await asyncio.to_thread(self._rest, method, path, body)

    def _rest(self, method: str, path: str, body: object) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.http_url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=START_S) as answer:
            raw = answer.read()
        return json.loads(raw) if raw else None
