"""Ownership of bundles: the broker that serves each topic, and how bundles move between brokers.

Topics hash into bundles; a bundle is owned by one broker. Ownership is an optimization, on which safety does not
depend: if two brokers believe that they own a topic, the ledger's fence and the version of the topic's record decide
between them. Read in this order:

    port               the `Ownership` of a broker, and `SoleOwner` for a process that owns everything; `Addresses`
    peers              requests to other brokers over REST
    table              the bundles of this broker and their states (no I/O)
    owners             the owner of each bundle, as the metadata store names it
    registration       this broker's node in the list of brokers, and its metadata session
    reports            the loads of all brokers
    selection          choice of the broker to which a client is sent
    handovers          hand-overs of bundles to other brokers
    balance            decides which bundles a broker hands over or splits (no I/O)
    shedding           the loop that applies `balance`
    cluster_ownership  `ClusterOwnership`: lookups, and bundles that are acquired and released
"""
