"""Deterministic simulation of a whole cluster in one process, on virtual time, from a seed.

These modules replace Quire's environment: the event loop and its clock (`loop`), the network (`network`), disks
(`machine`, over `quire.testing.disk`), the metadata store (`metadata`) and the object store (`objects`). The rest is
production code, down to the frames between brokers and bookies. No production code asks whether it is simulated.

A *process* is a part of the world that is killed or paused as a whole. All callbacks and tasks that it schedules carry
the process in their context. The callbacks of a killed process never run; those of a paused process run later.

A *history* is a plan and its outcome. The plan (`plan`) is drawn from the seed: the numbers of bookies and clients,
settings, and a list of faults with their times. It can be printed, parsed and shrunk (`shrink`). The outcome is a
function of the plan alone: the same plan has the same trace in any process, whatever `PYTHONHASHSEED` is.

    ledger_history      bookies, ledgers, recoveries, readers, deletion, repair                  (most seeds)
    cluster_history     the same, with brokers, clients, subscriptions and the archive
    wal_history         ledgers on object storage: brokers with write-ahead logs in a bucket (`wal_objects`), no bookies
    restored_history    ledgers whose metadata store comes back empty, or is restored from an older copy

`oracle` observes the simulated parts and checks the invariants all the time: the promises of bookies, the transitions
of metadata records, and the results of readers. At the end of a history, all faults stop. The history waits, in virtual
time, until all ledgers are closed, drained and repaired, and then reads everything that was acknowledged.

Read in this order: `loop`, `world`, `network`, `metadata`, `machine`, `oracle`, `plan`, `faults`, `host`,
`ledger_history`, `restored_history`, `facts`, `cluster_history`, `hostile`, `wal_objects`, `wal_oracle`, `wal_history`,
then `runner` and `__main__` (`python -m tests.simulation --help`).
"""
