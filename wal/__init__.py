"""Ledgers on object storage: a write-ahead log (a *WAL*) whose journal and entry logs are objects.

Each start of a broker begins a WAL: a UUID in the metadata store, which `ledger/` takes for a bookie. It is
written by one process, never opened again, and closed once, by whoever needs a ledger of a broker that is gone.

Read in this order: `settings`; `probe`, what a store must offer; `patience` with a store that is slow or refuses;
`context` and `own_record`, a WAL in the metadata store; `wal_object`, the bytes; `wal_core` and its shell
`object_journal`, the writing. Then where blocks stay: `run_index`, in which rows of which object; `run_reader`, which
reads them there; `set_objects`; `keeper`, the order of changes; `trash`, objects that nobody needs; `tombstones` that
others lay; `flusher`, from memory into sets; `reads`, the way out. `storage` joins them into a node.

A WAL ends: `closing_core`, `closing`. What others see of it: `view`, and `foreign`, a port to it. `directory` leads to
the own WAL, to others' and to bookies; `collector` keeps those in order that are closed;
`scrub` is for people.
"""
