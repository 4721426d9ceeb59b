"""The whole history of a topic with Spark: pip install 'quire[spark]', then spark-submit or plain python."""

import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").getOrCreate()
history = (
    spark.read.format("quire")
    .option("service_url", sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080")
    .option("topic", "greetings")
    .load()
)
history.selectExpr("publish_time", "cast(key as string) key", "cast(value as string) value").show(truncate=False)
history.groupBy("key").count().show()
spark.stop()
