"""The HTTP ports of a broker, a gateway and a bookie, with honest requests beside a hostile client.

Each honest request, on a connection of its own as a probe's is, must be answered, and the process's memory stays within
what the README says. How long requests take, alone and beside the other, is printed: both share the machine with it.
QUIRE_HOSTILE_SECONDS and QUIRE_HOSTILE_ACTS are as in `test_hostile`; `pytest -s` shows what is printed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from quire.runtime.limits import GIB

from .hostile import OVER_HTTP
from .server import Server

SECONDS = float(os.environ.get("QUIRE_HOSTILE_SECONDS", "6"))
NAMES = [act.__name__ for act in OVER_HTTP]
ACTS = [name for name in os.environ.get("QUIRE_HOSTILE_ACTS", "").split() if name in NAMES] or NAMES
PAUSE_S = 0.02
MEMORY_MAX = GIB
PATHS = {
    "broker": ("/health/ready", "/admin/v2/clusters"),
    "gateway": ("/health/ready", "/admin/v2/clusters"),
    "bookie": ("/health/ready", "/metrics"),
}


class Port(NamedTuple):
    url: str
    pid: int
    log: Path

    def memory_bytes(self, field: str) -> int:
        found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None
        return int(found[1]) << 10


@asynccontextmanager
async def running(kind: str, server: Server, folder: Path) -> AsyncIterator[Port]:
    if kind == "broker":
        yield Port(server.http_url, server.pid, server.log)
        return
    file = folder / f"{kind}.log"
    urls = [server.service_url, server.http_url] if kind == "gateway" else []
    with file.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.chaos.http_port",
            kind,
            *urls,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        url = (await process.stdout.readline()).decode().strip()
    assert url, file.read_text()
    try:
        yield Port(url, process.pid, file)
    finally:
        process.kill()
        await process.communicate()


async def ask(url: str, path: str) -> int:
    """The status of a request on a connection of its own."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
    return int(answer.split(b" ", 2)[1])


async def honest(url: str, paths: tuple[str, ...], ended: asyncio.Event) -> list[float]:
    """Ask until that is set; how long each request took, in ms."""
    taken, loop = list[float](), asyncio.get_running_loop()
    while not ended.is_set() or len(taken) < 10:
        began = loop.time()
        assert await ask(url, paths[len(taken) % len(paths)]) == 200
        taken.append(1000 * (loop.time() - began))
        await asyncio.sleep(PAUSE_S)
    return taken


def p99(taken: list[float]) -> float:
    return sorted(taken)[len(taken) * 99 // 100]


@pytest.mark.parametrize("kind", PATHS)
async def test_honest_requests_beside_a_hostile_client(tmp_path: Path, kind: str) -> None:
    server = Server(tmp_path)
    await server.start()
    try:
        async with running(kind, server, tmp_path) as port:
            ended = asyncio.Event()
            asyncio.get_running_loop().call_later(SECONDS / 3, ended.set)
            alone = await honest(port.url, PATHS[kind], ended)
            hostile = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.chaos.hostile",
                server.listen,
                port.url,
                str(SECONDS),
                *ACTS,
                stdout=asyncio.subprocess.PIPE,
            )
            ended.clear()
            asking = asyncio.ensure_future(honest(port.url, PATHS[kind], ended))
            said, _ = await hostile.communicate()
            ended.set()
            beside, acts = await asking, json.loads(said)
            peak, now = port.memory_bytes("VmHWM"), port.memory_bytes("RssAnon")
            print(
                f"\n{kind}: honest p99 {p99(alone):.1f} ms alone ({len(alone)} requests), {p99(beside):.1f} ms beside "
                f"the hostile client ({len(beside)}); memory: {peak >> 20} MiB at most, {now >> 20} at the end\n{acts}"
            )
            assert min(acts.values()) > 0 and acts.keys() == set(ACTS)
            assert peak < MEMORY_MAX
            assert "Traceback" not in port.log.read_text(), port.log.read_text()[-3_000:]
    finally:
        await server.kill()
