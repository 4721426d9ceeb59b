"""Every limit of Quire, with its reason; the relations between them are asserted at import.

A limit that an operator may want to change is a setting whose default stands here. A full queue is
back-pressure, never a drop.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# -- the Pulsar protocol -------------------------------------------------------------------------------
MESSAGE_BYTES_MAX: Final = 5 * MIB
"""`max_message_size` told to clients in CONNECTED: Pulsar's own default; clients chunk what is larger."""

MESSAGE_BYTES_MIN: Final = 4 * KIB
"""An operator may allow less than `MESSAGE_BYTES_MAX`, but the metadata of a message needs room as well."""

FRAME_SLACK_BYTES: Final = 10 * KIB
"""What a frame may hold beside the payload: command and metadata (Pulsar allows the same)."""

FRAME_BYTES_MAX: Final = MESSAGE_BYTES_MAX + FRAME_SLACK_BYTES
COMMAND_BYTES_MAX: Final = 1 * MIB
"""A command without payload: the largest legal one is an ACK or a REDELIVER with many ids."""

CONNECTIONS_MAX: Final = 20_000
REQUESTS_PENDING_PER_CONNECTION_MAX: Final = 1_000
"""Requests of a connection that are being worked on, a few KB each; beyond it the connection is not read."""

HANDSHAKE_BYTES_MAX: Final = 64 * KIB
"""A frame of a connection that has not said CONNECT yet."""

LOGGING_IN_MAX: Final = 2_000
"""Connections of a process that have not said who they are; with one more the oldest is closed."""

HANDSHAKE_S: Final = 10.0
"""How long a connection may take to say CONNECT."""

HTTP_CONNECTIONS_MAX: Final = 1_000
"""Of a process, to its REST interface; with one more the oldest that has asked nothing is closed."""

HTTP_SILENT_S: Final = 30.0
"""An HTTP connection that asks nothing for so long is closed, also one that never has."""

READ_ROOM_BYTES: Final = 64 * KIB
"""What a connection may read into without asking: commands, and the batches of most clients."""

FRAME_ROOM_BYTES_MAX: Final = 64 * MIB
"""What is read beyond that, over all connections of a process; for who gets none the socket is not read."""

# -- the block -----------------------------------------------------------------------------------------
BLOCK_BYTES_MAX: Final = 256 * KIB
"""A block is cut at this size; one larger entry is a block of its own."""

BLOCK_ENTRIES_MAX: Final = 1_000
BLOCK_BYTES_HARD_MAX: Final = BLOCK_BYTES_MAX + FRAME_BYTES_MAX
"""No valid block is larger: what was gathered, or one largest entry."""

# -- the bookie protocol -------------------------------------------------------------------------------
ADD_REQUEST_BYTES_MAX: Final = 8 * MIB
"""Blocks that travel in one request to one bookie, and the largest journal group."""

READ_BYTES_MAX: Final = 4 * MIB
"""One range read answers at most this much (or one whole larger block)."""

LEDGERS_LISTED_MAX: Final = 100_000
"""One answer tells of at most so many ledgers: at 16 bytes each far less than a frame may have."""

BOOKIE_FRAME_BYTES_MAX: Final = ADD_REQUEST_BYTES_MAX + BLOCK_BYTES_HARD_MAX + 64 * KIB

# -- the broker's write path ---------------------------------------------------------------------------
BLOCKS_IN_FLIGHT_PER_LEDGER_MAX: Final = 16
"""Unconfirmed blocks of one ledger; what arrives meanwhile makes the next block larger."""

MORE_FULL_BLOCKS_ON_OBJECTS_MAX: Final = 256
"""So many full ones more may be on their way to object storage, which takes a third of a second: 64 MiB."""

LAG_BYTES_MAX: Final = 64 * MIB
"""Confirmed blocks that a process keeps for bookies behind their quorum; beyond it those bookies are left."""

BYTES_IN_FLIGHT_MAX: Final = 128 * MIB
"""Bytes accepted from sockets and not yet in the entry log, per process; beyond it sockets are not read."""

ENTRY_OVERHEAD_BYTES: Final = 120
"""What an entry in memory takes beside its bytes, two objects and their places in lists: tiny ones take little else."""

