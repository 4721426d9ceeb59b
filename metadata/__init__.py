"""Metadata of Quire (topics, segments, ledgers, bookies, leases) in one small consistent store.

`store` is the interface, with the semantics of ZooKeeper's nodes. `zookeeper` is the implementation for clusters;
`sqlite` and the fake in `testing` implement it over one core, `tree`. All pass the same contract test. `paths`,
`records` and `schema_records` list all records and their paths. `topics` changes a topic's list of segments;
`segment_states` and `bookie_states` are the state machines of those records. `lease` implements ownership; `cluster`
identifies the cluster of a store, `retirement` the bookies that left it permanently. `followed` keeps a folder of
records in memory; `notify` wakes the watchers of a node; `underreplicated` is the queue of ledgers to repair.

Read in this order: `store`, `paths`, `records`, `unknown_fields` (of newer versions), `topics`, `segment_states`,
`bookie_states`, `lease`, `followed`, `notify`, `underreplicated`, `tree`, `watches`, `sqlite`, `open`; then
`zookeeper_url`, `zookeeper_session`, `zookeeper_wake`, `zookeeper_client`, `zookeeper_connection`, `zookeeper`,
`zookeeper_servers` (status of each server).
"""
