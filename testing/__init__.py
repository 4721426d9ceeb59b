"""Fakes of everything that Quire reaches the world by, for its own tests and for those of programs that use it.

A fake keeps the promises of the real thing: the same contract tests (`tests/contracts`) run on both. All of them
live in one process, on the event loop's time, and fail when they are told to.

    disk               a disk that tears, loses and flips bytes, and a power switch
    index              a bookie's index
    node               a bookie's machine: its disks and its index crash together
    metadata           a metadata store
    objects            an object store
    bookie             bookies that keep blocks in memory
    network            what lies between a writer and its bookies: delays, losses, duplicates
    cluster            bookies, metadata store and `Ledgers`, joined
    zookeeper_server   a real ZooKeeper from PySpark's jars, for `quire local` and for tests

A ledger over three bookies, of which one is slow and one dies:

    cluster = MemoryCluster(bookies=3)
    writer = await cluster.ledgers().create("test", listener)
"""
