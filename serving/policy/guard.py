"""What sessions and the REST interface ask before they do anything: who is it, and may he.

The rules are in `quire.security`; here are the grants that they are about: admin roles of tenants, and permissions in
the policies of namespaces and topics, all cached and followed by watches, so that a question costs no I/O as a rule. A
topic's own permissions are its record's, its parent's for a partition; a topic that keeps nothing has its namespace's
alone. What cannot be read now is `Unavailable`: never allowed, and never called forbidden.

Each refusal is written down (`security/audit`), and told in a sentence that says what to grant. What is not there at
all is refused like what is: who may not look does not learn what there is.
"""

from __future__ import annotations

from collections.abc import Mapping

from quire.runtime.errors import NotAuthenticated, NotAuthorized, NotFound, QuireError, Unavailable
from quire.runtime.metrics import Values
from quire.security.authentication import Authentication
from quire.security.authorization import NOTHING_GRANTED, Action, Decision, Grants, Place
from quire.security.identity import Identity, Presented
from quire.security.security import Security
from quire.serving.names import TopicName
from quire.serving.policy.namespaces import Namespaces
from quire.serving.policy.service import TopicPoliciesService


class Guard:
    """`authentication` is that of `security`: there is a guard only where people log in."""

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

    def metrics(self) -> Values:
        """What was written down, by events."""
        return self.audit.metrics()

    # -- who is it -------------------------------------------------------------------------------------

    async def log_in(self, presented: Presented, original: str) -> Identity:
        """Who that is; `original` is for whom it says to speak. Raises `NotAuthenticated`, `NotAuthorized` for who
        may not speak for others, `Unavailable`.
        """
        try:
            identity = await self.authentication.authenticate(presented)
            return self.authorization.speaking_for(identity, original)
        except (NotAuthenticated, NotAuthorized, Unavailable) as error:
            address, by, request = presented.address, presented.by, presented.request
            self.audit.record("login-failed", None, address, by, outcome=str(error), request=request)
            raise

    # -- may he ----------------------------------------------------------------------------------------

    async def check(
        self, who: Identity, action: Action, place: Place, *, address: str, what: str, request: str
    ) -> None:
        """`what` is the command or the request that asks, `request` its name. Raises `NotAuthorized`, `Unavailable`."""
        decision = await self.decide(who, action, place)
        if not decision.allowed:
            self.audit.record("denied", who, address, what, str(place), decision.why, request)
            raise NotAuthorized(decision.why)

    async def decide(self, who: Identity, action: Action, place: Place) -> Decision:
        """Raises what reading the grants raises: `Unavailable`, `CorruptionError`."""
        if action is Action.OPEN or self.authorization.is_superuser(who):
            return self.authorization.decide(who, action, place, NOTHING_GRANTED)
        return self.authorization.decide(who, action, place, await self.grants(place))

    async def grants(self, place: Place) -> Grants:
        """What was granted there; nothing where there is no such tenant."""
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

    # -- what has changed ------------------------------------------------------------------------------

    def take_changed(self) -> set[tuple[str, str]]:
        """Where grants may have changed since this was asked last; (tenant, "") for all of a tenant."""
        changed, self._changed = self._changed, set()
        return changed

    def look_again(self, tenant: str, namespace: str) -> None:
        """As if it had changed."""
        self._changed.add((tenant, namespace))

    async def still_may(self, who: Identity, action: Action, place: Place) -> Decision:
        """As `decide`; what cannot be read now goes on, and is looked at again."""
        try:
            return await self.decide(who, action, place)
        except QuireError as error:
            self.look_again(place.tenant, place.namespace)
            return Decision(True, str(error))


def guard_of(
    security: Security | None, namespaces: Namespaces, policies: TopicPoliciesService
) -> Guard | None:
    """None where nobody logs in."""
    if security is None or security.authentication is None:
        return None
    return Guard(security, security.authentication, namespaces, policies)


def place_of(topic: str, subscription: str = "") -> Place:
    """Where something is asked of a topic. Raises `ConfigurationError` for what is no topic's name."""
    name = TopicName.parse(topic)
    return Place(name.tenant, name.namespace, str(name), subscription)
