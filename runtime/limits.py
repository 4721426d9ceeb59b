"""Limits of Quire, each with its reason; the relations between them are asserted at import.

A limit that an operator may want to change is a setting whose default is here. A full queue is backpressure, never a
drop.
"""

from typing import Final

KIB: Final = 1024
"""Bytes of a kibibyte."""
MIB: Final = 1024 * KIB
"""Bytes of a mebibyte."""
GIB: Final = 1024 * MIB
"""Bytes of a gibibyte."""

# -- the Pulsar protocol -------------------------------------------------------------------------------
MESSAGE_BYTES_MAX: Final = 5 * MIB
"""`max_message_size` in CONNECTED: Pulsar's default; clients split larger messages into chunks."""

MESSAGE_BYTES_MIN: Final = 4 * KIB
"""Minimum of that setting, because the metadata of a message need space, too."""

FRAME_SLACK_BYTES: Final = 10 * KIB
"""Bytes of a frame besides the payload, for command and metadata (Pulsar allows the same)."""

FRAME_BYTES_MAX: Final = MESSAGE_BYTES_MAX + FRAME_SLACK_BYTES
"""Size of a frame with the largest payload; a larger one is a protocol error, so a process never buffers more."""
COMMAND_BYTES_MAX: Final = 1 * MIB
"""Size of a command without payload: the largest legal ones are ACK and REDELIVER with many ids."""

CONNECTIONS_MAX: Final = 20_000
"""Connections of a process: each costs memory and a file descriptor."""
REQUESTS_PENDING_PER_CONNECTION_MAX: Final = 1_000
"""Requests of a connection in progress, a few KB each; with more, the connection is not read."""

HANDSHAKE_BYTES_MAX: Final = 64 * KIB
"""Size of a frame before CONNECT, because a peer that is not authenticated must not use much memory."""

LOGGING_IN_MAX: Final = 2_000
"""Connections of a process that are not authenticated yet; for one more, the oldest is closed."""

HANDSHAKE_S: Final = 10.0
"""Time until CONNECT, so that silent peers do not hold connections."""

HTTP_CONNECTIONS_MAX: Final = 1_000
"""HTTP connections of a process; for one more, a connection that is not authenticated is closed."""

HTTP_PLACES_KEPT: Final = 100
"""HTTP connections that are reserved for probes and new connections; authenticated ones never occupy them."""

HTTP_ROOM_BYTES_MAX: Final = 96 * MIB
"""Bytes of unread answers and of request bodies, over all HTTP connections of a process, which bounds its memory."""

HTTP_PIECE_BYTES: Final = 64 * KIB
"""Size of the pieces in which an answer is written; smaller answers and bodies are not counted in the budget."""

HTTP_SILENT_S: Final = 30.0
"""Time without a request after which an HTTP connection is closed, so that idle clients do not occupy connections."""

READ_ROOM_BYTES: Final = 64 * KIB
"""Read buffer of each connection without a reservation: enough for commands and the batches of most clients."""

FRAME_ROOM_BYTES_MAX: Final = 64 * MIB
"""Read buffers beyond `READ_ROOM_BYTES`, over all connections; a socket that gets no share of them is not read."""

# -- the block -----------------------------------------------------------------------------------------
BLOCK_BYTES_MAX: Final = 256 * KIB
"""A block is cut at this size, so that a read of one entry stays small; a larger entry is a block of its own."""

BLOCK_ENTRIES_MAX: Final = 1_000
"""A block is cut at this number of entries, so that finding one entry in it stays cheap."""
BLOCK_BYTES_HARD_MAX: Final = BLOCK_BYTES_MAX + FRAME_BYTES_MAX
"""Maximum size of a valid block, which may contain one entry of the largest size."""

# -- the bookie protocol -------------------------------------------------------------------------------
ADD_REQUEST_BYTES_MAX: Final = 8 * MIB
"""Bytes of one request to one bookie, and of the largest journal group: a larger write delays all smaller ones."""

READ_BYTES_MAX: Final = 4 * MIB
"""Bytes of one range read (or one larger block), which bounds the memory of a response."""

LEDGERS_LISTED_MAX: Final = 100_000
"""Ledgers in one list: at 16 bytes each, far fewer bytes than a frame may have."""

