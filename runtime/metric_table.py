"""Table of all metrics, from which exposition, documentation, dashboards and alerts are generated.

Names follow Prometheus' conventions: `quire_`, the room, the quantity, its base unit, and `_total` for counters. Labels
have few values, except for the names of namespaces, topics and subscriptions, which are bounded:

    quire_serving_…        of the whole broker: always
    quire_namespace_…      of each namespace that has topics here, unless there are more than NAMESPACES_SHOWN_MAX
    quire_topic_…          of each topic, while the broker has no more of them than `metrics_topics_max`
    quire_subscription_…   of each subscription, the same

`docs/metrics.md` (`metric_docs`) and the dashboards and alerts of `deploy/monitoring` are generated from these rows.
"""

from __future__ import annotations

from typing import Final

from quire.runtime.metrics import Kind, Metric

NAMESPACES_SHOWN_MAX: Final = 100
"""Maximum number of namespaces with metrics: about 6 KB of text each."""

C, G, H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
BROKER, BOOKIE, GATEWAY = ("broker",), ("bookie",), ("gateway",)
ALL: Final = ("broker", "bookie", "gateway")

NAMESPACE: Final = ("namespace",)
TOPIC: Final = ("namespace", "topic")
SUBSCRIPTION: Final = ("namespace", "topic", "subscription")

