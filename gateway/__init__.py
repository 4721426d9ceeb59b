"""Gateway: a stateless proxy with one public address, for clients that cannot reach brokers by name.

Start with `brokers` (the registered brokers), `frames` and `relay` (forwarding of bytes), `lookups` (a client's
lookups), `login` (authentication), `connection` (a client's connection), `http` (the REST interface), and `gateway`
(joins them).
"""