TOPIC_SHARE_OF_BYTES_IN_FLIGHT: Final = 4
"""One topic may have 1/n of them unanswered; then its producers wait, and no topic alone stops all the others."""

TENANT_SHARE_OF_BYTES_IN_FLIGHT: Final = 2
"""One tenant may have 1/n of them unanswered while there are others; more than one of its topics may, so that they do
not stop each other."""

HELD_SHARE_OF_BYTES_IN_FLIGHT: Final = 4
"""What waits in sessions, SENDs and commands, may be 1/n as much, beside it, over all connections."""

HELD_BYTES_PER_CONNECTION_MAX: Final = 256 * KIB
"""What waits in a connection's lanes; beyond it the connection is not read, which stops its other users too."""

UNREAD_ANSWERS_BYTES_MAX: Final = 1 * MIB
"""Answers queued behind a full write buffer; beyond it the peer, which does not read, is not read either."""

# -- the bookie ----------------------------------------------------------------------------------------
MEMTABLE_BYTES: Final = 64 * MIB
"""One memtable; there are two, and both full stops reading from sockets."""

JOURNAL_GROUP_BYTES_MAX: Final = ADD_REQUEST_BYTES_MAX
JOURNAL_SEGMENT_BYTES: Final = 128 * MIB
ENTRY_LOG_BYTES: Final = 1 * GIB
INDEX_RUN_BYTES_MAX: Final = 256 * KIB
INDEX_RUN_ENTRIES_MAX: Final = 1_000

UNREADABLE_PAGES_MAX: Final = 64
"""Pages of one read, or of one file at a start, that are read around; with more it is the disk that is broken."""

ENTRY_LOG_RECORD_BYTES: Final = 2 * MIB
"""One direct write to an entry log; a larger block is a record of its own."""

ENTRY_LOG_STEP_BYTES: Final = 64 * MIB
"""An entry log grows by this much at a time: an empty node must not occupy a gigabyte."""

ENTRY_LOG_RESERVE_BYTES: Final = 4 * ENTRY_LOG_STEP_BYTES
"""Room on the disk that publishing may not use, so that all else goes on when it is full; see `bookie.room`."""

ENTRY_LOG_SPARES_MAX: Final = 4
"""Freed logs kept for reuse; beyond it they are removed."""

COMPACTION_BATCH_BYTES: Final = 16 * MIB
COMPACTION_BYTES_PER_S: Final = 64 * MIB
"""What compaction may copy a second: a tenth of what a modest disk writes, so that nobody notices it."""

INDEX_MAP_BYTES: Final = 64 * GIB
"""Address space for the index, not memory and not disk; it doubles when it does not do."""

READ_CHUNK_BYTES_MIN: Final = 256 * KIB
READ_CHUNK_BYTES_MAX: Final = 1 * MIB
"""One direct read of the entry log: a lone read, and one of a sequential reader."""

# -- caches --------------------------------------------------------------------------------------------
TAIL_CACHE_BYTES: Final = 128 * MIB
"""Confirmed blocks kept for tailing readers, over all topics of the process."""

READ_CACHE_BYTES: Final = 64 * MIB

# -- subscriptions -------------------------------------------------------------------------------------
UNACKED_MESSAGES_MAX: Final = 50_000
"""A consumer of a shared subscription that holds this many gets no more until it acknowledges (Pulsar's own)."""

LOOK_AHEAD_ENTRIES_MAX: Final = 100_000
"""Entries of a Key_Shared subscription, or chunks of a shared one, that may wait for their consumer while others go on:
four bytes each."""

FIRST_CHUNK_BYTES_MIN: Final = MESSAGE_BYTES_MIN // 2
"""A smaller entry begins no message in chunks: producers cut at what a broker takes, and no broker takes so little."""

CHUNKED_MESSAGES_MAX: Final = 1_000
"""Messages in chunks of which one shared subscription knows who holds the beginning; a producer may begin and never end
them. Chunks of those before go to anybody."""

DEAL_BYTES_PER_TURN: Final = 1 * MIB
"""Dealt by one subscription in one turn of the loop; then the others have their turn."""

