"""Mutations: deliberate mistakes in production code, as patches that a test applies. Histories must detect all of them.

    @mutation("10", "ledger")
    def fences_are_not_journalled() -> Iterator[None]:
        \"\"\"Confirm a fence that is only in memory.\"\"\"
        with patch.object(Storage, "_fence", ...):
            yield

The first argument is the violated rule: its number among the protocol's rules (W: among the rules of write-ahead logs),
or a keyword. The second argument is the kind of history that must detect the mutation. Each module has the mutations of
one package or layer: `bookie`, `ledger`, `cluster`, `topics`, `wal`. If several mechanisms prevent a mistake, the patch
disables all of them, and its docstring says so.

`python -m tests.simulation.mutations` measures how many seeds each mutation takes. `plans` has a small plan for each.
"""

from __future__ import annotations

from . import bookie, cluster, ledger, topics, wal
from .registry import MUTATIONS, Mutation

__all__ = ["MUTATIONS", "Mutation", "bookie", "cluster", "ledger", "topics", "wal"]
