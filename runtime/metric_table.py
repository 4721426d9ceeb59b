"""Every metric of every process: the rows by which they are written, documented, charted and watched.

Names follow Prometheus: `quire_` and the room, what is measured, its base unit, `_total` of what only grows. A label
has few values, but for the names of namespaces, topics and subscriptions, and those are bounded:

    quire_serving_…        of the whole broker: always
    quire_namespace_…      of each namespace that has topics here, unless there are more than NAMESPACES_SHOWN_MAX
    quire_topic_…          of each topic, while the broker has no more of them than `metrics_topics_max`
    quire_subscription_…   of each subscription, the same

`docs/metrics.md` is made of these rows (`metric_docs`), as are the dashboards and alerts of `deploy/monitoring`.
"""

from __future__ import annotations

from typing import Final

from quire.runtime.metrics import Kind, Metric

NAMESPACES_SHOWN_MAX: Final = 100
"""About 6 KB of text each."""

C, G, H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
BROKER, BOOKIE, GATEWAY = ("broker",), ("bookie",), ("gateway",)
ALL: Final = ("broker", "bookie", "gateway")

NAMESPACE: Final = ("namespace",)
TOPIC: Final = ("namespace", "topic")
SUBSCRIPTION: Final = ("namespace", "topic", "subscription")

