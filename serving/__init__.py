"""One broker: sessions with clients, topics, subscriptions, and what operators ask.

`broker` is the list of parts, `settings` what an operator may set, `names` parses topics' names. The folders, from the
ground up; each imports only those above it, as `tests/test_architecture.py` has it:

    policy         what namespaces and topics prescribe, and the buckets of rates
    schema         what messages look like
    model          what topics, subscriptions and sessions know of each other
    topic          one loaded partition: publishing, segments, reading, retention, compaction
    subscription   who has had which messages of a topic, and who gets the next
    cluster        which broker serves which topic, and what concerns all topics of a broker, or several brokers
    session        a client's connection
    console        the page for people, which is a client of REST
    admin          REST

A message comes by `session/connection`, `session/produce`, `topic/topic`, `topic/publish`; it goes out by
`subscription/subscription`.
"""
