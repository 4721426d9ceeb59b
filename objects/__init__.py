"""Object stores: names and immutable bytes, in S3, in a directory, and in memory for tests (`testing/objects`).

Whoever keeps bytes as objects stands on this room; it knows nothing of what they mean. A name is written once, by a
conditional upload of which at most one succeeds, and that is all the agreement that the rooms above ask of a store.

Read in this order: `store`, which is the interface and its promises; `filesystem` and `s3`, the stores; `open`, which
makes one from a URL; `fetched`, what was read, kept for the next who wants it.
"""
