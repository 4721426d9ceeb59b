"""What a role may do: the rules, without I/O.

    action        allowed to whom
    OPEN          everybody who was let in
    LOOKUP        who may produce to or consume from the topic: where it is, its partitions, schemas, statistics
    PRODUCE       who was granted `produce` on the topic or on its namespace
    CONSUME       who was granted `consume` there; of a subscription, see below
    LIST_TOPICS   who was granted either on the namespace: the names of its topics
    ADMINISTER    the admin roles of the tenant: its namespaces, topics, policies, permissions
    SUPERUSER     superusers: tenants, brokers, bookies, the archive

A superuser may do everything, an admin role of a tenant everything in the tenant; all others only what was granted:
what no rule allows is denied. `functions` can be granted, as in Pulsar, and allows nothing yet.

A granted role may begin or end with `*`, which stands for any characters, also none; `*` alone is everybody who was
let in. Superusers, proxies and admin roles are names, never patterns.

A subscription that was granted to roles takes these alone. Where a namespace's subscriptions are in the mode Prefix, a
subscription's name must begin with the role's. Both come on top of `consume`, and who has none hears of neither.

A proxy speaks for somebody else, always, and both must be allowed. Nobody else may speak for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, Literal, NamedTuple, get_args

import msgspec

from quire.runtime.errors import NotAuthenticated, NotAuthorized
from quire.security.identity import Identity, is_role, role_of

Permission = Literal["produce", "consume", "functions"]
"""What can be granted, in Pulsar's words."""

PERMISSIONS: Final[tuple[str, ...]] = get_args(Permission)


class Action(Enum):
    """As the table at the top of the file; the value is what a refusal says that was wanted."""

    OPEN = "ask this"
    LOOKUP = "look up"
    PRODUCE = "produce to"
    CONSUME = "consume from"
    LIST_TOPICS = "list the topics of"
    ADMINISTER = "administer"
    SUPERUSER = "administer the cluster"


class Grants(msgspec.Struct, frozen=True):
    """What was granted at the place of an action: roles, and what each may do."""

    admins: Sequence[str] = ()
    """Of the tenant."""
    of_namespace: Mapping[str, Sequence[str]] = {}
    of_topic: Mapping[str, Sequence[str]] = {}
    of_subscriptions: Mapping[str, Sequence[str]] = {}
    """Roles by subscriptions; one that is not there takes everybody who may consume."""
    is_prefixed: bool = False
    """Subscriptions must begin with the names of their roles."""


NOTHING_GRANTED: Final = Grants()


class Place(NamedTuple):
    """What an action is about; empty where it is about more. `topic` is its full name."""

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
    """`why` is a sentence about one role, to be read by people."""

    allowed: bool
    why: str


class Authorization:
    """`is_enabled` False: whoever is let in may do everything."""

    def __init__(self, superusers: Iterable[str], proxies: Iterable[str], *, is_enabled: bool = True) -> None:
        self.superusers: Final = frozenset(superusers)
        self.proxies: Final = frozenset(proxies)
        self.is_enabled: Final = is_enabled

    def speaking_for(self, identity: Identity, original: str) -> Identity:
        """With the role that it speaks for. Raises `NotAuthorized` unless a proxy, and only a proxy, names one."""
        is_proxy = identity.role in self.proxies
        if not original:
            if is_proxy:
                raise NotAuthorized(f"the role {identity.role} is a proxy's: it must say for whom it speaks")
            return identity
        if not is_proxy:
            raise NotAuthorized(f"the role {identity.role} is no proxy, so it cannot speak for another one")
        try:
            role = role_of(original, "the original principal")
        except NotAuthenticated as error:
            raise NotAuthorized(str(error)) from None
        if role in self.proxies:
            raise NotAuthorized(f"a proxy cannot speak for {role}, which is a proxy as well")
        return msgspec.structs.replace(identity, original=role)

    def decide(self, identity: Identity, action: Action, place: Place, grants: Grants) -> Decision:
        """Whether all roles of `identity` may; the first that may not is told."""
        decision = Decision(True, "")
        for role in identity.roles:
            decision = self.of_role(role, action, place, grants)
            if not decision.allowed:
                break
        return decision

    def is_superuser(self, identity: Identity) -> bool:
        """Whether nothing needs to be looked up for it."""
        return not self.is_enabled or all(role in self.superusers for role in identity.roles)

    def of_role(self, role: str, action: Action, place: Place, grants: Grants) -> Decision:
        if not self.is_enabled:
            return Decision(True, "authorization is off: everybody who is let in may do everything")
        if role in self.superusers:
            return Decision(True, f"{role} is a superuser")
        if action is Action.OPEN:
            return Decision(True, "everybody who is let in may")
        if action is not Action.SUPERUSER and role in grants.admins:
            return Decision(True, f"{role} is an admin role of the tenant {place.tenant}")
        if action in _NEEDED:
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
"""Any of which allows the action."""


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
    """Why not by this subscription, though it may consume; empty when nothing speaks against it, or there is none."""
    name = place.subscription
    if name and grants.is_prefixed and not name.startswith(role):
        return (
            f"{role} may not use the subscription {name}: "
            "subscriptions of this namespace begin with the name of their role (subscriptionAuthMode Prefix)"
        )
    roles = grants.of_subscriptions.get(name)
    if roles and not any(matches(pattern, role) for pattern in roles):
        return f"{role} may not use the subscription {name}: it was granted to other roles"
    return ""


def _what(action: Action, place: Place) -> str:
    return action.value if action in (Action.SUPERUSER, Action.OPEN) else f"{action.value} {place}"


def matches(pattern: str, role: str) -> bool:
    """Whether a granted role is meant: itself, or by a `*` at its beginning or its end."""
    if pattern == role:
        return True
    if pattern.endswith("*"):
        return role.startswith(pattern[:-1])
    return pattern.startswith("*") and role.endswith(pattern[1:])


def is_grantable(pattern: object) -> bool:
    """Whether something can be granted to it: a role, or a pattern of roles."""
    return is_role(pattern)
