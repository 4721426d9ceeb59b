"""Subscriptions: who has had which messages of a topic, and who gets the next.

The cores first: `cursor/` (what is acknowledged), `delayed/` (what is due when), `delivery/` (from a block to
frames), `dispatch/` (who gets what), and `limits` (how many there may be). Then the shells, which read the topic,
wait or join the parts: `block_source` in `delivery/`, `delayed_delivery` in `delayed/`, `dispatch_rate_limiter`,
`seek`, `acknowledging`, `pump` (the dispatch loop), `subscription` (attach, seek, end), `subscriptions` (all of a
topic, by name), `non_persistent` (these, for topics that keep nothing). For operators: `counting` (backlogs in
messages), `byte_index` and `lag` (in bytes and time), `stats`, `peek`.
"""
