"""Streams: micro-batches of topics for `spark.readStream.format("quire")`.

Spark asks the driver for offsets, and for the slices between two offsets. Tasks read these slices as in a batch.
Reading order: `offsets` (positions in partitions, and the slices between two of them), `partitions` (the state of the
topics' partitions on the broker), `start` (the first offsets of a stream), `cursor` (their durable record on the
broker), `reader` (the class that Spark calls).
"""
