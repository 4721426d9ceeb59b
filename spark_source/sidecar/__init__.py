"""The columnar sidecars of archived segments: Parquet without values, beside each object in its store.

Reading order: `layout` (the bytes, and why a reader may trust them), `build` (a segment's blocks into a sidecar),
`open` (a sidecar in its store), `choose` (which rows and entries a query needs), `read` (a slice by its sidecar, in a
task), `prune` (slices, in the driver), `archive` (all sidecars of a cluster: what `quire archive sidecars` does),
`process` (a broker's own builder of them, and its `worker`).

    segments/LEDGER-UNIQUE            the object
    segments/LEDGER-UNIQUE.parquet    its sidecar

A sidecar tells nothing that the object does not. Where it is missing, damaged, of another object, or says of an entry
that it does not know, the object is read: a query's rows are the same with and without.

The writer is here and not in `tiering`, since it decodes messages, which only this room does by columns, and since it
needs pyarrow, which brokers do without. A broker of a machine that has pyarrow has them built by a process of its own:
decoding takes the interpreter for a second and more for each segment. `quire archive sidecars build` does the same by
hand, and is idempotent.

Deleting an object deletes its sidecar first (`tiering.archive`); one that was written at that very moment is nobody's,
and found by `quire archive verify`.
"""
