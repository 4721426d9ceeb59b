"""Topics: one loaded partition each.

Read `topic` for the parts, then a message's way: `publish`, `writing`, `segments`, `tail_cache`, `reading`,
`finding`; then `producers` (who may publish) and `entrance` (its shell), `dedup` and `deduplication` (its shell),
`stats`. `governed` is what any topic has of policies and counters, `services` what all topics of a broker share.
`non_persistent` is a topic that keeps nothing.

What policies do: `gate` (before a message is taken), `upkeep` (when all else is looked at), `quota`, `retention`,
`rest` (unloading what nobody uses), and `explain` (in words); `compacting` (the last of each key), `compaction` (the
run) and `compacted` (its result, and the topic as its readers see it).
"""
