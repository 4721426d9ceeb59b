"""The JSON of policies: what REST takes and shows, one row each; see `policies` for where they are kept,
and `namespace_json` for those that a namespace is made with.

Each policy is one row of `POLICIES`: the path's last word in a namespace's path and in a topic's, its name in Pulsar's
JSON of a whole namespace, the field of `Policies` that it is, and how its JSON becomes the field's value and back. The
two backlog quotas share a word, and the query says which is meant, as Pulsar's tools do it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from quire.metadata.records import (
    BacklogQuota,
    DelayedDeliveryPolicy,
    DispatchRate,
    InactiveTopicPolicy,
    PersistencePolicy,
    Policies,
    PublishRate,
    RetentionPolicy,
)
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import MESSAGE_BYTES_MAX
from quire.serving.admin.requests import INT64_MAX, fields_of, number
from quire.serving.policy.strategy import UNDEFINED, Strategy

QUOTA_ACTIONS = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")
DELETE_MODES = ("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up")
MINUTE_MS = 60_000
QUORUM_MAX = 100
TICK_MS_MAX = 60_000
PERIOD_S_MAX = 86_400
SECONDS_MAX = 1 << 32
"""Longer times and larger sizes than anybody means; what is kept of them fits 64 bits in ms and in bytes."""


@dataclass(frozen=True)
class PolicyJson:
    word: str
    """In a namespace's path; empty: a namespace has no such policy."""
    field: str
    parse: Callable[[Any], Any]
    show: Callable[[Any], Any]
    topic_word: str = ""
    """In a topic's path; empty: a topic has no such policy."""
    name: str = ""
    """In Pulsar's JSON of a namespace's policies."""
    is_by_cluster: bool = False
    """There it is a map, with one value for each cluster."""


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError("the request's body must be true or false")
    return value


def _seconds(value: Any) -> int:
    value = number(value)
    if not isinstance(value, int) or not 0 <= value <= SECONDS_MAX:
        raise ConfigurationError("the request's body must be a number of seconds")
    return value * 1000


def _retention(value: Any) -> RetentionPolicy:
    found = fields_of(value, retentionTimeInMinutes=int, retentionSizeInMB=int)
    minutes, megabytes = found.get("retentionTimeInMinutes", 0), found.get("retentionSizeInMB", 0)
    if not (-1 <= minutes <= SECONDS_MAX and -1 <= megabytes <= SECONDS_MAX):
        raise ConfigurationError(
            f"retention is -1 (for ever), 0 (not at all) or up to {SECONDS_MAX} minutes and MB"
        )
    if (minutes == 0) != (megabytes == 0):
        raise ConfigurationError(
            f"retention of {minutes} minutes and {megabytes} MB contradicts itself: both are 0 (keep nothing that is "
            "acknowledged), or neither is (-1: no limit)"
        )
    return RetentionPolicy(
        retention_ms=minutes * MINUTE_MS if minutes > 0 else minutes,
        retention_bytes=megabytes << 20 if megabytes > 0 else megabytes,
    )


def _show_retention(policy: RetentionPolicy) -> dict[str, int]:
    minutes = policy.retention_ms // MINUTE_MS if policy.retention_ms > 0 else policy.retention_ms
    megabytes = policy.retention_bytes >> 20 if policy.retention_bytes > 0 else policy.retention_bytes
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


def _persistence(value: Any) -> PersistencePolicy:
    found = fields_of(value, bookkeeperEnsemble=int, bookkeeperWriteQuorum=int, bookkeeperAckQuorum=int)
    write, ack = found.get("bookkeeperWriteQuorum", 0), found.get("bookkeeperAckQuorum", 0)
    ensemble = found.get("bookkeeperEnsemble", write)
    if ensemble != write:
        raise ConfigurationError(
            f"ensemble {ensemble} and write quorum {write} must be equal, for Quire does not stripe a "
            "ledger: give both the number of copies"
        )
    if not QUORUM_MAX >= write >= ack >= 1:
        raise ConfigurationError(
            f"write quorum {write} must be {QUORUM_MAX} at most and at least ack quorum {ack}, and that at least 1"
        )
    return PersistencePolicy(write_quorum=write, ack_quorum=ack)


