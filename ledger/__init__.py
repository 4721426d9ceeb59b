"""Quorum log over bookies: a ledger is an append-only sequence of blocks with one writer.

A block is confirmed when the ack quorum has it on disk and everything before it is confirmed. Confirmed blocks survive
while fewer bookies than the ack quorum are lost. A new owner fences the former one, finds the ledger's last confirmed
entry, and closes the ledger after it.

The rules are those of the [BookKeeper protocol](https://bookkeeper.apache.org/docs/development/protocol), with the
corrections that its users and its formal model found necessary. Quire numbers these rules from 1 to 26. A docstring
that cites a number, such as "(rule 12)", states the rule beside it.

Read in this order:

- `states` (transitions of a ledger's record), `writer_core` and `recovery_core` (the two state machines, without I/O);
- `placement`, `outbox` (one request per bookie and turn of the event loop), `labels` (copies of a ledger's record on
  its bookies), `ids` (allocation of ledger ids) and `lives` (detection of outdated records and reused ids);
- the shells: `owned_node`, `writer`, `idle`, `narrow`, `parts`, `recovery`, `answers`, `rtt`, `replicas`, `holes`,
  `reader`;
- `loss` (permanently lost entries, which an operator may give up), `deletion`, `flushed`, `settings`, and `ledgers`,
  the package's interface;
- `state_log` and `state_segment` (small state kept in ledgers), `directory` and `bookie_client` (running bookies, and
  connections to them), `reach` (probe of the network to the bookies);
- `repair_core`, `worklist`, `orphans`, `repair_copy`, `retiring`, `repair_progress`, `replicator`, `auditor` and
  `repair` (re-replication of closed ledgers that lost copies), `rolling` and `reported` (open ledgers whose bookies
  drain or report damage);
- `bookies` and `losses` (operators' commands for bookies and for lost entries).
"""
