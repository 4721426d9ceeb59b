"""Checks that the metadata store and the object store belong to one cluster, before a process changes either of them.

Read in this order: `marker` (the object that names a store's cluster), `stores` (the checks), `copies` (names of
metadata copies), `guard` (evidence for destructive commands), `place` (the two stores of a process), `id_ranges`
(claims of ledger id ranges).
"""
