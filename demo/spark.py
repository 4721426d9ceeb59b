"""Spark session of the demo: it reads the whole history of a topic, and streams it into another topic."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pyspark_quire import DefaultSource

STREAM_ROWS_PER_TRIGGER = 200_000

Table = tuple[str, Sequence[str], Sequence[Sequence[Any]]]


class History:
    """Spark session for reading one topic. Leaving the `with` block stops the session."""

    def __init__(self, http_url: str, topic: str) -> None:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        self._spark = (
            SparkSession.builder.appName("quire demo")
            .master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
        self._spark.dataSource.register(DefaultSource)
        self._http_url, self._topic = http_url, topic

    def _read(self, columns: str, **options: Any) -> DataFrame:
        reader = self._spark.read.format("quire").option("service_url", self._http_url)
        for name, value in {"topic": self._topic, "columns": columns, **options}.items():
            reader = reader.option(name, str(value))
        return reader.load()

    def count_and_checksum(self, topic: str | None = None) -> tuple[int, int]:
        """Count the rows of `topic` (by default, of the session's topic), and sum their CRC32(key + NUL + value)."""
        share = f.crc32(f.concat(f.col("key"), f.lit(b"\0"), f.col("value")))
        read = self._read("key,value", **({} if topic is None else {"topic": topic}))
        row = read.agg(f.count("*"), f.sum(share)).first()
        assert row is not None
        return int(row[0]), int(row[1] or 0)

    def stream_into(self, topic: str, checkpoint: Path) -> int:
        """Stream the history into `topic`, each message once; return the number of micro-batches."""
        read = self._spark.readStream.format("quire").option("service_url", self._http_url)
        read = read.option("topic", self._topic).option("max_rows_per_trigger", STREAM_ROWS_PER_TRIGGER)
        write = read.load().select("key", "value").writeStream.format("quire")
        write = write.option("service_url", self._http_url).option("topic", topic)
        query = (
            write.option("enable_deduplication", "true")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        progress = query.lastProgress
        return 0 if progress is None else int(progress["batchId"]) + 1

    def tables(self, killed_ms: int) -> list[Table]:
        """Return tables (title, columns, rows): lines per module, the longest lines, lines by time range."""
        return [self._per_module(), self._longest(), self._by_time(killed_ms)]

    def _per_module(self) -> Table:
        module = f.regexp_extract(f.col("key").cast("string"), r"^([^/]+?)(\.py)?(/|$)", 1)
        counted = self._read("key").groupBy(module.alias("module")).count()
        rows = counted.orderBy(f.desc("count"), "module").limit(8).collect()
        return "Lines per module", ("module", "lines"), [(row[0], f"{row[1]:,}") for row in rows]

    def _longest(self) -> Table:
        read = self._read("key,value").withColumn("length", f.length("value"))
        rows = read.orderBy(f.desc("length"), "key").limit(5).collect()
        shown = [(bytes(row["key"]).decode(), f"{row['length']:,}", _begin(row["value"])) for row in rows]
        return "The longest lines", ("file", "length", "begins"), shown

    def _by_time(self, killed_ms: int) -> Table:
        """Return the table of the two time ranges before and after the kill, which together contain all messages."""
        ranges = {"before the kill": {"end": killed_ms}, "after it": {"start": killed_ms}}
        time = f.date_format("publish_time", "HH:mm:ss.SSS")
        rows = []
        for name, bounds in ranges.items():
            row = self._read("publish_time", **bounds).agg(f.count("*"), f.min(time), f.max(time)).first()
            assert row is not None
            rows.append((name, f"{row[0]:,}", row[1], row[2]))
        return "Ranges of publish time", ("published", "lines", "first", "last"), rows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spark.stop()


def _begin(value: Any) -> str:
    text = bytes(value).decode("utf-8", "replace").strip()
    return text[:48] + ("…" if len(text) > 48 else "")
