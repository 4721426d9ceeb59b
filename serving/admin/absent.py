"""Answers to requests of Pulsar's admin clients for features that Quire lacks.

An unsupported policy is never set. So GET and DELETE answer as for a policy that is not set (204). A request to set it
is rejected (501), because a policy that is accepted must be enforced. The same applies to roles of subscriptions if
authorization is disabled. To reject another policy, add a row.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NoReturn

from aiohttp import web
from msgspec.structs import replace

from quire.security.authorization import Action
from quire.serving.admin.bundles import BUNDLE
from quire.serving.admin.permissions import are_heeded
from quire.serving.admin.requests import Absent
from quire.serving.admin.route import (
    NAMESPACE,
    OF_NAMESPACE,
    REQUEST,
    TOPIC,
    TOPIC_NAME,
    Argument,
    Route,
    as_it_is,
    body,
    flag,
    nothing,
)
from quire.serving.broker import Broker
from quire.serving.names import TopicName

Check = Callable[..., Awaitable[Any]]
"""Coroutine function that raises an error if the namespace or topic of the request is invalid."""

OFFLOAD: Final = "every sealed segment is archived, according to the broker's settings"
OF_BOTH: Final = {
    "replicatorDispatchRate": "geo-replication is not supported",
    "offloadPolicies": OFFLOAD,
    "entryFilters": "entry filters are not supported",
    "dispatcherPauseOnAckStatePersistent": "acknowledgements are durable before they are answered",
}
Unset = int | bool | list[str]
"""Answer of GET for a policy that is never set."""

UNSET: Final[dict[str, Unset]] = {
    "offloadThreshold": -1,
    "offloadThresholdInSeconds": -1,
    "dispatcherPauseOnAckStatePersistent": False,
}
"""Answers of namespaces' GET for clients that do not accept null."""

UNSET_OF_TOPICS: Final[dict[str, Unset]] = {"shadowTopics": []}
"""The same of topics' GET."""

OF_NAMESPACES: Final = {
    **OF_BOTH,
    "offloadThreshold": OFFLOAD,
    "offloadThresholdInSeconds": OFFLOAD,
    "antiAffinity": "brokers are chosen by load only",
    "persistence/bookieAffinity": "bookies are chosen by rack and free space",
    "resourcegroup": "resource groups are not supported",
}
OF_TOPICS: Final = {
    **OF_BOTH,
    "shadowTopics": "shadow topics are not supported",
}
ACTIONS: Final = (
    (
        "GET",
        f"{TOPIC}/subscription/{{subscription}}/replicatedSubscriptionStatus",
        "geo-replication is not supported",
    ),
    (
        "POST",
        f"{TOPIC}/subscription/{{subscription}}/replicatedSubscriptionStatus",
        "geo-replication is not supported",
    ),
    ("DELETE", BUNDLE, "delete topics one by one"),
    ("GET", f"{NAMESPACE}/configversion", "geo-replication is not supported"),
    ("POST", f"{NAMESPACE}/resourcegroup/{{group}}", "resource groups are not supported"),
    ("POST", f"{NAMESPACE}/migration", "migration to other clusters is not supported"),
)
"""Requests that are rejected, with the reason or an alternative."""

OF_CLUSTER: Final = (
    (
        "POST",
        "/admin/v2/bookies/racks-info/{bookie}",
        "a bookie's rack is its setting `rack`: change it and restart the bookie",
    ),
    (
        "DELETE",
        "/admin/v2/bookies/racks-info/{bookie}",
        "a bookie's rack is its setting `rack`: change it and restart the bookie",
    ),
    (
        "GET",
        "/admin/v2/broker-stats/allocator-stats/{allocator}",
        "brokers have no Netty allocators; /metrics has the memory of the process",
    ),
    (
        "GET",
        "/admin/v2/broker-stats/bookieops",
        "bookies are not asked through BookKeeper's client; /metrics has pending bytes and latencies",
    ),
)
"""Requests about the cluster that are rejected; they need a superuser."""

PERSISTENT: Final = "/admin/v2/{domain:persistent}/{tenant}/{namespace}/{topic}"

ON_TOPICS: Final = (
    "/admin/v2/namespaces/grantPermissionsOnTopics",
    "/admin/v2/namespaces/revokePermissionsOnTopics",
)
ONE_BY_ONE: Final = "grant and revoke permissions for each topic separately"
PERMISSIONS: Final = (
    "authorization is disabled in this cluster, so the roles of a subscription would not be enforced"
)


