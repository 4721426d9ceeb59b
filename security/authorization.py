"""Authorization rules. Performs no I/O.

    action        allowed for
    OPEN          every authenticated role
    LOOKUP        roles with PRODUCE or CONSUME on the topic: look up its broker, partitions, schemas, statistics
    PRODUCE       roles with `produce` on the topic or on its namespace
    CONSUME       roles with `consume` on the topic or on its namespace; for a subscription, see below
    LIST_TOPICS   roles with `produce` or `consume` on the namespace: list the names of its topics
    ADMINISTER    the admin roles of the tenant: manage its namespaces, topics, policies, permissions
    SUPERUSER     superusers: manage tenants, brokers, bookies, the archive

A superuser may do everything, and an admin role everything in its tenant. Other roles may do only what they were
granted. `functions` can be granted, as in Pulsar, but allows nothing yet.

A granted role may begin or end with `*`, which matches any characters, including none. `*` alone matches every
authenticated role. Superusers, proxies and admin roles are exact names, never patterns.

If a subscription was granted to roles, only these may use it. In a namespace with the subscription authentication mode
Prefix, a subscription's name must begin with the role's name. Both conditions are checked after `consume`, so an error
never reveals them to a role without `consume`.

A proxy always acts for another role, and both roles need the permission. Other roles cannot act for another role.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, Literal, NamedTuple, get_args

import msgspec

from quire.runtime.errors import NotAuthenticated, NotAuthorized
from quire.security.identity import Identity, is_role, role_of

Permission = Literal["produce", "consume", "functions"]
"""Permissions, with Pulsar's names."""

PERMISSIONS: Final[tuple[str, ...]] = get_args(Permission)


class Action(Enum):
    """Actions of the table at the top of the file; the value is the verb for error texts."""

    OPEN = "use this request"
    LOOKUP = "look up"
    PRODUCE = "produce to"
    CONSUME = "consume from"
    LIST_TOPICS = "list the topics of"
    ADMINISTER = "administer"
    SUPERUSER = "administer the cluster"


class Grants(msgspec.Struct, frozen=True):
    """The grants that apply to an action's object: the permissions of each role."""

    admins: Sequence[str] = ()
    """Admin roles of the tenant."""
    of_namespace: Mapping[str, Sequence[str]] = {}
    of_topic: Mapping[str, Sequence[str]] = {}
    of_subscriptions: Mapping[str, Sequence[str]] = {}
    """Roles by subscription; a subscription without an entry may be used by all roles with `consume`."""
    is_prefixed: bool = False
    """Subscription names must begin with the name of the role (subscriptionAuthMode Prefix)."""


NOTHING_GRANTED: Final = Grants()


class Place(NamedTuple):
    """Object of an action: a topic by its full name, or if fields are empty, a namespace, a tenant, or the cluster."""

    tenant: str = ""
    namespace: str = ""
    topic: str = ""
    subscription: str = ""

    def __str__(self) -> str:
        if self.topic:
            return f"topic {self.topic}"
        if self.namespace:
            return f"namespace {self.tenant}/{self.namespace}"
        return f"tenant {self.tenant}" if self.tenant else "the cluster"


class Decision(NamedTuple):
    """Decision, and `why` as text for the user."""

    allowed: bool
    why: str


