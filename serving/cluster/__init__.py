"""Which broker serves which topic, and what concerns all topics of a broker, or several brokers.

Topics hash into bundles; a bundle is owned by one broker. Ownership makes things fast and orderly; it does not make
them safe. Two brokers that both believe to own a topic are told apart by the ledger's fence and by the version of
the topic's record. Read in this order:

    port         what a broker asks: `Ownership`; and `SoleOwner`, for a process that owns everything
    table        the bundles of this broker and their states, a core
    owners       which broker each bundle's node names
    reports      what brokers tell of their loads
    probe        is a broker dead? so that nobody is sent there
    registration this broker in the list of brokers, and its session
    selection    which broker a client is sent to
    handovers    bundles on their way to other brokers
    balance      which bundles a broker gives away, a core
    shedding     how it does so
    ownership    `ClusterOwnership`: lookups, and bundles that are taken
    splits       a bundle becomes two

Then the topics of this broker: `topic_records` (their records), `catalogue` (which there are), `topics_limit` (and how
many a namespace may have), `bundles` (what
those of one bundle share), `bundle_totals` (what they did), `topic_ownership` (whose they are), `topic_loader`
(loads one), `registry` (all that are loaded), `policy_updates` (they get other policies), `local_bundles` (what
ownership asks of them). What is done with them: `offloading` and `offload_target` (their segments go to the archive),
`idle_topics` (who is unloaded), `rounds` (all that is done every few seconds), `ownerless` (closes ledgers that nobody
else would), `topic_lists` (tells clients of new ones).

Then what clients ask, `client_topics`, and what operators ask. `fan_out` asks each partition of a topic, and each of
the other brokers, by `peers`; `addresses` is where this one is reached. `partitioned` lets a topic with partitions
grow, `deletion` deletes topics. `topic_metrics` has the numbers of all that is loaded. `admin` lists the rest:
`topic_admin`, `topic_table`, `peeking`, `statistics`, `subscription_admin`, `policy_admin`, `archive_admin`.
"""
