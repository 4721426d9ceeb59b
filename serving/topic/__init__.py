"""Loaded topics. Each one is a partition, or a topic without partitions.

Read `topic` and its `log` first: they list the parts. The other modules, by subject:

| subject | modules |
|---|---|
| publishing | `publish`; `runs` (consecutive SENDs of a producer); `forbidden` (entries that policies reject); `turn`
(end of an event loop iteration); `tenant_shares` |
| storage | `writing`, `segments`, `meta_store` (changes of the list of segments) |
| reading | `tail_cache`, `reading`, `finding`, `time_search` and its `publish_times` |
| producers | `producers` (access modes), `producer_admission` (its shell), `producer_names` |
| duplicates | `dedup`, `deduplication` (its shell) |
| non-persistent topics | `null_log` |
| objects that all topics of a broker share | `services` |

`lifecycle/` contains retention, trimming, quotas and the unloading of idle topics; `compaction/` keeps the last message
of each key.
"""
