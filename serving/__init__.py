"""Broker: sessions with clients, topics, subscriptions, and requests of operators.

`broker` creates the parts, `settings` contains the operator's settings, `names` parses topic names. The list shows the
folders from the lowest layer up. A folder imports only folders listed above it (`tests/test_architecture.py`):

    policy         policies of namespaces and topics, permissions, and rate limiters
    schema         schemas of messages
    model          interfaces between topics, subscriptions and sessions
    topic          loaded topics: publishing, segments, reading, retention, compaction
    subscription   cursors, and the dispatch of messages to consumers
    ownership      the assignment of topics to brokers
    registry       the topics that one broker has loaded
    operations     requests of clients and operators that concern all partitions of a topic, or all brokers
    session        connections of clients
    console        web console, a client of the REST interface
    admin          REST interface

A published message passes through `session/session`, `session/producer_end` and `topic/publish`, a dispatched one
through `subscription/pump` and `session/consumer_end`. `docs/anatomy.md` describes both paths step by step.
"""
