"""Who gets the next message: one dispatcher for each kind of subscription. All of it cores.

What they are made of: `window` and `read_position` (what was read and what is acknowledged of it, in messages), `runs`
(entries that are dispatched alike), `replay_queue` (what waits to be dispatched) and `pending_acks` (who holds what).
Then `dispatcher` (what all kinds are), `single_active` (exclusive and failover), `multi_consumer` (what the others
share), `shared_queue` and `shared`, `slots`, `key_owners`, `key_queue` and `key_shared`; `kinds` (which is for which),
`blocked` (why a consumer gets nothing).
"""
