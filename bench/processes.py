"""Cluster of processes on this machine for benchmarks: ZooKeeper, bookies and brokers.

`quire local` runs it on empty directories, which are removed afterwards; a benchmark may start more brokers. Clients
connect to the brokers directly unless a benchmark uses the gateway, which `quire local` starts, too.
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
"""Session time-out of the metadata store, the default of `quire local`."""


@dataclass
class Broker:
    """Process id and addresses of a broker, or of the gateway."""

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
    """Processes of a cluster, and their shared metadata store."""

    root: Path
    zookeeper: ZooKeeperServer
    bookies: list[int]
    brokers: list[Broker]
    gateway: Broker
    wal: Sequence[str]
    """Flag `--wal` with the URL of the store of ledgers; empty if the cluster has bookies."""
    _beside: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def metadata(self) -> str:
        """URL of the metadata store."""
        return metadata_url(self.zookeeper)

    def zookeeper_figures(self) -> dict[str, int]:
        """Return the number of nodes in ZooKeeper, and the bytes of their paths and values."""
        found = dict(line.split("\t", 1) for line in self.zookeeper.ask("mntr").splitlines() if "\t" in line)
        return {"nodes": int(found["zk_znode_count"]), "bytes": int(found["zk_approximate_data_size"])}

    @property
    def broker(self) -> int:
        return self.brokers[0].pid

    @property
    def port(self) -> int:
        return self.brokers[0].port

    def start_broker(self, port: int = 0) -> Broker:
        """Start another broker, which owns no bundles yet."""
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
    """Run a cluster on empty directories, which are removed afterwards.

    Without bookies, a directory stores the ledgers.
    """
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
    """Wait for a process's `ready` line, and return the two addresses in it."""
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
    """Start `bench.load` against the first broker; it prints its figures when it ends."""
    words = ["--port", cluster.port, "--server-pid", cluster.broker, "--label", label, *arguments]
    if by_gateway:
        words += ["--port", cluster.gateway.port, "--proxy-to", cluster.brokers[0].url]
    return subprocess.Popen([sys.executable, "-m", "bench.load", mode, *map(str, words)])


def finish(generator: subprocess.Popen[bytes]) -> None:
    if generator.wait() != 0:
        raise SystemExit("the load generator failed")
