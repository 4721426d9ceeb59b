"""Policies over REST, of a namespace (`/admin/v2/namespaces/…`) and of a topic (`/admin/v2/persistent/…`).

Each policy is one row of `POLICIES`: the path's last word in either place, the field of `Policies` that it is, and how
its JSON becomes the field's value and back. `DELETE` returns it to the level above: the namespace, at last the broker's
default. A GET says what this level prescribes, null for nothing; a topic's with `?applied=true` says what holds.
The two backlog quotas share a path, and the query says which is meant, as Pulsar's tools do it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from msgspec.structs import replace

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
from quire.serving.admin.requests import INT64_MAX, fields_of, flag, json_of, natural, no_content, topic_of
from quire.serving.admin.target import AdminTarget
from quire.serving.policy.strategy import UNDEFINED, Strategy

NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
TOPIC = "/admin/v2/{domain:persistent}/{tenant}/{namespace}/{topic}"
REFRESH = "/quire/v1/policies/{tenant}/{namespace}"
"""What one broker asks of the others when it has changed a policy: to heed it before the change is answered."""

QUOTA_ACTIONS = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")
DELETE_MODES = ("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up")
MINUTE_MS = 60_000
QUORUM_MAX = 100
TICK_MS_MAX = 60_000
PERIOD_S_MAX = 86_400
SECONDS_MAX = 1 << 32
"""Longer times and larger sizes than anybody means; what is kept of them fits 64 bits in ms and in bytes."""


@dataclass(frozen=True)
class _Policy:
    word: str
    """In a namespace's path; empty: a namespace has no such policy."""
    field: str
    parse: Callable[[Any], Any]
    show: Callable[[Any], Any]
    topic_word: str = ""
    """In a topic's path; empty: a topic has no such policy."""


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError("the request's body must be true or false")
    return value