BOOKIE_FRAME_BYTES_MAX: Final = ADD_REQUEST_BYTES_MAX + BLOCK_BYTES_HARD_MAX + 64 * KIB
"""Size of a frame between broker and bookie: the largest request, one more block, and its header."""

# -- the broker's write path ---------------------------------------------------------------------------
BLOCKS_IN_FLIGHT_PER_LEDGER_MAX: Final = 16
"""Unconfirmed blocks of one ledger; entries that arrive meanwhile form a larger next block."""

MORE_FULL_BLOCKS_ON_OBJECTS_MAX: Final = 256
"""Unconfirmed full blocks (64 MiB) of a ledger on object storage beyond the usual limit: an upload takes 0.3 s."""

LAG_BYTES_MAX: Final = 64 * MIB
"""Bytes of confirmed blocks that a process holds for slow bookies; with more, it replaces those bookies."""

BYTES_IN_FLIGHT_MAX: Final = 128 * MIB
"""Bytes accepted from sockets and not yet in the entry log, per process; with more, sockets are not read."""

ENTRY_OVERHEAD_BYTES: Final = 120
"""Memory of an entry besides its bytes: two objects and their list slots. A tiny entry mostly consists of it."""

TOPIC_SHARE_OF_BYTES_IN_FLIGHT: Final = 4
"""Divisor n: a topic may have 1/n of `BYTES_IN_FLIGHT_MAX` unconfirmed.

Then its producers wait, so that one topic does not stop all others.
"""

TENANT_SHARE_OF_BYTES_IN_FLIGHT: Final = 2
"""Divisor n: a tenant may have 1/n of `BYTES_IN_FLIGHT_MAX` unconfirmed while other tenants publish.

So one tenant does not stop all others. This is more than one topic's share, so that a tenant's topics do not stop each
other.
"""

HELD_SHARE_OF_BYTES_IN_FLIGHT: Final = 4
"""Divisor n: waiting SENDs and commands may have, in addition, 1/n of `BYTES_IN_FLIGHT_MAX`, which bounds memory."""

HELD_BYTES_PER_CONNECTION_MAX: Final = 256 * KIB
"""Bytes waiting in a connection's lanes; with more, the connection is not read, so all its producers wait."""

UNREAD_ANSWERS_BYTES_MAX: Final = 1 * MIB
"""Bytes of answers queued behind a full write buffer; with more, the peer, which does not read, is not read either."""

# -- the bookie ----------------------------------------------------------------------------------------
MEMTABLE_BYTES: Final = 64 * MIB
"""Size of a memtable, large enough for long runs of a ledger; if both memtables are full, sockets are not read."""

JOURNAL_GROUP_BYTES_MAX: Final = ADD_REQUEST_BYTES_MAX
"""Size of a journal write: the largest request must fit, and a larger write would delay its first blocks."""
JOURNAL_SEGMENT_BYTES: Final = 128 * MIB
"""Size of a journal file: large enough to switch rarely, small enough to read whole in a replay."""
ENTRY_LOG_BYTES: Final = 1 * GIB
"""Size of an entry log: few files for a disk of terabytes, and a compaction that copies a gigabyte at most."""
INDEX_RUN_BYTES_MAX: Final = 256 * KIB
"""Size of a run of blocks with one index row, so that one read of this size finds an entry."""
INDEX_RUN_ENTRIES_MAX: Final = 1_000
"""Entries of a run of blocks with one index row, so that scanning the headers of a run stays cheap."""

UNREADABLE_PAGES_MAX: Final = 64
"""Unreadable pages that are skipped in one read, or in one file at start-up; with more, the disk counts as broken."""

ENTRY_LOG_RECORD_BYTES: Final = 2 * MIB
"""Direct write to an entry log, large enough for a disk's full bandwidth; a larger block is a record of its own."""

ENTRY_LOG_STEP_BYTES: Final = 64 * MIB
"""An entry log grows by this much at a time, because an empty node must not occupy a gigabyte."""

ENTRY_LOG_RESERVE_BYTES: Final = 4 * ENTRY_LOG_STEP_BYTES
"""Disk space that publishing may not use, so that all other work continues on a full disk; see `bookie.room`."""

ENTRY_LOG_SPARES_MAX: Final = 4
"""Freed entry logs that are kept for reuse; further ones are removed, to return their space."""

