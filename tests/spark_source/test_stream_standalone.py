"""Streams with real Spark over a real server: triggers, a killed driver, partitions that are added."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest

from quire.spark_source.stream.reader import HAS_LIMITS
from tests.spark_source.conftest import Server, at_most

pytestmark = pytest.mark.spark

PREFIX = "persistent://public/default/"
DEADLINE_S = 300.0

DRIVER = """
import json, os, sys
from pyspark.sql import SparkSession

url, topic, folder, limit = sys.argv[1:]
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.sql.shuffle.partitions", "2").getOrCreate())
spark.sparkContext.setLogLevel("WARN")

def keep(frame, number):
    rows = sorted((row.partition, row.message_index, bytes(row.value).decode()) for row in frame.collect())
    with open(f"{folder}/.new", "w") as file:
        json.dump(rows, file)
    os.replace(f"{folder}/.new", f"{folder}/batch-{number}")

(spark.readStream.format("quire").options(service_url=url, topic=topic, stream_name="killed", start="latest",
    **json.loads(limit)).load().writeStream.foreachBatch(keep)
    .option("checkpointLocation", f"{folder}/checkpoint").trigger(processingTime="200 milliseconds").start()
    .awaitTermination())
"""


def publish(client: pulsar.Client, topic: str, numbers: range) -> None:
    producer = client.create_producer(topic, batching_max_publish_delay_ms=5, block_if_queue_full=True)
    for number in numbers:
        producer.send_async(b"%d" % number, lambda result, _: None)
    producer.flush()
    producer.close()


def partitions(server: Server, topic: str, count: int, method: str = "PUT") -> None:
    url = f"{server.http_url}/admin/v2/persistent/public/default/{topic}/partitions"
    body = str(count).encode()
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(
        urllib.request.Request(url, data=body, headers=headers, method=method), timeout=10
    ).close()


def backlog(server: Server, topic: str, subscription: str) -> int:
    url = f"{server.http_url}/admin/v2/persistent/public/default/{topic}/stats"
    with urllib.request.urlopen(url, timeout=10) as answer:
        found: int = json.load(answer)["subscriptions"][subscription]["msgBacklog"]
    return found


def soon(what: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.1)


def stream(spark: Any, server: Server, **options: str) -> Any:
    given = {"service_url": server.http_url, "columns": "topic,partition,message_index,value"} | options
    return spark.readStream.format("quire").options(**given).load()


def run(frame: Any, folder: Path) -> list[dict[str, Any]]:
    """What is there now, into the file sink, and what that has in all."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    running = writer.trigger(availableNow=True).start(f"{folder}/rows")
    assert running.awaitTermination(int(DEADLINE_S)), "the query goes on"
    return [row.asDict() for row in frame.sparkSession.read.parquet(f"{folder}/rows").collect()]


def test_available_now_with_limits_again_and_again(
    spark: Any, server: Server, client: pulsar.Client, tmp_path: Path
) -> None:
    publish(client, "now", range(1000))
    server.archive()
    publish(client, "now", range(1000, 1500))
    frame = stream(spark, server, topic="now", stream_name="jobs", **at_most(rows=400))
    rows = run(frame, tmp_path)
    assert sorted(int(row["value"]) for row in rows) == list(range(1500))
    assert all(int(row["value"]) == row["message_index"] for row in rows)
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    ends = [json.loads(path.read_text().splitlines()[-1])[f"{PREFIX}now"] for path in offsets]
    assert [end["index"] for end in ends] == ([400, 800, 1200, 1500] if HAS_LIMITS else [1500])
    uncommitted = 0 if HAS_LIMITS else 1500  # an older Spark commits with the next run
    assert backlog(server, "now", "jobs") == uncommitted
    publish(client, "now", range(1500, 1600))
    assert backlog(server, "now", "jobs") == uncommitted + 100
    rows = run(frame, tmp_path)
    assert sorted(int(row["value"]) for row in rows) == list(range(1600))


@contextmanager
def running(writer: Any) -> Iterator[Any]:
    query = writer.start()
    try:
        yield query
    finally:
        query.stop()


def test_one_second_triggers_while_partitions_are_added(
    spark: Any, server: Server, client: pulsar.Client, tmp_path: Path
) -> None:
    partitions(server, "grows", 2)
    frame = stream(spark, server, topic="grows", stream_name="live", start="latest")
    writer = frame.writeStream.format("memory").queryName("grown").trigger(processingTime="1 second")
    writer = writer.option("checkpointLocation", str(tmp_path))

    def count() -> int:
        return int(spark.sql("SELECT count(*) n FROM grown").collect()[0].n)

    with running(writer) as query:
        soon(lambda: query.lastProgress is not None)
        publish(client, "grows", range(100))
        soon(lambda: count() == 100)
        partitions(server, "grows", 3, "POST")
        publish(client, "grows-partition-2", range(100, 200))
        publish(client, "grows-partition-0", range(200, 300))
        soon(lambda: count() == 300)
        assert query.exception() is None
        if HAS_LIMITS:  # so old is what Spark tells of the latest offset
            soon(lambda: behind(query.lastProgress) == {f"{PREFIX}grows-partition-{i}": 0 for i in range(3)})
    rows = spark.sql("SELECT * FROM grown").collect()
    assert sorted(int(bytes(row.value)) for row in rows) == list(range(300))
    assert {row.partition for row in rows if 100 <= int(bytes(row.value)) < 200} == {2}


def behind(progress: dict[str, Any]) -> dict[str, int]:
    """By partition, as `docs/spark-reference.md` tells users to count it."""
    source = progress["sources"][0]
    read, there = json.loads(source["endOffset"]), json.loads(source["latestOffset"])
    return {name: there[name]["index"] - read[name]["index"] for name in read}


@contextmanager
def driver(server: Server, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a query, its JVM and its workers, that are killed in the middle of whatever they do."""
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": root}
    command = [
        sys.executable,
        "-c",
        DRIVER,
        server.http_url,
        "killed",
        str(folder),
        json.dumps(at_most(rows=500)),
    ]
    with (folder / "driver.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=log, stderr=log)
    try:
        yield process
    except AssertionError:
        print((folder / "driver.log").read_text()[-5000:])
        raise
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.timeout(900)
def test_a_driver_that_is_killed(server: Server, client: pulsar.Client, tmp_path: Path) -> None:
    """While messages come; the next one ends what it began."""
    partitions(server, "killed", 2)
    publish(client, "killed", range(100))  # before the stream, which begins with the latest

    def done() -> list[str]:
        found = [json.loads(path.read_text()) for path in tmp_path.glob("batch-*")]
        return sorted((row[2] for rows in found for row in rows), key=int)

    published = 100
    with driver(server, tmp_path):
        soon(lambda: has_cursor(server, "killed"))
        for _ in range(5):
            before = len(done())
            publish(client, "killed", range(published, published + 300))
            published += 300
            soon(lambda: len(done()) > before)  # noqa: B023 (it is called here)
        publish(client, "killed", range(published, published + 2000))
        published += 2000
    expected = [str(number) for number in range(100, published)]
    with driver(server, tmp_path):
        soon(lambda: len(done()) >= len(expected))
    assert done() == expected


def has_cursor(server: Server, topic: str) -> bool:
    url = f"{server.http_url}/admin/v2/persistent/public/default/{topic}-partition-1/subscriptions"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return "killed" in json.load(answer)
