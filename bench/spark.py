"""Benchmark of reading the archive with Spark, in rows per second: `python -m bench.spark [rows]`.

It builds an archive of 1.5 million messages of 1 KiB in a directory, once with one message per entry and once in
batches of 100. A small HTTP server replaces the broker, and `local[2]` reads all columns into Spark's no-op sink. Each
result is a line of JSON: rows per second of the best and the median of five runs after a warm-up, and the CPU time of
JVM and Python workers together, which is more reliable on a machine that is not idle.

Then sidecars are built. The same rows are read without values, and 0.25 % of the rows are selected by publish time. The
results include the ratio to the time of reading everything. Another line has the sidecars' size and build rate.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from bench.report import machine, show
from quire.objects.open import open_blocking
from quire.runtime.limits import BLOCK_BYTES_MAX, MIB
from quire.spark_source import schema
from quire.spark_source.broker import Broker
from quire.spark_source.sidecar.archive import build_all
from quire.tiering.segment_object import SegmentBuilder, footer_crc
from quire.wire import block
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer
from quire.wire.message import OutgoingMessage, encode_batch, encode_one

ROWS: Final = 1_500_000
MESSAGE_BYTES: Final = 1024
BATCH: Final = 100
SEGMENT_BYTES: Final = 512 * MIB
RUNS: Final = 5
TIME_MS: Final = 1_700_000_000_000
ROWS_PER_MS: Final = 500
RANGE_SHARE: Final = 400
"""Reciprocal of the share of the rows that the time range selects."""


@cache
def texts(count: int) -> list[bytes]:
    """Return different JSON texts of `MESSAGE_BYTES` each, which lz4 compresses to a half and zstd to a third."""
    rng = random.Random(0)
    words = [rng.randbytes(4).hex() for _ in range(500)]
    made = []
    for number in range(count):
        fields = {f"field_{i}": rng.choice([rng.choice(words), rng.random()]) for i in range(50)}
        made.append(json.dumps({"number": number, **fields}).encode()[:MESSAGE_BYTES].ljust(MESSAGE_BYTES))
    return made


def blocks(ledger_id: int, first_index: int, rows: int, batch: int, codec: int = pb.NONE) -> Iterator[Buffer]:
    """Yield the blocks of a segment with `rows` messages, `batch` messages per entry, compressed by `codec`."""
    payloads = [bytes(MESSAGE_BYTES)] * batch if codec == pb.NONE else texts(100 * batch)
    messages = 2 * [OutgoingMessage(payload) for payload in payloads]
    entry_id, index, end = 0, first_index, first_index + rows
    while index < end:
        entries: list[bytes] = []
        counts: list[int] = []
        size = 0
        while size < BLOCK_BYTES_MAX and index + sum(counts) < end:
            at = index + sum(counts)
            counts.append(min(batch, end - at))
            time_ms = TIME_MS + at // ROWS_PER_MS
            first = at % len(payloads)
            some = messages[first : first + counts[-1]]
            encode = encode_one(some[0], "bench-0", at, time_ms) if batch == 1 else None
            entries.append(encode or encode_batch(some, "bench-0", at, time_ms, codec))
            size += len(entries[-1])
        yield block.cut(
            ledger_id, entry_id, entry_id - 1, TIME_MS + index // ROWS_PER_MS, index, entries, counts
        )
        entry_id += len(entries)
        index += sum(counts)


def archive(
    url: str, ledger_id: int, first_index: int, rows: int, batch: int, codec: int = pb.NONE
) -> dict[str, Any]:
    """Write one segment's object, and return the segment's description as a broker's list of segments has it."""
    store = open_blocking(url)
    store.prepare()
    builder = SegmentBuilder(ledger_id)
    name = f"segments/{ledger_id}"
    upload = store.begin(name)
    gathered: list[Buffer] = []
    for one in blocks(ledger_id, first_index, rows, batch, codec):
        builder.add(one)
        gathered.append(one)
        if sum(map(len, gathered)) >= 8 * MIB:
            upload.write(gathered)
            gathered = []
    footer, tail = builder.finish()
    upload.write([*gathered, tail])
    upload.finish()
    return {
        "ledger_id": ledger_id,
        "first_index": first_index,
        "last_entry": footer.last_entry,
        "messages": footer.message_count,
        "bytes": footer.blocks_bytes,
        "first_clock_ms": footer.first_clock_ms,
        "last_clock_ms": footer.last_clock_ms,
        "state": "released",
        "archive": {"store": url, "name": name, "bytes": footer.object_bytes, "crc": footer_crc(tail)},
        "on_bookies": False,
    }