def _show_persistence(policy: PersistencePolicy) -> dict[str, int]:
    return {
        "bookkeeperEnsemble": policy.write_quorum,
        "bookkeeperWriteQuorum": policy.write_quorum,
        "bookkeeperAckQuorum": policy.ack_quorum,
    }


def _quota(value: Any) -> BacklogQuota:
    found = fields_of(value, limit=int, limitSize=int, limitTime=int, policy=str)
    limit = found.get("limitSize", found.get("limit", -1))
    seconds = found.get("limitTime", -1)
    if limit > INT64_MAX or seconds > SECONDS_MAX:
        raise ConfigurationError("a backlog quota's limits are beyond what anybody means")
    action = found.get("policy", "producer_request_hold")
    if action not in QUOTA_ACTIONS:
        raise ConfigurationError(
            f"{action!r} is not an action of a backlog quota: use {', '.join(QUOTA_ACTIONS)}"
        )
    if not found.keys() & {"limit", "limitSize", "limitTime"}:
        raise ConfigurationError(
            "a backlog quota needs limitSize in bytes or limitTime in seconds; -1: no limit"
        )
    return BacklogQuota(
        limit_bytes=max(limit, -1), limit_ms=seconds * 1000 if seconds > 0 else -1, action=action
    )


def _show_quota(quota: BacklogQuota) -> dict[str, Any]:
    return {
        "limit": quota.limit_bytes,
        "limitSize": quota.limit_bytes,
        "limitTime": quota.limit_ms // 1000 if quota.limit_ms > 0 else -1,
        "policy": quota.action,
    }


def _inactive(value: Any) -> InactiveTopicPolicy:
    found = fields_of(
        value, inactiveTopicDeleteMode=str, maxInactiveDurationSeconds=int, deleteWhileInactive=bool
    )
    mode = found.get("inactiveTopicDeleteMode", DELETE_MODES[0])
    seconds = found.get("maxInactiveDurationSeconds", 60)
    if mode not in DELETE_MODES:
        raise ConfigurationError(f"{mode!r} is not a mode of deletion: use {' or '.join(DELETE_MODES)}")
    if not 1 <= seconds <= SECONDS_MAX:
        raise ConfigurationError("maxInactiveDurationSeconds must be a number of seconds, at least 1")
    return InactiveTopicPolicy(
        enabled=found.get("deleteWhileInactive", True), mode=mode, inactive_ms_max=1000 * seconds
    )


def _show_inactive(policy: InactiveTopicPolicy) -> dict[str, Any]:
    return {
        "inactiveTopicDeleteMode": policy.mode,
        "maxInactiveDurationSeconds": policy.inactive_ms_max // 1000,
        "deleteWhileInactive": policy.enabled,
    }


def _delayed(value: Any) -> DelayedDeliveryPolicy:
    found = fields_of(value, active=bool, tickTime=int, maxDeliveryDelayInMillis=int)
    tick_ms = found.get("tickTime", DelayedDeliveryPolicy().tick_ms)
    delay_ms_max = found.get("maxDeliveryDelayInMillis", 0)
    if not 1 <= tick_ms <= TICK_MS_MAX:
        raise ConfigurationError(f"tickTime must be 1 to {TICK_MS_MAX} ms")
    if not 0 <= delay_ms_max <= INT64_MAX >> 1:
        raise ConfigurationError("maxDeliveryDelayInMillis must be 0 (no limit) or a number of ms")
    return DelayedDeliveryPolicy(active=found.get("active", True), tick_ms=tick_ms, delay_ms_max=delay_ms_max)


def _show_delayed(policy: DelayedDeliveryPolicy) -> dict[str, Any]:
    return {
        "active": policy.active, "tickTime": policy.tick_ms, "maxDeliveryDelayInMillis": policy.delay_ms_max
    }  # fmt: skip