DEAL_BYTES_PER_BLOCK_MIN: Final = 512
DEAL_BYTES_PER_ENTRY_MIN: Final = 100
"""What small ones count of that, for the time that they take: 15 µs a block, 3 µs an entry."""

READ_CHUNK_BYTES: Final = 1 * MIB
"""What a subscription that is behind reads at once; it holds at most this much more, read ahead."""

READS_MAX: Final = 16
"""Reads under way at once for all subscriptions of a process; more would only wait for the disk in memory."""

READ_HELD_BYTES_MAX: Final = 64 * MIB
"""Blocks read and not dispatched yet, over all subscriptions of a process; beyond it nothing is read ahead."""

# -- object stores -------------------------------------------------------------------------------------
OBJECT_PART_BYTES: Final = 8 * MIB
"""Of an upload in several parts."""

OBJECT_RESERVE_BYTES: Final = ENTRY_LOG_RESERVE_BYTES // 2
"""What a store in a directory leaves of its disk, which may be a bookie's too. Less than a bookie keeps from
publishing, for archiving is how its disk gets room again; the rest is for acknowledgements and deletions."""

OBJECT_RESERVE_SHARE: Final = 16
"""Of a small disk it leaves no more than one part in so many."""

OBJECT_FETCHES_MAX: Final = 16
"""Range reads at once, over all readers of a cache: what they bring is not in its count yet."""

# -- write-ahead logs on object storage -----------------------------------------------------------------
WAL_UPLOADS_MAX: Final = 64
"""Under way at once, of one log. If a hole was durable once, one of so many objects behind it says so."""

WAL_CACHE_BYTES: Final = 64 * MIB
"""Runs that were read from a write-ahead log's objects, over all of them."""

# -- the archive ---------------------------------------------------------------------------------------
ARCHIVE_INDEX_RUN_BYTES: Final = 64 * KIB
ARCHIVE_CACHE_BYTES: Final = 64 * MIB
"""Chunks of archived segments kept for readers, over all of them."""

SIDECAR_PROCESS_BYTES_MAX: Final = GIB
"""Of the process that builds sidecars; reading a segment takes 600 MB at most, whatever is in it, and mostly 250."""

SIDECARS_WAITING_MAX: Final = 1_000
"""Segments that wait for it, some 500 bytes each; more are found again in the next round."""

ARCHIVE_INDEX_CACHE_BYTES: Final = 16 * MIB
"""Indexes of archived segments: 640 KiB per GiB of segment."""

# -- messages ------------------------------------------------------------------------------------------
UNCOMPRESSED_BYTES_MAX: Final = 128 * MIB
"""What a batch may grow to when decompressed; more is refused as undecodable, not allocated."""

CHUNKED_MESSAGE_BYTES_MAX: Final = 512 * MIB
"""A message in chunks that a consumer joins: it is held in memory twice while it is."""

BATCH_MESSAGES_MAX: Final = 1_000_000
METADATA_LOOKED_INTO_BYTES_MAX: Final = MIB
"""Of one entry. To parse half a million empty properties takes 20 ms in one go; a broker takes more for unreadable."""

BATCHED_MESSAGE_BYTES_MIN: Final = 6
"""The size of a message's metadata in a batch, and the one field that it must have: a batch that claims more messages
than that allows is refused before any is read."""

COMPACTION_CREDIT: Final = 100_000
"""Messages in batches that a compaction looks into before their bytes must pay for it, one each: a second of work."""

COMPACTION_UNCOMPRESSED_BYTES_MAX: Final = 32 * MIB
"""Of one batch that is compacted; a larger one is kept as it is. Copies of it are made in one go, 10 ms each."""

NAME_CHARS_MAX: Final = 512
"""A tenant, namespace, topic, subscription, producer or consumer name."""

CHUNK_UUID_CHARS_MAX: Final = 2 * NAME_CHARS_MAX
"""What the chunks of one message have in common; clients make it of the producer's name and a number."""

ENDS_PER_CONNECTION_MAX: Final = 10_000
"""Producers of one connection, and consumers; each with its properties."""

KEY_RANGES_MAX: Final = 1_000
"""Ranges of slots that one consumer of a key-shared subscription asks for."""

