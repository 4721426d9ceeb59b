"""One storage node: it keeps blocks on disk before it says so, and gives them back.

Read in this order: `settings`, `identity` (who am I), `journal_core`, `segment_pool`, `journal` and `journal_replay`
(durable first), `ledgers`, `memtable` and `write_cache` (what is known and not yet flushed), `entry_record`,
`entry_log`, `entry_log_scanner`, `index`, `index_lmdb`, `index_home` and `ledger_storage` (where blocks stay),
`collector` (deleting), `room` and `health` (what it still takes), `checkpoint` and `flusher` (from the cache to the
storage), `recovery` (at a start), `read_cache`, `reads` (the way out), `block_restore` (of what rotted),
`neighbours` (what the next two ask of the others), `intake` (a block's way in), `requests` (how each is answered),
`storage` (joins them), `scrub` (reads everything once a week).
Around it stand `disks`, `server` (TCP), `membership` (may it start here), `registration` (in the metadata store),
`drain` (leaving for good).
"""
