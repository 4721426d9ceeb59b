"""One broker: sessions with clients, topics, subscriptions, and what operators ask. And the gateway before brokers.

Read `ports` first: what the three know of each other. Then follow a message: `session/connection`, `session/produce`,
`topic/topic`, `topic/publish`; then the way out: `subscription/`. `names` parses topics' names, `ownership/` says which
broker serves them, `bundles` holds what the topics of one bundle share, `bundle_totals` what they took in,
`topic_records` their records. `catalogue` knows which topics there are, `topic_factory` makes them, `registry` loads
them and lets go of them, `rounds` looks after them, `topic_lists` and `topics_pattern` tell clients of new ones,
`offloading` brings their segments to the archive, `ownerless` closes ledgers that nobody else would, `policy/` is what
namespaces and topics prescribe, `schema/` what messages look like. `broker` joins all this by its `settings`.
`operations`, `subscription_operations`, `statistics` and `admin/` are for operators; `partitioned` lets a topic with
partitions grow and go as one thing, `fan_out` asks each of them, `peers` other brokers. `gateway/` stands apart.
"""