class Authorization:
    """Authorization rules of a process. With `is_enabled` False, all authenticated roles may do everything."""

    def __init__(self, superusers: Iterable[str], proxies: Iterable[str], *, is_enabled: bool = True) -> None:
        self.superusers: Final = frozenset(superusers)
        self.proxies: Final = frozenset(proxies)
        self.is_enabled: Final = is_enabled

    def speaking_for(self, identity: Identity, original: str) -> Identity:
        """Return the identity with the role that a proxy acts for.

        Raises `NotAuthorized` if a proxy names no original principal, or a role that is not a proxy names one.
        """
        is_proxy = identity.role in self.proxies
        if not original:
            if is_proxy:
                raise NotAuthorized(
                    f"the proxy role {identity.role} must name an original principal, for which it acts"
                )
            return identity
        if not is_proxy:
            raise NotAuthorized(f"the role {identity.role} is not a proxy, so it cannot act for another role")
        try:
            role = role_of(original, "the original principal")
        except NotAuthenticated as error:
            raise NotAuthorized(str(error)) from None
        if role in self.proxies:
            raise NotAuthorized(f"a proxy cannot act for {role}, which is a proxy too")
        return msgspec.structs.replace(identity, original=role)

    def decide(self, identity: Identity, action: Action, place: Place, grants: Grants) -> Decision:
        """Decide for each role of `identity`, and return the first refusal, or else the last decision."""
        decision = Decision(True, "")
        for role in identity.roles:
            decision = self.of_role(role, action, place, grants)
            if not decision.allowed:
                break
        return decision

    def is_superuser(self, identity: Identity) -> bool:
        """Return whether the identity is allowed everything, so that grants need not be read."""
        return not self.is_enabled or all(role in self.superusers for role in identity.roles)

    def of_role(self, role: str, action: Action, place: Place, grants: Grants) -> Decision:
        if not self.is_enabled:
            return Decision(True, "authorization is disabled: all authenticated roles may do everything")
        if role in self.superusers:
            return Decision(True, f"{role} is a superuser")
        if action is Action.OPEN:
            return Decision(True, "allowed for all authenticated roles")
        if action is not Action.SUPERUSER and role in grants.admins:
            return Decision(True, f"{role} is an admin role of the tenant {place.tenant}")
        if action in _NEEDED:
            if role in self.proxies:  # a subscription is named after the proxied role
                grants = msgspec.structs.replace(grants, is_prefixed=False)
            return _by_grants(role, action, place, grants)
        who = (
            "superusers"
            if action is Action.SUPERUSER
            else f"superusers and admin roles of the tenant {place.tenant}"
        )
        return Decision(False, f"{role} may not {_what(action, place)}: only {who} may")


_NEEDED: Final = {
    Action.PRODUCE: ("produce",),
    Action.CONSUME: ("consume",),
    Action.LOOKUP: ("produce", "consume"),
    Action.LIST_TOPICS: ("produce", "consume"),
}
"""Permissions by action; any one of them allows the action."""


def _by_grants(role: str, action: Action, place: Place, grants: Grants) -> Decision:
    needed = _NEEDED[action]
    on_namespace = f"the namespace {place.tenant}/{place.namespace}"
    for where, granted in ((place.topic, grants.of_topic), (on_namespace, grants.of_namespace)):
        for pattern, permissions in granted.items():
            for one in needed:
                if one in permissions and matches(pattern, role):
                    by = "" if pattern == role else f", by {pattern}"
                    refused = _refused_subscription(role, place, grants) if action is Action.CONSUME else ""
                    return Decision(not refused, refused or f"{role} was granted {one} on {where}{by}")
    return Decision(
        False,
        f"{role} may not {_what(action, place)}: grant it {' or '.join(needed)} "
        + ("on the namespace" if action is Action.LIST_TOPICS else "on the topic or its namespace"),
    )


def _refused_subscription(role: str, place: Place, grants: Grants) -> str:
    """Return why a role with `consume` may not use the subscription, or "" if it may."""
    name = place.subscription
    if name and grants.is_prefixed and not name.startswith(role):
        return (
            f"{role} may not use the subscription {name}: "
            "subscriptions of this namespace begin with the name of their role (subscriptionAuthMode Prefix)"
        )
    roles = grants.of_subscriptions.get(name)
    if roles and not any(matches(pattern, role) for pattern in roles):
        return f"{role} may not use the subscription {name}: it was granted to other roles only"
    return ""


def _what(action: Action, place: Place) -> str:
    return action.value if action in (Action.SUPERUSER, Action.OPEN) else f"{action.value} {place}"


def matches(pattern: str, role: str) -> bool:
    """Return whether a granted role, which may begin or end with `*`, matches `role`."""
    if pattern == role:
        return True
    if pattern.endswith("*"):
        return role.startswith(pattern[:-1])
    return pattern.startswith("*") and role.endswith(pattern[1:])


def is_grantable(pattern: object) -> bool:
    """Return whether `pattern` is a valid role or pattern of roles."""
    return is_role(pattern)
