"""Topics: one loaded partition each.

Read `topic` for the parts, then a message's way: `publish`, `writing`, `segments`, `tail_cache`, `reading`; then
`producers`, `dedup`, `retention`, `schemas`, `stats`. `services` is what all topics of a broker share.

What policies do: `upkeep` (when), `quota`, `retention`, and `explain` (in words); `compacting` (the last of each key),
`compaction` (the run) and `compacted` (its result, and the topic as its readers see it).
"""