COMPACTION_BATCH_BYTES: Final = 16 * MIB
"""Bytes of one step of compaction, which bounds the time for which a checkpoint waits for it."""
COMPACTION_BYTES_PER_S: Final = 64 * MIB
"""Rate of compaction: a tenth of a modest disk's bandwidth, so that reads and writes stay fast."""

INDEX_MAP_BYTES: Final = 64 * GIB
"""Address space of the index, which costs neither memory nor disk; it doubles if it is too small."""

READ_CHUNK_BYTES_MIN: Final = 256 * KIB
"""Size of a direct read of the entry log for a reader that is not sequential: a whole run."""
READ_CHUNK_BYTES_MAX: Final = 1 * MIB
"""Size of a direct read for a sequential reader: large enough for a disk's bandwidth."""

# -- caches --------------------------------------------------------------------------------------------
TAIL_CACHE_BYTES: Final = 128 * MIB
"""Confirmed blocks kept for tailing readers, over all topics of the process, so that tails are read from memory."""

READ_CACHE_BYTES: Final = 64 * MIB
"""Chunks of entry logs that a bookie keeps for the next reader."""

# -- subscriptions -------------------------------------------------------------------------------------
UNACKED_MESSAGES_MAX: Final = 50_000
"""A consumer of a shared subscription with this many unacknowledged messages gets no more (Pulsar's default)."""

SUBSCRIPTION_UNACKED_MESSAGES_MAX: Final = 4 * UNACKED_MESSAGES_MAX
"""Unacknowledged messages at which a shared subscription stops until half are acknowledged (Pulsar's default)."""

LOOK_AHEAD_ENTRIES_MAX: Final = 100_000
"""Entries of a Key_Shared subscription, or chunks of a shared one, that wait while others continue: four bytes each."""

FIRST_CHUNK_BYTES_MIN: Final = MESSAGE_BYTES_MIN // 2
"""Minimum size of a first chunk: producers fill chunks up to a broker's maximum size, which is at least twice this."""

CHUNKED_MESSAGES_MAX: Final = 1_000
"""Chunked messages whose consumer one shared subscription remembers, because producers may begin and never end them.

Chunks of older messages are dispatched to any consumer.
"""

DEAL_BYTES_PER_TURN: Final = 1 * MIB
"""Bytes that a subscription dispatches per iteration of the event loop, so that all subscriptions progress."""

DEAL_BYTES_PER_BLOCK_MIN: Final = 512
"""Minimum number of bytes that a block counts in `DEAL_BYTES_PER_TURN`, because dispatching it takes 15 µs."""
DEAL_BYTES_PER_ENTRY_MIN: Final = 100
"""Minimum number of bytes that an entry counts in `DEAL_BYTES_PER_TURN`, because dispatching it takes 3 µs."""

READ_CHUNK_BYTES: Final = 1 * MIB
"""Size of a read of a subscription with a backlog, which holds at most as many bytes again in read-ahead."""

READS_MAX: Final = 16
"""Concurrent reads of all subscriptions of a process; more would only wait for the disk, and hold memory."""

READ_HELD_BYTES_MAX: Final = 64 * MIB
"""Blocks read and not dispatched yet, over all subscriptions of a process; with more, there is no read-ahead."""

# -- object stores -------------------------------------------------------------------------------------
OBJECT_PART_BYTES: Final = 8 * MIB
"""Size of a part of a multipart upload: above S3's minimum of 5 MiB, and small enough to hold several in memory."""

OBJECT_RESERVE_BYTES: Final = ENTRY_LOG_RESERVE_BYTES // 2
"""Disk space that an object store in a directory leaves free, because a bookie may use the same disk.

It is less than a bookie's reserve, because archiving frees the bookie's space. The rest is for acknowledgements and
deletions.
"""

OBJECT_RESERVE_SHARE: Final = 16
"""Divisor n: on a small disk, the reserve is at most 1/n of the disk, so that the disk stays usable."""

OBJECT_FETCHES_MAX: Final = 16
"""Concurrent range reads of all readers of a cache, whose bytes the cache does not count yet."""

# -- write-ahead logs on object storage -----------------------------------------------------------------
WAL_UPLOADS_MAX: Final = 64
"""Concurrent uploads of one log. If an acknowledged object is lost, one of this many later objects proves the loss."""