METRICS: Final = (
    # -- the process
    Metric("quire_build_info", G, ALL, "Constant 1, with the running version as a label.", ("version",)),
    Metric("quire_loop_lag_seconds", H, ALL, "Lag of the event loop, measured 20 times per second."),
    Metric("quire_loop_lag_max_seconds", G, ALL, "Maximum lag of the event loop in the last minute."),
    Metric(
        "quire_loop_late_beats_total",
        C,
        ALL,
        "Measurements in which the event loop lagged by more than 50 ms.",
    ),
    Metric(
        "quire_loop_stalls_total",
        C,
        ALL,
        "Stalls of the event loop for 0.2 s or longer; each is logged.",
    ),
    Metric("process_cpu_seconds_total", C, ALL, "User and system CPU time."),
    Metric("process_resident_memory_bytes", G, ALL, "Resident memory."),
    Metric("process_virtual_memory_bytes", G, ALL, "Virtual memory."),
    Metric("process_start_time_seconds", G, ALL, "Start time of the process, in seconds since 1970."),
    Metric("process_open_fds", G, ALL, "Open file descriptors."),
    Metric("process_max_fds", G, ALL, "Maximum number of open file descriptors."),
    # -- metadata
    Metric(
        "quire_metadata_reads_total", C, ALL, "Reads of the metadata store, including those that set a watch."
    ),
    Metric(
        "quire_metadata_changes_total", C, ALL, "Changes of the metadata store; a transaction counts as one."
    ),
    Metric("quire_metadata_watch_events_total", C, ALL, "Watch events received from the metadata store."),
    Metric("quire_metadata_sessions_lost_total", C, ALL, "Sessions with the metadata store that were lost."),
    # -- security
    Metric(
        "quire_security_events_total",
        C,
        ("broker", "gateway"),
        "Events of the audit log; not-written and not-published count the missing ones.",
        ("event",),
    ),
    # -- a broker
    Metric("quire_serving_connections", G, BROKER, "Client connections."),
    Metric("quire_serving_connections_total", C, BROKER, "Client connections opened since the start."),
    Metric(
        "quire_serving_connections_logging_in",
        G,
        BROKER,
        "Client connections that are not authenticated yet.",
    ),
    Metric("quire_serving_tls_handshakes_total", C, BROKER, "TLS handshakes that succeeded."),
    Metric("quire_serving_tls_handshakes_failed_total", C, BROKER, "TLS handshakes that failed."),
    Metric("quire_serving_tls_handshakes_under_way", G, BROKER, "TLS handshakes in progress."),
    Metric(
        "quire_serving_limits_met_total",
        C,
        BROKER,
        "Requests that were rejected because a limit was reached, by limit.",
        ("limit",),
    ),
    Metric(
        "quire_serving_bytes_in_flight",
        G,
        BROKER,
        "Bytes accepted and not yet in the entry log (used budget).",
    ),
    Metric(
        "quire_serving_bytes_in_flight_max",
        G,
        BROKER,
        "Budget of bytes in flight; when it is used up, sockets are not read.",
    ),
    Metric(
        "quire_serving_bytes_held", G, BROKER, "Bytes received by sessions and not yet accepted by topics."
    ),
    Metric("quire_serving_bytes_of_frames", G, BROKER, "Bytes of frames that were received in part."),
    Metric(
        "quire_serving_bytes_kept",
        G,
        BROKER,
        "Properties of producers and consumers, and names sent to topic watchers.",
    ),
    Metric(
        "quire_serving_tenant_share_waits_total",
        C,
        BROKER,
        "Waits of a tenant's producers for its share of bytes in flight.",
    ),
    Metric(
        "quire_serving_slices_waiting",
        G,
        BROKER,
        "Pieces of long work that wait for a turn of the event loop.",
    ),
    Metric("quire_serving_fast_sends_total", C, BROKER, "Messages parsed by the fast path."),
    Metric("quire_serving_slow_sends_total", C, BROKER, "Messages parsed by the slow path."),
    Metric(
        "quire_serving_untraced_total",
        C,
        BROKER,
        "Blocks and deliveries not searched for trace contexts, because tracing was behind.",
    ),
    Metric("quire_serving_topics_loaded", G, BROKER, "Topics loaded by this broker."),
    Metric("quire_serving_bundles_owned", G, BROKER, "Bundles that this broker owns."),
    Metric(
        "quire_serving_bundles_damaged",
        G,
        BROKER,
        "Bundles whose state log cannot be read: their topics are not served.",
    ),
    Metric(
        "quire_serving_bundles_moved_total",
        C,
        BROKER,
        "Bundles transferred to other brokers for load balancing.",
    ),
    Metric("quire_serving_bundles_split_total", C, BROKER, "Bundles split for load balancing."),
    Metric(
        "quire_serving_sessions_lost_total",
        C,
        BROKER,
        "Sessions of this broker with the metadata store that were lost.",
    ),
    Metric(
        "quire_serving_session_in_doubt",
        G,
        BROKER,
        "1 while the broker does not know whether it still owns its bundles.",
    ),
    Metric(
        "quire_serving_cannot_write",
        G,
        BROKER,
        "1 while too few bookies are reachable from this broker, although enough of them are up.",
    ),
    Metric("quire_serving_messages_in_total", C, BROKER, "Messages that were published and confirmed."),
    Metric("quire_serving_bytes_in_total", C, BROKER, "Their bytes, as they were sent."),
    Metric(
        "quire_serving_messages_out_total", C, BROKER, "Messages sent to consumers, including redeliveries."
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
        "Time from a message's arrival to its receipt; for the messages of a block, that of the oldest.",
    ),
    Metric(
        "quire_serving_dispatch_latency_seconds",
        H,
        BROKER,
        "Time from a message's arrival at the broker to its first dispatch, including its time in the backlog.",
    ),
    Metric(
        "quire_serving_ack_latency_seconds",
        H,
        BROKER,
        "Time until acknowledgements are durable; those of a bundle in one turn of the event loop count as one.",
    ),
    Metric(
        "quire_serving_tail_cache_bytes",
        G,
        BROKER,
        "Cached blocks at the topics' tails, for tailing consumers.",
    ),
    Metric(
        "quire_serving_left_out",
        G,
        BROKER,
        "Namespaces or topics without metrics, because there are too many.",
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
        "Age of the oldest message in a backlog.",
        NAMESPACE,
    ),
    Metric(
        "quire_namespace_unacked_messages", G, BROKER, "Sent to consumers and not acknowledged.", NAMESPACE
    ),
    Metric(
        "quire_namespace_storage_bytes",
        G,
        BROKER,
        "Size of its topics, on bookies and in the archive.",
        NAMESPACE,
    ),
    Metric("quire_namespace_archived_bytes", G, BROKER, "Size of the archived part.", NAMESPACE),
    Metric(
        "quire_namespace_subscriptions_blocked",
        G,
        BROKER,
        "Subscriptions with a backlog that are sent no messages now, by reason.",
        ("namespace", "reason"),
    ),
    # -- a broker's topics
    Metric("quire_topic_producers", G, BROKER, "Connected producers.", TOPIC),
    Metric("quire_topic_subscriptions", G, BROKER, "Subscriptions.", TOPIC),
    Metric(
        "quire_topic_messages_in_total", C, BROKER, "Messages confirmed since the topic was loaded.", TOPIC
    ),
    Metric("quire_topic_bytes_in_total", C, BROKER, "Their bytes, as they were sent.", TOPIC),
    Metric(
        "quire_topic_storage_bytes", G, BROKER, "Size of the topic, on bookies and in the archive.", TOPIC
    ),
    Metric("quire_topic_archived_bytes", G, BROKER, "Size of the archived part.", TOPIC),
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
        "Size of the topic from the oldest unacknowledged message on; interpolated within a segment.",
        SUBSCRIPTION,
    ),
    Metric(
        "quire_subscription_backlog_age_seconds",
        G,
        BROKER,
        "Age of the oldest unacknowledged message; interpolated within a segment; 0 without one.",
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
        "quire_subscription_delayed_messages",
        G,
        BROKER,
        "Delayed messages that are not due yet.",
        SUBSCRIPTION,
    ),
    Metric(
        "quire_subscription_blocked",
        G,
        BROKER,
        "1 while it has a backlog and is sent no messages, with the reason.",
        (*SUBSCRIPTION, "reason"),
    ),
    # -- ledgers, as brokers see them
    Metric("quire_ledger_bookies_available", G, BROKER, "Bookies that are up."),
    Metric("quire_ledger_bookies_writable", G, BROKER, "Bookies that are up and accept new blocks."),
    Metric(
        "quire_ledger_lost_ledgers",
        G,
        BROKER,
        "Ledgers in which this broker found entries that no bookie can return.",
    ),
    Metric(
        "quire_ledger_lagging_bytes",
        G,
        BROKER,
        "Confirmed bytes kept for bookies that lag behind their quorum.",
    ),
    Metric(
        "quire_ledger_read_latency_seconds",
        H,
        BROKER,
        "Latency of reads of blocks from bookies.",
    ),
    # -- repair
    Metric(
        "quire_repair_coordinator",
        G,
        BROKER,
        "1 on the broker that coordinates repair, which reports the other repair metrics.",
    ),
    Metric("quire_repair_ledgers_underreplicated", G, BROKER, "Under-replicated ledgers."),
    Metric(
        "quire_repair_ledgers_unplaced",
        G,
        BROKER,
        "Under-replicated ledgers without a bookie for another replica.",
    ),
    Metric(
        "quire_repair_ledgers_open",
        G,
        BROKER,
        "Under-replicated ledgers that their topics' owners must close first.",
    ),
    Metric(
        "quire_repair_ledgers_lost", G, BROKER, "Under-replicated ledgers with entries that no bookie has."
    ),
    Metric(
        "quire_repair_bookies_lost",
        G,
        BROKER,
        "Bookies that have been down for so long that they count as lost.",
    ),
    Metric("quire_repair_bookies_absent", G, BROKER, "Bookies that are down, but do not count as lost yet."),
    Metric("quire_repair_copied_bytes_total", C, BROKER, "Bytes replicated since this broker started."),
    # -- the archive
    Metric("quire_tiering_segments_archived_total", C, BROKER, "Segments that were uploaded."),
    Metric("quire_tiering_bytes_archived_total", C, BROKER, "Their bytes."),
    Metric(
        "quire_tiering_segments_released_total",
        C,
        BROKER,
        "Archived segments whose replicas on bookies were deleted.",
    ),
    Metric(
        "quire_tiering_segments_waiting",
        G,
        BROKER,
        "Sealed segments that are not flushed yet, or are retried.",
    ),
    Metric(
        "quire_tiering_segments_failing",
        G,
        BROKER,
        "Segments whose last archiving or release failed.",
    ),
    Metric("quire_tiering_objects_damaged", G, BROKER, "Objects that this broker found damaged or missing."),
    Metric(
        "quire_tiering_upload_latency_seconds",
        H,
        BROKER,
        "Uploads of whole segments, including reading them.",
    ),
    Metric("quire_tiering_read_latency_seconds", H, BROKER, "Reads of a chunk from the object store."),
    Metric("quire_tiering_cache_bytes", G, BROKER, "Cached chunks and indexes of objects."),
    Metric("quire_tiering_sidecars_built_total", C, BROKER, "Sidecars of archived segments that were built."),
    Metric("quire_tiering_sidecars_built_bytes_total", C, BROKER, "Their bytes."),
    Metric("quire_tiering_sidecars_failed_total", C, BROKER, "Sidecars that could not be built."),
    Metric("quire_tiering_sidecars_waiting", G, BROKER, "Segments that wait for their sidecars."),
    # -- a write-ahead log on object storage
    Metric("quire_wal_open", G, BROKER, "1 while a log is open; without one, publishing is impossible."),
    Metric("quire_wal_unflushed_bytes", G, BROKER, "Bytes accepted and not yet in sets."),
    Metric(
        "quire_wal_views_bytes",
        G,
        BROKER,
        "Memory for the rows of other brokers' logs, for takeovers and readers.",
    ),
    Metric("quire_wal_upload_latency_seconds", H, BROKER, "Uploads of data objects, each until its success."),
    Metric("quire_wal_objects_written_total", C, BROKER, "Data objects that were uploaded."),
    Metric("quire_wal_bytes_written_total", C, BROKER, "Their bytes."),
    Metric(
        "quire_wal_uploads_hedged_total",
        C,
        BROKER,
        "Uploads that were slow, and were hedged by a second request.",
    ),
    # -- a bookie
    Metric(
        "quire_bookie_ledgers",
        G,
        BOOKIE,
        "Ledgers with a record on this bookie, including deleted ones and labels.",
    ),
    Metric("quire_bookie_unflushed_bytes", G, BOOKIE, "Bytes accepted and not yet in the entry log."),
    Metric(
        "quire_bookie_bytes_in_flight",
        G,
        BOOKIE,
        "Bytes in flight (used budget) of a separate bookie process.",
    ),
    Metric(
        "quire_bookie_bytes_in_flight_max",
        G,
        BOOKIE,
        "Budget of bytes in flight; when it is used up, sockets are not read.",
    ),
    Metric("quire_bookie_journal_groups_total", C, BOOKIE, "Groups written and synced by the journal."),
    Metric("quire_bookie_journal_bytes_total", C, BOOKIE, "Bytes written by the journal."),
    Metric(
        "quire_bookie_journal_live_bytes", G, BOOKIE, "Bytes of journal segments that a restart would replay."
    ),
    Metric(
        "quire_bookie_journal_sync_latency_seconds",
        H,
        BOOKIE,
        "Latency of a durable write of a group: one system call.",
    ),
    Metric("quire_bookie_checkpoints_total", C, BOOKIE, "Checkpoints: memtables written to the entry log."),
    Metric("quire_bookie_read_latency_seconds", H, BOOKIE, "Reads of blocks, from memory or disk."),
    Metric(
        "quire_bookie_read_cache_hits_total", C, BOOKIE, "Lookups of the read cache that found the block."
    ),
    Metric(
        "quire_bookie_read_cache_misses_total",
        C,
        BOOKIE,
        "Lookups of the read cache that did not find the block.",
    ),
    Metric("quire_bookie_read_cache_bytes", G, BOOKIE, "Memory of the read cache."),
    Metric("quire_bookie_disk_free_bytes", G, BOOKIE, "Free space on the disk of the entry logs."),
    Metric("quire_bookie_disk_size_bytes", G, BOOKIE, "The size of that disk."),
    Metric(
        "quire_bookie_read_only",
        G,
        BOOKIE,
        "1 while it accepts no new blocks, or only those of high priority.",
    ),
    Metric(
        "quire_bookie_failed",
        G,
        BOOKIE,
        "1 if its journal or its checkpoints failed: the bookie must be restarted.",
    ),
    Metric("quire_bookie_retired", G, BOOKIE, "1 if it was drained permanently (decommissioned)."),
    Metric("quire_bookie_damage_reported_total", C, BOOKIE, "Damaged blocks that were reported to repair."),
    Metric("quire_bookie_scrub_bytes_total", C, BOOKIE, "Bytes that the scrub has read and verified."),
    Metric("quire_bookie_scrub_rounds_total", C, BOOKIE, "Complete rounds of the scrub over all entries."),
    Metric("quire_bookie_scrub_damaged_total", C, BOOKIE, "Damaged blocks that the scrub has found."),
    # -- a gateway
    Metric("quire_gateway_connections", G, GATEWAY, "Client connections."),
    Metric("quire_gateway_connections_total", C, GATEWAY, "Client connections opened since the start."),
    Metric(
        "quire_gateway_connections_logging_in",
        G,
        GATEWAY,
        "Client connections that are not authenticated yet.",
    ),
    Metric(
        "quire_gateway_limits_met_total",
        C,
        GATEWAY,
        "Requests that were rejected because a limit was reached, by limit.",
        ("limit",),
    ),
    Metric("quire_gateway_relayed_bytes_total", C, GATEWAY, "Bytes relayed, in both directions."),
    Metric("quire_gateway_lookups_total", C, GATEWAY, "Lookups answered."),
    Metric("quire_gateway_brokers", G, GATEWAY, "Registered brokers."),
)

BY_NAME: Final = {metric.name: metric for metric in METRICS}
