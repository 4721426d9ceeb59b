"""The PySpark data source: `spark.read.format("quire")`, and `readStream`.

Built on PySpark's [Python data source
API](https://spark.apache.org/docs/latest/api/python/tutorial/sql/python_data_source.html)
([SPARK-44076](https://issues.apache.org/jira/browse/SPARK-44076)).

Reading order: `options` (a query's options), `positions` (half-open ranges of a topic), `plan` (from a broker's list of
segments to slices), `pruning` (segments outside a time range), `cutting` (slices into tasks), `fetch` (a slice's
blocks, from the archive or the `broker`), `schema` (the columns), `protobuf` (message metadata, column by column),
`batches` (messages of batched entries), `rows` (messages of some blocks), `columns` (their bytes as Arrow arrays),
`decode` (from blocks to record batches), `plain` (the same, entry by entry, for unusual entries), `decrypting`,
`chunks` (joining chunked messages), `avro_types`, `topic_schema` and `values` (keys and values by their topic's
schema), `compacted` (the last message of each key), `filters` (rows by key and event time), `sidecar` (an archived
segment's columns except the values), `task` (reading slices), `source` (the classes that Spark calls), `stream`
(micro-batches). `pyspark_quire` at the top level is the module in which Spark finds the source. `sink` writes.
"""