WAL_CACHE_BYTES: Final = 64 * MIB
"""Runs read from objects of all write-ahead logs, kept for the next reader."""

WAL_VIEWS_BYTES_MAX: Final = 64 * MIB
"""Index rows of other brokers' write-ahead logs that are kept in idle views.

A takeover of a thousand topics needs some 80 MiB until the recoveries are complete.
"""

# -- the archive ---------------------------------------------------------------------------------------
ARCHIVE_INDEX_RUN_BYTES: Final = 64 * KIB
"""Bytes of an archived segment for one index row: a seek reads this many bytes, and a GiB has an index of 640 KiB."""
ARCHIVE_CACHE_BYTES: Final = 64 * MIB
"""Chunks of archived segments kept for readers, over all of them."""

SIDECAR_PROCESS_BYTES_MAX: Final = GIB
"""Memory of the process that builds sidecars: reading a segment takes 600 MB at most, and mostly 250."""

SIDECARS_WAITING_MAX: Final = 1_000
"""Segments that wait for a sidecar, some 500 bytes each; the next round finds others again."""

ARCHIVE_INDEX_CACHE_BYTES: Final = 16 * MIB
"""Indexes of archived segments: 640 KiB per GiB of segment."""

# -- messages ------------------------------------------------------------------------------------------
UNCOMPRESSED_BYTES_MAX: Final = 128 * MIB
"""Size of a decompressed batch; a larger one is refused as undecodable, before its memory is allocated."""

CHUNKED_MESSAGE_BYTES_MAX: Final = 512 * MIB
"""Size of a chunked message that a consumer joins, which takes twice its size in memory."""

BATCH_MESSAGES_MAX: Final = 1_000_000
"""Messages of one batch: a batch that claims more is refused, before objects are created for them."""
METADATA_LOOKED_INTO_BYTES_MAX: Final = MIB
"""Metadata of one entry that a broker parses: half a million empty properties would block the event loop for 20 ms.

Larger metadata count as unreadable.
"""

BATCHED_MESSAGE_BYTES_MIN: Final = 6
"""Minimum size of a message in a batch: the size of its metadata, and their only required field.

A batch that claims more messages than its size allows is refused before any is read.
"""

COMPACTION_CREDIT: Final = 100_000
"""Initial credit of a compaction for decoding batches, a second of work: a message costs 1, a byte of input adds 1."""

COMPACTION_UNCOMPRESSED_BYTES_MAX: Final = 32 * MIB
"""Size of a batch that is compacted; a larger one is kept unchanged, because each copy blocks the loop for 10 ms."""

NAME_CHARS_MAX: Final = 512
"""Length of a tenant, namespace, topic, subscription, producer or consumer name, kept in memory and in paths."""

CHUNK_UUID_CHARS_MAX: Final = 2 * NAME_CHARS_MAX
"""Length of the common id of a message's chunks, which clients form from the producer's name and a number."""

ENDS_PER_CONNECTION_MAX: Final = 10_000
"""Producers of one connection, and as many consumers; each costs memory, also for its properties."""

KEY_RANGES_MAX: Final = 1_000
"""Ranges of slots that one consumer of a key-shared subscription requests: each is compared with all others."""

PRODUCERS_WAITING_MAX: Final = 1_000
"""Producers that wait for exclusive access to one topic, each in memory."""

SUBSCRIPTIONS_PER_TOPIC_MAX: Final = 10_000
"""Pulsar's maxSubscriptionsPerTopic, unlimited there; each handles every block, and a durable one is kept forever."""

PRODUCERS_PER_TOPIC_MAX: Final = CONNECTIONS_MAX
"""Pulsar's maxProducersPerTopic, which is unlimited there; each producer costs memory."""
CONSUMERS_PER_SUBSCRIPTION_MAX: Final = 5_000
"""Pulsar's maxConsumersPerSubscription, which is unlimited there; each consumer costs memory and CPU time."""

DEDUPLICATION_PRODUCERS_MAX: Final = 10_000
"""Producers in a topic's deduplication snapshot, the most recent ones (Pulsar's default): with long names 6 MiB."""

TOPICS_PATTERN_CHARS_MAX: Final = 512
"""Length of a regular expression for topic names; if it is longer, the client filters the names itself."""

TOPICS_PATTERN_MEMORY_BYTES: Final = 256 * KIB
"""Memory of a compiled regular expression: `a{1000}` fits, `(a{100}){100}` does not."""

