"""The archive: sealed segments as objects, written once, verified, read back by brokers and by Spark.

`segment_object` is the bytes of one segment; `archive` uploads, verifies and opens; `read_back` serves a segment's
reader; `offload` decides what to do next with a broker's segments; `inventory` lists all segments of a cluster, for
`scrub`, which finds what is lost, damaged or nobody's. The objects lie in one of the stores of `objects/`.

`segment_label` says beside an object whose segment it is, and `metadata_copy` copies what the metadata store knows,
both for the day on which that is lost (`quire.rescue`).

Read in this order: `segment_object`, `sealed`, `segment_label`, `archive`, `read_back`, `progress` (how far a long
work is), `offload`, `inventory`, `scrub`, `metadata_copy`.
"""
