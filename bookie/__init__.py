"""Storage node (bookie): it acknowledges a block after the block is on disk, and serves reads.

Read in this order:

- `settings`, and `identity` (cookies in both directories);
- the journal: `journal_core`, `segment_pool`, `journal` and `journal_replay`;
- state in memory: `ledgers`, `memtable` and `write_cache`;
- flushed blocks: `entry_record`, `entry_log`, `entry_log_scanner`, `index`, `index_lmdb`, `index_home` and
  `ledger_storage`, with `collector` (space of deleted ledgers);
- `room` and `health` (which blocks are accepted), `checkpoint` and `flusher` (flush of the write cache to entry logs
  and index), `recovery` (replay when the bookie starts);
- `read_cache`, `reads` and `block_restore` (local repair of a damaged block);
- `neighbours` (interfaces that `intake` and `requests` use), `intake` (adds), `requests` (all requests), `storage`
  (joins these parts), `scrub` (verifies all blocks once a week);
- the process: `disks`, `server` (TCP), `membership` (check of the cluster before the start), `registration` (in the
  metadata store), `drain` (removal from the cluster).

A *group* is a batch of records that the journal writes and syncs together. A *run* is a sequence of adjacent blocks of
one ledger in an entry log, with one row in the index. The *mark* is the number of the last journal group up to which
everything is in the entry logs and the index. docs/glossary.md lists further words. `quire.ledger` explains citations
such as "(rule 21)".
"""
