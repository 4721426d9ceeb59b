"""Policies over REST, of a namespace (`/admin/v2/namespaces/…`) and of a topic (`/admin/v2/persistent/…`).

`policy_json` has the rows, a policy each, and their JSON. `DELETE` returns a policy to the level above: the namespace,
at last the broker's default. A GET says what this level prescribes, 204 for nothing, as Pulsar does (its clients read
null as zero); a topic's with `?applied=true` says what holds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from msgspec.structs import replace

from quire.metadata.records import Policies
from quire.runtime.errors import ConfigurationError
from quire.security.authorization import Action
from quire.serving.admin.policy_json import (
    POLICIES,
    QUOTAS,
    Iceberg,
    PolicyJson,
    Quota,
    namespace_policies_shown,
    quotas_shown,
    topic_policies_shown,
)
from quire.serving.admin.route import (
    NAMESPACE,
    OF_NAMESPACE,
    TOPIC_NAME,
    Argument,
    Route,
    as_it_is,
    body,
    flag,
    query,
)
from quire.serving.broker import Broker
from quire.serving.names import TopicName

TOPIC = "/admin/v2/{domain:persistent}/{tenant}/{namespace}/{topic}"
BY_TOPIC = "/quire/v1/topics/{domain:persistent}/{tenant}/{namespace}/{topic}/policies"
BY_NAMESPACE = "/quire/v1/namespaces/{tenant}/{namespace}/policies"
REFRESH = "/quire/v1/policies/{tenant}/{namespace}"
"""What one broker asks of the others when it has changed a policy: to heed it before the change is answered."""

ICEBERG = "/quire/v1/iceberg"
"""All topics of the cluster for which an Iceberg table is kept fresh, and what is prescribed of it."""

HEEDED = ("deduplicationEnabled", "maxMessageSize")
"""A topic's policies that writers ask for before they write: who may use the topic may read them."""

Change = Callable[[Policies], Policies]


@dataclass(frozen=True)
class _Level:
    """Namespaces or topics: how the policies of one are read and changed."""

    path: str
    names: Sequence[Argument]
    read: Callable[..., Awaitable[Any]]
    change: Callable[..., Awaitable[None]]
    """Takes the names and a `Change`."""
    which: Sequence[Argument] = ()
    """What else `read` takes."""


def routes(broker: Broker) -> Sequence[Route]:
    policies = broker.admin.policies

    async def of_namespace(tenant: str, namespace: str) -> Policies:
        return (await broker.namespaces.get(tenant, namespace)).policies

    async def of_topic(topic: TopicName, *, applied: bool) -> Any:
        return await (policies.applied if applied else policies.of_topic)(topic)

    namespaces = _Level(NAMESPACE, OF_NAMESPACE, of_namespace, policies.change_namespace)
    topics = _Level(TOPIC, (TOPIC_NAME,), of_topic, policies.change_topic, (flag("applied"),))

    async def tables() -> list[dict[str, str]]:
        found = await policies.with_iceberg()
        return [{"topic": str(name), **Iceberg.show(policy)} for name, policy in found.items()]

    async def of_both(topic: TopicName) -> dict[str, Any]:
        """All policies of a topic by the words of their paths: what it prescribes itself, and what holds."""
        own, applied = await policies.of_topic(topic), await policies.applied(topic)
        return {"prescribed": topic_policies_shown(own), "applied": topic_policies_shown(applied)}

    async def of_both_levels(tenant: str, namespace: str) -> dict[str, Any]:
        """All policies of a namespace: what it prescribes, and what holds for a topic with none of its own."""
        prescribed = namespace_policies_shown(await of_namespace(tenant, namespace))
        applied = namespace_policies_shown(await policies.applied_in(tenant, namespace))
        applied = {word: prescribed[word] if value is None else value for word, value in applied.items()}
        return {"prescribed": prescribed, "applied": applied}

    async def forget(topic: TopicName) -> None:
        """All but its permissions, which are granted and revoked."""
        await policies.change_topic(topic, lambda old: Policies(permissions=old.permissions))

    found = [
        Route("DELETE", f"{TOPIC}/policies", forget, TOPIC_NAME, may=Action.ADMINISTER),
        Route("GET", BY_TOPIC, of_both, TOPIC_NAME, may=Action.ADMINISTER),
        Route("GET", BY_NAMESPACE, of_both_levels, *OF_NAMESPACE, may=Action.ADMINISTER),
        Route("GET", ICEBERG, tables, may=Action.SUPERUSER),
        Route("PUT", REFRESH, policies.refresh, *OF_NAMESPACE, query("topic", _topic), may=Action.SUPERUSER),
    ]
    found += [*_quota_routes(namespaces), *_quota_routes(topics)]
    for policy in POLICIES:
        if policy.word:
            found += _routes_of(policy, policy.word, namespaces)
        if policy.topic_word:
            found += _routes_of(policy, policy.topic_word, topics)
    return found


