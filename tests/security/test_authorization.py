"""What a role may do, by the table of the rules."""

from __future__ import annotations

import pytest

from quire.runtime.errors import NotAuthorized
from quire.security.authorization import NOTHING_GRANTED, Action, Authorization, Grants, Place, matches
from quire.security.identity import Identity

RULES = Authorization(["root"], ["gateway"])
TOPIC = Place("t", "n", "persistent://t/n/orders")
OF_T = Grants(admins=("boss",))
ON_TOPIC = Grants(of_topic={"app": ("produce",)})
ON_NAMESPACE = Grants(of_namespace={"app": ("consume",)})


def may(role: str, action: Action, grants: Grants = NOTHING_GRANTED, subscription: str = "") -> bool:
    return RULES.decide(
        Identity(role, "token"), action, TOPIC._replace(subscription=subscription), grants
    ).allowed


def test_what_nobody_granted_is_denied() -> None:
    allowed = [action for action in Action if may("app", action)]
    assert allowed == [Action.OPEN]


def test_superusers_may_everything_and_admins_all_of_their_tenant() -> None:
    assert all(may("root", action) for action in Action)
    assert [action for action in Action if not may("boss", action, OF_T)] == [Action.SUPERUSER]
    assert not may("boss*", Action.ADMINISTER, OF_T)
    assert (
        not Authorization(["*"], [])
        .decide(Identity("app", "token"), Action.SUPERUSER, TOPIC, NOTHING_GRANTED)
        .allowed
    ), "superusers are names"


@pytest.mark.parametrize(
    ("grants", "allowed"),
    [
        (ON_TOPIC, {Action.OPEN, Action.PRODUCE, Action.LOOKUP, Action.LIST_TOPICS} - {Action.LIST_TOPICS}),
        (ON_NAMESPACE, {Action.OPEN, Action.CONSUME, Action.LOOKUP, Action.LIST_TOPICS}),
        (Grants(of_namespace={"app": ("functions",)}), {Action.OPEN}),
        (Grants(of_namespace={"other": ("produce", "consume")}), {Action.OPEN}),
    ],
)
def test_a_grant_allows_what_it_says(grants: Grants, allowed: set[Action]) -> None:
    place = {Action.LIST_TOPICS: Place("t", "n")}
    found = {
        action
        for action in Action
        if RULES.decide(
            Identity("app", "token"),
            action,
            place.get(action, TOPIC),
            grants if action is not Action.LIST_TOPICS else Grants(of_namespace=grants.of_namespace),
        ).allowed
    }
    assert found == allowed


@pytest.mark.parametrize(
    ("pattern", "role", "fits"),
    [
        ("app", "app", True),
        ("app", "app2", False),
        ("app-*", "app-1", True),
        ("app-*", "app-", True),
        ("app-*", "ap", False),
        ("*-app", "x-app", True),
        ("*-app", "x-app2", False),
        ("*", "anybody", True),
        ("a*c", "abc", False),
        ("a*c", "a*c", True),
        ("", "app", False),
    ],
)
def test_patterns_are_pulsars(pattern: str, role: str, fits: bool) -> None:
    assert matches(pattern, role) is fits


def test_subscriptions_come_on_top_of_consume() -> None:
    granted = Grants(of_namespace={"*": ("consume",)}, of_subscriptions={"s": ("app", "team-*")})
    assert may("app", Action.CONSUME, granted, "s")
    assert may("team-1", Action.CONSUME, granted, "s")
    assert not may("other", Action.CONSUME, granted, "s")
    assert may("other", Action.CONSUME, granted, "another")
    only = Grants(of_subscriptions={"s": ("app",)})
    assert not may("app", Action.CONSUME, only, "s"), "it is no permission to consume"


def test_prefixes_of_subscriptions() -> None:
    granted = Grants(of_namespace={"*": ("consume",)}, is_prefixed=True, admins=("boss",))
    assert may("app", Action.CONSUME, granted, "app-1")
    assert not may("app", Action.CONSUME, granted, "other")
    assert may("boss", Action.CONSUME, granted, "other"), "who administers it could change it anyway"


