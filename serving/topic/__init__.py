"""Topics: one loaded partition each.

Read `topic` for the parts, then a message's way: `publish`, `writing`, `segments`, `tail_cache`, `reading`,
`finding`; then `producers` (who may publish) and `entrance` (its shell), `dedup` and `deduplication` (its shell).
`governed` is what any topic has of policies and counters, `services` what all topics of a broker share.
`non_persistent` is a topic that keeps nothing.

`lifecycle/` is what becomes of what was written, and of a topic that nobody uses; `compaction/` keeps the last of each
key.
"""
