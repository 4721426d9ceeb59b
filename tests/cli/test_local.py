"""`quire local`: SIGHUP starts again what is down, whenever it comes; addresses that cannot be had are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quire.cli.local import LocalCluster, LocalSettings
from quire.runtime.errors import ConfigurationError, Unavailable
from quire.testing.zookeeper_server import free_port


class FakeChild:
    """A process that is ready when the test lets it be."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind = "bookie"
        self.pid = 1
        self.urls: list[str] = []
        self.log = Path("log")
        self.process = None
        self.is_running = False
        self.starts = 0
        self.may_start = asyncio.Event()
        self.fails = False
        self._ended = asyncio.Event()

    async def start(self) -> None:
        self.starts += 1
        await self.may_start.wait()
        if self.fails:
            raise Unavailable(f"{self.name} did not start")
        self.is_running = True

    async def wait(self) -> int:
        await self._ended.wait()
        return -9


async def test_a_signal_during_a_restart_is_heeded_behind_it(tmp_path: Path) -> None:
    cluster = LocalCluster(LocalSettings(data=str(tmp_path)))
    first, second = FakeChild("bookie-1"), FakeChild("bookie-2")
    first.is_running = True
    cluster._tiers = [[first, second]]  # type: ignore[list-item]
    cluster._is_starting = False
    cluster.restart_dead()
    await turns()
    assert second.starts == 1
    first.is_running = False  # it dies when the restart has passed it
    first.may_start.set()
    cluster.restart_dead()
    second.may_start.set()
    await turns()
    assert first.is_running and second.is_running and (first.starts, second.starts) == (1, 1)
    await cluster._tasks.stop()


async def test_what_does_not_start_keeps_nobody_from_it(tmp_path: Path) -> None:
    cluster = LocalCluster(LocalSettings(data=str(tmp_path)))
    first, second = FakeChild("bookie-1"), FakeChild("bookie-2")
    first.fails = True
    for child in (first, second):
        child.may_start.set()
    cluster._tiers = [[first], [second]]  # type: ignore[list-item]
    cluster._is_starting = False
    cluster.restart_dead()
    await turns()
    assert not first.is_running and second.is_running
    await cluster._tasks.stop()


async def test_a_signal_during_the_first_start_waits_for_its_end(tmp_path: Path) -> None:
    cluster = LocalCluster(LocalSettings(data=str(tmp_path)))
    child = FakeChild("bookie-1")
    cluster._tiers = [[child]]  # type: ignore[list-item]
    cluster.restart_dead()
    await turns()
    assert child.starts == 0 and cluster._was_asked


@pytest.mark.parametrize("http", ["127.0.0.1:{0}", "127.0.0.1:{1}"])
async def test_an_address_for_two_processes_is_refused_before_anything_starts(
    tmp_path: Path, http: str
) -> None:
    port = free_port()
    http = http.format(port, port + 1)
    settings = LocalSettings(data=str(tmp_path / "data"), listen=f"127.0.0.1:{port}", http=http)
    with pytest.raises(ConfigurationError, match=f"cannot listen on {http}: Address already in use"):
        await LocalCluster(settings).run()
    assert not (tmp_path / "data").exists()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
