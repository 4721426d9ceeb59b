"""A real `quire standalone` process that a test starts, kills and starts again on the same data and ports."""

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
"""Far beyond what a start takes; a process that is not ready by then hangs."""

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
"""As small as settings may be: flushes, rolls, archiving and recycling happen every second."""

_READY = re.compile(r"ready pulsar://([^\s]+) (http://\S+)")


class Server:
    """One data directory, one pair of ports, one process at a time. Its log goes to `log` beside the data."""

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
        """Start the process and do not wait. The second start uses the ports of the first."""
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
        """Wait for the line that says so. A process that ends before fails the test with its log."""
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
        """SIGKILL, and wait until it is gone."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """SIGTERM; the exit code."""
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
        """The end of its log."""
        return self.log.read_bytes()[-bytes_max:].decode(errors="replace")

    def peak_bytes(self) -> int:
        """The most memory that the process ever had resident (VmHWM)."""
        return self._status_bytes("VmHWM")

    def anonymous_bytes(self) -> int:
        """The memory that is resident now and no file's (RssAnon): the index is mapped, and counts in the rest."""
        return self._status_bytes("RssAnon")

    def _status_bytes(self, name: str) -> int:
        found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None
        return int(found[1]) << 10

    async def rest(self, method: str, path: str, body: object = None) -> Any:
        """A REST call; its JSON. Raises `HTTPError`."""
        return await asyncio.to_thread(self._rest, method, path, body)

    def _rest(self, method: str, path: str, body: object) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.http_url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=START_S) as answer:
            raw = answer.read()
        return json.loads(raw) if raw else None
