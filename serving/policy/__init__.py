"""What tenants and namespaces prescribe: who may have topics, and how these are kept.

`namespaces` (the records), `service` (those of topics), `resolved` (what holds for one topic), `applied` (now, for one
that is loaded); `strategy` (of schemas); `rate_limiter` (how much may pass, and where those wait for whom it is
spent). `guard` asks who somebody is, and whether he may.
"""
