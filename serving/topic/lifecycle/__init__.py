"""Life cycle of a loaded topic: its states, the deletion of unneeded segments, and the unloading of idle topics.

`states` contains the state machine. `quota` and `retention` decide without I/O, and `trimming` deletes segments. In the
broker's periodic rounds, `upkeep` enforces a topic's policies, and `idle` unloads it.
`explain` lists the reasons why a segment is kept.
"""
