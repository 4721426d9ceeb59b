#!/usr/bin/env python3
"""Read a topic from its first message to its last with Spark, and tell how long that took.

docker compose run --rm spark --topic persistent://public/default/hello
"""

import argparse
import time

from pyspark.sql import SparkSession

from pyspark_quire import DefaultSource


def main() -> None:
    arguments = argparse.ArgumentParser(description="Read a topic with Spark.")
    arguments.add_argument("--service-url", default="http://gateway:8080", help="the gateway's HTTP address")
    arguments.add_argument("--topic", default="persistent://public/default/hello")
    arguments.add_argument("--master", default="local[2]")
    given = arguments.parse_args()

    spark = SparkSession.builder.master(given.master).appName("catch-up").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(DefaultSource)
    frame = (
        spark.read.format("quire")
        .option("service_url", given.service_url)
        .option("topic", given.topic)
        .load()
    )
    began = time.monotonic()
    rows = frame.count()
    print(f"{rows} rows of {given.topic} in {time.monotonic() - began:.1f} s")
    frame.orderBy("message_index").show(5, truncate=60)
    spark.stop()


if __name__ == "__main__":
    main()
