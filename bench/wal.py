"""Benchmark of a write-ahead log on object storage, with the upload times of a real store: rates, latencies, uploads.

    python -m bench.wal [QUESTION …]      (all without arguments; about six minutes)

The store is a directory. The server process runs this module with `serve` and two delays: of each upload, and of one
upload in a hundred. It appends a byte to a file for each call to the store, so that calls can be counted. The rate
depends on the load generator's outstanding bytes: 120 MB here, in batches of 120 KiB.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, TypeVar
from unittest import mock

from bench.report import ask
from quire.cli.main import main as quire
from quire.objects.open import open_for_log
from quire.objects.store import BlockingStore, ObjectStore
from quire.process import object_stores
from quire.wal import object_journal
from quire.wire.block import Buffer

T = TypeVar("T")
KIB = 1024


class SlowPuts(ObjectStore):
    """Object store that delays each upload by `usual_s`, and one upload in a hundred by `late_s`."""

    def __init__(
        self, store: BlockingStore, threads: int, usual_s: float, late_s: float, calls: BinaryIO
    ) -> None:
        super().__init__(store, threads=threads)
        self._calls = calls
        self._usual_s = usual_s
        self._late_s = late_s
        self._chance = random.Random(7)

    async def run(self, work: Callable[[], T]) -> T:
        self._calls.write(b".")
        return await super().run(work)

    async def put_whole(self, name: str, parts: Sequence[Buffer]) -> None:
        await asyncio.sleep(self._late_s if self._chance.random() < 0.01 else self._usual_s)
        await super().put_whole(name, parts)


def serve(usual_ms: float, late_ms: float, hedge_factor: float, calls: str, *words: str) -> None:
    file = open(calls, "ab", buffering=0)  # noqa: SIM115  (open as long as the process lives)

    def opened(url: str, threads: int) -> ObjectStore:
        plain = open_for_log(url, threads)
        return SlowPuts(plain.blocking, threads, usual_ms / 1000, late_ms / 1000, file)

    with (
        mock.patch.object(object_stores, "open_for_log", opened),
        mock.patch.object(object_journal, "HEDGE_FACTOR", hedge_factor),
        mock.patch.object(sys, "argv", ["quire", *words]),
    ):
        quire()


class Server:
    """Standalone server process with a WAL, in a directory that is removed afterwards."""

    def __init__(
        self,
        usual_ms: float = 0,
        late_ms: float | None = None,
        *flags: str,
        hedge_factor: float = object_journal.HEDGE_FACTOR,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="quire-bench-")
        root = self._folder.name
        words = [
            "standalone",
            "--data",
            f"{root}/data",
            "--wal",
            f"file://{root}/bucket",
            "--log-level",
            "warning",
        ]
        words += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *flags]
        late = usual_ms if late_ms is None else late_ms
        times = [str(usual_ms), str(late), str(hedge_factor), f"{root}/calls"]
        command = [sys.executable, "-m", "bench.wal", "serve", *times, *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        _, service_url, self.http_url = self.process.stdout.readline().split()
        self.port = service_url.rpartition(":")[2]

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._folder.cleanup()

    def load(self, mode: str, *arguments: object) -> None:
        words = [mode, "--port", self.port, "--server-pid", self.process.pid, *arguments]
        if (
            subprocess.run([sys.executable, "-m", "bench.load", *map(str, words)], check=False).returncode
            != 0
        ):
            raise SystemExit("the load generator failed")

    @property
    def calls(self) -> int:
        """Number of calls to the store so far."""
        return os.path.getsize(f"{self._folder.name}/calls")

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.http_url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


SETTLE_S = 20.0
"""Pause in which segments are moved to the archive."""
ARCHIVED = ("--segment-bytes-max", "64MiB", "--archive-delay-ms", "1s", "--archive-lag-ms", "0s")
BATCHES = ("--size", KIB, "--batch", 120, "--outstanding", 1_000, "--seconds", 8)


def batched() -> None:
    """Measure batched messages of 1 KiB at the maximum rate: for eight topics, and for one topic with one producer."""
    for topics in (8, 1):
        with Server() as server:
            server.load(
                "produce", "--label", f"1 KiB batched, topics: {topics}", "--topics", topics, *BATCHES
            )


def one_topic_far_away() -> None:
    """Measure one topic with one producer, and 300 ms added to each upload."""
    with Server(300) as server:
        server.load("produce", "--label", "1 KiB batched, 1 topic, uploads of 300 ms", *BATCHES)


def latency() -> None:
    """Measure latencies at 2,000 messages per second, with and without hedged uploads, and then of single messages.

    Uploads take 60 ms, and one upload in a hundred takes 250 ms.
    """
    for batch_ms, factor in (
        (250, object_journal.HEDGE_FACTOR),
        (50, object_journal.HEDGE_FACTOR),
        (250, 1e9),
        (50, 1e9),
    ):
        with Server(60, 250, "--wal-batch-ms", f"{batch_ms}ms", hedge_factor=factor) as server:
            label = f"2,000/s, gathered for {batch_ms} ms, {'' if factor < 1e9 else 'not '}hedged"
            server.load("produce", "--label", label, "--rate", 2_000, "--outstanding", 10_000)
    with Server(60) as server:
        server.load(
            "produce", "--label", "a lone message a second, uploads of 60 ms", "--rate", 1, "--seconds", 15
        )


def uploads() -> None:
    """Measure uploads per second for many topics with a message each five seconds, and an idle broker's requests."""
    with Server() as server:
        before, begin = server.metric("quire_wal_objects_written_total"), time.monotonic()
        server.load(
            "produce",
            "--label",
            "10,000 topics trickle",
            "--topics",
            10_000,
            "--rate",
            2_000,
            "--seconds",
            20,
        )
        made = server.metric("quire_wal_objects_written_total") - before
        print(f"uploads a second of 10,000 topics: {made / (time.monotonic() - begin):.1f}")
    with Server() as server:
        time.sleep(5)
        before = server.calls
        time.sleep(60)
        print(f"requests to the store in an idle minute: {server.calls - before}, at the start: {before}")


def catch_up() -> None:
    """Measure reading a topic from its beginning, from sets of the WAL and from the archive."""
    topic = ("--topics", 1, "--prefix", "old")
    for where, *flags in (("sets",), ("the archive", *ARCHIVED)):
        with Server(0, None, *flags) as server:
            server.load("produce", "--label", f"to be read from {where}", *topic, *BATCHES)
            time.sleep(SETTLE_S)
            server.load(
                "consume",
                "--label",
                f"read from {where}",
                *topic,
                "--batch",
                120,
                "--seconds",
                5,
                "--permits",
                100_000,
            )


QUESTIONS: dict[str, Callable[[], Any]] = {
    "batched": batched,
    "one-topic": one_topic_far_away,
    "latency": latency,
    "uploads": uploads,
    "catch-up": catch_up,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        usual_ms, late_ms, hedge_factor = map(float, sys.argv[2:5])
        serve(usual_ms, late_ms, hedge_factor, *sys.argv[5:])
    else:
        ask(QUESTIONS)