TOPICS_MATCH_S_MAX: Final = 1.0
"""Time for matching one list of names, over all iterations of the event loop."""

TOPIC_WATCHERS_PER_CONNECTION_MAX: Final = 1_000
"""Topic watchers of one connection; each holds the names that it matches."""

PROPERTIES_BYTES_MAX: Final = 64 * KIB
"""Properties of one producer or consumer, kept in memory while it is connected."""
PROPERTIES_FREE_BYTES: Final = KIB
"""Properties of one producer or consumer that are not counted in `KEPT_BYTES_MAX`, because names may be as long."""

KEPT_BYTES_MAX: Final = 64 * MIB
"""Bytes of larger properties, and of names in topic watchers, over all connections of a broker; bounds its memory."""

WATCHED_NAME_BYTES: Final = 100
"""Memory of one name in a watcher's set."""

SCHEMA_BYTES_MAX: Final = 256 * KIB
"""Size of one version of a schema with its properties, which must fit, in base64, into a node of less than 1 MiB."""

SCHEMA_VERSIONS_MAX: Final = 1_000
"""Schema versions of a topic: their list is in one node, at a few hundred bytes, and a transitive check reads all."""

SCHEMAS_INLINE_BYTES_MAX: Final = 64 * KIB
"""Bytes of schemas in the node with the list; further versions have their own nodes."""

# -- relations -----------------------------------------------------------------------------------------
assert HTTP_PLACES_KEPT < HTTP_CONNECTIONS_MAX
assert HANDSHAKE_BYTES_MAX <= READ_ROOM_BYTES
assert LOGGING_IN_MAX * HANDSHAKE_BYTES_MAX <= BYTES_IN_FLIGHT_MAX
# Two connections can receive the largest frame at the same time.
assert 2 * FRAME_BYTES_MAX <= FRAME_ROOM_BYTES_MAX
# Every block fits into a request and a frame, and every list of ledgers into a frame.
assert BLOCK_BYTES_MAX < BLOCK_BYTES_HARD_MAX <= ADD_REQUEST_BYTES_MAX < BOOKIE_FRAME_BYTES_MAX
assert 16 * LEDGERS_LISTED_MAX < BOOKIE_FRAME_BYTES_MAX
# Neither slow bookies, nor a tenant, nor one of its topics can use up a process's memory.
assert LAG_BYTES_MAX < BYTES_IN_FLIGHT_MAX
assert 1 < TENANT_SHARE_OF_BYTES_IN_FLIGHT < TOPIC_SHARE_OF_BYTES_IN_FLIGHT
# The largest request fits into a group; a group fits into a memtable and a segment, with space for another one.
assert ADD_REQUEST_BYTES_MAX <= JOURNAL_GROUP_BYTES_MAX
assert 2 * JOURNAL_GROUP_BYTES_MAX <= MEMTABLE_BYTES
assert 2 * JOURNAL_GROUP_BYTES_MAX <= JOURNAL_SEGMENT_BYTES
# A checkpoint fills at most two entry logs, and a record always fits into a step of a log's growth.
assert MEMTABLE_BYTES < ENTRY_LOG_BYTES
assert ENTRY_LOG_RECORD_BYTES + BLOCK_BYTES_HARD_MAX <= ENTRY_LOG_STEP_BYTES <= ENTRY_LOG_BYTES
# One read fetches a whole run, and a response can contain it.
assert INDEX_RUN_BYTES_MAX <= READ_CHUNK_BYTES_MIN <= READ_CHUNK_BYTES_MAX <= READ_BYTES_MAX
# All concurrent reads of subscriptions, each with its read-ahead, may be held in memory.
assert READ_CHUNK_BYTES <= READ_BYTES_MAX
assert 2 * READS_MAX * READ_CHUNK_BYTES <= READ_HELD_BYTES_MAX
# A compaction decompresses no batch that a consumer would refuse.
assert COMPACTION_UNCOMPRESSED_BYTES_MAX <= UNCOMPRESSED_BYTES_MAX
# A list of schemas, or one schema, fits into a node of the metadata store.
assert SCHEMA_VERSIONS_MAX * 300 + 2 * SCHEMAS_INLINE_BYTES_MAX < MIB and 2 * SCHEMA_BYTES_MAX < MIB
