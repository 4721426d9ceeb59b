"""A driver that writes a stream of files to a topic; a test runs and kills it.

    python -m tests.spark_source.sink.killed_driver URL TOPIC DIRECTORY [EPOCH]

With EPOCH it stays between the writing of that epoch and Spark's note of it, and makes the file `reached`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from quire.spark_source.sink.writer import QuireStreamWriter
from quire.spark_source.source import QuireDataSource


class Stays(QuireDataSource):
    @classmethod
    def name(cls) -> str:
        return "quire-stays"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        epoch, reached = self.options.pop("epoch_to_stay"), self.options.pop("reached")
        writer = super().streamWriter(schema, overwrite)
        return Staying(writer, int(epoch), Path(reached))


class Staying(QuireStreamWriter):
    def __init__(self, writer: QuireStreamWriter, epoch: int, reached: Path) -> None:
        self.__dict__ |= writer.__dict__
        self.epoch = epoch
        self.reached = reached

    def commit(self, messages: list[Any], batchId: int) -> None:
        if batchId == self.epoch:
            self.reached.touch()
            time.sleep(3600)


def main() -> None:
    url, topic, directory, *stay = sys.argv[1:]
    at = Path(directory)
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(Stays)
    options = {"service_url": url, "topic": topic, "checkpointLocation": str(at / "checkpoint")}
    if stay:
        options |= {"epoch_to_stay": stay[0], "reached": str(at / "reached")}
    source = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(at / "in" / "*.txt"))
    kind = "quire-stays" if stay else "quire"
    query = source.writeStream.format(kind).options(**options).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
