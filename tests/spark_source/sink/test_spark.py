"""Real Spark writes to a real server: batches, tasks that fail and are run again, streams that are started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as f

from quire.spark_source.sink.writer import QuireStreamWriter
from quire.spark_source.source import QuireDataSource
from tests.spark_source.conftest import spark_session

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The HTTP URL of a server whose topics drop duplicates."""
    data: Path = tmp_path_factory.mktemp("standalone")
    loopback = "127.0.0.1:0"
    command = [sys.executable, "-m", "quire", "standalone", "--data", str(data), "--deduplication", "true"]
    process = subprocess.Popen(
        [*command, "--listen", loopback, "--http", loopback], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    ready = process.stdout.readline().split()
    assert ready[0] == "ready", ready
    yield ready[2]
    process.terminate()
    process.wait(30)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A session that runs a task up to three times."""
    with spark_session("local[2,3]", spark__sql__execution__arrow__maxRecordsPerBatch="100") as session:
        session.dataSource.register(DiesBeforeCommit)
        yield session


def create(url: str, topic: str, partitions: int = 0) -> None:
    path = f"{url}/admin/v2/persistent/public/default/{topic}" + ("/partitions" if partitions else "")
    body = json.dumps(partitions).encode() if partitions else None
    request = urllib.request.Request(path, data=body, method="PUT")
    urllib.request.urlopen(request, timeout=20).close()


def read(spark: Any, url: str, topic: str) -> list[Any]:
    found = spark.read.format("quire").options(service_url=url, topic=topic).load()
    rows: list[Any] = found.orderBy("partition", "message_index").collect()
    return rows


def values(spark: Any, url: str, topic: str) -> list[int]:
    return [int(bytes(row.value)) for row in read(spark, url, topic)]


def test_a_batch_with_every_column_comes_back(spark: Any, url: str) -> None:
    create(url, "all")
    spark.range(1000).selectExpr(
        "cast(id AS string) value",
        "concat('k', id % 7) key",
        "map('id', cast(id AS string)) properties",
        "timestamp_millis(1700000000000 + id) event_time",
        "cast('o' AS binary) ordering_key",
        "0 partition",
    ).coalesce(1).write.format("quire").mode("append").options(service_url=url, topic="all").save()
    rows = read(spark, url, "all")
    assert [int(bytes(row.value)) for row in rows] == list(range(1000))
    assert [bytes(row.key).decode() for row in rows] == [f"k{i % 7}" for i in range(1000)]
    assert [row.properties["id"] for row in rows] == [str(i) for i in range(1000)]
    assert {row.event_time.microsecond % 1000 for row in rows} == {0}
    assert {row.producer.rpartition(".")[0].rpartition(".")[0][:6] for row in rows} == {"spark-"}


def test_a_partitioned_topic_keeps_the_order_of_keys(spark: Any, url: str) -> None:
    create(url, "parts", 3)
    frame = spark.range(0, 3000, 1, 2).selectExpr("cast(id AS string) value", "cast(id % 50 AS string) key")
    for _ in range(2):
        frame.write.format("quire").mode("append").options(
            service_url=url, topic="parts", producer_name="load", epoch="3", compression="zstd"
        ).save()
    rows = read(spark, url, "parts")
    assert sorted(int(bytes(row.value)) for row in rows) == list(range(3000)), "the second one wrote nothing"
    places = {(bytes(row.key), row.partition) for row in rows}
    assert len(places) == 50 and {partition for _, partition in places} == {0, 1, 2}


def test_a_task_that_fails_in_the_middle_is_run_again(spark: Any, url: str) -> None:
    create(url, "retried")

    def fails_at_first(number: int) -> str:
        from pyspark import TaskContext

        if number % 2000 == 1500 and TaskContext.get().attemptNumber() < 2:
            raise RuntimeError("the executor has died")
        return str(number)

    from pyspark.sql.functions import udf

    frame = spark.range(0, 4000, 1, 2).select(udf(fails_at_first)("id").alias("value"))
    frame.write.format("quire").mode("append").options(
        service_url=url, topic="retried", batch_messages_max="50"
    ).save()
    assert sorted(values(spark, url, "retried")) == list(range(4000))


class DiesBeforeCommit(QuireDataSource):
    """Rows are written, and Spark does not come to note that down."""

    @classmethod
    def name(cls) -> str:
        return "quire-dies"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        writer = super().streamWriter(schema, overwrite)
        return Dying(writer.options, schema, overwrite=overwrite)


class Dying(QuireStreamWriter):
    def commit(self, messages: list[Any], batchId: int) -> None:
        if batchId == 1:
            raise RuntimeError("the driver has died")


def lines(directory: Path, file: int, count: int = 200) -> None:
    directory.mkdir(exist_ok=True)
    text = "\n".join(str(file * count + i) for i in range(count))
    (directory / f"{file}.txt.tmp").write_text(text)
    (directory / f"{file}.txt.tmp").rename(directory / f"{file}.txt")


def stream(spark: Any, url: str, topic: str, at: Path, kind: str = "quire") -> Any:
    """All that is there, a file an epoch."""
    source = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(at / "in" / "*.txt"))
    return (
        source.writeStream.format(kind)
        .options(service_url=url, topic=topic, checkpointLocation=str(at / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def test_a_stream_copies_the_source_s_rows_as_they_are(spark: Any, url: str, tmp_path: Path) -> None:
    for topic in ("original", "copy"):
        create(url, topic, 3)
    frame = spark.range(300).selectExpr("cast(id AS string) value", "cast(id % 7 AS string) key")
    frame.write.format("quire").mode("append").options(service_url=url, topic="original").save()

    def copy(checkpoint: str, **options: str) -> None:
        source = spark.readStream.format("quire").options(service_url=url, topic="original").load()
        rows = source if options else source.withColumn("topic", f.lit("copy"))
        query = rows.writeStream.format("quire").options(
            service_url=url, checkpointLocation=str(tmp_path / checkpoint), **options
        )
        query.trigger(availableNow=True).start().awaitTermination(120)

    copy("by option", topic="copy")
    places = [(row.value, row.key, row.partition) for row in read(spark, url, "original")]
    assert len(places) == 300
    assert [(row.value, row.key, row.partition) for row in read(spark, url, "copy")] == places
    copy("by column")
    assert len(read(spark, url, "copy")) == 600


def test_a_stream_that_dies_before_its_commit_is_started_again_though_the_topic_grew(
    spark: Any, url: str, tmp_path: Path
) -> None:
    create(url, "grown", 2)
    for file in range(3):
        lines(tmp_path / "in", file)
    with pytest.raises(Exception, match="the driver has died"):
        stream(spark, url, "grown", tmp_path, "quire-dies").awaitTermination(120)
    assert sorted(values(spark, url, "grown")) == list(range(400)), "two epochs are written, one is noted"
    path = f"{url}/admin/v2/persistent/public/default/grown/partitions"
    urllib.request.urlopen(urllib.request.Request(path, data=b"5", method="POST"), timeout=20).close()
    for file in range(3, 6):
        lines(tmp_path / "in", file)
    stream(spark, url, "grown", tmp_path).awaitTermination(120)
    assert sorted(values(spark, url, "grown")) == list(range(1200))


def test_a_stream_that_dies_before_its_commit_is_started_again(spark: Any, url: str, tmp_path: Path) -> None:
    create(url, "replayed")
    for file in range(3):
        lines(tmp_path / "in", file)
    with pytest.raises(Exception, match="the driver has died"):
        stream(spark, url, "replayed", tmp_path, "quire-dies").awaitTermination(120)
    assert sorted(values(spark, url, "replayed")) == list(range(400)), "two epochs are written, one is noted"
    stream(spark, url, "replayed", tmp_path).awaitTermination(120)
    assert sorted(values(spark, url, "replayed")) == list(range(600))
    lines(tmp_path / "in", 3)
    stream(spark, url, "replayed", tmp_path).awaitTermination(120)
    assert sorted(values(spark, url, "replayed")) == list(range(800))


@pytest.mark.timeout(400)
def test_a_driver_that_is_killed_between_the_writing_and_its_note(
    spark: Any, url: str, tmp_path: Path
) -> None:
    create(url, "killed")
    for file in range(3):
        lines(tmp_path / "in", file)
    driver = [sys.executable, "-m", "tests.spark_source.sink.killed_driver", url, "killed", str(tmp_path)]
    root = str(Path(__file__).parents[3])
    with subprocess.Popen([*driver, "1"], cwd=root, start_new_session=True) as first:
        deadline = time.monotonic() + 150
        while not (tmp_path / "reached").exists():
            assert first.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        os.killpg(first.pid, signal.SIGKILL)
    assert sorted(values(spark, url, "killed")) == list(range(400)), "two epochs are written, one is noted"
    stream(spark, url, "killed", tmp_path).awaitTermination(120)
    assert sorted(values(spark, url, "killed")) == list(range(600))


def test_what_is_refused_is_one_sentence(spark: Any, url: str) -> None:
    create(url, "refused")

    def write(frame: Any, mode: str = "append", **options: str) -> str:
        with pytest.raises(Exception) as error:
            given = {"service_url": url, "topic": "refused"} | options
            frame.write.format("quire").mode(mode).options(**given).save()
        return str(error.value)

    good = spark.range(5).selectExpr("cast(id AS string) value")
    assert "only appends, because a topic is a log" in write(good, "overwrite")
    assert "to_json(value)" in write(spark.range(5).selectExpr("struct(id) value"))
    assert "does not exist" in write(good, topic="nobody")
    assert "is not known to format quire" in write(good, kafka="yes")
    assert "no broker answers" in write(good, service_url="http://127.0.0.1:9")
    assert "row 0 of Spark partition" in write(good.selectExpr("value", "4 partition"))
