"""The metadata of a cluster, rebuilt from what bookies, logs and the archive say: `quire rescue metadata`.

For the day on which the metadata store is lost for good, and there is no copy of its disks. `facts` gathers what can
be known: the labels of ledgers, by the bookies; the labels of segments and the newest copy of the metadata, by the
archive. `wals` does so for write-ahead logs on object storage, whose records `wal_plan` tells. `ledger_plan` and
`topic_plan` say without I/O what records follow from that, and what is lost or doubtful. `rescue` does it, in an order
that may be interrupted anywhere and begun again: ledgers, their recovery, then all that names them, and last the word
that the cluster is whole.

Read in this order: `facts`, `wal_plan`, `wals`, `ledger_plan`, `ends`, `topic_plan`, `bundle_plan`, `rescue`.
"""
