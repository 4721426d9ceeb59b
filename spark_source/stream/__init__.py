"""`spark.readStream.format("quire")`: micro-batches of topics.

Spark asks the driver for offsets and for the slices between two of them, and hands the slices to tasks, which read them
as a batch's. Reading order: `offsets` (places in partitions, and what lies between two of them), `partitions` (what the
broker says of the topics' partitions at a moment), `start` (where a stream begins), `cursor` (which keeps that on the
broker), `reader` (what Spark calls).
"""
