"""The quorum log over bookies: a ledger is an append-only sequence of blocks with one writer.

A block is confirmed when the ack quorum has it on disk and everything before it is confirmed; what is confirmed is
never lost while fewer bookies than the ack quorum are; a new owner fences the old one out and finds the one end that
both can agree on. The rules are BookKeeper's, with the repairs that its users and its formal model found necessary;
each core cites the rule it keeps by name.

Read in this order: `states` (what a ledger's record may become), `writer_core` and `recovery_core` (the two state
machines, without I/O), `placement`, `outbox` (one request per bookie and turn), `labels` (whose blocks they are, told
to the bookies), `owned_node`, `writer`, `idle`, `narrow`, `parts`, `recovery`, `answers`, `patience`, `replicas`,
`holes`, `reader` (their shells), `loss` (what is lost for good, and given up), `deletion`, `flushed`, `settings` and
`ledgers` (the door through which other rooms come in), `state_log` and `state_segment` (small state kept in ledgers),
`directory` and `bookie_client` (who is there, and how to reach them), `repair_core`, `worklist`, `orphans`,
`repair_copy`, `retiring`, `repair_progress`, `replicator`, `auditor` and `repair` (closed ledgers that lost copies get
new ones), `leaving` and `reported` (open ones whose bookies leave, or have damage), `bookies` and `losses` (what
operators ask and want).
"""
