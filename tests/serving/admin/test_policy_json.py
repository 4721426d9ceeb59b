"""What a namespace keeps of its policies, byte by byte, and what REST shows of it and takes."""

from __future__ import annotations

from typing import Any

import pytest

from quire.metadata.records import Policies, RetentionPolicy, decode, encode
from quire.runtime.errors import ConfigurationError
from quire.serving.admin.namespace_json import namespace_of
from quire.serving.admin.policy_json import AUTO_UPDATE, AUTO_UPDATE_NAMES, POLICIES, QUOTAS, shown

KEPT = (
    b'{"deduplication":true,"persistence":{"write_quorum":3,"ack_quorum":2},'
    b'"retention":{"retention_ms":600000,"retention_bytes":5242880},"message_ttl_ms":3600000,'
    b'"backlog_quota":{"limit_bytes":10,"action":"producer_exception"},"auto_topic_creation":false,'
    b'"schema_compatibility":"BACKWARD","schema_auto_update":false,"schema_enforced":true,'
    b'"age_quota":{"limit_ms":60000},"inactive_topics":{"enabled":true,'
    b'"mode":"delete_when_subscriptions_caught_up","inactive_ms_max":30000},'
    b'"delayed_delivery":{"active":false,"tick_ms":50,"delay_ms_max":1000},"subscription_expiration_ms":420000,'
    b'"message_bytes_max":1000,"publish_rate":{"messages_per_s":100},"compaction_threshold_bytes":1048576,'
    b'"dispatch_rate":{"messages":100,"period_s":10},"subscription_dispatch_rate":{"bytes":1048576},'
    b'"iceberg":{"catalog":"https://catalog:8181","table":"orders"},'
    b'"topics_max":100,"producers_max":10,"consumers_max":20,"consumers_per_subscription_max":5,'
    b'"subscriptions_max":7,"unacked_messages_max":1000,"auto_topic_partitions":4,'
    b'"subscription_types":["Exclusive","Key_Shared"],"auto_subscription_creation":false,'
    b'"subscribe_rate":{"subscriptions":5},"subscription_unacked_max":4000,"encryption_required":true,'
    b'"properties":{"team":"billing"},"archive_lag_ms":60000,"deduplication_snapshot_s":120}'
)
"""What older brokers wrote into the metadata store; it is read for ever."""

INACTIVE = {
    "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
    "maxInactiveDurationSeconds": 30,
    "deleteWhileInactive": True,
}
DISPATCH = {
    "dispatchThrottlingRateInMsg": 100,
    "dispatchThrottlingRateInByte": -1,
    "ratePeriodInSecond": 10,
    "relativeToPublishRate": False,
}
DISPATCH_EACH = {
    **DISPATCH,
    "dispatchThrottlingRateInMsg": -1,
    "dispatchThrottlingRateInByte": 1 << 20,
    "ratePeriodInSecond": 1,
}
SHOWN: dict[str, Any] = {
    "deduplication": True,
    "persistence": {
        "bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2,
        "managedLedgerMaxMarkDeleteRate": 0.0,
    },
    "retention": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 5},
    "messageTTL": 3600,
    "autoTopicCreation": {
        "allowAutoTopicCreation": False, "topicType": "partitioned", "defaultNumPartitions": 4
    },
    "schemaCompatibilityStrategy": "BACKWARD",
    "isAllowAutoUpdateSchema": False,
    "schemaValidationEnforced": True,
    "inactiveTopicPolicies": INACTIVE,
    "delayedDelivery": {"active": False, "tickTime": 50, "maxDeliveryDelayInMillis": 1000},
    "subscriptionExpirationTime": 7,
    "maxMessageSize": 1000,
    "publishRate": {"publishThrottlingRateInMsg": 100, "publishThrottlingRateInByte": -1},
    "compactionThreshold": 1 << 20,
    "dispatchRate": DISPATCH,
    "subscriptionDispatchRate": DISPATCH_EACH,
    "iceberg": {"catalog": "https://catalog:8181", "warehouse": "", "namespace": "", "table": "orders"},
    "maxTopicsPerNamespace": 100,
    "maxProducersPerTopic": 10,
    "maxConsumersPerTopic": 20,
    "maxConsumersPerSubscription": 5,
    "maxSubscriptionsPerTopic": 7,
    "maxUnackedMessagesPerConsumer": 1000,
    "subscriptionTypesEnabled": ["Exclusive", "Key_Shared"],
    "autoSubscriptionCreation": {"allowAutoSubscriptionCreation": False},
    "subscribeRate": {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 30},
    "maxUnackedMessagesPerSubscription": 4000,
    "encryptionRequired": True,
    "properties": {"team": "billing"},
    "offloadDeletionLagMs": 60_000,
    "deduplicationSnapshotInterval": 120,
    "backlogQuota": {
        "destination_storage": {
            "limit": 10, "limitSize": 10, "limitTime": -1, "policy": "producer_exception"
        },
        "message_age": {
            "limit": -1, "limitSize": -1, "limitTime": 60, "policy": "producer_request_hold"
        },
    },
}  # fmt: skip


