"""What Quire knows about itself: topics, segments, ledgers, bookies, leases, in one small consistent store.

`store` is the interface, with the semantics of ZooKeeper's nodes; `zookeeper` is the real thing, `sqlite` and the
fake in `testing` implement it over one core, `tree`, and one contract test holds for all. `paths` and `records` are
the one page that says what is kept where; `topics` changes a topic's list of segments; `segment_states` and
`bookie_states` say what those records may become; `lease` is ownership; `cluster` says which cluster a store holds;
`followed` keeps a folder of records in memory; `notify` tells who watches a node that there is news,
`underreplicated` is the queue of ledgers to repair.

Read in this order: `store`, `paths`, `records`, `topics`, `segment_states`, `bookie_states`, `lease`, `followed`,
`notify`, `underreplicated`, `tree`, `watches`, `sqlite`, `open`; then `zookeeper_url`, `zookeeper_session`,
`zookeeper_wake`, `zookeeper_client`, `zookeeper`, `zookeeper_servers` (each asked how it is).
"""
