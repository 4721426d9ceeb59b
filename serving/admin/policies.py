"""REST requests for the policies of namespaces (`/admin/v2/namespaces/…`) and topics (`/admin/v2/persistent/…`).

`policy_json` contains a row for each policy, with its JSON. `DELETE` unsets a policy, so that the level above applies:
the namespace, and finally the broker's default. GET returns the value set at this level, 204 if it is not set, as in
Pulsar (its clients read null as zero); for a topic with `?applied=true` it returns the effective value.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from aiohttp import web
from msgspec.structs import replace

from quire.metadata.records import DispatchRate, Policies
from quire.runtime.errors import ConfigurationError, LimitExceeded, VersionConflict
from quire.security.authorization import Action
from quire.serving.admin import effective_policies
from quire.serving.admin.login import require
from quire.serving.admin.policy_json import (
    AUTO_UPDATE,
    POLICIES,
    QUOTAS,
    DispatchRates,
    Iceberg,
    PolicyJson,
    Quota,
    quotas_shown,
)
from quire.serving.admin.requests import Absent
from quire.serving.admin.route import (
    NAMESPACE,
    OF_NAMESPACE,
    REQUEST,
    SUBSCRIPTION_NAME,
    TOPIC_NAME,
    Argument,
    Route,
    as_it_is,
    body,
    flag,
    query,
)
from quire.serving.broker import Broker
from quire.serving.names import TopicName, check_name
from quire.serving.policy.resolved import NO_POLICIES, limits_of

TOPIC = "/admin/v2/{domain:persistent}/{tenant}/{namespace}/{topic}"
REFRESH = "/quire/v1/policies/{tenant}/{namespace}"
"""Path of the request with which a broker makes the others apply changed policies, before it answers the change."""

ICEBERG = "/quire/v1/iceberg"
"""Path of the list of all topics of the cluster for which an Iceberg table is maintained, with their policies."""

HEEDED = ("deduplicationEnabled", "maxMessageSize")
"""Policies of a topic that producers read before they write: clients of the topic may read them."""

SUBSCRIPTION_RATES_MAX = 1_000
"""Maximum number of subscriptions of a topic with a dispatch rate, which bounds the size of the topic's record."""

Change = Callable[[Policies], Policies]


@dataclass(frozen=True)
class Level:
    """Level of policies (namespaces or topics), with the functions that read and change policies at this level."""

    path: str
    names: Sequence[Argument]
    read: Callable[..., Awaitable[Any]]
    change: Callable[..., Awaitable[None]]
    """Function of the names and a `Change`."""
    which: Sequence[Argument] = ()
    """Additional arguments of `read`."""
    change_which: Sequence[Argument] = ()
    """Additional arguments of `change`, after the `Change`."""


def routes(broker: Broker) -> Sequence[Route]:
    policies = broker.admin.policies

    async def of_namespace(tenant: str, namespace: str) -> Policies:
        return (await broker.namespaces.get(tenant, namespace)).policies

    namespaces = Level(NAMESPACE, OF_NAMESPACE, of_namespace, policies.change_namespace)
    topics = topic_level(broker)

    async def tables() -> list[dict[str, str]]:
        found = await policies.topics_with_iceberg()
        return [{"topic": str(name), **Iceberg.show(policy)} for name, policy in found.items()]

    async def forget(topic: TopicName, request: web.Request) -> None:
        """Remove all policies of a topic except permissions. Only a superuser may remove limits."""
        limits = limits_of(await policies.own(topic))
        await require_to_lift(request, limits)

        def change(old: Policies) -> Policies:
            if limits_of(old) != limits:
                raise VersionConflict(f"the limits of {topic} were changed by another request; try again")
            return Policies(permissions=old.permissions)

        await policies.change_topic(topic, change)

    found = [
        Route("DELETE", f"{TOPIC}/policies", forget, TOPIC_NAME, REQUEST, may=Action.ADMINISTER),
        *effective_policies.routes(broker),
        Route("GET", ICEBERG, tables, may=Action.SUPERUSER),
        Route("PUT", REFRESH, policies.refresh, *OF_NAMESPACE, query("topic", _topic), may=Action.SUPERUSER),
    ]
    found += [*_quota_routes(namespaces), *_quota_routes(topics)]
    found += _routes_of(AUTO_UPDATE, AUTO_UPDATE.word, namespaces)
    for policy in POLICIES:
        if policy.word:
            found += _routes_of(policy, policy.word, namespaces)
        if policy.topic_word:
            found += _routes_of(policy, policy.topic_word, topics)
    return found


def topic_level(broker: Broker) -> Level:
    policies = broker.admin.policies

    async def of_topic(topic: TopicName, *, applied: bool, is_global: bool) -> Any:
        found = await (policies.effective if applied else policies.own)(topic)
        return NO_POLICIES if is_global and not applied else found

    async def change_topic(topic: TopicName, change: Change, *, is_global: bool) -> None:
        if is_global:
            raise Absent("global policies are not supported, only those of this cluster: omit isGlobal")
        await policies.change_topic(topic, change)

    is_global = flag("isGlobal", "is_global")
    return Level(TOPIC, (TOPIC_NAME,), of_topic, change_topic, (flag("applied"), is_global), (is_global,))


