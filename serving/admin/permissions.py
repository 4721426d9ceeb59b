"""Permissions of namespaces, topics and subscriptions, as in Pulsar's admin API, and explanations of decisions.

    …/namespaces/TENANT/NAMESPACE/permissions[/ROLE]                          produce, consume, functions
    …/namespaces/TENANT/NAMESPACE/permissions/subscription[/SUBSCRIPTION]     roles that may use a subscription
    …/namespaces/TENANT/NAMESPACE/subscriptionAuthMode                        None or Prefix
    …/persistent/TENANT/NAMESPACE/TOPIC/permissions[/ROLE]                    produce, consume, functions
    /quire/v1/topics/…/TOPIC/permissions/ROLE                                 a role's decisions on a topic, explained

Partitions have the permissions of their topic. GET of a topic includes those of its namespace, as in Pulsar. Without
authorization, restrictions of subscriptions are rejected (`absent`); grants can always be changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta
from msgspec.structs import replace

from quire.metadata.records import Policies
from quire.runtime.errors import ConfigurationError, InUse
from quire.security.authorization import PERMISSIONS, Action, Decision, Permission, Place, is_grantable
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
"""Maximum number of roles with grants per namespace or topic; use patterns for more."""

EXPLAIN: Final = (
    "/quire/v1/topics/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}/permissions/{role}"
)
EVERYTHING: Final = Decision(True, "authorization is disabled, so every role may do everything")
_MODES: Final = {"None": None, "Prefix": True}
_Role = Annotated[str, Meta(min_length=1, max_length=256)]
_Granted = dict[str, tuple[str, ...]]


def are_heeded(broker: Broker) -> bool:
    """Return whether permissions are enforced."""
    return broker.registry.guard is not None and broker.registry.guard.authorization.is_enabled


def roles_of(value: Any) -> tuple[str, ...]:
    """Parse a list of roles, without duplicates. Raises `ConfigurationError`."""
    if not isinstance(value, list) or not all(map(is_grantable, value)) or len(value) > GRANTED_MAX:
        raise ConfigurationError(
            f"roles must be a list of at most {GRANTED_MAX} strings of 1 to 256 characters, "
            "without / and control characters"
        )
    return tuple(dict.fromkeys(value))


def shown_permissions(policies: Policies) -> dict[str, Any]:
    """Return permissions in the form of Pulsar's policies of a namespace."""
    granted = {
        "namespace_auth": policies.permissions,
        "destination_auth": {},
        "subscription_auth_roles": policies.subscription_permissions,
    }
    mode = "Prefix" if policies.subscription_prefix else "None"
    return {"auth_policies": granted, "subscription_auth_mode": mode}


def routes(broker: Broker) -> Sequence[Route]:
    """Return the routes of permissions. Without authorization, grants are accepted, but restrictions are rejected."""
    found = [*_of_namespaces(broker), *_of_topics(broker), _explain(broker)]
    if are_heeded(broker):
        found += _of_subscriptions(broker)
    return found


def _role(text: str) -> str:
    if not is_grantable(text):
        raise ConfigurationError("a role must have 1 to 256 characters, without / and control characters")
    return text


