"""How many rows a second Spark copies into an Iceberg table: `python -m bench.spark_iceberg [rows]`.

An archive of messages of 1 KiB in a directory, once of zeros and once of JSON in batches that are compressed by zstd;
both are copied by `quire spark iceberg`'s job with `local[2]` into a table in a directory beside it, whose catalog is
SQLite. One JSON line each: rows a second, CPU time of JVM and Python workers, and what the table's files take of a row.
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
"""Also of what is compressed, so that both are several files."""


def segments(url: str, rows: int, codec: int) -> list[dict[str, Any]]:
    """The archive in a store, by what the broker would say of it."""
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
