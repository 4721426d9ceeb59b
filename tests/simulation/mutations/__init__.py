"""Mistakes put into production code on purpose, by patches that a test applies: the histories must find each of them.

    @mutation("10", "ledger")
    def fences_are_not_journalled() -> Iterator[None]:
        \"\"\"A fence is answered from memory.\"\"\"
        with patch.object(Storage, "_fence", ...):
            yield

The first argument names the rule that is broken, by its number among the protocol's rules (W: among the laws of write-
ahead logs) or in a few words; the second says which kind of history is to find it. One file per room that is broken:
`bookie`, `ledger`, `cluster`, `topics`, `wal`. Where the design makes a mistake impossible in more than one way, the
patch takes all of those away, and says so.

`python -m tests.simulation.mutations` finds out how many seeds each takes. `plans` has one small plan for each.
"""

from __future__ import annotations

from . import bookie, cluster, ledger, topics, wal
from .registry import MUTATIONS, Mutation

__all__ = ["MUTATIONS", "Mutation", "bookie", "cluster", "ledger", "topics", "wal"]
