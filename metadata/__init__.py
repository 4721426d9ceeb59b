"""What Quire knows about itself: topics, segments, ledgers, bookies, leases, in one small consistent store.

`store` is the interface, with the semantics of ZooKeeper's nodes; `memory` and `sqlite` implement it, and one
contract test holds for all. `paths` and `records` are the one page that says what is kept where.

Read in this order: `store`, `paths`, `records`, `memory`, `sqlite`, `lease`.
"""
