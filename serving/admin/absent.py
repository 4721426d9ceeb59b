"""What Pulsar's admin clients ask for and Quire does not have, so that they get an answer that they understand.

A policy that cannot be prescribed is never set: GET says so as for any policy that is not (204), there is nothing to
delete (204), and to set it is refused (501): nothing is taken that nobody would heed. So it is with permissions where
nobody is authorised. A new row is all that another one needs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NoReturn

from aiohttp import web

from quire.security.authorization import Action
from quire.serving.admin.permissions import are_heeded
from quire.serving.admin.requests import Absent
from quire.serving.admin.route import (
    NAMESPACE,
    OF_NAMESPACE,
    REQUEST,
    TOPIC,
    TOPIC_NAME,
    TOPICS,
    Argument,
    Route,
    as_it_is,
    body,
    nothing,
)
from quire.serving.broker import Broker

Check = Callable[..., Awaitable[Any]]
"""Raises what is wrong with the namespace or the topic that a request names."""

UNACKED: Final = "each consumer has its limit, maxUnackedMessagesPerConsumer, and all of them together none"
OFFLOAD: Final = "every sealed segment is archived by the broker's own settings"
OF_BOTH: Final = {
    "subscribeRate": "the rate of subscribing is not limited here",
    "replicatorDispatchRate": "nothing is replicated to other clusters",
    "offloadPolicies": OFFLOAD,
    "deduplicationSnapshotInterval": "snapshots of deduplication are taken as they are needed",
    "autoSubscriptionCreation": "subscriptions are always made by who subscribes",
    "entryFilters": "there are no filters of entries",
    "dispatcherPauseOnAckStatePersistent": "acknowledgements are kept before they are answered",
}
UNSET: Final = {
    "offloadThreshold": -1,
    "offloadThresholdInSeconds": -1,
    "dispatcherPauseOnAckStatePersistent": False,
}
"""Of namespaces: what clients read that know no null there."""

OF_NAMESPACES: Final = {
    **OF_BOTH,
    "maxUnackedMessagesPerSubscription": UNACKED,
    "offloadThreshold": OFFLOAD,
    "offloadThresholdInSeconds": OFFLOAD,
    "offloadDeletionLagMs": OFFLOAD,
    "antiAffinity": "brokers are chosen by their load alone",
    "persistence/bookieAffinity": "bookies are chosen by racks and room",
    "encryptionRequired": "whether messages are encrypted is their producers' choice",
    "subscriptionTypesEnabled": "every type of subscription is allowed",
    "schemaAutoUpdateCompatibilityStrategy": "use schemaCompatibilityStrategy",
    "resourcegroup": "there are no resource groups",
    "properties": "namespaces have no properties",
    "property/{key}": "namespaces have no properties",
}
OF_TOPICS: Final = {
    **OF_BOTH,
    "maxUnackedMessagesOnSubscription": UNACKED,
    "subscriptionTypesEnabled": "every type of subscription is allowed",
    "shadowTopics": "a topic has no shadows",
    "{subscription}/dispatchRate": "subscriptionDispatchRate is for all subscriptions of the topic",
}
BUNDLE: Final = "0x[0-9a-f]{8}_0x[0-9a-f]{8}"
ACTIONS: Final = (
    ("PUT", f"{TOPIC}/offload", "segments are archived as they are sealed; `quire archive run` does it now"),
    ("DELETE", f"{TOPIC}/truncate", "what is acknowledged goes by retention"),
    ("POST", f"{TOPIC}/trim", "what is acknowledged goes by retention, every few seconds"),
    ("GET", f"{TOPIC}/internal-info", "internalStats tells of ledgers and cursors"),
    ("POST", f"{TOPIC}/subscription/{{subscription}}/analyzeBacklog", "stats tell the backlog"),
    ("GET", f"{TOPIC}/subscription/{{subscription}}/replicatedSubscriptionStatus", "nothing is replicated"),
    ("POST", f"{TOPIC}/subscription/{{subscription}}/replicatedSubscriptionStatus", "nothing is replicated"),
    ("DELETE", f"{NAMESPACE}/{{bundle:{BUNDLE}}}", "delete topics one by one"),
    ("POST", f"{NAMESPACE}/{{bundle:{BUNDLE}}}/clearBacklog", "clear the namespace's, or a topic's"),
    (
        "POST",
        f"{NAMESPACE}/{{bundle:{BUNDLE}}}/clearBacklog/{{subscription}}",
        "clear the namespace's, or a topic's",
    ),
    (
        "POST",
        f"{NAMESPACE}/{{bundle:{BUNDLE}}}/unsubscribe/{{subscription}}",
        "unsubscribe from the namespace, or from a topic",
    ),
    (
        "GET",
        f"{NAMESPACE}/{{bundle}}/topicHashPositions",
        "`/lookup/v2/topic/…/bundle` tells a topic's bundle",
    ),
    ("GET", f"{NAMESPACE}/configversion", "nothing is replicated"),
    ("PUT", f"{NAMESPACE}/property/{{key}}/{{value}}", "namespaces have no properties"),
    ("POST", f"{NAMESPACE}/resourcegroup/{{group}}", "there are no resource groups"),
    ("POST", f"{NAMESPACE}/migration", "nothing is migrated to other clusters"),
    ("GET", f"{TOPICS}/{{bundle:{BUNDLE}}}", "topics are listed by namespaces"),
    ("GET", "/admin/v2/schemas/{tenant}/{namespace}/{topic}/metadata", "schemas lists the versions"),
)
"""Single requests that are refused, and why or what to do instead."""

ON_TOPICS: Final = (
    "/admin/v2/namespaces/grantPermissionsOnTopics",
    "/admin/v2/namespaces/revokePermissionsOnTopics",
)
PERMISSIONS: Final = (
    "nobody is authorised here, so that everybody may do everything: permissions are not taken"
)


def routes(broker: Broker) -> Sequence[Route]:
    check_namespace, check_topic = broker.namespaces.get, broker.fan_out.partitions
    found: list[Route] = []
    for word, why in OF_NAMESPACES.items():
        found += _never_set(f"{NAMESPACE}/{word}", why, check_namespace, *OF_NAMESPACE, unset=UNSET.get(word))
    for word, why in OF_TOPICS.items():
        found += _never_set(f"{TOPIC}/{word}", why, check_topic, TOPIC_NAME)
    if not are_heeded(broker):
        why = "nobody is authorised here"
        found += _never_set(f"{NAMESPACE}/subscriptionAuthMode", why, check_namespace, *OF_NAMESPACE)
        every = f"{NAMESPACE}/permissions/subscription"
        found += _never_set(every, why, check_namespace, *OF_NAMESPACE)
        found += _never_granted(NAMESPACE, check_namespace, *OF_NAMESPACE)
        found += _never_granted(TOPIC, check_topic, TOPIC_NAME)
        found += [
            Route(
                method,
                f"{NAMESPACE}/permissions/{path}",
                _refused(check_namespace, PERMISSIONS),
                *OF_NAMESPACE,
                may=Action.ADMINISTER,
            )
            for method, path in (("POST", "subscription/{subscription}"), ("DELETE", "{subscription}/{role}"))
        ]
    found += [
        Route(method, path, _refusal(why), REQUEST, may=Action.ADMINISTER) for method, path, why in ACTIONS
    ]
    found += [
        Route("POST", path, _refusal("grant and revoke topic by topic"), REQUEST, may=Action.SUPERUSER)
        for path in ON_TOPICS
    ]
    return [*found, *_replication(broker)]


def _refusal(why: str) -> Callable[[web.Request], NoReturn]:
    def refuse(request: web.Request) -> NoReturn:
        raise Absent(f"{request.method} {request.path.rpartition('/')[2]} is not here: {why}")

    refuse.__doc__ = f"Refused: {why}."
    return refuse


def _never_set(
    path: str, why: str, check: Check, *names: Argument, unset: int | bool | None = None
) -> Sequence[Route]:
    """A policy that is there for nobody; `unset` is what is shown then."""

    def shown(_: object) -> int | bool | None:
        return unset

    refuse = _refused(check, f"{path.rpartition('/')[2]} cannot be prescribed: {why}")
    return (
        Route("GET", path, check, *names, answer=shown, may=Action.ADMINISTER),
        Route("DELETE", path, check, *names, answer=nothing, may=Action.ADMINISTER),
        Route("POST", path, refuse, *names, may=Action.ADMINISTER),
        Route("PUT", path, refuse, *names, may=Action.ADMINISTER),
    )


def _refused(check: Check, why: str) -> Check:
    """What is not there at all is said first."""

    async def refuse(*names: Any) -> NoReturn:
        await check(*names)
        raise Absent(why)

    refuse.__doc__ = f"Refused: {why}."
    return refuse


def _never_granted(parent: str, check: Check, *names: Argument) -> Sequence[Route]:
    path = f"{parent}/permissions"
    found = [
        Route("GET", path, check, *names, answer=_nobody, may=Action.ADMINISTER),
        Route("POST", f"{path}/{{role}}", _refused(check, PERMISSIONS), *names, may=Action.ADMINISTER),
    ]
    if parent == TOPIC:
        found.append(
            Route("DELETE", f"{path}/{{role}}", check, *names, answer=_nobody, may=Action.ADMINISTER)
        )
    return found


def _nobody(_: object) -> dict[str, list[str]]:
    return {}


def _replication(broker: Broker) -> Sequence[Route]:
    """Namespaces and topics are in this cluster, and that can be said."""
    mine = broker.services.settings.cluster

    async def change(tenant: str, namespace: str, clusters: Any) -> None:
        await broker.namespaces.get(tenant, namespace)
        if clusters not in ([mine], []):
            raise Absent(f"nothing is replicated to other clusters than this one, {mine}")

    def here(_: object) -> list[str]:
        return [mine]

    def never_run(_: object) -> dict[str, str]:
        return {"status": "NOT_RUN", "lastError": ""}

    found = [
        Route(
            "GET",
            f"{TOPIC}/offload",
            broker.fan_out.partitions,
            TOPIC_NAME,
            answer=never_run,
            may=Action.ADMINISTER,
        )
    ]
    check = broker.fan_out.partitions
    found += [
        Route("DELETE", f"{TOPIC}/replication", check, TOPIC_NAME, answer=nothing, may=Action.ADMINISTER),
        Route(
            "DELETE",
            f"{NAMESPACE}/removeOffloadPolicies",
            broker.namespaces.get,
            *OF_NAMESPACE,
            answer=nothing,
            may=Action.ADMINISTER,
        ),
    ]
    for path in (f"{NAMESPACE}/replication", f"{NAMESPACE}/allowedClusters", f"{TOPIC}/replication"):
        found += [
            Route(
                "GET",
                path,
                broker.namespaces.get,
                *OF_NAMESPACE,
                answer=here,
                may=Action.ADMINISTER,
            ),
            Route("POST", path, change, *OF_NAMESPACE, body(as_it_is, list[str]), may=Action.ADMINISTER),
        ]
    return found
