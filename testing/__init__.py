"""Fakes of Quire's external dependencies, for its own tests and for tests of programs that use it.

A fake keeps the contract of the real implementation: the same contract tests (`tests/contracts`) run on both. Fakes run
in one process, on the event loop, and a test can inject faults.

    disk               a disk that tears writes, and loses and flips bytes, and its power supply
    index              a bookie's index
    node               a bookie's machine, whose disks and index crash together
    metadata           a metadata store
    objects            an object store
    place              a place whose stores are trusted without a cluster's marker
    bookie             bookies that keep blocks in memory
    network            the network between a writer and its bookies, with delays and losses
    cluster            bookies, a metadata store, and `Ledgers` over both
    zookeeper_server   a real ZooKeeper from PySpark's jars, for `quire local` and for tests

A ledger over three bookies, of which one is slow and one dies:

    cluster = MemoryCluster(bookies=3)
    writer = await cluster.ledgers().create("test", listener)
"""