def _minutes(value: Any) -> int:
    return _whole_number(value, "minutes", SECONDS_MAX) * MINUTE_MS


def _message_bytes(value: Any) -> int:
    return _whole_number(value, "bytes", MESSAGE_BYTES_MAX)


def _bytes(value: Any) -> int:
    return _whole_number(value, "bytes", INT64_MAX >> 1)


def _whole_number(value: Any, unit: str, most: int) -> int:
    value = number(value)
    if not isinstance(value, int) or not 0 <= value <= most:
        raise ConfigurationError(f"the request's body must be a number of {unit}, 0 (off) to {most}")
    return value


def _publish_rate(value: Any) -> PublishRate:
    found = fields_of(value, publishThrottlingRateInMsg=int, publishThrottlingRateInByte=int)
    messages = found.get("publishThrottlingRateInMsg", -1)
    byte_count = found.get("publishThrottlingRateInByte", -1)
    if not found or not -1 <= min(messages, byte_count) <= max(messages, byte_count) <= INT64_MAX:
        raise ConfigurationError(
            "a publish rate needs publishThrottlingRateInMsg or publishThrottlingRateInByte, per second; -1: no limit"
        )
    return PublishRate(messages_per_s=max(messages, 0), bytes_per_s=max(byte_count, 0))


def _show_publish_rate(rate: PublishRate) -> dict[str, int]:
    return {
        "publishThrottlingRateInMsg": rate.messages_per_s or -1,
        "publishThrottlingRateInByte": rate.bytes_per_s or -1,
    }


def _dispatch_rate(value: Any) -> DispatchRate:
    found = fields_of(
        value,
        dispatchThrottlingRateInMsg=int,
        dispatchThrottlingRateInByte=int,
        ratePeriodInSecond=int,
        relativeToPublishRate=bool,
    )
    messages = found.get("dispatchThrottlingRateInMsg", -1)
    byte_count = found.get("dispatchThrottlingRateInByte", -1)
    period_s = found.get("ratePeriodInSecond", 1)
    if not found.keys() & {"dispatchThrottlingRateInMsg", "dispatchThrottlingRateInByte"}:
        raise ConfigurationError(
            "a dispatch rate needs dispatchThrottlingRateInMsg or dispatchThrottlingRateInByte; -1: no limit"
        )
    if found.get("relativeToPublishRate", False):
        raise ConfigurationError(
            "relativeToPublishRate is not there: give what may be dealt as a number of its own, and false for this"
        )
    if not 1 <= period_s <= PERIOD_S_MAX:
        raise ConfigurationError(f"ratePeriodInSecond must be 1 to {PERIOD_S_MAX}")
    if not -1 <= min(messages, byte_count) <= max(messages, byte_count) <= INT64_MAX:
        raise ConfigurationError("a dispatch rate is a number per period; -1: no limit")
    return DispatchRate(messages=max(messages, 0), bytes=max(byte_count, 0), period_s=period_s)


def _show_dispatch_rate(rate: DispatchRate) -> dict[str, Any]:
    return {
        "dispatchThrottlingRateInMsg": rate.messages or -1,
        "dispatchThrottlingRateInByte": rate.bytes or -1,
        "ratePeriodInSecond": rate.period_s,
        "relativeToPublishRate": False,
    }


def _strategy(value: Any) -> str | None:
    if value != UNDEFINED and value not in list(Strategy):
        raise ConfigurationError(
            f"the request's body must be one of {', '.join(Strategy)}, or {UNDEFINED} for the level above"
        )
    return None if value == UNDEFINED else str(value)


def _auto_creation(value: Any) -> bool:
    allowed = fields_of(value, allowAutoTopicCreation=bool).get("allowAutoTopicCreation")
    if allowed is None:
        raise ConfigurationError("field allowAutoTopicCreation must be true or false")
    return bool(allowed)


