"""Which broker serves which part of a namespace.

Topics hash into bundles; a bundle is owned by one broker. Read in this order:

    port      what a broker asks: `Ownership`; and `SoleOwner`, for a process that owns everything
    table     the bundles of this broker and their states, a core
    owners    which broker each bundle's node names
    reports   what brokers tell of their loads
    probe     is a broker dead? so that nobody is sent there
    cluster   `ClusterOwnership`: leases, lookups, sessions in doubt, handover
    balance   which bundles a broker gives away, a core

Ownership makes things fast and orderly; it does not make them safe. Two brokers that both believe to own a topic are
told apart by the ledger's fence and by the version of the topic's record.
"""