def routes(broker: Broker) -> Sequence[Route]:
    check_namespace, check_topic = broker.namespaces.get, broker.fan_out.partitions
    found: list[Route] = []
    for word, why in OF_NAMESPACES.items():
        found += _never_set(f"{NAMESPACE}/{word}", why, check_namespace, *OF_NAMESPACE, unset=UNSET.get(word))
    for word, why in OF_TOPICS.items():
        unset = UNSET_OF_TOPICS.get(word)
        found += _never_set(f"{TOPIC}/{word}", why, check_topic, TOPIC_NAME, unset=unset)
    if not are_heeded(broker):
        why = "authorization is disabled"
        found += _never_set(f"{NAMESPACE}/subscriptionAuthMode", why, check_namespace, *OF_NAMESPACE)
        every = f"{NAMESPACE}/permissions/subscription"
        found += _never_set(every, why, check_namespace, *OF_NAMESPACE)
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
        Route(method, path, _refusal(path, why), REQUEST, may=Action.ADMINISTER)
        for method, path, why in ACTIONS
    ]
    found += [
        Route(method, path, _refusal(path, why), REQUEST, may=Action.SUPERUSER)
        for method, path, why in OF_CLUSTER
    ]
    found += [
        Route(
            "POST",
            path,
            _refusal(path, ONE_BY_ONE),
            REQUEST,
            may=Action.SUPERUSER,
        )
        for path in ON_TOPICS
    ]
    return [*found, *_replication(broker)]


def _refusal(path: str, why: str) -> Callable[[web.Request], NoReturn]:
    what = next(word for word in reversed(path.split("/")) if not word.startswith("{"))

    def refuse(request: web.Request) -> NoReturn:
        raise Absent(f"{request.method} {what} is not supported: {why}")

    refuse.__doc__ = f"Not supported: {why}."
    return refuse


def _never_set(
    path: str, why: str, check: Check, *names: Argument, unset: Unset | None = None
) -> Sequence[Route]:
    """Return the routes of a policy that is never set; `unset` is the answer of GET."""

    def shown(_: object) -> Unset | None:
        return unset

    refuse = _refused(check, f"{path.rpartition('/')[2]} is not supported: {why}")
    return (
        Route("GET", path, check, *names, answer=shown, may=Action.ADMINISTER),
        Route("DELETE", path, check, *names, answer=nothing, may=Action.ADMINISTER),
        Route("POST", path, refuse, *names, may=Action.ADMINISTER),
        Route("PUT", path, refuse, *names, may=Action.ADMINISTER),
    )


def _refused(check: Check, why: str) -> Check:
    """Return a function that rejects a request after checking the objects in its path."""

    async def refuse(*names: Any) -> NoReturn:
        await check(*names)
        raise Absent(why)

    refuse.__doc__ = f"Not supported: {why}."
    return refuse


def _replication(broker: Broker) -> Sequence[Route]:
    """Return the routes for a namespace's lists of clusters, which contain only this cluster."""
    mine = broker.services.settings.cluster

    async def change(tenant: str, namespace: str, clusters: Any) -> None:
        await broker.namespaces.get(tenant, namespace)
        _refuse_others(clusters, mine)

    def here(_: object) -> list[str]:
        return [mine]

    found = [
        Route(
            "DELETE",
            f"{NAMESPACE}/removeOffloadPolicies",
            broker.namespaces.get,
            *OF_NAMESPACE,
            answer=nothing,
            may=Action.ADMINISTER,
        ),
    ]
    for path in (f"{NAMESPACE}/replication", f"{NAMESPACE}/allowedClusters"):
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
    return [*found, *_replication_of_topics(broker)]


def _refuse_others(clusters: Any, mine: str) -> None:
    if clusters not in ([mine], []):
        raise Absent(f"replication to other clusters is not supported: specify only this cluster, {mine}")


def _replication_of_topics(broker: Broker) -> Sequence[Route]:
    """Return the routes for a topic's list of clusters; the list is stored so that GET returns what was set."""
    policies, mine = broker.admin.policies, broker.services.settings.cluster
    path, may = f"{PERSISTENT}/replication", Action.ADMINISTER

    async def shown(topic: TopicName, *, applied: bool) -> list[str] | None:
        own = (await policies.own(topic)).replication_clusters
        if own is not None:
            return list(own)
        return [mine] if applied else None

    async def put(topic: TopicName, clusters: Any) -> None:
        await broker.fan_out.partitions(topic)
        _refuse_others(clusters, mine)
        await policies.change_topic(topic, lambda old: replace(old, replication_clusters=tuple(clusters)))

    async def delete(topic: TopicName) -> None:
        await policies.change_topic(topic, lambda old: replace(old, replication_clusters=None))

    return (
        Route("GET", path, shown, TOPIC_NAME, flag("applied"), may=may),
        Route("POST", path, put, TOPIC_NAME, body(as_it_is, list[str]), may=may),
        Route("DELETE", path, delete, TOPIC_NAME, may=may),
    )
