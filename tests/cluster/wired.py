"""A cluster of real processes with a network, clocks and disks that a test breaks.

Each process runs the real command in `faulty`, and tells the others the address of a proxy before it (`network`), so
every way between two of them can be cut. It is restarted by hand: what died stays dead until `up`. Without bookies the
brokers keep everything in an S3 server, a process like the others (`s3`).

Sizes and delays are small, so that in a minute journals are recycled, segments sealed, archived and deleted, and a lost
bookie is repaired.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quire.cli.local import _zookeeper_answers
from quire.cli.processes import Child
from quire.metadata import paths
from quire.metadata.open import open_store
from quire.metadata.records import BookieRecord, decode
from quire.metadata.store import MetadataStore
from quire.runtime.errors import ConfigurationError, NotFound, QuireError, Unavailable
from quire.testing import zookeeper_server
from quire.testing.zookeeper_server import free_port

from . import faulty
from .faulty import Control
from .local import ATTEMPT_S, POLL_S, START_S, Front
from .network import Network
from .s3 import S3

CLIENT = "client"
"""This process: the stock clients and what the test itself asks."""

BOOKIE = {
    "journal-segment-bytes": "16MiB",
    "journal-group-bytes-max": "8MiB",
    "memtable-bytes": "30MiB",  # nearly a whole log, which a full disk must still take: so it is noticed early
    "entry-log-bytes": "32MiB",
    "disk-reserve-bytes": "1MiB",
    "flush-interval-ms": "500ms",
    "new-cluster": "true",
}
BROKER = {
    "segment-bytes-max": "2MiB",
    "archive-delay-ms": "1s",
    "archive-lag-ms": "3s",
    "repair-delay-ms": "2s",
    "repair-look-ms": "250ms",
}

WAL = {
    "wal-memory-bytes": "16MiB",
    "wal-batch-bytes": "1MiB",
    "wal-batch-ms": "100ms",
    "new-cluster": "true",
}


class Wired(Front):
    """`bookies` 0: brokers, ZooKeeper and a bucket."""

    def __init__(self, data: Path, *, bookies: int, brokers: int = 2, session_s: float = 2.0) -> None:
        super().__init__("", "")
        self.data = data
        self.bookies = [f"bookie-{number}" for number in range(1, bookies + 1)]
        self.brokers = [f"broker-{number}" for number in range(1, brokers + 1)]
        self.network = Network(self.names)
        self.controls: dict[str, Control] = {}
        self._children: dict[str, Child] = {}
        self._addresses: dict[str, str] = {}
        self._http: dict[str, str] = {}
        self._session_s = session_s

    @property
    def direct_url(self) -> str:
        """The brokers themselves, for clients that use no gateway."""
        return "pulsar://" + ",".join(self._addresses[name] for name in self.brokers)

    # -- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self.data.mkdir()
        port = free_port()
        await self._start_zookeeper(port)
        if not self.bookies:
            await self._start_s3(free_port())
        self.store: MetadataStore = await open_store(
            f"zk://127.0.0.1:{port}/quire?session_timeout={self._session_s}s"
        )
        for name in self.bookies:
            await self.new_bookie(name)
        await self._all_up(self.bookies)
        for name in self.brokers:
            await self._new_broker(name)
        await self._all_up(self.brokers)
        await self._new_gateway()
        await self.up("gateway")

    async def stop(self) -> None:
        self.network.mend_all()
        for names in (["gateway"], self.brokers, self.bookies, ["store"], ["zookeeper"]):
            children = [self._children[name] for name in names if name in self._children]
            if names == ["zookeeper"] and hasattr(self, "store"):
                await self.store.close()
            await asyncio.gather(*(child.stop() for child in children))
        await self.network.stop()

    async def _all_up(self, names: Iterable[str]) -> None:
        await asyncio.gather(*map(self.up, names))

    def story(self, bytes_max: int = 2500) -> str:
        """The ends of all logs."""
        logs = sorted((self.data / "logs").glob("*.log"))
        return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-bytes_max:]}" for log in logs)

    # -- the parts -------------------------------------------------------------------------------------

    async def _start_zookeeper(self, port: int) -> None:
        folder = self.data / "zookeeper"
        argv = zookeeper_server.command(zookeeper_server.write_config(folder, port))
        self._add("zookeeper", "zookeeper", argv, lambda: _zookeeper_answers(port))
        await self.up("zookeeper")
        front = await self.network.front("zookeeper", f"127.0.0.1:{port}")
        self._metadata = f"zk://{front}/quire?session_timeout={self._session_s}s"

    async def _start_s3(self, port: int) -> None:
        self.s3 = S3(self.data / "s3", port)
        self._add("store", "store", self.s3.command(), self.s3.answers)
        await self.up("store")
        self.bucket_url = self.s3.url(f"127.0.0.1:{port}")
        self._bucket_front = self.s3.url(await self.network.front("store", f"127.0.0.1:{port}"))

    async def new_bookie(self, name: str) -> None:
        """A bookie of that name at an address that none had before; empty if its directories are."""
        folder = self.data / name
        listen, advertise = await self._front(name)
        self._addresses[name] = advertise
        places = {"journal": str(folder / "journal"), "entry-log": str(folder / "entries")}
        self._quire(name, "bookie", {"listen": listen, "advertise": advertise, **places, **BOOKIE})

    async def _new_broker(self, name: str) -> None:
        (listen, advertise), (http, http_advertise) = await self._front(name), await self._front(name)
        self._addresses[name], self._http[name] = advertise, http
        flags = {
            "listen": listen,
            "advertise": f"pulsar://{advertise}",
            "http": http,
            "http-advertise": http_advertise,
            "archive": f"file://{self.data / 'archive'}",
        }
        if not self.bookies:
            flags |= {"wal": self._bucket_front, "archive": self._bucket_front, **WAL}
        self._quire(name, "broker", {**flags, **BROKER})

    async def _new_gateway(self) -> None:
        (listen, front), (http, http_front) = await self._front("gateway"), await self._front("gateway")
        self.service_url, self.http_url = f"pulsar://{front}", f"http://{http_front}"
        self._quire("gateway", "gateway", {"listen": listen, "http": http})

    async def _front(self, name: str) -> tuple[str, str]:
        """Where it listens, and where others reach it."""
        listen = f"127.0.0.1:{free_port()}"
        return listen, await self.network.front(name, listen)

    def _quire(self, name: str, kind: str, flags: dict[str, str]) -> None:
        control = self.data / f"{name}.control"
        self.controls[name] = Control(control, create=True)
        given = {"metadata": self._metadata, **flags}
        words = [word for flag, value in given.items() for word in (f"--{flag}", value)]
        # -P: the folder of these tests is no place to import from
        self._add(name, kind, [sys.executable, "-P", faulty.__file__, str(control), kind, *words])

    def _add(
        self, name: str, kind: str, argv: list[str], answers: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        self._children[name] = Child(name, kind, argv, self.data / "logs" / f"{name}.log", answers)

    # -- its processes ---------------------------------------------------------------------------------

    def address_of(self, name: str) -> tuple[str, int]:
        host, port = self._addresses[name].split(":")
        return host, int(port)

    def names(self) -> dict[int, str]:
        """Who is who, by pid."""
        running = ((child.process, name) for name, child in list(self._children.items()) if child.is_running)
        found = {process.pid: name for process, name in running if process is not None}
        return {os.getpid(): CLIENT, **found}

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self._children[name].pid, number)

    async def kill(self, name: str) -> None:
        self.signal(name, signal.SIGKILL)
        await self._children[name].wait()

    async def refused(self, name: str) -> str:
        """Start what must not start; the sentence that it said last."""
        try:
            await self._children[name].start()
        except Unavailable as why:
            await self._children[name].wait()
            return str(why)
        raise AssertionError(f"{name} has started")

    async def up(self, name: str) -> None:
        """Start it, again and again, as whoever supervises processes does: what it needs may be away."""
        child = self._children[name]
        deadline = asyncio.get_running_loop().time() + START_S
        while True:
            try:
                return await child.start()
            except Unavailable as why:
                await child.stop()
                assert asyncio.get_running_loop().time() < deadline, f"{name} does not start: {why}"

    def wipe(self, name: str) -> str:
        """Its two directories are lost. Answers the UUID of the bookie that is gone for ever."""
        cookie = self.data / name / "journal" / "identity.json"
        uuid: str = json.loads(cookie.read_text())["uuid"]
        shutil.rmtree(self.data / name)
        return uuid

    # -- what it knows ---------------------------------------------------------------------------------

    async def bookie(self, name: str) -> BookieRecord | None:
        """The bookie as those see it who choose bookies; None when it is not up. Raises `Unavailable`."""
        for uuid in await self.store.children(paths.BOOKIES_AVAILABLE):
            path = paths.bookie_available(uuid)
            try:
                record = decode(BookieRecord, (await self.store.get(path)).value, path)
            except NotFound:
                continue
            if record.address == self._addresses[name]:
                return record
        return None

    async def metrics(self, name: str) -> dict[str, float]:
        """The process's own, without labels."""

        def ask() -> str:
            with urllib.request.urlopen(f"http://{self._http[name]}/metrics", timeout=ATTEMPT_S) as answer:
                found: str = answer.read().decode()
            return found

        lines = [line.split() for line in (await asyncio.to_thread(ask)).splitlines() if line[:1] != "#"]
        return {words[0]: float(words[1]) for words in lines if len(words) == 2}

    async def until_bookie(
        self, name: str, condition: Callable[[BookieRecord], bool], seconds: float = START_S
    ) -> None:
        """Wait until the bookie is up and so. Raises `TimeoutError`."""
        async with asyncio.timeout(seconds):
            while True:
                try:
                    record = await self.bookie(name)
                    if record is not None and condition(record):
                        return
                except QuireError:
                    pass  # the metadata store is away
                await asyncio.sleep(POLL_S)

    async def until_gone(self, uuid: str) -> None:
        """Wait until nobody takes the bookie for one that is up."""
        async with asyncio.timeout(START_S):
            while True:
                try:
                    if uuid not in await self.store.children(paths.BOOKIES_AVAILABLE):
                        return
                except QuireError:
                    pass  # the metadata store is away
                await asyncio.sleep(POLL_S)


@asynccontextmanager
async def wired(data: Path, **options: object) -> AsyncIterator[Wired]:
    """A cluster for one test. Skips it where there is no Java or no PySpark."""
    try:
        zookeeper_server.java(), zookeeper_server.classpath()
    except ConfigurationError as why:
        pytest.skip(str(why))
    cluster = Wired(data, **options)  # type: ignore[arg-type]
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()
