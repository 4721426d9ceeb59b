"""The whole history of a topic with Spark: pip install -e '.[spark]' in the clone, and Java 17 or newer."""

import os
import sys

from pyspark.sql import SparkSession

from pyspark_quire import DefaultSource

os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's workers need the Python that has quire
spark = SparkSession.builder.master("local[2]").getOrCreate()
spark.dataSource.register(DefaultSource)

history = (
    spark.read.format("quire")
    .option("service_url", sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080")
    .option("topic", "greetings")
    .load()
)
history.createOrReplaceTempView("greetings")
spark.sql(
    "select publish_time, cast(key as string) key, cast(value as string) value from greetings order by publish_time"
).show(truncate=False)
spark.stop()
