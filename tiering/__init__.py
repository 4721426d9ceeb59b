"""Archive of sealed segments as objects, which are written once, verified, and read by brokers and Spark.

`segment_object` defines the format of a segment object; `archive` uploads, verifies and opens segment objects;
`read_back` reads them; `offload` decides the next step for each segment of a broker; `inventory` lists all segments of
a cluster for `scrub`, which finds lost, damaged and orphaned objects. The objects are in one of the stores of
`objects/`.

Two modules prepare for a loss of the metadata store (`quire.rescue`). `segment_label` writes a *label* beside each
segment object, which contains the segment's topic and record. `metadata_copy` copies the metadata store into the
archive.

Read in this order: `segment_object`, `sealed`, `segment_label`, `archive`, `read_back`, `progress` (progress of long
commands), `offload`, `inventory`, `scrub`, `metadata_copy`.
"""
