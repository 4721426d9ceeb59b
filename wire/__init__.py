"""Every byte that crosses a process or reaches a disk. Pure functions and cores: no I/O.

Read in this order:

    frame_buffer   the read buffer of a connection
    frame          bytes from a socket into runs of SENDs and commands
    commands       commands parsed; replies and requests built
    packed_ids     the ids of a command that has very many, parsed some at a time
    entry_frames   what goes out for every entry: receipts, and the headers of messages
    message        an entry from the inside: metadata, batches (compression, hashing, checksum, varint help)
    sticky_key     the key of an entry that key-shared subscriptions go by
    deliver_at     when delayed entries are due
    chunks         which entries are pieces of one message
    block          the unit of everything behind the socket
    block_runs     blocks one after the other, as logs and objects keep them
    ledger_ids     ids of ledgers, and of their labels
    bookie         the requests between brokers and bookies, and the port they travel through
    bookie_codec   their bytes
    topic_name     short names of topics made whole
    error_codes    our errors in the protocol's words

pulsar_pb2 is generated from pulsar.proto (`make proto`).
"""
