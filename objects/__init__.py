"""Stores of immutable objects by name: in S3, in a directory, and in memory for tests (`testing/objects`).

All packages that store objects use this one, which does not interpret the objects' bytes. An object is created by a
conditional upload: of several uploads of one name, at most one succeeds. Other packages need no other coordination by
a store.

Read in this order: `store` (the interface and its guarantees); `filesystem` and `s3` (the stores); `open` (a store from
its URL); `fetched` (a cache of reads).
"""
