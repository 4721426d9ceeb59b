"""Wire and storage formats: all bytes that leave a process or reach a disk. Pure functions and cores, no I/O.

Read in this order:

    frame_buffer   the read buffer of a connection
    frame          cuts a socket's bytes into runs of SENDs and commands
    commands       parses commands; builds replies and requests
    text           strings that are not UTF-8, in commands and in entries
    packed_ids     ids of a command that has very many, parsed in portions
    entry_frames   frames per entry: receipts, and the headers of messages
    message        content of an entry: metadata, batches (uses compression, hashing, checksum, varint)
    sticky_key     key of an entry for key-shared subscriptions
    deliver_at     delivery times of delayed entries
    publish_time   publish times of a block's messages, by the clients' clocks
    chunks         entries that are chunks of one message
    block          unit of replication and storage
    block_runs     contiguous blocks, as in logs and objects
    ledger_ids     ids of ledgers, and of their labels
    bookie         requests between brokers and bookies, and the port that carries them
    bookie_codec   byte format of these requests
    avro           definitions of Avro schemas
    key_value      keys and values in one payload or schema
    topic_name     full names from short names of topics
    error_codes    Pulsar's codes for Quire's errors

pulsar_pb2 is generated from pulsar.proto (`make proto`).
"""
