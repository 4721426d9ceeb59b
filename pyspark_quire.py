"""Where PySpark finds `spark.read.format("quire")` by itself: a top-level module with this name and this class."""

from quire.spark_source.source import QuireDataSource as DefaultSource

__all__ = ["DefaultSource"]
