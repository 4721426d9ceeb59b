"""`/admin/v2/namespaces`: namespaces and their policies.

Each policy is one row of `POLICIES`: the path's last word, how its JSON becomes a field of `Policies`, and back.
`DELETE` of a policy returns it to the broker's default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from msgspec.structs import replace

from quire.metadata.records import BacklogQuota, PersistencePolicy, Policies, RetentionPolicy
from quire.runtime.errors import ConfigurationError
from quire.serving.admin.requests import INT64_MAX, fields_of, json_of, no_content
from quire.serving.admin.target import AdminTarget

NAMESPACES = "/admin/v2/namespaces"
ONE = f"{NAMESPACES}/{{tenant}}/{{namespace}}"
MINUTE_MS = 60_000
QUORUM_MAX = 100
SECONDS_MAX = 1 << 32
"""Longer times and larger sizes than anybody means; what is kept of them fits 64 bits in ms and in bytes."""


@dataclass(frozen=True)
class _Policy:
    word: str
    field: str
    parse: Callable[[Any], Any]
    show: Callable[[Any], Any]


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
        raise ConfigurationError("retention is -1 (for ever), 0 (not at all) or more")
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
            f"ensemble {ensemble} and write quorum {write} must be equal: Quire does not stripe a ledger"
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
    if action not in ("producer_request_hold", "producer_exception", "consumer_backlog_eviction"):
        raise ConfigurationError(f"{action!r} is not an action of a backlog quota")
    return BacklogQuota(limit_bytes=limit, limit_ms=seconds * 1000 if seconds > 0 else -1, action=action)


def _show_quota(quota: BacklogQuota) -> dict[str, Any]:
    seconds = quota.limit_ms // 1000 if quota.limit_ms > 0 else -1
    shown = {
        "limit": quota.limit_bytes,
        "limitSize": quota.limit_bytes,
        "limitTime": seconds,
        "policy": quota.action,
    }
    return {"destination_storage": shown}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigurationError("the request's body must be a text")
    return value


def _auto_creation(value: Any) -> bool:
    allowed = fields_of(value, allowAutoTopicCreation=bool).get("allowAutoTopicCreation")
    if allowed is None:
        raise ConfigurationError("field allowAutoTopicCreation must be true or false")
    return bool(allowed)


POLICIES = (
    _Policy("deduplication", "deduplication", _bool, bool),
    _Policy("persistence", "persistence", _persistence, _show_persistence),
    _Policy("retention", "retention", _retention, _show_retention),
    _Policy("messageTTL", "message_ttl_ms", _seconds, lambda ms: ms // 1000),
    _Policy("backlogQuota", "backlog_quota", _quota, _show_quota),
    _Policy("schemaCompatibilityStrategy", "schema_compatibility", _text, str),
    _Policy(
        "autoTopicCreation",
        "auto_topic_creation",
        _auto_creation,
        lambda allowed: {"allowAutoTopicCreation": allowed},
    ),
)


def routes(target: AdminTarget) -> list[web.RouteDef]:
    found = [
        web.get(f"{NAMESPACES}/{{tenant}}", _list(target)),
        web.get(ONE, _show(target)),
        web.put(ONE, _create(target)),
        web.delete(ONE, _delete(target)),
        web.get(f"{ONE}/topics", _topics(target)),
        web.get(f"{ONE}/permissions", _permissions(target)),
        web.post(f"{ONE}/permissions/{{role}}", _grant(target)),
        web.delete(f"{ONE}/permissions/{{role}}", _revoke(target)),
    ]
    for policy in POLICIES:
        path = f"{ONE}/{policy.word}"
        setter = _set_policy(target, policy)
        found += [
            web.get(path, _get_policy(target, policy)),
            web.post(path, setter),
            web.put(path, setter),
            web.delete(path, _remove_policy(target, policy)),
        ]
    return found


Handler = Callable[[web.Request], Any]


def _names(request: web.Request) -> tuple[str, str]:
    return request.match_info["tenant"], request.match_info["namespace"]


def _list(target: AdminTarget) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response(await target.namespaces.list(request.match_info["tenant"]))

    return handle


def _show(target: AdminTarget) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        record = await target.namespaces.get(*_names(request))
        shown: dict[str, Any] = {}
        for policy in POLICIES:
            value = getattr(record.policies, policy.field)
            if value is not None:
                shown[policy.word] = policy.show(value)
        edges = [f"0x{edge}" for edge in record.boundaries]
        shown["bundles"] = {"boundaries": edges, "numBundles": len(edges) - 1}
        return web.json_response(shown)

    return handle


def _create(target: AdminTarget) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        await target.namespaces.create(*_names(request))
        return no_content()

    return handle


def _delete(target: AdminTarget) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        await target.namespaces.delete(*_names(request))
        return no_content()

    return handle


def _topics(target: AdminTarget) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response(await target.list_topics(*_names(request)))

    return handle


def _permissions(target: AdminTarget) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        record = await target.namespaces.get(*_names(request))
        return web.json_response(
            {role: list(actions) for role, actions in record.policies.permissions.items()}
        )

    return handle


def _grant(target: AdminTarget) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        actions = await json_of(request)
        if not isinstance(actions, list) or not all(isinstance(action, str) for action in actions):
            raise ConfigurationError(
                "the request's body must be a list of actions, such as produce and consume"
            )
        role = request.match_info["role"]

        def change(policies: Policies) -> Policies:
            return replace(policies, permissions={**policies.permissions, role: tuple(actions)})

        await target.namespaces.change(*_names(request), change)
        return no_content()

    return handle


def _revoke(target: AdminTarget) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        role = request.match_info["role"]

        def change(policies: Policies) -> Policies:
            rest = {name: actions for name, actions in policies.permissions.items() if name != role}
            return replace(policies, permissions=rest)

        await target.namespaces.change(*_names(request), change)
        return no_content()

    return handle


def _get_policy(target: AdminTarget, policy: _Policy) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        record = await target.namespaces.get(*_names(request))
        value = getattr(record.policies, policy.field)
        return web.json_response(None if value is None else policy.show(value))

    return handle


def _set_policy(target: AdminTarget, policy: _Policy) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        value = policy.parse(await json_of(request))
        await target.namespaces.change(*_names(request), lambda all: replace(all, **{policy.field: value}))
        return no_content()

    return handle


def _remove_policy(target: AdminTarget, policy: _Policy) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        await target.namespaces.change(*_names(request), lambda all: replace(all, **{policy.field: None}))
        return no_content()

    return handle
