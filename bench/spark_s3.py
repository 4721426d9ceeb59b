"""Benchmark of reading the archive with Spark from S3, compared with a directory: `python -m bench.spark_s3 [rows]`.

The same messages of 1 KiB, in batches of 100, are in a directory and in S3. versitygw serves S3 from another directory
on the same disk, and shares two cores with Spark. It must be on the PATH; `go install
github.com/versity/versitygw/cmd/versitygw@v1.8.0` installs it. `local[2]` reads both alternately into Spark's no-op
sink. Each result is a line of JSON: rows per second of the best of three runs, the CPU time of JVM and Python workers
and of the S3 server, their ratio, and the server's number of requests per GiB of segments.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.report import machine, show, usage
from bench.spark import BATCH, MESSAGE_BYTES, SEGMENT_BYTES, archive, cpu_s, serve, session

ROWS: Final = 600_000
RUNS: Final = 3
BUCKET: Final = "bench"
START_S: Final = 30.0


class Gateway(NamedTuple):
    url: str
    """URL of the object store, with credentials."""
    pid: int
    log: Path
    """Access log of the server, with a line for each request."""

    @property
    def requests(self) -> int:
        return self.log.read_text().count("\n")


@contextlib.contextmanager
def gateway(directory: Path) -> Iterator[Gateway]:
    """Run versitygw over a directory, on the loopback interface."""
    program = shutil.which("versitygw")
    if program is None:
        raise SystemExit("versitygw is not in the path")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    (directory / BUCKET).mkdir(parents=True)
    log = directory.with_suffix(".log")
    keys = {"ROOT_ACCESS_KEY_ID": "bench", "ROOT_SECRET_ACCESS_KEY": "bench-secret"}
    command = [program, "--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive", "--access-log", str(log)]
    process = subprocess.Popen(
        [*command, "posix", str(directory)],
        env=os.environ | keys,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port)
        access = f"access_key={keys['ROOT_ACCESS_KEY_ID']}&secret_key={keys['ROOT_SECRET_ACCESS_KEY']}"
        yield Gateway(f"s3://{BUCKET}/a?endpoint=http://127.0.0.1:{port}&{access}", process.pid, log)
    finally:
        process.terminate()
        process.wait(START_S)


def _wait_for(port: int) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def segments(url: str, rows: int) -> list[dict[str, Any]]:
    """Write an archive, and return its segments as a broker lists them."""
    most = SEGMENT_BYTES // MESSAGE_BYTES
    return [
        archive(url, number, first, min(most, rows - first), BATCH)
        for number, first in enumerate(range(0, rows, most))
    ]


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    show("machine", **machine())
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quire-bench-", dir="/var/tmp")))
        s3 = stack.enter_context(gateway(root / "s3"))
        stores = {"filesystem": f"file://{root}/archive", "s3": s3.url}
        topics = {name: segments(url, rows) for name, url in stores.items()}
        server = serve(topics)
        stack.callback(server.shutdown)
        spark = session()
        stack.callback(spark.stop)
        url = f"http://127.0.0.1:{server.server_port}"
        frames = {
            name: spark.read.format("quire").options(service_url=url, topic=name, archive=store).load()
            for name, store in stores.items()
        }
        seconds: dict[str, list[float]] = {name: [] for name in frames}
        cpu: dict[str, list[float]] = {name: [] for name in frames}
        requests = s3.requests
        for turn in range(RUNS + 1):
            for name, frame in frames.items():
                server_cpu, start, cpu_start = usage(s3.pid).cpu_s, time.perf_counter(), cpu_s()
                frame.write.format("noop").mode("overwrite").save()
                seconds[name].append(time.perf_counter() - start)
                server_cpu = usage(s3.pid).cpu_s - server_cpu
                cpu[name].append(cpu_s() - cpu_start - server_cpu)
            if turn == 0:
                assert s3.requests > requests, "the server logs no requests"
        requests = s3.requests - requests
        for name in frames:
            show(
                f"Spark reads the archive, {name}",
                rows=rows,
                rows_per_s=rows / min(seconds[name][1:]),
                cpu_us_per_row=min(cpu[name][1:]) / rows * 1e6,
            )
        stored = (RUNS + 1) * sum(one["bytes"] for one in topics["s3"])
        show(
            "S3 beside the filesystem",
            rate=min(seconds["filesystem"][1:]) / min(seconds["s3"][1:]),
            cpu=min(cpu["filesystem"][1:]) / min(cpu["s3"][1:]),
            requests_per_gib=requests / stored * (1 << 30),
            server_cpu_us_per_row=server_cpu / rows * 1e6,
        )


if __name__ == "__main__":
    main()
