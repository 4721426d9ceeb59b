"""Ledgers on object storage: a write-ahead log (a *WAL*) whose journal and entry logs are objects.

A broker begins a new WAL whenever it starts. The WAL's UUID is registered in the metadata store, and `ledger/`
addresses the WAL like a bookie. Only the process that began a WAL writes it, and a WAL is never reopened. It is closed
once: by its writer when the writer stops, or by the first process that needs a ledger of a dead writer.

Terms of this package:

    data object  upload of the writer: blocks of many ledgers in the order of their adds; numbered from 0 without gaps
    fence        object that a close puts in place of the first missing data object, so that the writer cannot create it
    run          consecutive blocks of one ledger that are contiguous in an object; unit of reading and of checksums
    row          entry in an object's index: position and checksum of one run
    set          object with the blocks of many data objects, sorted by ledger; it replaces these objects
    catalogue    object that lists a WAL's sets and tombstones
    record       node in the metadata store: state, trim point, end and current catalogue of a WAL
    trim point   number below which all data objects are in sets, and may be deleted
    keeper       process that may change the record: the writer of an open WAL, the collector of a closed one

Read in this order:

- foundations: `settings`; `probe` (the properties that a store must have); `patience` (retries); `context` and
  `own_record` (the record of a WAL); `proof` (evidence that a missing object is damage)
- writing: `wal_object` (byte formats); `wal_core` and its shell `object_journal`
- storage: `run_index` (the rows of each object); `run_reader`; `set_objects`; `keeper` (the order of changes); `trash`
  (unneeded objects); `tombstones` of other processes; `flusher` (memtables into sets); `reads`; `storage` (the node)
- closing a WAL: `closing_core`, `closing`
- other processes' WALs: `view`; `foreign` (a port to one WAL); `directory` (ports to all WALs and bookies)
- upkeep: `collector` (closed WALs); `sweep` (objects that no record names); `scrub` (operators' commands)

Numbers such as "law 16" or "W7" refer to the laws in `docs/decisions/wal.md`.
"""
