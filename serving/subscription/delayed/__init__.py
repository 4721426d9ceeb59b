"""Delayed delivery: messages with a delivery time.

Read in this order:

delays                     delivery times of entries
delayed_snapshot           information about entries after mark-delete
delayed_snapshot_record    byte format of a snapshot
delayed_entries            delayed entries of a dispatcher, and snapshots of them
delayed_delivery           a shell: sets the timer, and decides when to write a snapshot
"""
