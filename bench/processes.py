"""A cluster as processes on this machine, for the questions that need one: ZooKeeper, bookies, brokers.

`quire local` runs it, on empty directories that are removed afterwards; further brokers are started beside it. The
clients speak to the brokers themselves; the gateway that `quire local` starts as well has nothing to do unless asked.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from quire.testing.zookeeper_server import ZooKeeperServer

SESSION_S = 10
"""The default of `quire local`."""


@dataclass
class Broker:
    """A broker's process id, and where it listens; or the gateway's."""

    pid: int
    url: str
    http_url: str

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port


@dataclass
class Cluster:
    """The processes, and the metadata store that they share."""

    root: Path
    zookeeper: ZooKeeperServer
    bookies: list[int]
    brokers: list[Broker]
    gateway: Broker
    wal: Sequence[str]
    """The flag that says where ledgers are kept when no bookies keep them."""
    _beside: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def metadata(self) -> str:
        """URL of the store."""
        return metadata_url(self.zookeeper)

    def zookeeper_figures(self) -> dict[str, int]:
        """Its number of nodes, and the bytes of their paths and values."""
        found = dict(line.split("\t", 1) for line in self.zookeeper.ask("mntr").splitlines() if "\t" in line)
        return {"nodes": int(found["zk_znode_count"]), "bytes": int(found["zk_approximate_data_size"])}

    @property
    def broker(self) -> int:
        return self.brokers[0].pid

    @property
    def port(self) -> int:
        return self.brokers[0].port

    def start_broker(self, port: int = 0) -> Broker:
        """One more broker, that owns nothing yet."""
        words = ["--metadata", self.metadata, "--archive", f"file://{self.root}/archive"]
        words += ["--listen", f"127.0.0.1:{port}", "--http", "127.0.0.1:0", *self.wal]
        log = (self.root / "logs" / f"beside-{len(self._beside)}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "quire", "broker", *words], stdout=subprocess.PIPE, stderr=log, text=True
        )
        self._beside.append(process)
        broker = Broker(process.pid, *_ready(process))
        self.brokers.append(broker)
        return broker

    def end(self) -> None:
        for process in self._beside:
            process.kill()
            process.wait()


@contextmanager
def fresh(bookies: int = 3, brokers: int = 1) -> Iterator[Cluster]:
    """A cluster on empty directories, ended and removed afterwards. Without bookies a directory keeps the ledgers."""
    root = Path(tempfile.mkdtemp(prefix="quire-bench-"))
    server = ZooKeeperServer(root / "zookeeper")
    server.start()
    wal = [] if bookies else ["--wal", f"file://{root}/wal"]
    command = [sys.executable, "-m", "quire", "local", "--brokers", str(brokers)]
    command += wal or ["--bookies", str(bookies)]
    command += ["--data", str(root), "--zookeeper", metadata_url(server)]
    command += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    cluster = None
    try:
        _ready(process)
        cluster = _cluster(root, server, wal)
        yield cluster
    finally:
        if cluster is not None:
            cluster.end()
        process.terminate()
        process.wait()
        server.kill()
        shutil.rmtree(root, ignore_errors=True)


def _ready(process: subprocess.Popen[str]) -> tuple[str, str]:
    """The addresses of the `ready` line."""
    assert process.stdout is not None
    words = process.stdout.readline().split()
    if words[:1] != ["ready"]:
        raise SystemExit(f"{' '.join(map(str, process.args[2:4]))} did not start")  # type: ignore[index]
    return words[1], words[2]


def metadata_url(server: ZooKeeperServer) -> str:
    return f"{server.url}/quire?session_timeout={SESSION_S}s"


def _cluster(root: Path, server: ZooKeeperServer, wal: Sequence[str]) -> Cluster:
    processes = json.loads((root / "processes.json").read_text())["processes"]
    bookies = [each["pid"] for each in processes if each["kind"] == "bookie"]
    brokers = [Broker(each["pid"], *each["urls"]) for each in processes if each["kind"] == "broker"]
    gateway = next(Broker(each["pid"], *each["urls"]) for each in processes if each["kind"] == "gateway")
    return Cluster(root, server, bookies, brokers, gateway, wal)


def load(
    cluster: Cluster, label: str, *arguments: object, mode: str = "produce", by_gateway: bool = False
) -> subprocess.Popen[bytes]:
    """`bench.load` against the first broker; it prints its figures when it ends."""
    words = ["--port", cluster.port, "--server-pid", cluster.broker, "--label", label, *arguments]
    if by_gateway:
        words += ["--port", cluster.gateway.port, "--proxy-to", cluster.brokers[0].url]
    return subprocess.Popen([sys.executable, "-m", "bench.load", mode, *map(str, words)])


def finish(generator: subprocess.Popen[bytes]) -> None:
    if generator.wait() != 0:
        raise SystemExit("the load generator failed")
