"""Cluster of real processes, whose network, clocks and disks a test can break.

Each process runs the real command under `faulty`, and advertises the address of a proxy (`network`), so that every
connection between two processes can be cut. A process that died stays down until the test calls `up`. Without bookies,
the brokers store all data in an S3 server, which is another process (`s3`).

Sizes and delays are small. So within a minute journals are recycled, segments are sealed, archived and deleted, and a
lost bookie's copies are repaired.
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
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from quire.cli.local import _zookeeper_answers
from quire.metadata import paths
from quire.metadata.open import open_store
from quire.metadata.records import BookieRecord, decode
from quire.metadata.store import MetadataStore
from quire.process.child import Child
from quire.runtime.errors import ConfigurationError, NotFound, QuireError, Unavailable
from quire.testing import zookeeper_server
from quire.testing.zookeeper_server import free_port

from . import faulty
from .faulty import Control
from .local import ATTEMPT_S, POLL_S, START_S, Front
from .network import Network
from .s3 import S3

CLIENT = "client"
"""Name of this process in the network: the stock clients, and the test's own requests."""

BOOKIE = {
    "journal-segment-bytes": "16MiB",
    "journal-group-bytes-max": "8MiB",
    "memtable-bytes": "30MiB",  # nearly an entry log's size; a full disk must still store it, so it is noticed early
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


COMMAND_S = 300.0
"""Time limit of a command. Giving up a WAL reads all its objects, one after another, from an S3 server in Python."""


class Ran(NamedTuple):
    """Result of a command; `code` is its exit code."""

    code: int
    out: str
    err: str


class Wired(Front):
    """Cluster of processes behind proxies.

    With `bookies` 0, brokers store WALs and archive in a bucket, or in a directory if `is_directory`.
    """

    def __init__(
        self,
        data: Path,
        *,
        bookies: int,
        brokers: int = 2,
        session_s: float = 2.0,
        is_directory: bool = False,
    ) -> None:
        super().__init__("", "")
        self.data = data
        self.s3: S3 | None = None
        self.mount: Path | None = None
        """Symbolic link to the directory of the objects. It simulates a mount, and a test can redirect it."""
        self.flags: dict[str, dict[str, str]] = {}
        self._is_directory = is_directory
        self._commands = count(1)
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
        """URL of the brokers, for clients that do not use the gateway."""
        return "pulsar://" + ",".join(self._addresses[name] for name in self.brokers)

    # -- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self.data.mkdir()
        port = free_port()
        await self._start_zookeeper(port)
        if self.bookies or self._is_directory:
            self._mount("archive" if self.bookies else "objects")
        else:
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
        """Return the ends of all processes' logs."""
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

    def _mount(self, name: str) -> None:
        disk = self.data / f"{name}.disk"
        disk.mkdir()
        self.mount = self.data / name
        self.lead(self.mount, disk)
        self.bucket_url = self._bucket_front = f"file://{self.mount}"

    def lead(self, mount: Path, folder: Path) -> None:
        """Redirect the link `mount` to another folder atomically."""
        link = mount.with_name(f"{mount.name}.link")
        link.symlink_to(folder)
        link.replace(mount)

    @property
    def stores(self) -> dict[str, str]:
        """Flags of commands that access the metadata store and the WALs' object store directly."""
        return {"metadata": self._metadata, "wal": self._bucket_front}

    async def new_bookie(self, name: str) -> None:
        """Register a bookie `name` with a new address. It is a new bookie if its directories are empty."""
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
            "archive": self._bucket_front,
        }
        if not self.bookies:
            flags |= {"wal": self._bucket_front, **WAL}
        self._quire(name, "broker", {**flags, **BROKER})

    async def _new_gateway(self) -> None:
        (listen, front), (http, http_front) = await self._front("gateway"), await self._front("gateway")
        self.service_url, self.http_url = f"pulsar://{front}", f"http://{http_front}"
        self._quire("gateway", "gateway", {"listen": listen, "http": http})

    async def _front(self, name: str) -> tuple[str, str]:
        """Start a proxy for process `name`; return the addresses that the process listens on and advertises."""
        listen = f"127.0.0.1:{free_port()}"
        return listen, await self.network.front(name, listen)

    def _quire(self, name: str, kind: str, flags: dict[str, str]) -> None:
        self.controls[name] = Control(self._control(name), create=True)
        self.flags[name] = {"metadata": self._metadata, **flags}
        self._add(name, kind, self._command(name, kind, self.flags[name]))

    def _control(self, name: str) -> Path:
        return self.data / f"{name}.control"

    def _command(self, name: str, *words: str | dict[str, str]) -> list[str]:
        """Return the command line of `quire WORDS` on the machine of `name`. A dictionary in `words` contains flags."""
        given = [
            part
            for word in words
            for part in (
                [word]
                if isinstance(word, str)
                else [part for flag, value in word.items() for part in (f"--{flag}", value)]
            )
        ]
        # -P: do not import modules from the directory of these tests
        return [sys.executable, "-P", faulty.__file__, str(self._control(name)), *given]

    def _add(
        self, name: str, kind: str, argv: list[str], answers: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        self._children[name] = Child(name, kind, argv, self.data / "logs" / f"{name}.log", answers)

    # -- its processes ---------------------------------------------------------------------------------

    def address_of(self, name: str) -> tuple[str, int]:
        host, port = self._addresses[name].split(":")
        return host, int(port)

    def names(self) -> dict[int, str]:
        """Return the names of the running processes by pid."""
        running = ((child.process, name) for name, child in list(self._children.items()) if child.is_running)
        found = {process.pid: name for process, name in running if process is not None}
        return {os.getpid(): CLIENT, **found}

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self._children[name].pid, number)

    async def kill(self, name: str) -> None:
        self.signal(name, signal.SIGKILL)
        await self._children[name].wait()

    async def refused(self, name: str, **flags: str) -> str:
        """Try to start process `name` with changed flags. It must refuse; return its last error."""
        child = self._children[name]
        argv = self._command(name, child.kind, self.flags[name] | flags)
        attempt = Child(name, child.kind, argv, child.log)
        try:
            await attempt.start()
        except Unavailable as why:
            await attempt.stop()
            return str(why)
        await attempt.stop()
        raise AssertionError(f"{name} has started with {flags}")

    async def operate(self, *words: str, ahead_s: float = 0.0, **flags: str) -> Ran:
        """Run a command on an operator's machine, whose wall clock is `ahead_s` ahead."""
        name = f"operator-{next(self._commands)}"
        Control(self._control(name), create=True).set_clock(ahead_s)
        process = await asyncio.create_subprocess_exec(
            *self._command(name, *words, flags),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(COMMAND_S):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode is not None
        return Ran(process.returncode, out.decode(), err.decode())

    async def up(self, name: str) -> None:
        """Start process `name`, and retry as a supervisor would, because processes that it needs may be away."""
        child = self._children[name]
        deadline = asyncio.get_running_loop().time() + 2 * START_S  # because one start may take up to START_S
        while True:
            try:
                return await child.start()
            except Unavailable as why:
                await child.stop()
                assert asyncio.get_running_loop().time() < deadline, f"{name} does not start: {why}"

    def wipe(self, name: str) -> str:
        """Delete both directories of a bookie. Return the UUID of the lost bookie."""
        cookie = self.data / name / "journal" / "identity.json"
        uuid: str = json.loads(cookie.read_text())["uuid"]
        shutil.rmtree(self.data / name)
        return uuid

    # -- state of the processes ------------------------------------------------------------------------

    async def bookie(self, name: str) -> BookieRecord | None:
        """Return the record by which writers choose the bookie `name`; None if it is not up. Raises `Unavailable`."""
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
        """Return the metrics of process `name` that have no labels."""

        def ask() -> str:
            with urllib.request.urlopen(f"http://{self._http[name]}/metrics", timeout=ATTEMPT_S) as answer:
                found: str = answer.read().decode()
            return found

        lines = [line.split() for line in (await asyncio.to_thread(ask)).splitlines() if line[:1] != "#"]
        return {words[0]: float(words[1]) for words in lines if len(words) == 2}

    async def until_bookie(
        self, name: str, condition: Callable[[BookieRecord], bool], seconds: float = START_S
    ) -> None:
        """Wait until the bookie is up and its record satisfies `condition`. Raises `TimeoutError`."""
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
        """Wait until the bookie `uuid` is no longer listed as available."""
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
    """Run a cluster for one test. Skip the test if Java or PySpark is not installed."""
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