def test_what_older_brokers_kept_is_shown_in_pulsar_s_words_and_kept_again_as_it_was() -> None:
    kept = decode(Policies, KEPT, "namespace")
    found = shown(kept, "far")
    assert {word: found[word] for word in SHOWN} == SHOWN
    assert found["publishMaxMessageRate"] == {"far": SHOWN["publishRate"]}
    assert found["max_producers_per_topic"] == 10 and found["max_consumers_per_subscription"] == 5
    assert encode(namespace_of(found, "far")[0]) == KEPT


def test_every_policy_is_in_these_bytes() -> None:
    kept = decode(Policies, KEPT, "namespace")
    for policy in (*POLICIES, *QUOTAS.values()):
        assert getattr(kept, policy.field) is not None, policy.field


def test_the_older_name_of_the_schema_strategy_sets_the_same_policy() -> None:
    """Whatever clients send for the other one when it is not set."""
    older, newer = "schema_auto_update_compatibility_strategy", "schema_compatibility_strategy"
    for body in ({older: "Backward", newer: "UNDEFINED"}, {older: "Full", newer: "BACKWARD"}):
        assert namespace_of(body, "c")[0] == Policies(schema_compatibility="BACKWARD")
    assert namespace_of({older: "Full", newer: "UNDEFINED"}, "c")[0] == Policies()
    for strategy, name in AUTO_UPDATE_NAMES.items():
        assert AUTO_UPDATE.shape.parse(name) == strategy and AUTO_UPDATE.shape.show(strategy) == name


def test_no_types_are_all_types() -> None:
    assert namespace_of({"subscription_types_enabled": []}, "c")[0] == Policies()


def test_what_was_kept_when_more_was_allowed_is_shown_all_the_same() -> None:
    odd = Policies(retention=RetentionPolicy(retention_ms=0, retention_bytes=5 << 20))
    assert shown(odd, "c")["retention"] == {"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("retention", {"retentionTimeInMinutes": -2}, r"unlimited.*\$.retentionTimeInMinutes"),
        ("retention", {"retentionTimeInMinute": 5}, "'retentionTimeInMinute' is unknown"),
        ("persistence", {"managedLedgerMaxMarkDeleteRate": 1.0}, "managedLedgerMaxMarkDeleteRate"),
        ("autoTopicCreationOverride", {"allowAutoTopicCreation": True, "topicType": "odd"}, "odd"),
        (
            "autoTopicCreationOverride",
            {"allowAutoTopicCreation": True, "topicType": "partitioned"},
            "not allowed otherwise",
        ),
        ("retention", {"retentionTimeInMinutes": 5}, "5 minutes and 0 MB is invalid"),
        ("persistence", {"storage": "paper"}, "bookies or objects.*paper"),
        ("persistence", {"bookkeeperWriteQuorum": True}, r"\$.bookkeeperWriteQuorum"),
        ("backlogQuota", {"message_age": {"limit": 5, "policy": "panic"}}, "producer_exception.*panic"),
        ("backlogQuota", {"message_age": {}}, "limitSize in bytes or limitTime in seconds"),
        ("inactiveTopicPolicies", {"inactiveTopicDeleteMode": "at_whim"}, "caught_up.*at_whim"),
        ("delayedDelivery", {"tickTime": 0}, r"1 to 60000 ms.*\$.tickTime"),
        ("dispatchRate", {"ratePeriodInSecond": 5}, "needs dispatchThrottlingRateInMsg"),
        ("iceberg", {"catalog": "here"}, "or an absolute directory"),
        ("iceberg", {"table": "orders"}, "or an absolute directory"),
        ("iceberg", {"catalog": "postgresql://u:p@h/lake"}, "omit them"),
        ("iceberg", {"catalog": "/lake", "table": "shop.orders"}, "contains a dot"),
        ("iceberg", {"catalog": "/lake", "table": "../orders"}, "invalid table"),
        ("iceberg", {"catalog": "/lake", "namespace": "../../etc"}, "invalid namespace"),
        ("iceberg", {"catalog": "/lake", "warehouse": 5}, r"needs a catalog.*\$.warehouse"),
        ("messageTTL", "soon", "a number of seconds, 0"),
        ("schemaCompatibilityStrategy", "guess", "one of ALWAYS_INCOMPATIBLE, .*guess"),
        ("schema_auto_update_compatibility_strategy", "FULL", "one of AutoUpdateDisabled, .*FULL"),
        ("subscription_types_enabled", ["Shared", "Odd"], "types among Exclusive, .*Odd"),
        ("subscription_types_enabled", "Shared", "types among Exclusive"),
        ("autoSubscriptionCreationOverride", {"allow": True}, "'allow' is unknown"),
        ("autoSubscriptionCreationOverride", {}, "needs allowAutoSubscriptionCreation"),
        (
            "clusterSubscribeRate",
            {"c": {"ratePeriodInSecond": 5}},
            "needs subscribeThrottlingRatePerConsumer",
        ),
        ("subscribeRate", {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 0}, "1 to 86400"),
        ("properties", {"team": 5}, "whose values are strings"),
    ],
)
def test_what_is_none_is_refused_with_what_it_must_be_and_what_it_is(
    name: str, value: Any, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        namespace_of({name: value}, "c")
