"""Policies of tenants, namespaces and topics, and the permissions in them.

`namespaces` contains the records of tenants and namespaces, `service` the policies of topics, `resolved` the effective
policies of a topic, and `applied` those of a loaded topic. `strategy` contains the strategies of schema compatibility,
`rate_limiter` the rates and the queues of callers that exceed them, `subscribe_rate` the rate of subscribe requests.
`guard` authenticates and authorizes.
"""
