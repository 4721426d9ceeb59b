"""The whole cluster in one process, on virtual time, from a seed.

Everything that Quire takes from outside comes from here: the event loop and its time (`loop`), the network
(`network`), disks (`machine`, over `quire.testing.disk`), the metadata store (`metadata`), the object store
(`objects`). The rest is production code, down to the frames between brokers and bookies. No production code asks
whether it is simulated.

A *process* is a name for a part of the world that lives and dies together: whatever it scheduled carries it in its
context, so killing it means that none of that ever runs, and pausing it means that it runs later.

A *history* is a plan and its outcome. The plan (`plan`) is drawn from the seed: how many bookies and clients, settings,
and a list of faults with their times. It can be printed, read back and made smaller (`shrink`). What happens is a
function of the plan alone: the same plan gives the same trace, in any process, whatever the hash seed of its strings.

    ledger_history      bookies, ledgers, recoveries, readers, deletion, repair                  (most seeds)
    cluster_history     the same with brokers, clients, subscriptions and the archive above it
    wal_history         ledgers on object storage: brokers with write-ahead logs in a bucket (`wal_objects`), no bookies

`oracle` watches the simulated parts and asserts the invariants all the time: what bookies promised, what metadata
records may become, what readers may see. A history ends by stopping all faults and waiting, in virtual time, for
everything to be closed, drained and repaired; then all that was acknowledged is read.

Read in this order: `loop`, `world`, `network`, `metadata`, `machine`, `oracle`, `plan`, `faults`, `host`,
`ledger_history`, `facts`, `cluster_history`, `hostile`, `wal_objects`, `wal_oracle`, `wal_history`, then `runner` and
`__main__` (`python -m tests.simulation --help`).
"""