PRODUCERS_WAITING_MAX: Final = 1_000
"""Producers that wait for exclusive access to one topic."""

SUBSCRIPTIONS_PER_TOPIC_MAX: Final = 10_000
"""Each is told of every block, and a durable one is kept for ever (Pulsar's maxSubscriptionsPerTopic; none there)."""

PRODUCERS_PER_TOPIC_MAX: Final = CONNECTIONS_MAX
CONSUMERS_PER_SUBSCRIPTION_MAX: Final = 5_000
"""Pulsar's maxProducersPerTopic and maxConsumersPerSubscription, which are none: every one costs memory and turns."""

DEDUPLICATION_PRODUCERS_MAX: Final = 10_000
"""Producers whose last number a topic's snapshot holds, those that sent last (Pulsar's own): with long names 6 MiB."""

TOPICS_PATTERN_CHARS_MAX: Final = 512
"""A regular expression for the names of topics. Clients filter by themselves where theirs is longer."""

TOPICS_PATTERN_MEMORY_BYTES: Final = 256 * KIB
"""What matching it may take. What `a{1000}` means stays below, what `(a{100}){100}` means does not."""

TOPICS_MATCH_S_MAX: Final = 1.0
"""Of one list of names, over all turns of the event loop that it takes."""

TOPIC_WATCHERS_PER_CONNECTION_MAX: Final = 1_000

PROPERTIES_BYTES_MAX: Final = 64 * KIB
SCHEMA_BYTES_MAX: Final = 256 * KIB
"""One version of a schema with its properties: a node of the metadata store holds less than 1 MiB, in base64."""

SCHEMA_VERSIONS_MAX: Final = 1_000
"""Of one topic; their list stays in one node, a few hundred bytes each, and a transitive check reads them all."""

SCHEMAS_INLINE_BYTES_MAX: Final = 64 * KIB
"""Schemas kept in that node; beyond it a version has a node of its own."""

assert HANDSHAKE_BYTES_MAX <= READ_ROOM_BYTES
assert LOGGING_IN_MAX * HANDSHAKE_BYTES_MAX <= BYTES_IN_FLIGHT_MAX
assert 2 * FRAME_BYTES_MAX <= FRAME_ROOM_BYTES_MAX
assert BLOCK_BYTES_MAX <= ADD_REQUEST_BYTES_MAX
assert BLOCK_BYTES_HARD_MAX <= ADD_REQUEST_BYTES_MAX
assert LAG_BYTES_MAX < BYTES_IN_FLIGHT_MAX
assert 1 < TENANT_SHARE_OF_BYTES_IN_FLIGHT < TOPIC_SHARE_OF_BYTES_IN_FLIGHT
assert BLOCK_BYTES_HARD_MAX <= BOOKIE_FRAME_BYTES_MAX
assert 16 * LEDGERS_LISTED_MAX < BOOKIE_FRAME_BYTES_MAX
assert 2 * JOURNAL_GROUP_BYTES_MAX <= MEMTABLE_BYTES
assert 2 * JOURNAL_GROUP_BYTES_MAX <= JOURNAL_SEGMENT_BYTES
assert MEMTABLE_BYTES < ENTRY_LOG_BYTES
assert INDEX_RUN_BYTES_MAX <= READ_BYTES_MAX
assert READ_CHUNK_BYTES <= READ_BYTES_MAX
assert 2 * READS_MAX * READ_CHUNK_BYTES <= READ_HELD_BYTES_MAX
assert ENTRY_LOG_RECORD_BYTES + BLOCK_BYTES_HARD_MAX <= ENTRY_LOG_STEP_BYTES <= ENTRY_LOG_BYTES
assert INDEX_RUN_BYTES_MAX <= READ_CHUNK_BYTES_MIN <= READ_CHUNK_BYTES_MAX
assert COMPACTION_UNCOMPRESSED_BYTES_MAX <= UNCOMPRESSED_BYTES_MAX
assert SCHEMA_VERSIONS_MAX * 300 + 2 * SCHEMAS_INLINE_BYTES_MAX < MIB and 2 * SCHEMA_BYTES_MAX < MIB