METRICS: Final = (
    # -- the process
    Metric("quire_build_info", G, ALL, "1, with the version that runs as a label.", ("version",)),
    Metric(
        "quire_loop_lag_seconds", H, ALL, "By how much the event loop was late, looked at 20 times a second."
    ),
    Metric("quire_loop_lag_max_seconds", G, ALL, "The latest that the event loop was in the last minute."),
    Metric(
        "quire_loop_late_beats_total",
        C,
        ALL,
        "Looks at the event loop for which it was more than 50 ms late.",
    ),
    Metric(
        "quire_loop_stalls_total",
        C,
        ALL,
        "How often the event loop stood for 0.2 s or longer; each is logged.",
    ),
    Metric("process_cpu_seconds_total", C, ALL, "User and system CPU time."),
    Metric("process_resident_memory_bytes", G, ALL, "Resident memory."),
    Metric("process_virtual_memory_bytes", G, ALL, "Virtual memory."),
    Metric("process_start_time_seconds", G, ALL, "When the process started, since 1970."),
    Metric("process_open_fds", G, ALL, "Open file descriptors."),
    Metric("process_max_fds", G, ALL, "How many file descriptors it may open."),
    # -- metadata
    Metric(
        "quire_metadata_reads_total", C, ALL, "Reads of the metadata store, those that arm a watch included."
    ),
    Metric("quire_metadata_changes_total", C, ALL, "Changes of the metadata store; a transaction is one."),
    Metric("quire_metadata_watch_events_total", C, ALL, "Changes that the metadata store told of."),
    Metric(
        "quire_metadata_sessions_lost_total", C, ALL, "Sessions with the metadata store that ended unasked."
    ),
    # -- security
    Metric(
        "quire_security_events_total",
        C,
        ("broker", "gateway"),
        "What was to be written to the audit log; not-written and not-published count what is missing there.",
        ("event",),
    ),
    # -- a broker
    Metric("quire_serving_connections", G, BROKER, "Client connections."),
    Metric("quire_serving_connections_total", C, BROKER, "Client connections that were ever opened."),
    Metric(
        "quire_serving_connections_logging_in", G, BROKER, "Client connections that have not logged in yet."
    ),
    Metric("quire_serving_tls_handshakes_total", C, BROKER, "TLS handshakes that succeeded."),
    Metric("quire_serving_tls_handshakes_failed_total", C, BROKER, "TLS handshakes that failed."),
    Metric("quire_serving_tls_handshakes_under_way", G, BROKER, "TLS handshakes under way."),
    Metric(
        "quire_serving_limits_met_total",
        C,
        BROKER,
        "How often something was refused because there was too much of it, by limits.",
        ("limit",),
    ),
    Metric(
        "quire_serving_bytes_in_flight", G, BROKER, "The budget used: accepted and not yet in the entry log."
    ),
    Metric(
        "quire_serving_bytes_in_flight_max",
        G,
        BROKER,
        "The budget; when it is used up, sockets are not read.",
    ),
    Metric("quire_serving_bytes_held", G, BROKER, "What sessions hold until its topic takes it."),
    Metric("quire_serving_bytes_of_frames", G, BROKER, "Frames that came in parts so far."),
    Metric(
        "quire_serving_tenant_share_waits_total",
        C,
        BROKER,
        "How often a tenant's producers waited for its share.",
    ),
    Metric(
        "quire_serving_slices_waiting", G, BROKER, "Pieces of long work that wait for a turn of the loop."
    ),
    Metric(
        "quire_serving_fast_sends_total", C, BROKER, "Messages that took the fast way through the parser."
    ),
    Metric(
        "quire_serving_slow_sends_total", C, BROKER, "Messages that took the slow way through the parser."
    ),
    Metric(
        "quire_serving_untraced_total",
        C,
        BROKER,
        "Blocks and deliveries in which nobody looked for traces, because tracing was behind.",
    ),
    Metric("quire_serving_topics_loaded", G, BROKER, "Topics that this broker serves now."),
    Metric("quire_serving_bundles_owned", G, BROKER, "Bundles that this broker owns."),
    Metric(
        "quire_serving_bundles_damaged",
        G,
        BROKER,
        "Bundles whose state log cannot be read: their topics are not served.",
    ),
    Metric("quire_serving_bundles_moved_total", C, BROKER, "Bundles that this broker gave away for balance."),
    Metric("quire_serving_bundles_split_total", C, BROKER, "Bundles that this broker split for balance."),
    Metric(
        "quire_serving_sessions_lost_total", C, BROKER, "Registrations of this broker that ended unasked."
    ),
    Metric(
        "quire_serving_session_in_doubt",
        G,
        BROKER,
        "1 while it cannot tell whether its bundles are still its own.",
    ),
    Metric(
        "quire_serving_cannot_write",
        G,
        BROKER,
        "1 while too few bookies answer this broker, though enough of them are up.",
    ),
    Metric("quire_serving_messages_in_total", C, BROKER, "Messages that were published and confirmed."),
    Metric("quire_serving_bytes_in_total", C, BROKER, "Their bytes, as they were sent."),
    Metric(
        "quire_serving_messages_out_total", C, BROKER, "Messages that were sent to consumers, again included."
    ),
    Metric("quire_serving_bytes_out_total", C, BROKER, "Their bytes."),
    Metric(
        "quire_serving_messages_redelivered_total", C, BROKER, "Messages that were sent to consumers again."
    ),
    Metric("quire_serving_messages_acknowledged_total", C, BROKER, "Messages that consumers acknowledged."),
    Metric(
        "quire_serving_publish_latency_seconds",
        H,
        BROKER,
        "From a message's arrival to its receipt; of a block's messages, that of the oldest.",
    ),
    Metric(
        "quire_serving_dispatch_latency_seconds",
        H,
        BROKER,
        "From when the broker took a message to when it was first sent to a consumer: its time in the backlog, too.",
    ),
    Metric(
        "quire_serving_ack_latency_seconds",
        H,
        BROKER,
        "From acknowledgements to their being durable; those of a turn of the loop in a bundle are one.",
    ),
    Metric(
        "quire_serving_tail_cache_bytes",
        G,
        BROKER,
        "The newest blocks, kept for consumers that follow closely.",
    ),
    Metric(
        "quire_serving_left_out",
        G,
        BROKER,
        "Namespaces, or topics with their subscriptions, of which nothing is said for there are too many.",
        ("what",),
    ),
    # -- a broker's namespaces
    Metric("quire_namespace_topics", G, BROKER, "Topics that are loaded.", NAMESPACE),
    Metric("quire_namespace_subscriptions", G, BROKER, "Their subscriptions.", NAMESPACE),
    Metric("quire_namespace_producers", G, BROKER, "Connected producers.", NAMESPACE),
    Metric("quire_namespace_consumers", G, BROKER, "Connected consumers.", NAMESPACE),
    Metric(
        "quire_namespace_messages_in_total",
        C,
        BROKER,
        "Messages that were published and confirmed.",
        NAMESPACE,
    ),
    Metric("quire_namespace_bytes_in_total", C, BROKER, "Their bytes, as they were sent.", NAMESPACE),
    Metric(
        "quire_namespace_messages_out_total", C, BROKER, "Messages that were sent to consumers.", NAMESPACE
    ),
    Metric("quire_namespace_bytes_out_total", C, BROKER, "Their bytes.", NAMESPACE),
    Metric(
        "quire_namespace_messages_redelivered_total",
        C,
        BROKER,
        "Messages sent to consumers again.",
        NAMESPACE,
    ),
    Metric("quire_namespace_messages_acknowledged_total", C, BROKER, "Messages acknowledged.", NAMESPACE),
    Metric(
        "quire_namespace_publish_latency_seconds",
        H,
        BROKER,
        "As quire_serving_publish_latency_seconds.",
        NAMESPACE,
    ),
    Metric(
        "quire_namespace_dispatch_latency_seconds",
        H,
        BROKER,
        "As quire_serving_dispatch_latency_seconds.",
        NAMESPACE,
    ),
    Metric(
        "quire_namespace_ack_latency_seconds", H, BROKER, "As quire_serving_ack_latency_seconds.", NAMESPACE
    ),
    Metric(
        "quire_namespace_backlog_messages", G, BROKER, "The subscriptions' backlogs, added up.", NAMESPACE
    ),
    Metric("quire_namespace_backlog_bytes", G, BROKER, "The same in bytes.", NAMESPACE),
    Metric(
        "quire_namespace_backlog_age_seconds",
        G,
        BROKER,
        "The age of the oldest message of a backlog.",
        NAMESPACE,
    ),
    Metric(
        "quire_namespace_unacked_messages", G, BROKER, "Sent to consumers and not acknowledged.", NAMESPACE
    ),
    Metric(
        "quire_namespace_storage_bytes",
        G,
        BROKER,
        "What its topics keep, on bookies and in the archive.",
        NAMESPACE,
    ),
    Metric("quire_namespace_archived_bytes", G, BROKER, "What of it is in the archive.", NAMESPACE),
    Metric(
        "quire_namespace_subscriptions_blocked",
        G,
        BROKER,
        "Subscriptions with a backlog that are sent nothing now, by why.",
        ("namespace", "reason"),
    ),
    # -- a broker's topics
    Metric("quire_topic_producers", G, BROKER, "Connected producers.", TOPIC),
    Metric("quire_topic_subscriptions", G, BROKER, "Subscriptions.", TOPIC),
    Metric(
        "quire_topic_messages_in_total", C, BROKER, "Messages confirmed since the topic was loaded.", TOPIC
    ),
    Metric("quire_topic_bytes_in_total", C, BROKER, "Their bytes, as they were sent.", TOPIC),
    Metric("quire_topic_storage_bytes", G, BROKER, "What it keeps, on bookies and in the archive.", TOPIC),
    Metric("quire_topic_archived_bytes", G, BROKER, "What of it is in the archive.", TOPIC),
    Metric("quire_topic_segments", G, BROKER, "Segments.", TOPIC),
    # -- a broker's subscriptions
    Metric("quire_subscription_consumers", G, BROKER, "Connected consumers.", SUBSCRIPTION),
    Metric(
        "quire_subscription_messages_out_total",
        C,
        BROKER,
        "Messages sent to consumers since the load.",
        SUBSCRIPTION,
    ),
    Metric("quire_subscription_bytes_out_total", C, BROKER, "Their bytes.", SUBSCRIPTION),
    Metric("quire_subscription_messages_redelivered_total", C, BROKER, "Messages sent again.", SUBSCRIPTION),
    Metric(
        "quire_subscription_messages_acknowledged_total", C, BROKER, "Messages acknowledged.", SUBSCRIPTION
    ),
    Metric(
        "quire_subscription_backlog_messages",
        G,
        BROKER,
        "Messages that are not acknowledged; estimated until a block at the read position was seen.",
        SUBSCRIPTION,
    ),
    Metric(
        "quire_subscription_backlog_bytes",
        G,
        BROKER,
        "What the topic keeps from the oldest unacknowledged message on; interpolated within a segment.",
        SUBSCRIPTION,
    ),
    Metric(
        "quire_subscription_backlog_age_seconds",
        G,
        BROKER,
        "How long ago the oldest unacknowledged message came; interpolated within a segment; 0 without one.",
        SUBSCRIPTION,
    ),
    Metric(
        "quire_subscription_unacked_messages",
        G,
        BROKER,
        "Sent to consumers and not acknowledged.",
        SUBSCRIPTION,
    ),
    Metric(
        "quire_subscription_delayed_messages", G, BROKER, "Messages that wait for their time.", SUBSCRIPTION
    ),
    Metric(
        "quire_subscription_blocked",
        G,
        BROKER,
        "1 while it has a backlog and is sent nothing, with why.",
        (*SUBSCRIPTION, "reason"),
    ),
    # -- ledgers, as brokers see them
    Metric("quire_ledger_bookies_available", G, BROKER, "Bookies that are up."),
    Metric("quire_ledger_bookies_writable", G, BROKER, "Bookies that are up and take new blocks."),
    Metric(
        "quire_ledger_lost_ledgers",
        G,
        BROKER,
        "Ledgers in which this broker met entries that no bookie can give.",
    ),
    Metric(
        "quire_ledger_lagging_bytes",
        G,
        BROKER,
        "Confirmed bytes that are kept for bookies behind their quorum.",
    ),
    Metric(
        "quire_ledger_read_latency_seconds",
        H,
        BROKER,
        "Reads of blocks from bookies, as brokers wait for them.",
    ),
    # -- repair
    Metric(
        "quire_repair_coordinator",
        G,
        BROKER,
        "1 at the broker that coordinates repair; the others below are its.",
    ),
    Metric(
        "quire_repair_ledgers_underreplicated", G, BROKER, "Ledgers that are known to be below their copies."
    ),
    Metric(
        "quire_repair_ledgers_unplaced", G, BROKER, "Those of them that no other bookie can take a copy of."
    ),
    Metric(
        "quire_repair_ledgers_open",
        G,
        BROKER,
        "Those of them that must be closed first, by their topics' owners.",
    ),
    Metric("quire_repair_ledgers_lost", G, BROKER, "Those of them with entries that no bookie can give."),
    Metric(
        "quire_repair_bookies_lost", G, BROKER, "Bookies that are away for so long that they count as lost."
    ),
    Metric("quire_repair_bookies_absent", G, BROKER, "Bookies that are away, not for so long."),
    Metric("quire_repair_copied_bytes_total", C, BROKER, "Bytes copied since this broker started."),
    # -- the archive
    Metric("quire_tiering_segments_archived_total", C, BROKER, "Segments that were uploaded."),
    Metric("quire_tiering_bytes_archived_total", C, BROKER, "Their bytes."),
    Metric(
        "quire_tiering_segments_released_total",
        C,
        BROKER,
        "Archived segments whose copies on bookies were deleted.",
    ),
    Metric(
        "quire_tiering_segments_waiting",
        G,
        BROKER,
        "Sealed segments that are not flushed yet, or are tried again.",
    ),
    Metric(
        "quire_tiering_segments_failing",
        G,
        BROKER,
        "Segments that could not be archived or released the last time.",
    ),
    Metric("quire_tiering_objects_damaged", G, BROKER, "Objects that this broker found damaged or missing."),
    Metric(
        "quire_tiering_upload_latency_seconds", H, BROKER, "Uploads of whole segments, reading them included."
    ),
    Metric("quire_tiering_read_latency_seconds", H, BROKER, "Reads of a chunk from the object store."),
    Metric("quire_tiering_cache_bytes", G, BROKER, "Chunks and indexes of objects that are kept in memory."),
    Metric("quire_tiering_sidecars_built_total", C, BROKER, "Sidecars of archived segments that were built."),
    Metric("quire_tiering_sidecars_built_bytes_total", C, BROKER, "Their bytes."),
    Metric("quire_tiering_sidecars_failed_total", C, BROKER, "Sidecars that could not be built."),
    Metric("quire_tiering_sidecars_waiting", G, BROKER, "Segments that wait for their sidecars."),
    # -- a write-ahead log on object storage
    Metric("quire_wal_open", G, BROKER, "1 while one is open; else nothing can be published."),
    Metric("quire_wal_unflushed_bytes", G, BROKER, "Accepted and not yet in sets."),
    Metric(
        "quire_wal_upload_latency_seconds", H, BROKER, "Uploads of data objects, each until it succeeded."
    ),
    Metric("quire_wal_objects_written_total", C, BROKER, "Data objects that were uploaded."),
    Metric("quire_wal_bytes_written_total", C, BROKER, "Their bytes."),
    Metric("quire_wal_uploads_hedged_total", C, BROKER, "Uploads that were late, and sent a second time."),
    # -- a bookie
    Metric(
        "quire_bookie_ledgers",
        G,
        BOOKIE,
        "Ledgers that have a record here, deleted ones and labels included.",
    ),
    Metric("quire_bookie_unflushed_bytes", G, BOOKIE, "Accepted and not yet in the entry log."),
    Metric(
        "quire_bookie_bytes_in_flight", G, BOOKIE, "The budget used of a bookie that is a process of its own."
    ),
    Metric(
        "quire_bookie_bytes_in_flight_max", G, BOOKIE, "The budget; when it is used up, sockets are not read."
    ),
    Metric("quire_bookie_journal_groups_total", C, BOOKIE, "Groups that the journal wrote and synced."),
    Metric("quire_bookie_journal_bytes_total", C, BOOKIE, "Bytes that the journal wrote."),
    Metric("quire_bookie_journal_live_bytes", G, BOOKIE, "Journal segments that a start would replay."),
    Metric(
        "quire_bookie_journal_sync_latency_seconds",
        H,
        BOOKIE,
        "Writing a group so that it is durable: one system call.",
    ),
    Metric("quire_bookie_checkpoints_total", C, BOOKIE, "Checkpoints: memtables written to the entry log."),
    Metric("quire_bookie_read_latency_seconds", H, BOOKIE, "Reads of blocks, from memory or disk."),
    Metric(
        "quire_bookie_read_cache_hits_total", C, BOOKIE, "Looks into the read cache that found the block."
    ),
    Metric("quire_bookie_read_cache_misses_total", C, BOOKIE, "Looks that did not."),
    Metric("quire_bookie_read_cache_bytes", G, BOOKIE, "Memory of the read cache."),
    Metric("quire_bookie_disk_free_bytes", G, BOOKIE, "Free space on the disk of the entry logs."),
    Metric("quire_bookie_disk_size_bytes", G, BOOKIE, "The size of that disk."),
    Metric(
        "quire_bookie_read_only", G, BOOKIE, "1 while it takes no new blocks, or only those of high priority."
    ),
    Metric(
        "quire_bookie_failed",
        G,
        BOOKIE,
        "1 when its journal or its checkpoints failed: it must be started again.",
    ),
    Metric("quire_bookie_retired", G, BOOKIE, "1 when it was drained for good."),
    Metric("quire_bookie_damage_reported_total", C, BOOKIE, "Damaged blocks that were reported to repair."),
    Metric("quire_bookie_scrub_bytes_total", C, BOOKIE, "Bytes that the scrub has read and verified."),
    Metric("quire_bookie_scrub_rounds_total", C, BOOKIE, "Rounds of the scrub over everything."),
    Metric("quire_bookie_scrub_damaged_total", C, BOOKIE, "Damaged blocks that the scrub has found."),
    # -- a gateway
    Metric("quire_gateway_connections", G, GATEWAY, "Client connections."),
    Metric("quire_gateway_connections_total", C, GATEWAY, "Client connections that were ever opened."),
    Metric(
        "quire_gateway_connections_logging_in", G, GATEWAY, "Client connections that have not logged in yet."
    ),
    Metric(
        "quire_gateway_limits_met_total",
        C,
        GATEWAY,
        "How often something was refused, by limits.",
        ("limit",),
    ),
    Metric("quire_gateway_relayed_bytes_total", C, GATEWAY, "Bytes passed on, both ways."),
    Metric("quire_gateway_lookups_total", C, GATEWAY, "Look-ups that were answered."),
    Metric("quire_gateway_brokers", G, GATEWAY, "Brokers that are registered."),
)

BY_NAME: Final = {metric.name: metric for metric in METRICS}
