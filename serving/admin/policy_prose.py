"""One sentence about each policy, for people: by its field of `Policies`, as in the rows of `policy_json`.

Commands show it with the form of the value, which follows from the row's shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ABOUT: Final[Mapping[str, str]] = {
    "deduplication": "Store a message that a producer sends again, by its name and sequence id, only once.",
    "persistence": "Copies of new segments, and copies on disk before a publish is acknowledged (0: the broker's "
    "setting); or the storage, bookies or objects.",
    "retention": "Time and size up to which acknowledged messages are kept; both 0: keep no acknowledged messages.",
    "message_ttl_ms": "Age at which messages count as acknowledged, in every subscription.",
    "backlog_quota": "Limit on the unacknowledged messages of a topic, and the action when it is reached.",
    "age_quota": "Limit on the age of the oldest unacknowledged message, and the action when it is reached.",
    "inactive_topics": "Delete topics, with their messages, that were not used for a time.",
    "delayed_delivery": "Deliver messages to shared subscriptions at the time that their producers set, with this "
    "resolution and longest delay (0: no limit).",
    "subscription_expiration_ms": "Time after which a durable subscription without consumers is deleted.",
    "message_bytes_max": "Size of the largest message that producers may send.",
    "publish_rate": "Maximum publish rate of a topic, per second.",
    "dispatch_rate": "Maximum rate of a topic's messages to all its subscriptions together, per period.",
    "subscription_dispatch_rate": "Maximum rate of a topic's messages to each subscription, per period.",
    "compaction_threshold_bytes": "Size of the new messages at which a topic is compacted.",
    "schema_compatibility": "Check that a new version of a schema must pass against earlier versions.",
    "schema_auto_update": "Let clients register schemas; otherwise, only operators add them.",
    "schema_enforced": "Refuse producers without a schema on a topic that has one.",
    "iceberg": "Iceberg table that `quire spark follow-iceberg` keeps up to date; {}: none.",
    "topics_max": "Maximum number of topics in the namespace, each partition counted.",
    "producers_max": "Maximum number of producers of a topic.",
    "consumers_max": "Maximum number of consumers of a topic.",
    "consumers_per_subscription_max": "Maximum number of consumers of a subscription.",
    "subscriptions_max": "Maximum number of subscriptions of a topic.",
    "unacked_messages_max": "Number of unacknowledged messages at which a consumer of a shared subscription waits.",
    "subscription_unacked_max": "Number of unacknowledged messages, of all consumers together, at which a shared "
    "subscription waits.",
    "subscription_types": "Types of the subscriptions that consumers may use.",
    "auto_subscription_creation": "Create a durable subscription when a consumer uses one that does not exist.",
    "subscribe_rate": "Maximum number of subscribe requests of each consumer, per period.",
    "encryption_required": "Refuse messages that are not encrypted.",
    "deduplication_snapshot_s": "Longest time between snapshots of the state of deduplication.",
    "archive_lag_ms": "Time for which bookies keep a segment after it was archived.",
    "auto_topic_creation": "Create a topic when a client uses one that does not exist, partitioned or not.",
}
