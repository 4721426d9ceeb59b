"""One storage node: it keeps blocks on disk before it says so, and gives them back.

Read in this order: `settings`, `identity` (who am I), `journal_core`, `segment_pool`, `journal` and `journal_replay`
(durable first), `ledgers` and `memtable` (what is known and not yet flushed), `intake` (a block's way in),
`entry_record`, `entry_log`, `index`, `index_lmdb`, `index_home` (where blocks stay), `checkpoint` and `flusher` (from
one to the other), `index_opening` and `replay` (after a crash), `read_cache`, `reads` (the way out), `mending` (of what
rotted), `collector` (deleting), `room` (what a full disk still takes), `requests` (how each is answered), `storage`
(joins them), `scrub` (reads everything once a week). Around it stand `disks`, `server` (TCP), `membership` (may it
start here), `registration` (in the metadata store), `drain` (leaving for good).
"""
