"""A cluster's figures: one broker and three bookies as processes on this machine, 3/3/2, fdatasync before every answer.

python -m bench.cluster [question ...]
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.report import machine, show

KIB = 1024


@dataclass
class Process:
    """A process of the cluster, and what its `ready` line says."""

    process: subprocess.Popen[str]
    ready: str

    @property
    def pid(self) -> int:
        return self.process.pid


@dataclass
class Cluster:
    bookies: list[Process]
    broker: Process

    @property
    def port(self) -> int:
        return int(self.broker.ready)


@contextmanager
def _node(role: str, root: Path, *words: str) -> Iterator[Process]:
    root.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "bench.cluster_node", role, str(root), *words]
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("ready "):
            raise SystemExit(f"the {role} did not start: {(root / 'log').read_text()}")
        yield Process(process, line.removeprefix("ready ").strip())
    finally:
        process.kill()
        process.wait()


@contextmanager
def fresh(bookies: int = 3) -> Iterator[Cluster]:
    """A cluster on empty directories, ended and removed afterwards."""
    root = Path(tempfile.mkdtemp(prefix="quire-bench-"))
    try:
        with ExitStack() as stack:
            nodes = [stack.enter_context(_node("bookie", root / f"bookie-{i}")) for i in range(bookies)]
            broker = stack.enter_context(_node("broker", root / "broker", *(node.ready for node in nodes)))
            yield Cluster(nodes, broker)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _load(cluster: Cluster, label: str, *arguments: object) -> subprocess.Popen[bytes]:
    words = ["--port", cluster.port, "--server-pid", cluster.broker.pid, "--label", label, *arguments]
    return subprocess.Popen([sys.executable, "-m", "bench.load", "produce", *map(str, words)])


def _finish(load: subprocess.Popen[bytes]) -> None:
    if load.wait() != 0:
        raise SystemExit("the load generator failed")


def publish(label: str, *arguments: object) -> Callable[[], None]:
    """Publish to a fresh cluster; the server is the broker, a bookie's figures are the mean of the three."""

    def measure() -> None:
        with fresh() as cluster:
            bookies = [word for node in cluster.bookies for word in ("--bookie-pid", node.pid)]
            _finish(_load(cluster, f"cluster, {label}", *bookies, *arguments))

    return measure


def lose(label: str, number: signal.Signals, bookies: int) -> Callable[[], None]:
    """A bookie dies or stops under a steady load: `max_ms` is the publish that suffered most."""

    def measure() -> None:
        with fresh(bookies) as cluster:
            rate = ("--size", KIB, "--rate", 5000, "--outstanding", 50_000)
            load = _load(cluster, f"cluster, 1 KiB at 5,000/s, {label}", *rate)
            time.sleep(6)
            cluster.bookies[0].process.send_signal(number)
            _finish(load)

    return measure


QUESTIONS: dict[str, Callable[[], None]] = {
    "1KiB": publish("1 KiB unbatched", "--size", KIB, "--outstanding", 2000),
    "100B": publish("100 B unbatched", "--size", 100, "--outstanding", 2000),
    "5000": publish("1 KiB at 5,000/s", "--size", KIB, "--rate", 5000, "--outstanding", 10_000),
    "killed": lose("a bookie of three killed", signal.SIGKILL, 3),
    "killed-spare": lose("a bookie of four killed", signal.SIGKILL, 4),
    "stopped": lose("a bookie of three stopped", signal.SIGSTOP, 3),
    "stopped-spare": lose("a bookie of four stopped", signal.SIGSTOP, 4),
}


def main() -> None:
    show("machine", **machine())
    for name in sys.argv[1:] or QUESTIONS:
        if name not in QUESTIONS:
            raise SystemExit(f"no question {name!r}; there are {', '.join(QUESTIONS)}")
        QUESTIONS[name]()


if __name__ == "__main__":
    main()
