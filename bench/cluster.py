"""Benchmark of a cluster: ZooKeeper, one broker and three bookies as processes on this machine.

    python -m bench.cluster [question ...]

Ledgers have an ensemble of 3, a write quorum of 3 and an ack quorum of 2; bookies call fdatasync before each response.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from bench.processes import finish, fresh, load
from bench.report import ask, show, usage
from bench.server import drop_page_cache

KIB = 1024
OLD_ENTRIES = 5 * KIB**3 // (16 * KIB)
"""Number of entries of 16 KiB in 5 GiB."""


def publish(label: str, *arguments: object) -> Callable[[], None]:
    """Return a measurement of publishing to a new cluster.

    Server figures are the broker's; bookie figures are the mean of the three bookies.
    """

    def measure() -> None:
        with fresh() as cluster:
            bookies = [word for pid in cluster.bookies for word in ("--bookie-pid", pid)]
            finish(load(cluster, f"cluster, {label}", *bookies, *arguments))

    return measure


def lose(label: str, number: signal.Signals, bookies: int) -> Callable[[], None]:
    """Return a measurement in which a bookie gets signal `number` under a steady load.

    Its `max_ms` is the slowest publish.
    """

    def measure() -> None:
        with fresh(bookies) as cluster:
            rate = ("--size", KIB, "--rate", 5000, "--outstanding", 50_000)
            steady = load(cluster, f"cluster, 1 KiB at 5,000/s, {label}", *rate)
            time.sleep(6)
            os.kill(cluster.bookies[0], number)
            finish(steady)
            if number == signal.SIGSTOP:
                os.kill(cluster.bookies[0], signal.SIGCONT)

    return measure


def isolation() -> None:
    """Measure a steady load of 5,000/s, first alone, then while a consumer reads old data from the bookies' disks."""
    old = ("--prefix", "old", "--size", 16 * KIB, "--count", OLD_ENTRIES)
    steady = ("--size", KIB, "--rate", 5000, "--outstanding", 50_000, "--seconds", 12)
    with fresh() as cluster:
        finish(load(cluster, "cluster, filling", *old, "--warmup", 0, "--seconds", 600))
        drop_page_cache()
        finish(load(cluster, "cluster, 1 KiB at 5,000/s, nobody reads", *steady))
        drain = load(cluster, "cluster, draining old data", *old, "--seconds", 600, mode="consume")
        finish(load(cluster, "cluster, 1 KiB at 5,000/s, old data is drained", *steady))
        finish(drain)


def by_gateway() -> None:
    """Measure the same load through the gateway and directly to the broker, alternating, three times each."""
    kinds = {
        "1 KiB batched": ("--size", KIB, "--batch", 120, "--outstanding", 200),
        "1 KiB unbatched": ("--size", KIB, "--outstanding", 2000),
        "100 B unbatched": ("--size", 100, "--outstanding", 2000),
    }
    for label, kind in kinds.items():
        with fresh() as cluster:
            bookies = [word for pid in cluster.bookies for word in ("--bookie-pid", pid)]
            for _ in range(3):
                for through, is_by_gateway in (
                    ("through the gateway", True),
                    ("to the broker itself", False),
                ):
                    before = usage(cluster.gateway.pid).cpu_s
                    steady = ("--seconds", 5, "--warmup", 1, *bookies, *kind)
                    finish(load(cluster, f"cluster, {label}, {through}", *steady, by_gateway=is_by_gateway))
                    if is_by_gateway:
                        show("its gateway", cpu_s=usage(cluster.gateway.pid).cpu_s - before)


QUESTIONS: dict[str, Callable[[], None]] = {
    "1KiB": publish("1 KiB unbatched", "--size", KIB, "--outstanding", 2000),
    "100B": publish("100 B unbatched", "--size", 100, "--outstanding", 2000),
    "5000": publish("1 KiB at 5,000/s", "--size", KIB, "--rate", 5000, "--outstanding", 10_000),
    "killed": lose("a bookie of three killed", signal.SIGKILL, 3),
    "killed-spare": lose("a bookie of four killed", signal.SIGKILL, 4),
    "stopped": lose("a bookie of three stopped", signal.SIGSTOP, 3),
    "stopped-spare": lose("a bookie of four stopped", signal.SIGSTOP, 4),
    "isolation": isolation,
    "gateway": by_gateway,
}


if __name__ == "__main__":
    ask(QUESTIONS)