def test_prefixes_of_subscriptions_through_a_proxy_are_those_of_its_client() -> None:
    granted = Grants(of_namespace={"*": ("consume",)}, is_prefixed=True)
    through = RULES.speaking_for(Identity("gateway", "token"), "app")
    for name, is_allowed in (("app-1", True), ("gateway-1", False), ("other", False)):
        decision = RULES.decide(through, Action.CONSUME, TOPIC._replace(subscription=name), granted)
        assert decision.allowed is is_allowed
    only = Grants(of_namespace={"app": ("consume",)}, is_prefixed=True)
    assert not RULES.decide(through, Action.CONSUME, TOPIC._replace(subscription="app-1"), only).allowed


def test_who_may_not_consume_hears_nothing_of_subscriptions() -> None:
    def why(grants: Grants, subscription: str) -> str:
        place = TOPIC._replace(subscription=subscription)
        decision = RULES.decide(Identity("app", "token"), Action.CONSUME, place, grants)
        assert not decision.allowed
        return decision.why

    assert {
        why(Grants(of_namespace=granted, of_subscriptions=subscriptions, is_prefixed=is_prefixed), name)
        for granted in ({}, {"app": ("produce",)}, {"other": ("consume",)})
        for subscriptions in ({}, {"s": ("other",)}, {"s": ("app",)})
        for is_prefixed in (False, True)
        for name in ("s", "app-s")
    } == {why(NOTHING_GRANTED, "s")}


def test_a_proxy_must_say_for_whom_it_speaks_and_nobody_else_may() -> None:
    gateway, app = Identity("gateway", "token"), Identity("app", "token")
    assert RULES.speaking_for(gateway, "app").roles == ("gateway", "app")
    assert RULES.speaking_for(app, "") is app
    for identity, original in (
        (app, "root"),
        (gateway, ""),
        (gateway, "gateway"),
        (gateway, "a/b"),
        (app, "app"),
    ):
        with pytest.raises(NotAuthorized):
            RULES.speaking_for(identity, original)


def test_a_proxy_and_whom_it_speaks_for_must_both_be_allowed() -> None:
    through = Identity("gateway", "token", original="app")
    both = Grants(of_namespace={"gateway": ("produce",), "app": ("produce",)})
    one = Grants(of_namespace={"gateway": ("produce",)})
    other = Grants(of_namespace={"app": ("produce",)})
    assert RULES.decide(through, Action.PRODUCE, TOPIC, both).allowed
    for grants in (one, other):
        assert not RULES.decide(through, Action.PRODUCE, TOPIC, grants).allowed
    through_root = Identity("gateway", "token", original="root")
    assert not RULES.decide(through_root, Action.SUPERUSER, TOPIC, both).allowed
    assert not RULES.is_superuser(through_root)


def test_a_decision_says_why() -> None:
    def why(role: str, grants: Grants) -> str:
        return RULES.decide(Identity(role, "token"), Action.PRODUCE, TOPIC, grants).why

    assert why("root", OF_T) == "root is a superuser"
    assert why("boss", OF_T) == "boss is an admin role of the tenant t"
    assert why("app", ON_TOPIC) == "app was granted produce on persistent://t/n/orders"
    by_pattern = Grants(of_namespace={"a*": ("produce",)})
    assert why("app", by_pattern) == "app was granted produce on the namespace t/n, by a*"
    assert why("app", OF_T) == (
        "app may not produce to topic persistent://t/n/orders: grant it produce on the topic or its namespace"
    )


def test_switched_off_everybody_who_is_let_in_may_everything() -> None:
    off = Authorization([], [], is_enabled=False)
    assert all(
        off.decide(Identity("app", "token"), action, TOPIC, NOTHING_GRANTED).allowed for action in Action
    )
