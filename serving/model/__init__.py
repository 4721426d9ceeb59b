"""Interfaces and values shared by topics, subscriptions and sessions.

Topics and subscriptions do not import each other.

Read in this order:

    ports             the interfaces
    positions         arithmetic on positions
    request           a parsed SUBSCRIBE
    topics_pattern    a client's regular expression over topic names
    rates             counters and rates
    statistics        statistics of topics, subscriptions, consumers and producers, as JSON
    internal_info     Pulsar's description of a topic's record, as JSON
    tracing           OpenTelemetry spans of messages
"""
