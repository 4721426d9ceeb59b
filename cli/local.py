"""`quire local`: runs a cluster as processes on one machine: ZooKeeper, bookies or a bucket, brokers, a gateway.

    DIR/zookeeper/                its own ZooKeeper, unless --zookeeper names another one
    DIR/bookie-N/{journal,entries}
    DIR/archive/                  sealed segments
    DIR/logs/NAME.log
    DIR/processes.json            the pid of each process, any of which may be killed, and the brokers' service URL
    DIR/lock                      lock that is held while the cluster runs, so that a directory has one cluster

A process that dies is not restarted automatically; a line on standard error reports its end. SIGHUP to this process
restarts all dead processes with their data, including those that die during the restart. On SIGTERM or SIGINT, the
gateway is stopped first, then the brokers, the bookies and ZooKeeper, so that no process loses a service that it needs.

Clients on this machine need no gateway. The brokers listen on the loopback interface, at the ports after the gateway's,
or at any free ports if the gateway's port is 0. A restarted broker keeps its port. Lookup responses of brokers name
brokers. Clients elsewhere, for example in a container or behind a tunnel, reach only the gateway, whose lookup
responses name the gateway.

Other settings of brokers and bookies are set by environment variables (`QUIRE_…`), which all child processes inherit.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from quire.cli.first_steps import console_at
from quire.cli.settings import settings_options
from quire.process.child import QUIRE, Child
from quire.process.listeners import listen
from quire.process.settings import Given
from quire.process.until_signal import run_until_signal, say_ready, until_cancelled
from quire.runtime.disk import RealDisk
from quire.runtime.errors import ConfigurationError, QuireError
from quire.runtime.settings import MILLISECONDS, parse_address, setting
from quire.runtime.tasks import Tasks
from quire.testing import zookeeper_server

PROCESSES_FILE: Final = "processes.json"


@dataclass(frozen=True)
class LocalSettings:
    """Settings of a cluster on one machine."""

    brokers: int = setting(2, "Number of brokers.")
    bookies: int = setting(3, "Number of bookies; with wal 0 unless told otherwise.")
    wal: str = setting(
        "",
        "Object store that keeps what is published, file:///PATH or s3://BUCKET/PREFIX; empty: the bookies.",
    )
    data: str = setting("cluster", "Directory for everything that is kept, and for the logs.")
    zookeeper: str = setting(
        "", "ZooKeeper to use, zk://HOST:PORT/CHROOT; empty: an own one, from PySpark's jars."
    )
    session_timeout_ms: int = setting(
        10_000,
        "With the own ZooKeeper: how long a broker may be silent before others take over.",
        unit=MILLISECONDS,
    )
    archive: str = setting(
        "",
        "Object store for sealed segments, file:///PATH or s3://BUCKET/PREFIX; empty: that of wal, else in the data "
        "directory.",
    )
    listen: str = setting(
        "127.0.0.1:6650",
        "Address of the gateway for clients; the brokers have the ports after it, on the loopback. Port 0: any free.",
    )
    http: str = setting("127.0.0.1:8080", "Address of the gateway for REST; port 0: any free.")

    def validate(self) -> None:
        """Check the settings. Raises `ConfigurationError`."""
        if self.brokers < 1 or self.bookies < (0 if self.wal else 1):
            raise ConfigurationError("brokers and bookies must be at least 1; with wal, bookies may be 0")
        if not self.data:
            raise ConfigurationError("data must be the path of a directory")
        if self.zookeeper and not self.zookeeper.startswith(("zk://", "zk+ssl://")):
            raise ConfigurationError(f"zookeeper {self.zookeeper!r} is not a zk:// URL")
        parse_address(self.listen)
        parse_address(self.http)


@click.command("local")
@settings_options(LocalSettings)
def command(config: Path | None, **flags: Any) -> None:
    """Run a cluster on this machine, each server as a process that may be killed.

    processes.json in the data directory lists the pids. A process that dies stays dead until this one gets SIGHUP.

    \b
    Example:
      quire local --brokers 2 --bookies 3 --data /tmp/cluster
      quire local --brokers 2 --wal file:///tmp/bucket --data /tmp/cluster
    """
    given = Given(flags, config)
    settings = given.load(LocalSettings)
    if settings.wal:
        settings = given.load(LocalSettings, {"bookies": 0})
    run_until_signal(LocalCluster(settings).run())


class LocalCluster:
    """Cluster of child processes, in tiers in the order in which they start; each needs the tiers before it."""

    def __init__(self, settings: LocalSettings) -> None:
        self._settings = settings
        self._data = Path(settings.data).absolute()
        self._broker_addresses = _after(parse_address(settings.listen)[1], settings.brokers)
        self._disk = RealDisk(self._data)
        self._tiers: list[list[Child]] = []
        self._tasks = Tasks("local")
        self._is_starting = True
        """True while the cluster or its dead processes are being started."""
        self._was_asked = False
        """True if a restart of dead processes was requested since the last check."""

    async def run(self) -> None:
        """Start all processes, print their addresses, and run until cancelled; then stop all.

        Raises `ConfigurationError` before any start if another process uses the directory or an address.
        """
        addresses = (self._settings.listen, self._settings.http, *self._broker_addresses)
        for each in [
            listen(address) for address in addresses
        ]:  # all at once, so that equal addresses are detected
            each.close()  # if another process takes the address meanwhile, the child reports that
        self._disk.make_directory()
        self._disk.lock()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.restart_dead)
        try:
            await self._start()
            self._is_starting = False
            if self._was_asked:
                self.restart_dead()
            gateway = self._tiers[-1][0]
            say_ready(*gateway.urls)
            _say(f"the console in a browser: {console_at(gateway.urls[1])}")
            _say(f"clients on this machine reach the brokers themselves at {self.brokers_url}")
            await until_cancelled()
        finally:
            await self._stop()
            self._disk.close()

    @property
    def brokers_url(self) -> str:
        """Service URL with all brokers, without the gateway."""
        return f"pulsar://{','.join(self._broker_addresses)}"

    async def _start(self) -> None:
        metadata = self._settings.zookeeper or await self._own_zookeeper()
        await self._tier(self._bookie(number, metadata) for number in range(1, self._settings.bookies + 1))
        await self._tier(self._broker(number, metadata) for number in range(1, self._settings.brokers + 1))
        await self._tier([self._gateway(metadata)])

    async def _stop(self) -> None:
        await self._tasks.stop()
        for tier in reversed(self._tiers):
            await asyncio.gather(*(child.stop() for child in tier))
        (self._data / PROCESSES_FILE).unlink(missing_ok=True)

    # -- child processes ----------------------------------------------------------------------------------

    async def _own_zookeeper(self) -> str:
        folder = self._data / "zookeeper"
        port = zookeeper_server.free_port()
        argv = zookeeper_server.command(zookeeper_server.write_config(folder, port))
        await self._tier([self._child("zookeeper", "zookeeper", argv, lambda: _zookeeper_answers(port))])
        return f"zk://127.0.0.1:{port}/quire?session_timeout={self._settings.session_timeout_ms}ms"

    def _bookie(self, number: int, metadata: str) -> Child:
        folder = self._data / f"bookie-{number}"
        places = {"journal": str(folder / "journal"), "entry-log": str(folder / "entries")}
        return self._quire("bookie", number, {"metadata": metadata, "new-cluster": "true", **places})

    def _broker(self, number: int, metadata: str) -> Child:
        settings = self._settings
        archive = settings.archive or settings.wal or f"file://{quote(str(self._data / 'archive'))}"
        wal = {"wal": settings.wal, "new-cluster": "true"} if settings.wal else {}
        given = {"metadata": metadata, "archive": archive, "listen": self._broker_addresses[number - 1]}
        return self._quire("broker", number, {**given, **wal, **self._quorums()})

    def _quorums(self) -> dict[str, str]:
        """Return the quorum settings for this number of bookies: three copies need at least three bookies."""
        bookies = self._settings.bookies
        return (
            {} if bookies >= 3 or not bookies else {"write-quorum": str(bookies), "ack-quorum": str(bookies)}
        )

    def _gateway(self, metadata: str) -> Child:
        listen, http = self._settings.listen, self._settings.http
        return self._quire("gateway", 0, {"metadata": metadata, "listen": listen, "http": http})

    def _quire(self, kind: str, number: int, flags: dict[str, str]) -> Child:
        given = {"listen": "127.0.0.1:0", "http": "127.0.0.1:0", **flags}
        words = [word for name, value in given.items() for word in (f"--{name}", value)]
        return self._child(f"{kind}-{number}" if number else kind, kind, [*QUIRE, kind, *words])

    def _child(
        self, name: str, kind: str, argv: list[str], answers: Callable[[], Awaitable[bool]] | None = None
    ) -> Child:
        return Child(name, kind, argv, self._data / "logs" / f"{name}.log", answers)

    # -- watching --------------------------------------------------------------------------------------

    async def _tier(self, children: Iterable[Child]) -> None:
        tier = list(children)
        self._tiers.append(tier)
        await asyncio.gather(*map(self._begin, tier))

    async def _begin(self, child: Child) -> None:
        await child.start()
        self._tasks.start(self._watch(child), f"watch {child.name}")
        self._write_file()

    async def _watch(self, child: Child) -> None:
        pid, code = child.pid, await child.wait()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        _say(f"{child.name} (pid {pid}) ended {how}; SIGHUP to {os.getpid()} starts it again")

    def restart_dead(self) -> None:
        """Restart dead processes, tier by tier; if a start is in progress, repeat it afterwards."""
        self._was_asked = True
        if not self._is_starting:
            self._is_starting = True
            self._tasks.start(self._restart_dead(), "restart what died")

    async def _restart_dead(self) -> None:
        try:
            while self._was_asked:
                self._was_asked = False
                for child in [child for tier in self._tiers for child in tier]:
                    if not child.is_running:
                        await self._restart(child)
        finally:
            self._is_starting = False

    async def _restart(self, child: Child) -> None:
        try:
            await self._begin(child)
            _say(f"{child.name} is up again, pid {child.pid}")
        except QuireError as error:  # other processes may work without it
            _say(str(error))

    def _write_file(self) -> None:
        """Update the file with the running processes, by an atomic replacement."""
        children = [child for tier in self._tiers for child in tier if child.process is not None]
        found = {
            "pid": os.getpid(),
            "brokers_url": self.brokers_url,
            "processes": [
                {
                    "name": child.name,
                    "kind": child.kind,
                    "pid": child.pid,
                    "urls": child.urls,
                    "log": str(child.log),
                }
                for child in children
            ],
        }
        file = self._data / PROCESSES_FILE
        temporary = file.with_suffix(".new")
        temporary.write_text(json.dumps(found, indent=2) + "\n")
        temporary.replace(file)


def _after(port: int, count: int) -> list[str]:
    """Return the addresses of `count` brokers, at the ports after `port`, or at free ports if it is 0."""
    if port:
        return [f"127.0.0.1:{one}" for one in range(port + 1, port + 1 + count)]
    return [f"127.0.0.1:{zookeeper_server.free_port()}" for _ in range(count)]


async def _zookeeper_answers(port: int) -> bool:
    """Return whether ZooKeeper serves requests: `ruok` is answered before its data are loaded, but `srvr` is not."""
    try:
        async with asyncio.timeout(1.0):  # a connection made during ZooKeeper's start may never be answered
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"srvr")
            answer = await reader.read()
            writer.close()
            return b"Mode: " in answer
    except (OSError, TimeoutError):
        return False


def _say(text: str) -> None:
    click.echo(text, err=True)
