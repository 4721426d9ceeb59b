"""The PySpark data source: `spark.read.format("quire")`, and `readStream`.

Reading order: `options` (what a user may say), `positions` (half-open ranges of a topic), `plan` (the broker's answer
turned into slices), `cutting` (slices into tasks), `fetch` (a slice's blocks, from the archive or the `broker`),
`schema` (the columns), `protobuf` (message metadata, column by column), `batches` (where batched messages lie), `rows`
(where every message of some blocks lies), `columns` (their bytes as Arrow arrays), `decode` (from blocks to record
batches), `plain` (the same, entry by entry, for the odd ones), `decrypting`, `chunks` (large messages joined),
`avro_types`, `topic_schema` and `values` (keys and values by their topic's schema), `compacted` (the last message of
each key), `filters` (which rows), `sidecar` (what is known of an archived segment without its values), `task` (slices
read), `source` (what Spark calls), `stream` (micro-batches). `pyspark_quire` at the top level is where Spark finds it
by itself. `sink` writes.
"""
