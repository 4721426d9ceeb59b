"""The life of a loaded topic, what becomes of what was written, and of a topic that nobody uses.

`states` is a loaded topic's life as a table. `quota` and `retention` decide, `trimming` drops what may go, `upkeep`
looks when anything else is due, `idle` unloads what nobody uses, `explain` says it in words.
"""
