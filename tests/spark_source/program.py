"""What a user's program does with Spark, wherever that runs: read a topic, write another one, read that.

`program.py HTTP_URL FROM TO` prints one line of JSON. The session is as the environment says (`spark-submit`'s options,
or `SPARK_REMOTE` for Spark Connect), and the format registers itself.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f


def main(url: str, source: str, target: str) -> None:
    spark = SparkSession.builder.appName("program").getOrCreate()

    def read(topic: str) -> Any:
        return spark.read.format("quire").options(service_url=url, topic=topic).load()

    def counted(topic: str) -> dict[str, int]:
        share = f.crc32(f.concat(f.col("key"), f.lit(b"\0"), f.col("value")))
        row = read(topic).agg(f.count("*").alias("rows"), f.sum(share).alias("checksum")).first()
        return {"rows": row["rows"], "checksum": row["checksum"]}

    before = counted(source)
    writer = read(source).select("key", "value").write.format("quire").mode("append")
    writer.options(service_url=url, topic=target, enable_deduplication="true").save()
    print(json.dumps({"kind": type(spark).__module__, "read": before, "written": counted(target)}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
