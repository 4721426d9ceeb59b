"""Compacted topics: the last message of each key.

`compacting` decides which messages are retained, `compaction` runs a compaction, and `compacted` reads its result and
presents the topic to readers of compacted data.
"""