def _topic(text: str | None) -> TopicName | None:
    return None if text is None else TopicName.parse(text)


def _routes_of(policy: PolicyJson, word: str, level: _Level) -> Sequence[Route]:
    def shown(prescribed: Any) -> Any:
        value = getattr(prescribed, policy.field)
        if value is None:
            return policy.unset if level.path == NAMESPACE else None
        return policy.shape.show(value)

    async def put(value: Any, *names: Any) -> None:
        await level.change(*names, _setting(policy, value))

    async def delete(*names: Any) -> None:
        await level.change(*names, _setting(policy, None))

    may = Action.SUPERUSER if policy.is_limit else Action.ADMINISTER
    path, value = f"{level.path}/{word}", body(policy.shape.parse, policy.kind, or_query=policy.topic_word)
    reading = Action.LOOKUP if level.path == TOPIC and word in HEEDED else Action.ADMINISTER
    return (
        Route(
            "GET",
            path,
            level.read,
            *level.names,
            *level.which,
            answer=shown,
            shows=policy.kind | None,
            may=reading,
        ),
        Route("POST", path, put, value, *level.names, may=may),
        Route("PUT", path, put, value, *level.names, may=may),
        Route("DELETE", path, delete, *level.names, may=may),
    )


def _quota_routes(level: _Level) -> Sequence[Route]:
    def all_shown(prescribed: Any) -> dict[str, Any]:
        return quotas_shown(prescribed) or {}

    async def put(quota: PolicyJson, value: Any, *names: Any) -> None:
        await level.change(*names, _setting(quota, quota.shape.parse(value)))

    async def delete(quota: PolicyJson, *names: Any) -> None:
        await level.change(*names, _setting(quota, None))

    path, value = f"{level.path}/backlogQuota", body(as_it_is, Quota, or_query="backlogQuota")
    kind = query("backlogQuotaType", _quota, "destination_storage", kind=Literal[tuple(QUOTAS)])
    return (
        Route(
            "GET", path, level.read, *level.names, *level.which, answer=quotas_shown, may=Action.ADMINISTER
        ),
        Route(
            "GET",
            f"{path}Map",
            level.read,
            *level.names,
            *level.which,
            answer=all_shown,
            may=Action.ADMINISTER,
        ),
        Route("POST", path, put, kind, value, *level.names, may=Action.ADMINISTER),
        Route("PUT", path, put, kind, value, *level.names, may=Action.ADMINISTER),
        Route("DELETE", path, delete, kind, *level.names, may=Action.ADMINISTER),
    )


def _quota(kind: str) -> PolicyJson:
    if kind not in QUOTAS:
        raise ConfigurationError(f"{kind!r} is not a type of backlog quota: use {' or '.join(QUOTAS)}")
    return QUOTAS[kind]


def _setting(policy: PolicyJson, value: Any) -> Change:
    return lambda all: replace(all, **{policy.field: value})
