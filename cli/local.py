"""`quire local`: a cluster as plain processes on one machine: ZooKeeper, bookies or a bucket, brokers, a gateway.

    DIR/zookeeper/                its own ZooKeeper, unless --zookeeper names another one
    DIR/bookie-N/{journal,entries}
    DIR/archive/                  sealed segments
    DIR/logs/NAME.log
    DIR/processes.json            who runs with which pid: kill what you like; the brokers' service URL
    DIR/lock                      held while it runs: one cluster per directory

Nothing that dies is started again by itself: the line on standard error says what died, and SIGHUP to this process
starts again whatever is down, with its data, also what dies while others are being started. On SIGTERM or SIGINT the
gateway ends first, then the brokers, then the bookies, then ZooKeeper, so that each finds those it needs.

Clients on this machine need no gateway: the brokers listen on the loopback, at the ports after the gateway's (any free
ones when that one's is any free), at the same ones when started again; and a lookup that a broker answers names
brokers. Who comes from elsewhere, a container or a tunnel, reaches the gateway alone, whose lookups name itself.

What brokers and bookies are to be told beyond their places goes through the environment (`QUIRE_…`), which all
of them inherit.
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

from quire.cli.parts import listen
from quire.cli.processes import QUIRE, Child
from quire.cli.settings import Given, settings_options
from quire.cli.until_signal import run_until_signal, say_ready, until_cancelled
from quire.runtime.disk import RealDisk
from quire.runtime.errors import ConfigurationError, QuireError
from quire.runtime.settings import MILLISECONDS, parse_address, setting
from quire.runtime.tasks import Tasks
from quire.testing import zookeeper_server

PROCESSES_FILE: Final = "processes.json"


@dataclass(frozen=True)
class LocalSettings:
    """A cluster on one machine."""

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
        """Raises `ConfigurationError`."""
        if self.brokers < 1 or self.bookies < (0 if self.wal else 1):
            raise ConfigurationError("brokers and bookies must be at least 1; with wal, bookies may be 0")
        if not self.data:
            raise ConfigurationError("data must name a directory")
        if self.zookeeper and not self.zookeeper.startswith(("zk://", "zk+ssl://")):
            raise ConfigurationError(f"zookeeper {self.zookeeper!r} is no zk:// URL")
        parse_address(self.listen)
        parse_address(self.http)


@click.command("local")
@settings_options(LocalSettings)
def command(config: Path | None, **flags: Any) -> None:
    """Run a cluster on this machine, each part a process of its own that may be killed.

    processes.json in the data directory tells the pids. What dies stays dead until this process gets SIGHUP.

    \b
    Example:
      quire local --brokers 2 --bookies 3 --data /tmp/cluster
      quire local --brokers 2 --wal file:///tmp/bucket --data /tmp/cluster
    """
    given = Given(flags, config)
    settings = given.load(LocalSettings).values
    if settings.wal:
        settings = given.load(LocalSettings, {"bookies": 0}).values
    run_until_signal(LocalCluster(settings).run())


class LocalCluster:
    """The processes, in the order in which they start: each tier needs the ones before it."""

    def __init__(self, settings: LocalSettings) -> None:
        self._settings = settings
        self._data = Path(settings.data).absolute()
        self._broker_addresses = _after(parse_address(settings.listen)[1], settings.brokers)
        self._disk = RealDisk(self._data)
        self._tiers: list[list[Child]] = []
        self._tasks = Tasks("local")
        self._is_starting = True
        """The cluster, or what died of it: one at a time."""
        self._was_asked = False
        """For a restart of what died, since the last one looked."""

    async def run(self) -> None:
        """Start all, say so, and go on until cancelled; then end all.

        Raises `ConfigurationError`: the directory is another cluster's, an address is taken; nothing was started.
        """
        addresses = (self._settings.listen, self._settings.http, *self._broker_addresses)
        for each in [listen(address) for address in addresses]:  # all at once: none is two processes'
            each.close()  # whoever takes it meanwhile makes the process say so that wants it
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
            _say(f"clients on this machine reach the brokers themselves at {self.brokers_url}")
            await until_cancelled()
        finally:
            await self._stop()
            self._disk.close()

    @property
    def brokers_url(self) -> str:
        """A service URL that names all brokers and no gateway."""
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

    # -- the parts -------------------------------------------------------------------------------------

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
        """Fewer than three bookies cannot hold three copies."""
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
        """Start again what is down, tier by tier. While that, or the first start, is under way: once more after it."""
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
        except QuireError as error:  # the others may do without it
            _say(str(error))

    def _write_file(self) -> None:
        """Tell who runs; replaced in one step, so that a reader never sees half of it."""
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
    """Addresses of so many brokers, at the ports after this one; at any free ones if it is 0."""
    if port:
        return [f"127.0.0.1:{one}" for one in range(port + 1, port + 1 + count)]
    return [f"127.0.0.1:{zookeeper_server.free_port()}" for _ in range(count)]


async def _zookeeper_answers(port: int) -> bool:
    """Whether the server serves: `ruok` is answered before its tree is loaded, `srvr` is not."""
    try:
        async with asyncio.timeout(1.0):  # one that came while it started may never be answered
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"srvr")
            answer = await reader.read()
            writer.close()
            return b"Mode: " in answer
    except (OSError, TimeoutError):
        return False


def _say(text: str) -> None:
    click.echo(text, err=True)