async def require_to_lift(request: web.Request, limits: Mapping[str, Any]) -> None:
    """Check that the caller is a superuser if limits are removed. Raises `NotAuthorized`."""
    if limits:
        await require(request, Action.SUPERUSER)


def _topic(text: str | None) -> TopicName | None:
    return None if text is None else TopicName.parse(text)


def _routes_of(policy: PolicyJson, word: str, level: Level) -> Sequence[Route]:
    def shown(prescribed: Any) -> Any:
        value = policy.of(prescribed)
        if value is None:
            return policy.unset if level.path == NAMESPACE else policy.topic_unset
        return policy.shape.show(value)

    async def put(value: Any, *names: Any, **which: bool) -> None:
        await level.change(*names, _setting(policy, value), **which)

    async def delete(*names: Any, **which: bool) -> None:
        await level.change(*names, _setting(policy, None), **which)

    may = Action.SUPERUSER if policy.is_limit else Action.ADMINISTER
    path, value = f"{level.path}/{word}", body(policy.shape.parse, policy.kind, or_query=policy.topic_word)
    changed = *level.names, *level.change_which
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
        Route("POST", path, put, value, *changed, may=may),
        Route("PUT", path, put, value, *changed, may=may),
        Route("DELETE", path, delete, *changed, may=may),
    )


def _quota_routes(level: Level) -> Sequence[Route]:
    def all_shown(prescribed: Any) -> dict[str, Any]:
        return quotas_shown(prescribed) or {}

    async def put(quota: PolicyJson, value: Any, *names: Any, **which: bool) -> None:
        await level.change(*names, _setting(quota, quota.shape.parse(value)), **which)

    async def delete(quota: PolicyJson, *names: Any, **which: bool) -> None:
        await level.change(*names, _setting(quota, None), **which)

    path, value = f"{level.path}/backlogQuota", body(as_it_is, Quota, or_query="backlogQuota")
    changed = *level.names, *level.change_which
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
        Route("POST", path, put, kind, value, *changed, may=Action.ADMINISTER),
        Route("PUT", path, put, kind, value, *changed, may=Action.ADMINISTER),
        Route("DELETE", path, delete, kind, *changed, may=Action.ADMINISTER),
    )


def subscription_rate_routes(broker: Broker) -> Sequence[Route]:
    """Return the routes of the dispatch rates of single subscriptions of a topic."""
    level = topic_level(broker)

    async def show(name: str, *topic: TopicName, **which: bool) -> dict[str, Any] | None:
        """Return the rate of a subscription; if `applied`, that of all subscriptions if it has no rate of its own."""
        found = await level.read(*topic, **which)
        rate = found.subscription_rates.get(name)
        if rate is None and which["applied"]:
            rate = found.subscription_dispatch_rate
        return None if rate is None else DispatchRates.show(rate)

    async def put(rate: DispatchRate, name: str, *topic: TopicName, **which: bool) -> None:
        check_name("a subscription name", name)
        await level.change(*topic, lambda old: _with_rate(old, name, rate), **which)

    async def delete(name: str, *topic: TopicName, **which: bool) -> None:
        await level.change(*topic, lambda old: _with_rate(old, name, None), **which)

    path, value = f"{level.path}/{{subscription}}/dispatchRate", body(DispatchRates.parse, DispatchRates)
    read = SUBSCRIPTION_NAME, *level.names, *level.which
    changed = SUBSCRIPTION_NAME, *level.names, *level.change_which
    shows, may = DispatchRates | None, Action.ADMINISTER
    return (
        Route("GET", path, show, *read, shows=shows, may=may),
        Route("POST", path, put, value, *changed, may=may),
        Route("PUT", path, put, value, *changed, may=may),
        Route("DELETE", path, delete, *changed, may=may),
    )


def _with_rate(policies: Policies, name: str, rate: DispatchRate | None) -> Policies:
    """Return `policies` with this dispatch rate of a subscription; None unsets it. Raises `LimitExceeded`."""
    rates = {one: known for one, known in policies.subscription_rates.items() if one != name}
    if rate is not None:
        if len(rates) >= SUBSCRIPTION_RATES_MAX:
            raise LimitExceeded(
                f"the topic has dispatch rates for {SUBSCRIPTION_RATES_MAX} subscriptions, which is the limit: remove "
                "some, or set subscriptionDispatchRate"
            )
        rates[name] = rate
    return replace(policies, subscription_rates=rates)


def _quota(kind: str) -> PolicyJson:
    if kind not in QUOTAS:
        raise ConfigurationError(f"invalid type of backlog quota {kind!r}: use {' or '.join(QUOTAS)}")
    return QUOTAS[kind]


def _setting(policy: PolicyJson, value: Any) -> Change:
    return lambda all: policy.put(all, value)