def serve(topics: dict[str, list[dict[str, Any]]]) -> ThreadingHTTPServer:
    """Start an HTTP server that replaces the broker: it serves lists of segments and the requests of a stream."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            *_, name, asked = self.path.partition("?")[0].split("/")
            segments = topics[name]
            ledger_id, last_entry = segments[-1]["ledger_id"], segments[-1]["last_entry"]
            topic = f"persistent://public/default/{name}"
            answers = {
                "partitions": {"partitions": 0},
                "lastMessageId": {"ledgerId": ledger_id, "entryId": last_entry},
                "segments": {
                    "topic": topic,
                    "partitions": 0,
                    "end": {"ledger": ledger_id, "entry": last_entry},
                    "segments": segments,
                },
            }
            body = json.dumps(answers.get(asked, {"reason": "nothing is there"})).encode()
            self.send_response(200 if asked in answers else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def session(jars: Sequence[str] = ()) -> Any:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from pyspark_quire import DefaultSource

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.jars", ",".join(jars))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(DefaultSource)
    return spark


def cpu_s() -> float:
    """Return the CPU seconds so far of all descendants of this process: the JVM and Spark's Python workers.

    Descendants that have exited are included.
    """
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        pid = int(stat.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[pid] for pid in ours - {os.getpid()}) / os.sysconf("SC_CLK_TCK")


def measure(spark: Any, url: str, topic: str, rows: int, what: str = "the archive", **options: str) -> float:
    """Measure reading `rows` rows of a topic with `options`. Return the median of the runs in seconds."""
    frame = spark.read.format("quire").options(service_url=url, topic=topic, **options).load()
    assert frame.count() == rows
    seconds, cpu = [], []
    for _ in range(RUNS):
        start, cpu_start = time.perf_counter(), cpu_s()
        frame.write.format("noop").mode("overwrite").save()
        seconds.append(time.perf_counter() - start)
        cpu.append(cpu_s() - cpu_start)
    show(
        f"Spark reads {what}, {topic}",
        rows=rows,
        message_bytes=MESSAGE_BYTES,
        rows_per_s_best=rows / min(seconds),
        rows_per_s_median=rows / statistics.median(seconds),
        cpu_us_per_row=min(cpu) / rows * 1e6,
    )
    return statistics.median(seconds)


def measure_sidecars(spark: Any, url: str, topic: str, rows: int, whole_s: float) -> None:
    """Measure the cost and the benefit of sidecars. `whole_s` is the time that reading all columns took."""
    start = time.perf_counter()
    built = build_all(Broker(url), [topic])
    assert built.rows == rows, built
    show(
        f"sidecars, {topic}",
        rows_per_s=rows / (time.perf_counter() - start),
        share_of_segments=built.bytes / built.object_bytes,
    )
    columns = ",".join(name for name in schema.COLUMNS if name != "value")
    without_s = measure(spark, url, topic, rows, "without values", columns=columns)
    span_ms = max(1, rows // ROWS_PER_MS // RANGE_SHARE)
    begin_ms = TIME_MS + rows // ROWS_PER_MS // 2
    times = {"start": str(begin_ms), "end": str(begin_ms + span_ms)}
    wanted = spark.read.format("quire").options(service_url=url, topic=topic, **times).load().count()
    assert abs(wanted - span_ms * ROWS_PER_MS) <= 2 * BATCH, wanted
    range_s = measure(spark, url, topic, wanted, "a time range", **times)
    show(
        f"sidecars spare, {topic}",
        without_values_share_of_time=without_s / whole_s,
        time_range_share_of_rows=wanted / rows,
        time_range_share_of_time=range_s / whole_s,
    )


def measure_stream(spark: Any, url: str, topic: str, rows: int) -> None:
    """Measure a new stream that reads the whole topic in one micro-batch."""
    frame = spark.readStream.format("quire").options(service_url=url, topic=topic).load()
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as checkpoint:
        start, cpu_start = time.perf_counter(), cpu_s()
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = query.trigger(availableNow=True).start()
        query.awaitTermination()
        seconds, cpu = time.perf_counter() - start, cpu_s() - cpu_start
    read = sum(progress["numInputRows"] for progress in query.recentProgress)
    assert read == rows, (read, rows)
    show(
        f"Spark streams the archive, {topic}",
        rows=rows,
        message_bytes=MESSAGE_BYTES,
        rows_per_s=rows / seconds,
        cpu_us_per_row=cpu / rows * 1e6,
    )


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    show("machine", **machine())
    with tempfile.TemporaryDirectory(prefix="quire-bench-", dir="/var/tmp") as directory:
        topics: dict[str, list[dict[str, Any]]] = {}
        for number, (name, batch) in enumerate((("unbatched", 1), ("batched", BATCH))):
            per_segment = SEGMENT_BYTES // MESSAGE_BYTES
            topics[name] = [
                archive(f"file://{directory}", 100 * number + i, first, min(per_segment, rows - first), batch)
                for i, first in enumerate(range(0, rows, per_segment))
            ]
        server = serve(topics)
        spark = session()
        try:
            for name in topics:
                url = f"http://127.0.0.1:{server.server_port}"
                whole_s = measure(spark, url, name, rows)
                measure_stream(spark, url, name, rows)
                measure_sidecars(spark, url, name, rows, whole_s)
        finally:
            spark.stop()
            server.shutdown()


if __name__ == "__main__":
    main()
