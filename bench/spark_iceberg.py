"""Benchmark of copying a topic into an Iceberg table with Spark: `python -m bench.spark_iceberg [rows]`.

It builds two archives of messages of 1 KiB in a directory: of zeros, and of JSON in batches compressed by zstd. The job
of `quire spark iceberg` copies both with `local[2]` into a table in another directory, whose catalog is SQLite. Each
result is a line of JSON: rows per second, the CPU time of JVM and Python workers, and the table's bytes per row.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any, Final

from bench.report import machine, show
from bench.spark import BATCH, MESSAGE_BYTES, SEGMENT_BYTES, archive, cpu_s, serve, session
from quire.spark_source.jobs.iceberg import Into, copy
from quire.wire import pulsar_pb2 as pb

ROWS: Final = 500_000
RUNS: Final = 3
SLICE: Final = "64MiB"
"""Size of a slice, also of compressed messages, so that both tables have several files."""


def segments(url: str, rows: int, codec: int) -> list[dict[str, Any]]:
    """Write an archive, and return its segments as a broker lists them."""
    most = SEGMENT_BYTES // MESSAGE_BYTES
    return [
        archive(url, 100 * codec + number, first, min(most, rows - first), BATCH, codec)
        for number, first in enumerate(range(0, rows, most))
    ]


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    show("machine", **machine())
    with tempfile.TemporaryDirectory(prefix="quire-bench-", dir="/var/tmp") as directory:
        kinds = {"zeros": pb.NONE, "json": pb.ZSTD}
        topics = {name: segments(f"file://{directory}", rows, codec) for name, codec in kinds.items()}
        server = serve(topics)
        spark = session()
        try:
            for name in topics:
                options = {"service_url": f"http://127.0.0.1:{server.server_port}", "topic": name}
                into = Into(f"{directory}/lake", f"bench.{name}")
                seconds, cpu = [], []
                for _ in range(RUNS):
                    start, cpu_start = time.perf_counter(), cpu_s()
                    copied = copy({**options, "slice_bytes": SLICE}, into, spark=spark, resync=True)
                    seconds.append(time.perf_counter() - start)
                    cpu.append(cpu_s() - cpu_start)
                    assert (copied.rows, copied.bad) == (rows, 0), copied
                show(
                    f"Iceberg copy, {name}",
                    rows=rows,
                    message_bytes=MESSAGE_BYTES,
                    files=copied.slices,
                    rows_per_s=rows / min(seconds),
                    cpu_us_per_row=min(cpu) / rows * 1e6,
                    bytes_per_row=copied.bytes / rows,
                )
        finally:
            spark.stop()
            server.shutdown()


if __name__ == "__main__":
    main()
