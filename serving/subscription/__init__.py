"""Subscriptions: who has had which messages of a topic, and who gets the next.

Read in this order: `positions` (the arithmetic) and `entry_set` (bitmaps by ledger); `redelivery` (counts in bit
slices), `partial_acks` (batches in part), `survey` (what was found behind mark-delete) and `cursor` (what is
acknowledged), `cursor_record` and `survey_record` (their bytes), `cursor_store` (all cursors of a bundle in its
state log); `window` (what was dealt counts in messages) and `dispatcher` (what all kinds share), then the kinds:
`exclusive`, `failover`; `delays` (what is due when), `holding` (who holds what), `later` (their shell), `shared`;
`slots`, `key_owners`, `key_shared`; `kinds` (which deals for which); `delivery` (frames out of a block), `stretch`
(small blocks as one); `consumer` and `request` (what a session calls and asks), `acknowledging`, `alarm`, `pace`
(rates of dispatch), `block_source` and `seek` (reading the topic), `counting` (backlogs in messages), `byte_index`
and `lag` (in bytes and time), `meter` (rates), `blocked` and `stats`, `peek` (for operators), `subscription` (the
shell that joins these), `subscriptions` (all of a topic, by name), `non_persistent` (both, for topics that keep
nothing).

Shells, which read the topic, wait or join the parts, are `alarm`, `block_source`, `counting`, `cursor_store`, `lag`,
`later`, `non_persistent`, `pace`, `peek`, `seek`, `stats`, `subscription` and `subscriptions`; all others are cores.
"""
