"""Columnar sidecars of archived segments: Parquet files without values, next to each segment's object in its store.

Reading order: `layout` (the byte format, and how a reader verifies it), `build` (from a segment's blocks to a sidecar),
`open` (reading a sidecar from its store), `choose` (the rows and entries that a query needs), `read` (reading a slice
by its sidecar, in a task), `prune` (pruning slices, in the driver), `archive` (all sidecars of a cluster, for `quire
archive sidecars`), `process` (a broker's builder, whose child process is `worker`).

    segments/LEDGER-CLUSTER-UNIQUE            the object
    segments/LEDGER-CLUSTER-UNIQUE.parquet    its sidecar

All data of a sidecar are derived from its object. The object is read if the sidecar is missing, damaged, or belongs to
another object, and for entries that the sidecar does not decode. So a query's rows are the same with and without
sidecars.

The writer is not in `tiering` because it decodes messages by columns, which only this package does, and because it
needs pyarrow, which brokers do not require. If pyarrow is installed, a broker builds sidecars in a child process,
because decoding holds the interpreter lock for a second or more per segment. `quire archive sidecars build` builds them
manually, and is idempotent.

Before an object is deleted, its sidecar is deleted (`tiering.archive`). A sidecar that is written between the two
deletions is left behind, and `quire archive verify` finds it.
"""