def _seconds(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= SECONDS_MAX:
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
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
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
    _Policy("deduplication", "deduplication", _bool, bool, "deduplicationEnabled"),
    _Policy("persistence", "persistence", _persistence, _show_persistence, "persistence"),
    _Policy("retention", "retention", _retention, _show_retention, "retention"),
    _Policy("messageTTL", "message_ttl_ms", _seconds, lambda ms: ms // 1000, "messageTTL"),
    _Policy("inactiveTopicPolicies", "inactive_topics", _inactive, _show_inactive, "inactiveTopicPolicies"),
    _Policy("delayedDelivery", "delayed_delivery", _delayed, _show_delayed, "delayedDelivery"),
    _Policy("subscriptionExpirationTime", "subscription_expiration_ms", _minutes, lambda ms: ms // MINUTE_MS),
    _Policy("maxMessageSize", "message_bytes_max", _message_bytes, int, "maxMessageSize"),
    _Policy("publishRate", "publish_rate", _publish_rate, _show_publish_rate, "publishRate"),
    _Policy("dispatchRate", "dispatch_rate", _dispatch_rate, _show_dispatch_rate, "dispatchRate"),
    _Policy(
        "subscriptionDispatchRate",
        "subscription_dispatch_rate",
        _dispatch_rate,
        _show_dispatch_rate,
        "subscriptionDispatchRate",
    ),
    _Policy("compactionThreshold", "compaction_threshold_bytes", _bytes, int, "compactionThreshold"),
    _Policy(
        "schemaCompatibilityStrategy",
        "schema_compatibility",
        _strategy,
        str,
        "schemaCompatibilityStrategy",
    ),
    _Policy("isAllowAutoUpdateSchema", "schema_auto_update", _bool, bool),
    _Policy("schemaValidationEnforced", "schema_enforced", _bool, bool, "schemaValidationEnforced"),
    _Policy(
        "autoTopicCreation",
        "auto_topic_creation",
        _auto_creation,
        lambda allowed: {"allowAutoTopicCreation": allowed},
    ),
)
QUOTAS: Final = {
    "destination_storage": _Policy("backlogQuota", "backlog_quota", _quota, _show_quota, "backlogQuota"),
    "message_age": _Policy("backlogQuota", "age_quota", _quota, _show_quota, "backlogQuota"),
}
"""By the type that Pulsar's tools name in the query."""


def shown(prescribed: Policies) -> dict[str, Any]:
    """All that a namespace prescribes, by the words of their paths."""
    found = {
        policy.word: policy.show(value)
        for policy in POLICIES
        if policy.word and (value := getattr(prescribed, policy.field)) is not None
    }
    quotas = _quotas_shown(prescribed)
    return {**found, "backlogQuota": quotas} if quotas else found


def _quotas_shown(prescribed: Any) -> dict[str, Any] | None:
    quotas = {
        kind: policy.show(getattr(prescribed, policy.field))
        for kind, policy in QUOTAS.items()
        if getattr(prescribed, policy.field) is not None
    }
    return quotas or None


# -- where policies are kept ---------------------------------------------------------------------------

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Change = Callable[[Policies], Policies]


@dataclass(frozen=True)
class _Level:
    """Namespaces or topics: how the policies that a request is about are read and changed."""

    read: Callable[[web.Request], Awaitable[Any]]
    change: Callable[[web.Request, Change], Awaitable[None]]


def _of_namespaces(target: AdminTarget) -> _Level:
    async def read(request: web.Request) -> Policies:
        part = request.match_info
        return (await target.namespaces.get(part["tenant"], part["namespace"])).policies

    async def change(request: web.Request, change: Change) -> None:
        part = request.match_info
        await target.change_namespace_policies(part["tenant"], part["namespace"], change)

    return _Level(read, change)


def _of_topics(target: AdminTarget) -> _Level:
    async def read(request: web.Request) -> Any:
        topic = topic_of(request)
        if flag(request, "applied"):
            return await target.applied_policies(topic)
        return await target.topic_policies(topic)

    async def change(request: web.Request, change: Change) -> None:
        await target.change_topic_policies(topic_of(request), change)

    return _Level(read, change)


def routes(target: AdminTarget) -> list[web.RouteDef]:
    async def refresh(request: web.Request) -> web.Response:
        part = request.match_info
        await target.refresh_policies(part["tenant"], part["namespace"], request.query.get("topic"))
        return no_content()

    namespaces, topics = _of_namespaces(target), _of_topics(target)
    found = [web.put(REFRESH, refresh)]
    found += _quota_routes(NAMESPACE, namespaces) + _quota_routes(TOPIC, topics)
    for policy in POLICIES:
        if policy.word:
            found += _routes_of(f"{NAMESPACE}/{policy.word}", namespaces, policy)
        if policy.topic_word:
            found += _routes_of(f"{TOPIC}/{policy.topic_word}", topics, policy)
    return found


def _routes_of(path: str, level: _Level, policy: _Policy) -> list[web.RouteDef]:
    async def get(request: web.Request) -> web.Response:
        value = getattr(await level.read(request), policy.field)
        return web.json_response(None if value is None else policy.show(value))

    async def put(request: web.Request) -> web.Response:
        return await _put(request, level, policy)

    async def delete(request: web.Request) -> web.Response:
        return await _delete(request, level, policy)

    return [web.get(path, get), web.post(path, put), web.put(path, put), web.delete(path, delete)]


def _quota_routes(parent: str, level: _Level) -> list[web.RouteDef]:
    def meant(request: web.Request) -> _Policy:
        kind = request.query.get("backlogQuotaType", "destination_storage")
        if kind not in QUOTAS:
            raise ConfigurationError(f"{kind!r} is not a type of backlog quota: use {' or '.join(QUOTAS)}")
        return QUOTAS[kind]

    async def get(request: web.Request) -> web.Response:
        return web.json_response(_quotas_shown(await level.read(request)))

    async def get_map(request: web.Request) -> web.Response:
        return web.json_response(_quotas_shown(await level.read(request)) or {})

    async def put(request: web.Request) -> web.Response:
        return await _put(request, level, meant(request))

    async def delete(request: web.Request) -> web.Response:
        return await _delete(request, level, meant(request))

    path = f"{parent}/backlogQuota"
    return [
        web.get(path, get),
        web.get(f"{path}Map", get_map),
        web.post(path, put),
        web.put(path, put),
        web.delete(path, delete),
    ]


async def _put(request: web.Request, level: _Level, policy: _Policy) -> web.Response:
    value = policy.parse(await _value(request, policy))
    await level.change(request, lambda all: replace(all, **{policy.field: value}))
    return no_content()


async def _delete(request: web.Request, level: _Level, policy: _Policy) -> web.Response:
    await level.change(request, lambda all: replace(all, **{policy.field: None}))
    return no_content()


async def _value(request: web.Request, policy: _Policy) -> Any:
    """The body; some of Pulsar's tools put a single number into the query, under the path's word."""
    named = request.query.get(policy.topic_word) if policy.topic_word else None
    return await json_of(request) if named is None else natural(named, f"{policy.topic_word} in the query")
