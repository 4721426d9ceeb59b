"""Benchmark of the Spark sink, in rows per second: `python -m bench.spark_sink [rows]`.

A standalone server runs in its own process. Topics drop duplicates, and rows have 1 KiB. Three writers alternate: the
asyncio client in a plain loop (one process), a task of the sink with prebuilt Arrow batches (one process), and Spark
with `local[2]`, exactly once and at least once. Each result is a line of JSON: rows per second of the best and the
median run, the ratio to the plain loop in the same round, and the CPU time of all processes, the server included. CPU
time is more reliable on a machine that is not idle; two cores have two CPU seconds per second.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from bench.report import machine, show
from bench.spark import cpu_s, session
from quire.client import Client
from quire.runtime.rest import Admin
from quire.spark_source.sink.options import parse
from quire.spark_source.sink.task import TaskPlan, run
from quire.spark_source.sink.topic import Target

ROWS: Final = 400_000
MESSAGE_BYTES: Final = 1024
RUNS: Final = 3
BATCH_ROWS: Final = 10_000
"""Rows in a record batch, as in Spark's default."""


def bare_loop(url: str, topic: str, rows: int) -> None:
    async def publish() -> None:
        payload = bytes(MESSAGE_BYTES)
        async with Client(url) as client, client.producer(topic) as producer:
            for _ in range(rows):
                await producer.enqueue(payload)

    asyncio.run(publish())


def task(url: str, http_url: str, topic: str, rows: int, turn: int) -> None:
    options = parse({"service_url": http_url, "topic": topic})
    plan = TaskPlan(options, url, Target(0, None), 0, f"bench-{turn}", 0)
    batch = pa.RecordBatch.from_pydict({"value": [bytes(MESSAGE_BYTES)] * BATCH_ROWS})
    assert run(plan, (batch for _ in range(rows // BATCH_ROWS))).rows == rows


def write(spark: Any, http_url: str, topic: str, rows: int, delivery: str) -> None:
    frame = spark.range(0, rows, 1, 2).selectExpr(f"cast(repeat('x', {MESSAGE_BYTES}) AS binary) value")
    frame.write.format("quire").mode("append").options(
        service_url=http_url, topic=topic, delivery=delivery
    ).save()


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    show("machine", **machine())
    with tempfile.TemporaryDirectory(prefix="quire-bench-", dir="/var/tmp") as directory:
        loopback = "127.0.0.1:0"
        command = [
            sys.executable,
            "-m",
            "quire",
            "standalone",
            "--data",
            directory,
            "--deduplication",
            "true",
        ]
        server = subprocess.Popen(
            [*command, "--listen", loopback, "--http", loopback], stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        _, url, http_url = server.stdout.readline().split()[:3]
        for topic in ("bare", "task", "spark"):
            Admin(http_url).put(f"/admin/v2/persistent/public/default/{topic}")
        spark = session()
        try:
            measure(spark, url, http_url, rows)
        finally:
            spark.stop()
            server.terminate()
            server.wait(30)


def measure(spark: Any, url: str, http_url: str, rows: int) -> None:
    write(spark, http_url, "spark", BATCH_ROWS, "exactly_once")
    kinds: dict[str, Callable[[int], None]] = {
        "client in a bare loop": lambda _: bare_loop(url, "bare", rows),
        "one task of the sink": lambda turn: task(url, http_url, "task", rows, turn),
        "Spark, local[2], exactly once": lambda _: write(spark, http_url, "spark", rows, "exactly_once"),
        "Spark, local[2], at least once": lambda _: write(spark, http_url, "spark", rows, "at_least_once"),
    }
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    cpu: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(RUNS):
        for kind, work in kinds.items():
            begin, cpu_begin = time.perf_counter(), cpu_s() + time.process_time()
            work(turn)
            taken[kind].append(time.perf_counter() - begin)
            cpu[kind].append(cpu_s() + time.process_time() - cpu_begin)
    bare = taken["client in a bare loop"]
    for kind, seconds in taken.items():
        show(
            f"sink: {kind}",
            rows=rows,
            message_bytes=MESSAGE_BYTES,
            rows_per_s_best=rows / min(seconds),
            rows_per_s_median=rows / statistics.median(seconds),
            cpu_us_per_row=min(cpu[kind]) / rows * 1e6,
            of_bare_loop=statistics.median(b / s for b, s in zip(bare, seconds, strict=True)),
        )


if __name__ == "__main__":
    main()
