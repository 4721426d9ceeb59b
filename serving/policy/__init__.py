"""What tenants and namespaces prescribe: who may have topics, and how these are kept.

`namespaces` (the records), `book` (those of topics), `resolved` (what holds for one topic); `strategy` (of schemas);
`rate_limit` (token buckets) and `throttle` (where those wait for whom a rate is spent).
"""
