"""Rescue of a cluster's metadata after the loss of the metadata store, or of its latest records.

`quire rescue metadata` runs it. The sources are labels of ledgers on bookies and in write-ahead logs, labels of
segments in the archive, and the newest copy of the metadata. The steps may be interrupted anywhere and repeated: write
ledgers' records, recover the ledgers, write the records that reference them, and finally mark the cluster as complete.

Read in this order:

- sources: `facts` (bookies, archive, first and last blocks of ledgers); `wal_plan` and `wals` (write-ahead logs)
- plans without I/O, which also list lost and doubtful data: `ledger_plan`, `topic_plan`, `bundle_plan`
- the driver: `begin` (checks of the cluster, and the choice of a copy), then `rescue`
"""
