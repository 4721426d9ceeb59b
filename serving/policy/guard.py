"""Guard of sessions and of the REST interface: authentication and authorization.

The rules are in `quire.security`; this module provides the grants: admin roles of tenants, and permissions in the
policies of namespaces and topics. All grants are cached and updated by watches, so that a decision usually needs no
I/O. A topic's own permissions are in its policy record, a partition's in the policy record of its parent. A
non-persistent topic has only the permissions of its namespace. If a record is unreadable, the result is `Unavailable`,
never a permission or a rejection.

Each rejection is written to the audit log (`security/audit`), with the missing grant. Requests for missing objects are
rejected like those for existing ones, so that a role without permission does not learn which exist.
"""

from __future__ import annotations

from collections.abc import Mapping

from quire.runtime.errors import NotAuthenticated, NotAuthorized, NotFound, QuireError, Unavailable
from quire.security.audit import Caller
from quire.security.authentication import Authentication
from quire.security.authorization import NOTHING_GRANTED, Action, Decision, Grants, Place
from quire.security.identity import Identity, Presented
from quire.security.security import Security
from quire.serving.names import TopicName
from quire.serving.policy.namespaces import Namespaces
from quire.serving.policy.service import TopicPoliciesService


class Guard:
    """Guard of one broker. `authentication` is `security.authentication`; without it there is no guard."""

    def __init__(
        self,
        security: Security,
        authentication: Authentication,
        namespaces: Namespaces,
        policies: TopicPoliciesService,
    ) -> None:
        self.authorization = security.authorization
        self.audit = security.audit
        self.authentication = authentication
        self._namespaces = namespaces
        self._policies = policies
        self._changed: set[tuple[str, str]] = set()
        policies.on_change(lambda tenant, namespace: self._changed.add((tenant, namespace)))

    # -- authentication --------------------------------------------------------------------------------

    async def log_in(self, presented: Presented, original: str) -> Identity:
        """Authenticate; `original` is the proxied principal.

        Raises `NotAuthenticated`, `NotAuthorized` for a role that is not a proxy, `Unavailable`.
        """
        try:
            identity = await self.authentication.authenticate(presented)
            return self.authorization.speaking_for(identity, original)
        except (NotAuthenticated, NotAuthorized, Unavailable) as error:
            caller = Caller(None, presented.address, presented.by, presented.request)
            self.audit.record("login-failed", caller, outcome=str(error))
            raise

    # -- authorization ---------------------------------------------------------------------------------

    async def check(self, caller: Caller, action: Action, place: Place) -> None:
        """Authorize an action of an authenticated caller. Raises `NotAuthorized`, `Unavailable`."""
        assert caller.who is not None
        decision = await self.decide(caller.who, action, place)
        if not decision.allowed:
            self.audit.record("denied", caller, str(place), decision.why)
            raise NotAuthorized(decision.why)

    async def decide(self, who: Identity, action: Action, place: Place) -> Decision:
        """Decide whether the grants permit an action. Raises `Unavailable`, `CorruptionError`."""
        if action is Action.OPEN or self.authorization.is_superuser(who):
            return self.authorization.decide(who, action, place, NOTHING_GRANTED)
        return self.authorization.decide(who, action, place, await self.grants(place))

    async def grants(self, place: Place) -> Grants:
        """Return the grants of a place; no grants if the tenant does not exist."""
        try:
            admins = await self._namespaces.admins(place.tenant) if place.tenant else ()
        except NotFound:
            return NOTHING_GRANTED
        if not place.namespace:
            return Grants(admins)
        try:
            policies = (await self._namespaces.get_unless_strange(place.tenant, place.namespace)).policies
        except NotFound:
            return Grants(admins)
        of_topic: Mapping[str, tuple[str, ...]] = {}
        if place.topic:
            name = TopicName.parse(place.topic)
            if name.is_persistent:
                of_topic = (await self._policies.own(name)).permissions
        return Grants(
            admins,
            policies.permissions,
            of_topic,
            policies.subscription_permissions,
            bool(policies.subscription_prefix),
        )

    # -- changed grants --------------------------------------------------------------------------------

    def take_changed(self) -> set[tuple[str, str]]:
        """Return and clear the places whose grants may have changed; (tenant, "") stands for a whole tenant."""
        changed, self._changed = self._changed, set()
        return changed

    def look_again(self, tenant: str, namespace: str) -> None:
        """Mark a place as changed."""
        self._changed.add((tenant, namespace))

    async def still_may(self, who: Identity, action: Action, place: Place) -> Decision:
        """Decide again for an open connection.

        If the grants are unreadable, allow the action, and mark the place as changed.
        """
        try:
            return await self.decide(who, action, place)
        except QuireError as error:
            self.look_again(place.tenant, place.namespace)
            return Decision(True, str(error))


def guard_of(
    security: Security | None, namespaces: Namespaces, policies: TopicPoliciesService
) -> Guard | None:
    """Create the guard; return None without authentication."""
    if security is None or security.authentication is None:
        return None
    return Guard(security, security.authentication, namespaces, policies)


def place_of(topic: str, subscription: str = "") -> Place:
    """Return the place of a topic. Raises `ConfigurationError` for an invalid topic name."""
    name = TopicName.parse(topic)
    return Place(name.tenant, name.namespace, str(name), subscription)
