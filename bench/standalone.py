"""Benchmark of a standalone server: rates, CPU per entry, latencies, bytes written, memory, and start time.

    python -m bench.standalone [QUESTION …]      (all without arguments; about three minutes)

The load generator is another process (`bench.load`), and each question has a new server. The main figure is
`server_cpu_us_per_entry`; loads with a given rate are open loops.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from bench import server as servers
from bench.report import ask, show, usage

KIB = 1024
BIG = ("--memtable-bytes", "1200MiB", "--entry-log-bytes", "4GiB")
"""Flags for a memtable so large that it is not flushed, and the journal must be replayed."""


def _load(server: servers.Server, mode: str, *arguments: object) -> subprocess.Popen[bytes]:
    words = [
        sys.executable,
        "-m",
        "bench.load",
        mode,
        "--port",
        server.port,
        "--server-pid",
        server.pid,
        *arguments,
    ]
    return subprocess.Popen([str(word) for word in words])


def _run(server: servers.Server, mode: str, *arguments: object) -> None:
    if _load(server, mode, *arguments).wait() != 0:
        raise SystemExit("the load generator failed")


def _publish(label: str, *arguments: object) -> Callable[[], None]:
    def measure() -> None:
        with servers.fresh() as server:
            _run(server, "produce", "--label", label, *arguments)

    return measure


def keep_up() -> None:
    """Measure publishing while one exclusive consumer keeps up."""
    for label, arguments in (("1 KiB", ("--size", KIB)), ("100 B", ("--size", 100))):
        with servers.fresh() as server:
            consumer = _load(
                server, "consume", "--prefix", "k", "--seconds", 9, "--label", f"{label} consumed meanwhile"
            )
            time.sleep(1)
            _run(
                server,
                "produce",
                "--prefix",
                "k",
                "--seconds",
                6,
                "--label",
                f"{label} published",
                *arguments,
            )
            consumer.wait()


def fan_out() -> None:
    """Measure the bytes per second that a topic delivers to one and to ten subscriptions while it is published to."""
    for label, arguments in (("1 KiB", ("--size", KIB)), ("16 KiB", ("--size", 16 * KIB))):
        with servers.fresh() as server:
            for count in (1, 10):
                prefix = ("--prefix", f"fan-{count}")
                consumers = _load(
                    server,
                    "fan-out",
                    *prefix,
                    "--subscriptions",
                    count,
                    "--seconds",
                    6,
                    "--label",
                    f"{label} to {count} subscriptions",
                )
                time.sleep(1)
                _run(server, "produce", *prefix, "--seconds", 7, "--label", f"{label} published", *arguments)
                consumers.wait()


def cold_reads() -> None:
    """Measure a consumer that reads data written by an earlier process: from the bookie, then from the archive."""
    for label, size, count in (("16 KiB", 16 * KIB, 96_000), ("1 KiB", KIB, 600_000)):
        with servers.fresh() as server:
            _fill(server, size, count)
            for place in ("bookie", "archive"):
                server = _again(server, *(() if place == "bookie" else ("--archive-lag-ms", "0ms")))
                if place == "archive":
                    _archive(server)
                    server = _again(server)
                servers.drop_page_cache()
                _run(
                    server, "consume", "--prefix", "cold", "--subscription", place, "--count", count,
                    "--seconds", 60, "--label", f"cold {label} from the {place}",
                )  # fmt: skip
            server.stop()


def _fill(server: servers.Server, size: int, count: int) -> None:
    _run(
        server,
        "produce",
        "--prefix",
        "cold",
        "--size",
        size,
        "--warmup",
        0,
        "--seconds",
        60,
        "--count",
        count,
    )


def _again(server: servers.Server, *flags: str) -> servers.Server:
    server.stop()
    return servers.start(server.data, *flags)


def _archive(server: servers.Server) -> None:
    command = [sys.executable, "-m", "quire", "archive", "run", "--seal", "--admin-url", server.http_url]
    for _ in range(2):  # the first run archives segments, the second one deletes the bookie's copies
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def start() -> None:
    """Measure the time of a start, with an empty journal and with one GiB in the journal, and the idle memory."""
    with servers.fresh() as server:
        time.sleep(2)
        show("start, empty", ready_s=server.ready_s, idle_mb=usage(server.pid).resident_bytes / 1e6)
    with servers.fresh(*BIG, "--bytes-in-flight-max", "2GiB") as server:
        _run(server, "produce", "--size", 16 * KIB, "--warmup", 0, "--seconds", 20, "--count", 65_000)
        server.process.kill()
        server.process.wait()
        again = servers.start(server.data, *BIG)
        show("start, 1 GiB in the journal", ready_s=again.ready_s)
        again.process.kill()
        again.process.wait()


QUESTIONS: dict[str, Callable[[], None]] = {
    "1KiB": _publish("1 KiB unbatched", "--size", KIB),
    "100B": _publish("100 B unbatched", "--size", 100),
    "batched": _publish("1 KiB batched", "--size", KIB, "--batch", 120, "--outstanding", 200),
    "100B-batched": _publish("100 B batched", "--size", 100, "--batch", 1000, "--outstanding", 50),
    "128KiB": _publish("128 KiB", "--size", 128 * KIB, "--outstanding", 200),
    "one-at-a-time": _publish("one at a time", "--size", KIB, "--outstanding", 1),
    "2000": _publish("1 KiB at 2,000/s", "--size", KIB, "--rate", 2000, "--outstanding", 10_000),
    "10000": _publish("1 KiB at 10,000/s", "--size", KIB, "--rate", 10_000, "--outstanding", 10_000),
    "100000": _publish("1 KiB at 100,000/s", "--size", KIB, "--rate", 100_000, "--outstanding", 20_000),
    "1000-topics": _publish("1,000 topics, 1 KiB", "--topics", 1000, "--outstanding", 4000),
    "1000-topics-16KiB": _publish(
        "1,000 topics, 16 KiB", "--topics", 1000, "--size", 16 * KIB, "--outstanding", 2000
    ),
    "1-topic-16KiB": _publish("1 topic, 16 KiB", "--size", 16 * KIB, "--outstanding", 2000),
    "10000-topics": _publish("10,000 topics, 1 KiB", "--topics", 10_000, "--outstanding", 10_000),
    "10000-topics-16KiB": _publish(
        "10,000 topics, 16 KiB", "--topics", 10_000, "--size", 16 * KIB, "--outstanding", 4000
    ),
    "keep-up": keep_up,
    "fan-out": fan_out,
    "cold": cold_reads,
    "start": start,
}


if __name__ == "__main__":
    ask(QUESTIONS)
