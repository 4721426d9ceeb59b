"""Permissions of namespaces, topics and subscriptions, as Pulsar's tools grant and revoke them; and why they allow.

    …/namespaces/TENANT/NAMESPACE/permissions[/ROLE]                          produce, consume, functions
    …/namespaces/TENANT/NAMESPACE/permissions/subscription[/SUBSCRIPTION]     the roles that a subscription takes
    …/namespaces/TENANT/NAMESPACE/subscriptionAuthMode                        None or Prefix
    …/persistent/TENANT/NAMESPACE/TOPIC/permissions[/ROLE]
    /quire/v1/topics/…/TOPIC/permissions/ROLE                                 what a role may there, and why

Partitions have their topic's. A topic's GET shows its namespace's with its own, as Pulsar does. Where nobody is
authorised they are not taken (`absent`); what was granted in former times can be revoked anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta
from msgspec.structs import replace

from quire.metadata.records import Policies
from quire.runtime.errors import ConfigurationError, InUse
from quire.security.authorization import PERMISSIONS, Action, Permission, Place, is_grantable
from quire.security.identity import Identity
from quire.serving.admin.route import (
    NAMESPACE,
    OF_NAMESPACE,
    SUBSCRIPTION_NAME,
    TOPIC,
    TOPIC_NAME,
    Route,
    body,
    path,
    query,
)
from quire.serving.broker import Broker
from quire.serving.names import TopicName

GRANTED_MAX: Final = 1_000
"""Roles of a namespace or a topic: patterns are for more."""

EXPLAIN: Final = (
    "/quire/v1/topics/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}/permissions/{role}"
)
_MODES: Final = {"None": None, "Prefix": True}
_Role = Annotated[str, Meta(min_length=1, max_length=256)]
_Granted = dict[str, tuple[str, ...]]


def are_heeded(broker: Broker) -> bool:
    """Whether permissions mean anything here."""
    return broker.registry.guard is not None and broker.registry.guard.authorization.is_enabled


def roles_of(value: Any) -> tuple[str, ...]:
    """A list of roles, each once. Raises `ConfigurationError`."""
    if not isinstance(value, list) or not all(map(is_grantable, value)) or len(value) > GRANTED_MAX:
        raise ConfigurationError(
            f"roles must be a list of at most {GRANTED_MAX} texts of 1 to 256 characters, without / and controls"
        )
    return tuple(dict.fromkeys(value))


def shown_permissions(policies: Policies) -> dict[str, Any]:
    """As Pulsar shows them among a namespace's policies."""
    granted = {
        "namespace_auth": policies.permissions,
        "destination_auth": {},
        "subscription_auth_roles": policies.subscription_permissions,
    }
    mode = "Prefix" if policies.subscription_prefix else "None"
    return {"auth_policies": granted, "subscription_auth_mode": mode}


def routes(broker: Broker) -> Sequence[Route]:
    policies = broker.admin.policies

    async def revoke(tenant: str, namespace: str, role: str) -> None:
        await policies.change_namespace(tenant, namespace, _changing("permissions", role, None))

    found = [
        Route(
            "DELETE",
            f"{NAMESPACE}/permissions/{{role}}",
            revoke,
            *OF_NAMESPACE,
            path("role"),
            may=Action.ADMINISTER,
        )
    ]
    if are_heeded(broker):
        found += [*_of_namespaces(broker), *_of_subscriptions(broker), *_of_topics(broker), _explain(broker)]
    return found


def _role(text: str) -> str:
    if not is_grantable(text):
        raise ConfigurationError("a role has 1 to 256 characters, without / and control characters")
    return text


