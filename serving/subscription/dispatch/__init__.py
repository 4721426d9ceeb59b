"""Who gets the next message: one dispatcher for each kind of subscription. All of it cores.

`window` (what was dealt counts in messages), `dispatcher` (what all kinds share), then the kinds: `exclusive`,
`failover`; `holding` (who holds what), `shared`; `slots`, `key_owners`, `key_shared`; `kinds` (which deals for which),
`blocked` (why a consumer gets nothing).
"""
