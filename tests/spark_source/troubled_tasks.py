"""Two writes into topics: in one an executor is killed, in the other a task halts until Spark runs it a second time.

`troubled_tasks.py HTTP_URL KILLED SLOW DIRECTORY` prints one line of JSON: what both topics have. That it came so far
is told by a file in the directory for each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

ROWS = 4_000
"""In two tasks."""
PATIENCE_S = 120.0


def main(url: str, killed: str, slow: str, directory: str) -> None:
    session = SparkSession.builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    for name, value in {"interval": "100ms", "quantile": "0.5", "multiplier": "1.1"}.items():
        session = session.config(f"spark.speculation.{name}", value)
    spark = session.config("spark.speculation", "true").getOrCreate()

    def attempt() -> tuple[int, int]:
        context = TaskContext.get()
        assert context is not None
        return context.partitionId(), context.attemptNumber()

    def kills(number: int) -> str:
        if number == 1500 and attempt() == (0, 0):
            Path(directory, "killed").touch()
            os.kill(parent(os.getppid()), signal.SIGKILL)  # of Python's daemon, whose parent is the executor
        return str(number)

    def halts(number: int) -> str:
        speculated = Path(directory, "speculated")
        if attempt() == (1, 0) and number == 3500:
            until = time.monotonic() + PATIENCE_S
            while not speculated.exists() and time.monotonic() < until:
                time.sleep(0.1)
        elif attempt() == (1, 1):
            speculated.touch()
        return str(number)

    def parent(process: int) -> int:
        return int(subprocess.check_output(["ps", "-o", "ppid=", "-p", str(process)]))

    def written(topic: str, value: Any) -> dict[str, int]:
        quire = {"service_url": url, "topic": topic}
        rows = spark.range(0, ROWS, 1, 2).select(f.udf(value)("id").alias("value"))
        writer = rows.write.format("quire").mode("append").options(**quire, enable_deduplication="true")
        writer.option("batch_messages_max", "50").save()
        numbers = (
            spark.read.format("quire")
            .options(**quire)
            .load()
            .select(f.col("value").cast("string").cast("int"))
        )
        row = numbers.agg(f.count("*"), f.countDistinct("value"), f.min("value"), f.max("value")).first()
        return dict(zip(("rows", "distinct", "first", "last"), row, strict=True))

    print(json.dumps({"killed": written(killed, kills), "slow": written(slow, halts)}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
