"""Subscriptions: acknowledgements, and the dispatch of messages to consumers.

Read the cores first:

    cursor/                  acknowledgements
    delayed/                 delayed delivery
    delivery/                MESSAGE frames from blocks
    dispatch/                choice of the consumer of each entry
    limits                   limits on subscriptions and consumers

Then the shells, which read the topic and wait, including those in `delivery/` and `delayed/`:

    dispatch_rate_limiter    dispatch rates
    skipping                 entries that an operator skips
    acknowledging            acknowledgements of clients
    pump                     the dispatch loop
    subscription             attach, seek, end
    subscriptions            all subscriptions of a topic, by name
    non_persistent           subscriptions of non-persistent topics

For operators:

    counting                 backlogs in messages
    byte_index, lag          backlogs in bytes and time
    stats                    Pulsar's statistics
    analysis                 contents of a backlog
    peek                     reads without acknowledgement
"""
