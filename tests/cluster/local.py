"""Cluster `quire local` that a test starts, and whose processes it kills, pauses and restarts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quire.runtime.errors import ConfigurationError
from quire.testing.zookeeper_server import classpath, free_port, java
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from tests.chaos.raw import Raw, Refused, read_frame

START_S = 60.0
STOP_S = 30.0
POLL_S = 0.05
ATTEMPT_S = 15.0


class ClusterRaw(Raw):
    """Raw connection to a broker through the gateway. It ends when the broker closes its consumer."""

    @classmethod
    async def reach(cls, address: tuple[str, int], proxy_to: str = "") -> ClusterRaw:
        """Connect through the gateway at `address`. Raises `ConnectionError`, `EOFError` or `TimeoutError`."""
        async with asyncio.timeout(ATTEMPT_S):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(commands.connect("raw", proxy_to_url=proxy_to))
            answer, _ = await read_frame(reader)
        if answer.kind != pb.BaseCommand.CONNECTED:
            writer.close()
            raise Refused(str(answer.body))
        return cls(reader, writer)

    def _take(self, kind: int, body: Any, tail: bytes) -> None:
        super()._take(kind, body, tail)
        if kind == pb.BaseCommand.CLOSE_CONSUMER:
            self._writer.transport.abort()

    async def owner(self, topic: str) -> str:
        """Look up a topic, and return its broker's `host:port`."""
        async with asyncio.timeout(ATTEMPT_S):
            found = await self.ask(commands.ask_lookup, topic)
        if found.response == pb.CommandLookupTopicResponse.Failed:
            raise Refused(found.message, found.error)
        return str(found.brokerServiceUrl).partition("://")[2]


class Front:
    """Clients' view of a cluster: the addresses of its gateway."""

    def __init__(self, service_url: str, http_url: str) -> None:
        self.service_url = service_url
        self.http_url = http_url

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.service_url.partition("://")[2].split(":")
        return host, int(port)

    async def owner(self, topic: str) -> str:
        """Look up a topic, and return its broker's `host:port`."""
        asking = await ClusterRaw.reach(self.address)
        try:
            return await asking.owner(topic)
        finally:
            await asking.close()

    async def connect(self, topic: str) -> Raw:
        """Connect through the gateway to the broker that owns the topic."""
        return await ClusterRaw.reach(self.address, await self.owner(topic))

    async def rest(self, method: str, path: str, body: object = None) -> Any:
        """Send a REST request through the gateway, and return the JSON of its response.

        The request is retried while the cluster responds that it should be.
        """
        async with asyncio.timeout(START_S):
            while True:
                try:
                    return await asyncio.to_thread(self._rest, method, path, body)
                except urllib.error.HTTPError as error:
                    if error.code != 503:
                        raise
                await asyncio.sleep(POLL_S)

    def _rest(self, method: str, path: str, body: object) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.http_url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=ATTEMPT_S) as answer:
            raw = answer.read()
        return json.loads(raw) if raw else None


class Cluster(Front):
    """Cluster of processes with one data directory: brokers, bookies, ZooKeeper and a gateway."""

    def __init__(self, data: Path, **settings: str) -> None:
        self.data = data
        self.log = data.with_suffix(".log")
        ports = {"listen": f"127.0.0.1:{free_port()}", "http": f"127.0.0.1:{free_port()}"}
        super().__init__(f"pulsar://{ports['listen']}", f"http://{ports['http']}")
        self.settings = {"data": str(data), **ports, **settings}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        flags = [
            word for name, value in self.settings.items() for word in (f"--{name.replace('_', '-')}", value)
        ]
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "quire", "local", *flags, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(START_S):
            line = (await self._process.stdout.readline()).decode()
        assert line.split() == ["ready", self.service_url, self.http_url], self.story()

    async def stop(self) -> int:
        """Stop the cluster with SIGTERM, and return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(STOP_S):
            return await process.wait()

    def story(self, bytes_max: int = 1500) -> str:
        """Return the ends of all processes' logs."""
        logs = [self.log, *sorted((self.data / "logs").glob("*.log"))]
        return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-bytes_max:]}" for log in logs)

    # -- its processes ---------------------------------------------------------------------------------

    def pids(self, kind: str = "") -> dict[str, int]:
        """Return the pids of the processes by name; if `kind` is given, only of this kind."""
        return {one["name"]: one["pid"] for one in self.processes() if kind in ("", one["kind"])}

    def at(self, address: str) -> str:
        """Return the name of the process that listens on `address`, a `host:port`."""
        return next(one["name"] for one in self.processes() if any(address in url for url in one["urls"]))

    def processes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._told()["processes"]
        return found

    @property
    def brokers_url(self) -> str:
        """URL of all brokers, without the gateway."""
        return str(self._told()["brokers_url"])

    def _told(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.data / "processes.json").read_text())
        return told

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self.pids()[name], number)

    async def restart_dead(self, *names: str) -> None:
        """Restart the killed processes, and wait until the processes `names` are up."""
        before = self.pids()
        assert self._process is not None
        async with asyncio.timeout(START_S):
            while any(self.pids()[name] == before[name] for name in names):
                self._process.send_signal(signal.SIGHUP)
                await asyncio.sleep(POLL_S)


@asynccontextmanager
async def running(data: Path, **settings: str) -> AsyncIterator[Cluster]:
    """Run a cluster for one test. Skip the test if Java or PySpark is not installed."""
    try:
        java(), classpath()
    except ConfigurationError as why:
        pytest.skip(str(why))
    cluster = Cluster(data, **settings)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()
