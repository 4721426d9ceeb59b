"""Benchmark of a Spark stream that follows a load on the same two cores: `python -m bench.spark_stream [rows per s]`.

A load generator publishes 50,000 messages of 1 KiB per second for half a minute to a standalone server. A stream with
`local[2]` and one trigger per second reads them into Spark's no-op sink. Messages are in batches of 100 in one run, and
single in another. Each result is a line of JSON: rows published and read per second, the duration of the micro-batches,
the stream's lag in rows in the middle and at the end of the load, and the server's share of one core.

Then a stream reads a topic of four partitions without new messages. A proxy between Spark and the broker counts the
requests of each trigger.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.error import HTTPError

from bench import server as servers
from bench.report import machine, show, usage
from bench.spark import MESSAGE_BYTES, session
from quire.runtime.rest import Admin

ROWS_PER_S: Final = 50_000
WARMUP_S: Final = 10
SECONDS: Final = 30
TRIGGER: Final = "1 second"
PARTITIONS: Final = 4
IDLE_S: Final = 20
PATH: Final = "/admin/v2/persistent/public/default"


def stream(spark: Any, url: str, topic: str, checkpoint: str) -> Any:
    """Start a streaming query over a topic, and return it."""
    frame = spark.readStream.format("quire").options(service_url=url, topic=topic).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
    return writer.trigger(processingTime=TRIGGER).start()


# -- while it is published to ----------------------------------------------------------------------------


class Follower(threading.Thread):
    """Thread that records the progress of each micro-batch of a stream once."""

    def __init__(self, query: Any) -> None:
        super().__init__(daemon=True)
        self._query = query
        self.batches: dict[int, tuple[float, int, int]] = {}
        """Micro-batches by number: time of recording, number of rows, and duration of the trigger in ms."""

    def run(self) -> None:
        while self._query.isActive:
            for one in self._query.recentProgress:
                took_ms = one["durationMs"].get("triggerExecution", 0)
                self.batches.setdefault(one["batchId"], (time.perf_counter(), one["numInputRows"], took_ms))
            time.sleep(0.1)

    def rows_until(self, moment: float) -> int:
        return sum(rows for seen, rows, _ in self.batches.values() if seen <= moment)


def keep_up(spark: Any, server: servers.Server, rows_per_s: int, batch: int, checkpoint: str) -> None:
    prefix = f"live-{batch}"
    topic = f"{prefix}-0"
    Admin(server.http_url).put(f"{PATH}/{topic}")
    query = stream(spark, server.http_url, topic, checkpoint)
    follower = Follower(query)
    follower.start()
    load = [sys.executable, "-m", "bench.load", "produce", "--port", server.port, "--server-pid", server.pid]
    load += ["--prefix", prefix, "--size", MESSAGE_BYTES, "--batch", batch, "--rate", rows_per_s]
    load += ["--warmup", 0, "--seconds", WARMUP_S + SECONDS]
    process = subprocess.Popen([str(word) for word in load], stdout=subprocess.DEVNULL)
    time.sleep(WARMUP_S)
    begin, cpu = time.perf_counter(), usage(server.pid).cpu_s
    process.wait()
    end, cpu = time.perf_counter(), usage(server.pid).cpu_s - cpu
    query.processAllAvailable()
    query.stop()
    follower.join()
    whole = follower.rows_until(time.perf_counter())
    took = [ms for seen, rows, ms in follower.batches.values() if rows and begin <= seen <= end]
    middle = (begin + end) / 2
    show(
        f"Spark streams what is published meanwhile, {batch} messages to an entry",
        published_per_s=whole / (WARMUP_S + SECONDS),
        read_per_s=(follower.rows_until(end) - follower.rows_until(begin)) / (end - begin),
        trigger_ms_median=statistics.median(took),
        trigger_ms_max=max(took),
        behind_in_the_middle=whole * (middle - begin + WARMUP_S) / (WARMUP_S + SECONDS)
        - follower.rows_until(middle),
        behind_at_the_end=whole - follower.rows_until(end),
        server_cpu_share=cpu / (end - begin),
    )


# -- without news ----------------------------------------------------------------------------------------


def counting(url: str) -> tuple[ThreadingHTTPServer, list[str]]:
    """Start an HTTP proxy to `url`; return it, and the list of the requested paths, which grows with each request."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            paths.append(self.path)
            try:
                with urllib.request.urlopen(url + self.path) as answer:
                    status, body = answer.status, answer.read()
            except HTTPError as error:
                status, body = error.code, error.read()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, paths


def idle(spark: Any, server: servers.Server, checkpoint: str) -> None:
    Admin(server.http_url).put(f"{PATH}/quiet/partitions", PARTITIONS)
    between, paths = counting(server.http_url)
    query = stream(spark, f"http://127.0.0.1:{between.server_port}", "quiet", checkpoint)
    time.sleep(5)
    before, cpu = len(paths), usage(server.pid).cpu_s
    time.sleep(IDLE_S)
    asked, cpu = paths[before:], usage(server.pid).cpu_s - cpu
    query.stop()
    between.shutdown()
    show(
        "Spark streams a topic without news",
        partitions=PARTITIONS,
        seconds=IDLE_S,
        requests=len(asked),
        requests_per_partition_and_trigger=len(asked) / PARTITIONS / IDLE_S,
        server_cpu_share=cpu / IDLE_S,
    )


def main() -> None:
    show("machine", **machine())
    rows_per_s = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS_PER_S
    with servers.fresh(parent="/var/tmp") as server, tempfile.TemporaryDirectory() as checkpoints:
        spark = session()
        try:
            for batch in (100, 1):
                keep_up(spark, server, rows_per_s, batch, f"{checkpoints}/{batch}")
            idle(spark, server, f"{checkpoints}/quiet")
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
