"""Compacted topics: the last message of each key.

`compacting` decides what stays, `compaction` is the run, `compacted` its result, and the topic as its readers see it.
"""
