"""Topics: one loaded partition each.

Read `topic`, then its `log`, for the parts; then a message's way: `publish`, its `runs` and `turn`,
`tenant_shares` (of the byte budget), `writing`, `segments`, `meta_store` (their changes), `tail_cache`, `reading`,
`finding`; then `producers` (who may publish) and `entrance` (its shell), `dedup` and `deduplication` (its shell).
`null_log` is the log of a topic that keeps nothing, `services` what all topics of a broker share.

`lifecycle/` is what becomes of what was written, and of a topic that nobody uses; `compaction/` keeps the last of each
key.
"""