def _permissions(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ConfigurationError("the request's body must be a list of permissions")
    strange = [one for one in value if one not in PERMISSIONS]
    if strange:
        raise ConfigurationError(f"{strange[0][:40]!r} is no permission here: use {', '.join(PERMISSIONS)}")
    return tuple(dict.fromkeys(value))


ROLE: Final = path("role", parse=_role, kind=_Role)
GRANTED: Final = body(_permissions, list[Permission])


def _changing(field: str, key: str, value: tuple[str, ...] | None) -> Callable[[Policies], Policies]:
    """A change of policies: `key` gets `value`, or goes."""

    def change(all: Policies) -> Policies:
        granted: _Granted = {name: one for name, one in getattr(all, field).items() if name != key}
        if value is not None:
            granted[key] = value
        if len(granted) > GRANTED_MAX:
            raise ConfigurationError(
                f"permissions are granted to {GRANTED_MAX} at most: use a pattern, such as app-*"
            )
        return replace(all, **{field: granted})

    return change


def _of_namespaces(broker: Broker) -> Sequence[Route]:
    policies = broker.admin.policies

    async def show(tenant: str, namespace: str) -> _Granted:
        return (await broker.namespaces.get(tenant, namespace)).policies.permissions

    async def grant(tenant: str, namespace: str, role: str, permissions: tuple[str, ...]) -> None:
        await policies.change_namespace(tenant, namespace, _changing("permissions", role, permissions))

    every, one = f"{NAMESPACE}/permissions", f"{NAMESPACE}/permissions/{{role}}"
    return (
        Route("GET", every, show, *OF_NAMESPACE, may=Action.ADMINISTER),
        Route(
            "POST",
            one,
            grant,
            *OF_NAMESPACE,
            ROLE,
            GRANTED,
            may=Action.ADMINISTER,
        ),
    )


def _of_subscriptions(broker: Broker) -> Sequence[Route]:
    policies = broker.admin.policies

    async def show(tenant: str, namespace: str) -> _Granted:
        return (await broker.namespaces.get(tenant, namespace)).policies.subscription_permissions

    async def grant(tenant: str, namespace: str, subscription: str, roles: tuple[str, ...]) -> None:
        change = _changing("subscription_permissions", subscription, roles or None)
        await policies.change_namespace(tenant, namespace, change)

    async def revoke(tenant: str, namespace: str, subscription: str, role: str) -> None:
        def change(all: Policies) -> Policies:
            before = all.subscription_permissions.get(subscription, ())
            rest = tuple(one for one in before if one != role)
            if before and not rest:
                raise InUse(
                    f"{role} is the last role that the subscription {subscription} takes, and without any it takes "
                    "everybody: grant it to another one first, or to an empty list to open it"
                )
            return _changing("subscription_permissions", subscription, rest or None)(all)

        await policies.change_namespace(tenant, namespace, change)

    async def mode(tenant: str, namespace: str) -> str:
        policies = (await broker.namespaces.get(tenant, namespace)).policies
        return "Prefix" if policies.subscription_prefix else "None"

    async def set_mode(tenant: str, namespace: str, prefix: bool | None) -> None:
        await policies.change_namespace(
            tenant, namespace, lambda all: replace(all, subscription_prefix=prefix)
        )

    every, may = f"{NAMESPACE}/permissions/subscription", Action.ADMINISTER
    one, in_body = (*OF_NAMESPACE, SUBSCRIPTION_NAME), body(_mode, Literal["None", "Prefix"])
    return (
        Route("GET", every, show, *OF_NAMESPACE, may=may),
        Route("POST", f"{every}/{{subscription}}", grant, *one, body(roles_of, list[_Role]), may=may),
        Route("DELETE", f"{NAMESPACE}/permissions/{{subscription}}/{{role}}", revoke, *one, ROLE, may=may),
        Route("GET", f"{NAMESPACE}/subscriptionAuthMode", mode, *OF_NAMESPACE, may=may),
        Route(
            "POST",
            f"{NAMESPACE}/subscriptionAuthMode",
            set_mode,
            *OF_NAMESPACE,
            in_body,
            may=may,
        ),
    )


def _mode(value: Any) -> bool | None:
    if not isinstance(value, str) or value not in _MODES:
        raise ConfigurationError("subscriptionAuthMode is None or Prefix")
    return _MODES[value]


def _of_topics(broker: Broker) -> Sequence[Route]:
    policies = broker.admin.policies

    async def show(topic: TopicName) -> dict[str, list[str]]:
        found = {**(await broker.namespaces.get(topic.tenant, topic.namespace)).policies.permissions}
        if topic.is_persistent:
            for role, permissions in (await policies.of_topic(topic)).permissions.items():
                found[role] = tuple(dict.fromkeys((*found.get(role, ()), *permissions)))
        return {role: list(permissions) for role, permissions in found.items()}

    async def grant(topic: TopicName, role: str, permissions: tuple[str, ...]) -> None:
        await policies.change_topic(_persistent(topic), _changing("permissions", role, permissions))

    async def revoke(topic: TopicName, role: str) -> None:
        if role not in (await policies.of_topic(_persistent(topic))).permissions:
            raise InUse(f"nothing is granted to {role} on {topic} itself: see its namespace")
        await policies.change_topic(topic, _changing("permissions", role, None))

    every, one = f"{TOPIC}/permissions", f"{TOPIC}/permissions/{{role}}"
    return (
        Route("GET", every, show, TOPIC_NAME, may=Action.ADMINISTER),
        Route(
            "POST",
            one,
            grant,
            TOPIC_NAME,
            ROLE,
            GRANTED,
            may=Action.ADMINISTER,
        ),
        Route("DELETE", one, revoke, TOPIC_NAME, ROLE, may=Action.ADMINISTER),
    )


def _persistent(topic: TopicName) -> TopicName:
    if not topic.is_persistent:
        raise ConfigurationError(
            f"{topic} keeps nothing, and has the permissions of its namespace: grant them there"
        )
    return topic


def _explain(broker: Broker) -> Route:
    guard = broker.registry.guard
    assert guard is not None

    async def explain(topic: TopicName, role: str, subscription: str) -> dict[str, Any]:
        place = Place(topic.tenant, topic.namespace, str(topic), subscription)
        found: dict[str, Any] = {"role": role, "topic": str(topic)}
        for action in (Action.PRODUCE, Action.CONSUME, Action.LOOKUP, Action.ADMINISTER):
            decision = await guard.decide(Identity(role, ""), action, place)
            found[action.name.lower()] = {"allowed": decision.allowed, "why": decision.why}
        return found

    subscription = query("subscription", str, "")
    return Route("GET", EXPLAIN, explain, TOPIC_NAME, ROLE, subscription, may=Action.ADMINISTER)
