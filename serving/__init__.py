"""One broker: sessions with clients, topics, subscriptions, and what operators ask.

Read `ports` first: what the three know of each other. Then follow a message: `session/connection`,
`session/produce`, `topic/topic`, `topic/publish`; then the way out: `subscription/`. `broker` joins them, `registry`
finds topics, `operations` and `admin/` are for operators, `policy/` is what namespaces prescribe.
"""