def granted_of(value: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Parse the permissions by role for a new namespace. Raises `ConfigurationError`."""
    if len(value) > GRANTED_MAX:
        raise _too_many()
    return {_role(role): _permissions(one) for role, one in value.items()}


def subscription_roles_of(value: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Parse the roles by subscription for a new namespace. Raises `ConfigurationError`."""
    if len(value) > GRANTED_MAX:
        raise _too_many()
    return {name: roles_of(one) for name, one in value.items() if one}


def _too_many() -> ConfigurationError:
    return ConfigurationError(
        f"permissions can be granted to at most {GRANTED_MAX} roles: use a pattern, such as app-*"
    )


def _permissions(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ConfigurationError("the request's body must be a list of permissions")
    strange = [one for one in value if one not in PERMISSIONS]
    if strange:
        raise ConfigurationError(f"invalid permission {strange[0][:40]!r}: use {', '.join(PERMISSIONS)}")
    return tuple(dict.fromkeys(value))


ROLE: Final = path("role", parse=_role, kind=_Role)
GRANTED: Final = body(_permissions, list[Permission])


def _changing(field: str, key: str, value: tuple[str, ...] | None) -> Callable[[Policies], Policies]:
    """Return a change of policies that sets `key` to `value`, or removes it if `value` is None."""

    def change(all: Policies) -> Policies:
        granted: _Granted = {name: one for name, one in getattr(all, field).items() if name != key}
        if value is not None:
            granted[key] = value
        if len(granted) > GRANTED_MAX:
            raise _too_many()
        return replace(all, **{field: granted})

    return change


def _of_namespaces(broker: Broker) -> Sequence[Route]:
    policies = broker.admin.policies

    async def show(tenant: str, namespace: str) -> _Granted:
        return (await broker.namespaces.get(tenant, namespace)).policies.permissions

    async def grant(tenant: str, namespace: str, role: str, permissions: tuple[str, ...]) -> None:
        await policies.change_namespace(tenant, namespace, _changing("permissions", role, permissions))

    async def revoke(tenant: str, namespace: str, role: str) -> None:
        await policies.change_namespace(tenant, namespace, _changing("permissions", role, None))

    every, one = f"{NAMESPACE}/permissions", f"{NAMESPACE}/permissions/{{role}}"
    return (
        Route("DELETE", one, revoke, *OF_NAMESPACE, path("role"), may=Action.ADMINISTER),
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
                    f"{role} is the last role of subscription {subscription}, and without roles it is open to "
                    "every role: first grant it to another role, or to an empty list to open it"
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
    one, in_body = (*OF_NAMESPACE, SUBSCRIPTION_NAME), body(mode_of, Literal["None", "Prefix"])
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


def mode_of(value: Any) -> bool | None:
    if not isinstance(value, str) or value not in _MODES:
        raise ConfigurationError("subscriptionAuthMode must be None or Prefix")
    return _MODES[value]


def _of_topics(broker: Broker) -> Sequence[Route]:
    policies = broker.admin.policies

    async def show(topic: TopicName) -> dict[str, list[str]]:
        found = {**(await broker.namespaces.get(topic.tenant, topic.namespace)).policies.permissions}
        if topic.is_persistent:
            for role, permissions in (await policies.own(topic)).permissions.items():
                found[role] = tuple(dict.fromkeys((*found.get(role, ()), *permissions)))
        return {role: list(permissions) for role, permissions in found.items()}

    async def grant(topic: TopicName, role: str, permissions: tuple[str, ...]) -> None:
        await policies.change_topic(_persistent(topic), _changing("permissions", role, permissions))

    async def revoke(topic: TopicName, role: str) -> None:
        if role not in (await policies.own(_persistent(topic))).permissions:
            raise InUse(f"{role} has no permissions on topic {topic} itself, only on its namespace, if any")
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
            f"non-persistent topic {topic} has the permissions of its namespace: grant them there"
        )
    return topic


def _explain(broker: Broker) -> Route:
    guard = broker.registry.guard if are_heeded(broker) else None

    async def explain(topic: TopicName, role: str, subscription: str) -> dict[str, Any]:
        place = Place(topic.tenant, topic.namespace, str(topic), subscription)
        found: dict[str, Any] = {"role": role, "topic": str(topic), "authorization": guard is not None}
        for action in (Action.PRODUCE, Action.CONSUME, Action.LOOKUP, Action.ADMINISTER):
            decision = EVERYTHING if guard is None else await guard.decide(Identity(role, ""), action, place)
            found[action.name.lower()] = {"allowed": decision.allowed, "why": decision.why}
        return found

    subscription = query("subscription", str, "")
    return Route("GET", EXPLAIN, explain, TOPIC_NAME, ROLE, subscription, may=Action.ADMINISTER)