POLICIES: Final = (
    PolicyJson("deduplication", "deduplication", _bool, bool, "deduplicationEnabled", "deduplicationEnabled"),
    PolicyJson("persistence", "persistence", _persistence, _show_persistence, "persistence", "persistence"),
    PolicyJson("retention", "retention", _retention, _show_retention, "retention", "retention_policies"),
    PolicyJson(
        "messageTTL",
        "message_ttl_ms",
        _seconds,
        lambda ms: ms // 1000,
        "messageTTL",
        "message_ttl_in_seconds",
    ),
    PolicyJson(
        "inactiveTopicPolicies",
        "inactive_topics",
        _inactive,
        _show_inactive,
        "inactiveTopicPolicies",
        "inactive_topic_policies",
    ),
    PolicyJson(
        "delayedDelivery",
        "delayed_delivery",
        _delayed,
        _show_delayed,
        "delayedDelivery",
        "delayed_delivery_policies",
    ),
    PolicyJson(
        "subscriptionExpirationTime",
        "subscription_expiration_ms",
        _minutes,
        lambda ms: ms // MINUTE_MS,
        name="subscription_expiration_time_minutes",
    ),
    PolicyJson("maxMessageSize", "message_bytes_max", _message_bytes, int, "maxMessageSize"),
    PolicyJson(
        "publishRate",
        "publish_rate",
        _publish_rate,
        _show_publish_rate,
        "publishRate",
        "publishMaxMessageRate",
        True,
    ),
    PolicyJson(
        "dispatchRate",
        "dispatch_rate",
        _dispatch_rate,
        _show_dispatch_rate,
        "dispatchRate",
        "topicDispatchRate",
        True,
    ),
    PolicyJson(
        "subscriptionDispatchRate",
        "subscription_dispatch_rate",
        _dispatch_rate,
        _show_dispatch_rate,
        "subscriptionDispatchRate",
        "subscriptionDispatchRate",
        True,
    ),
    PolicyJson(
        "compactionThreshold",
        "compaction_threshold_bytes",
        _bytes,
        int,
        "compactionThreshold",
        "compaction_threshold",
    ),
    PolicyJson(
        "schemaCompatibilityStrategy",
        "schema_compatibility",
        _strategy,
        str,
        "schemaCompatibilityStrategy",
        "schema_compatibility_strategy",
    ),
    PolicyJson(
        "isAllowAutoUpdateSchema", "schema_auto_update", _bool, bool, name="is_allow_auto_update_schema"
    ),
    PolicyJson(
        "schemaValidationEnforced",
        "schema_enforced",
        _bool,
        bool,
        "schemaValidationEnforced",
        "schema_validation_enforced",
    ),
    PolicyJson(
        "autoTopicCreation",
        "auto_topic_creation",
        _auto_creation,
        lambda allowed: {"allowAutoTopicCreation": allowed},
        name="autoTopicCreationOverride",
    ),
)
QUOTAS: Final = {
    "destination_storage": PolicyJson("backlogQuota", "backlog_quota", _quota, _show_quota, "backlogQuota"),
    "message_age": PolicyJson("backlogQuota", "age_quota", _quota, _show_quota, "backlogQuota"),
}
"""By the type that Pulsar's tools name in the query."""


def shown(prescribed: Policies, cluster: str) -> dict[str, Any]:
    """All that a namespace prescribes, by the words of their paths and by Pulsar's names."""
    found: dict[str, Any] = {"replication_clusters": [cluster]}
    for policy in POLICIES:
        value = getattr(prescribed, policy.field)
        if value is not None and policy.word:
            found[policy.word] = shape = policy.show(value)
            if policy.name and policy.name != policy.word:
                found[policy.name] = {cluster: shape} if policy.is_by_cluster else shape
    quotas = quotas_shown(prescribed)
    return {**found, "backlogQuota": quotas, "backlog_quota_map": quotas} if quotas else found


def quotas_shown(prescribed: Any) -> dict[str, Any] | None:
    """Both quotas by their types, None when there is none."""
    quotas = {
        kind: policy.show(getattr(prescribed, policy.field))
        for kind, policy in QUOTAS.items()
        if getattr(prescribed, policy.field) is not None
    }
    return quotas or None
