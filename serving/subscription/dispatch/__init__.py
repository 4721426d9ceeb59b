"""Dispatchers, which choose the consumer of each entry; each subscription type has its own. All files are cores.

Read the parts first:

    window, read_position           read entries and their message counts
    runs                            entries with equal redelivery count and remaining messages
    replay_queue                    entries waiting for redelivery
    pending_acks                    unacknowledged entries of consumers

Then the dispatchers:

    dispatcher                      the base class
    single_active                   exclusive and failover
    multi_consumer                  base class of the following two
    shared_queue, shared            Shared
    slots, key_owners, key_queue,
    key_shared                      Key_Shared
    kinds                           creates the dispatcher for a subscription type
    blocked                         reasons why messages are not dispatched
"""
