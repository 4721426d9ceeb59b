"""The gateway: one public address before brokers that clients cannot reach by name. It keeps nothing.

Read `brokers` (who may be reached), `frames` and `relay` (bytes both ways), `lookups` (questions on behalf of a
client), `login` (who a client is), `connection` (a client's first command decides which), `http`, `gateway` (joins
them).
"""
