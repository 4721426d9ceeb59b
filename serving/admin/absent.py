"""What Pulsar's admin clients ask for and Quire does not have, so that they get an answer that they understand.

A policy that cannot be prescribed is never set: GET says so as for any policy that is not (204), there is nothing to
delete (204), and to set it is refused (501): nothing is taken that nobody would heed. So it is with permissions. A
new row is all that another one needs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, is_dataclass
from typing import Any, Final

from aiohttp import web

from quire.runtime.errors import ConfigurationError, NotFound
from quire.serving.admin.requests import Absent, json_of, no_content, topic_of
from quire.serving.admin.topics import TOPIC
from quire.serving.broker import Broker

ADMIN: Final = "/admin/v2"
NAMESPACE: Final = f"{ADMIN}/namespaces/{{tenant}}/{{namespace}}"

LIMITS: Final = "a limit on their number is not enforced here"
OFFLOAD: Final = "every sealed segment is archived by the broker's own settings"
OF_BOTH: Final = {
    "maxConsumersPerSubscription": LIMITS,
    "maxSubscriptionsPerTopic": LIMITS,
    "subscribeRate": "the rate of subscribing is not limited here",
    "replicatorDispatchRate": "nothing is replicated to other clusters",
    "offloadPolicies": OFFLOAD,
    "deduplicationSnapshotInterval": "snapshots of deduplication are taken as they are needed",
    "autoSubscriptionCreation": "subscriptions are always made by who subscribes",
    "entryFilters": "there are no filters of entries",
    "dispatcherPauseOnAckStatePersistent": "acknowledgements are kept before they are answered",
}
OF_NAMESPACES: Final = {
    **OF_BOTH,
    "maxProducersPerTopic": LIMITS,
    "maxConsumersPerTopic": LIMITS,
    "maxTopicsPerNamespace": LIMITS,
    "maxUnackedMessagesPerConsumer": LIMITS,
    "maxUnackedMessagesPerSubscription": LIMITS,
    "offloadThreshold": OFFLOAD,
    "offloadThresholdInSeconds": OFFLOAD,
    "offloadDeletionLagMs": OFFLOAD,
    "antiAffinity": "brokers are chosen by their load alone",
    "persistence/bookieAffinity": "bookies are chosen by racks and room",
    "encryptionRequired": "whether messages are encrypted is their producers' choice",
    "subscriptionAuthMode": "nobody is authorised yet",
    "subscriptionTypesEnabled": "every type of subscription is allowed",
    "schemaAutoUpdateCompatibilityStrategy": "use schemaCompatibilityStrategy",
    "resourcegroup": "there are no resource groups",
    "properties": "namespaces have no properties",
}
OF_TOPICS: Final = {
    **OF_BOTH,
    "maxProducers": LIMITS,
    "maxConsumers": LIMITS,
    "maxUnackedMessagesOnConsumer": LIMITS,
    "maxUnackedMessagesOnSubscription": LIMITS,
    "subscriptionTypesEnabled": "every type of subscription is allowed",
}
ACTIONS: Final = (
    ("PUT", f"{TOPIC}/offload", "segments are archived as they are sealed; `quire archive run` does it now"),
    ("DELETE", f"{TOPIC}/truncate", "what is acknowledged goes by retention"),
    ("POST", f"{TOPIC}/trim", "what is acknowledged goes by retention, every few seconds"),
    ("GET", f"{TOPIC}/internal-info", "internalStats tells of ledgers and cursors"),
    ("GET", f"{TOPIC}/subscription/{{subscription}}/analyzeBacklog", "stats tell the backlog"),
    ("POST", f"{TOPIC}/subscription/{{subscription}}/replicatedSubscriptionStatus", "nothing is replicated"),
    ("PUT", f"{NAMESPACE}/{{bundle}}/split", "bundles do not split"),
    ("DELETE", f"{NAMESPACE}/{{bundle:0x[0-9a-f]+_0x[0-9a-f]+}}", "delete topics one by one"),
)
"""Single requests that are refused, and why or what to do instead."""

PERMISSIONS: Final = (
    "nobody is authorised yet, so that everybody may do everything: permissions are not taken"
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def routes(broker: Broker) -> list[web.RouteDef]:
    async def there_is_the_namespace(request: web.Request) -> None:
        await broker.namespaces.get(request.match_info["tenant"], request.match_info["namespace"])

    async def there_is_the_topic(request: web.Request) -> None:
        await broker.fan_out.partitions(topic_of(request))

    found: list[web.RouteDef] = []
    for word, why in OF_NAMESPACES.items():
        found += _never_set(f"{NAMESPACE}/{word}", why, there_is_the_namespace)
    for word, why in OF_TOPICS.items():
        found += _never_set(f"{TOPIC}/{word}", why, there_is_the_topic)
    found += _permissions(NAMESPACE, there_is_the_namespace)
    found += _permissions(TOPIC, there_is_the_topic)
    found += [web.route(method, path, _refusal(why)) for method, path, why in ACTIONS]
    return found + _replication(broker) + _cluster(broker) + _configuration(broker)


def _refusal(why: str) -> Handler:
    async def refuse(request: web.Request) -> web.Response:
        raise Absent(f"{request.method} {request.path.rpartition('/')[2]} is not here: {why}")

    return refuse


def _never_set(path: str, why: str, check: Callable[[web.Request], Awaitable[None]]) -> list[web.RouteDef]:
    """A policy that is there for nobody."""

    async def nothing(request: web.Request) -> web.Response:
        await check(request)
        return no_content()

    async def refuse(request: web.Request) -> web.Response:
        await check(request)
        raise Absent(f"{request.path.rpartition('/')[2]} cannot be prescribed: {why}")

    return [web.get(path, nothing), web.delete(path, nothing), web.post(path, refuse), web.put(path, refuse)]


def _permissions(parent: str, check: Callable[[web.Request], Awaitable[None]]) -> list[web.RouteDef]:
    async def none(request: web.Request) -> web.Response:
        await check(request)
        return web.json_response({})

    async def refuse(request: web.Request) -> web.Response:
        await check(request)
        raise Absent(PERMISSIONS)

    role = f"{parent}/permissions/{{role}}"
    found = [web.get(f"{parent}/permissions", none), web.post(role, refuse)]
    return found if parent == NAMESPACE else [*found, web.delete(role, none)]


def _replication(broker: Broker) -> list[web.RouteDef]:
    """Namespaces and topics are in this cluster, and that can be said."""

    async def get(request: web.Request) -> web.Response:
        await broker.namespaces.get(request.match_info["tenant"], request.match_info["namespace"])
        return web.json_response([broker.services.settings.cluster])

    async def post(request: web.Request) -> web.Response:
        await broker.namespaces.get(request.match_info["tenant"], request.match_info["namespace"])
        if await json_of(request) not in ([broker.services.settings.cluster], []):
            raise Absent(
                f"nothing is replicated to other clusters than this one, {broker.services.settings.cluster}"
            )
        return no_content()

    async def offloaded(request: web.Request) -> web.Response:
        await broker.fan_out.partitions(topic_of(request))
        return web.json_response({"status": "NOT_RUN", "lastError": ""})

    found = [web.get(f"{TOPIC}/offload", offloaded)]
    for path in (f"{NAMESPACE}/replication", f"{TOPIC}/replication"):
        found += [web.get(path, get), web.post(path, post)]
    return found


def _cluster(broker: Broker) -> list[web.RouteDef]:
    """Other clusters are not known, and this one has no parts that are kept apart."""
    one = f"{ADMIN}/clusters/{{cluster}}"

    def answer(value: Any) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            _check_cluster(broker, request)
            return web.json_response(value)

        return handle

    async def refuse(request: web.Request) -> web.Response:
        raise Absent("a broker knows its own cluster alone, by the settings that it was started with")

    async def leader(_: web.Request) -> web.Response:
        """Brokers balance among themselves: what is asked of Pulsar's leader any of them answers."""
        broker_id = broker.addresses.http_url.partition("://")[2]
        return web.json_response({"brokerId": broker_id, "serviceUrl": broker.addresses.http_url})

    async def owned(request: web.Request) -> web.Response:
        _check_cluster(broker, request)
        wanted = request.match_info["broker"]
        names = {
            row["broker"]
            for row in broker.ownership.brokers()
            if wanted in (row["broker"], row["httpUrl"].partition("://")[2])
        }
        bundles = [row["bundle"] for row in broker.ownership.bundles() if row["broker"] in names]
        status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        return web.json_response(dict.fromkeys(bundles, status))

    return [
        web.get(f"{one}/peers", answer([])),
        web.get(f"{one}/failureDomains", answer({})),
        web.get(f"{one}/namespaceIsolationPolicies", answer({})),
        web.put(one, refuse),
        web.post(one, refuse),
        web.delete(one, refuse),
        web.get(f"{ADMIN}/brokers/leaderBroker", leader),
        web.get(f"{ADMIN}/brokers/{{cluster}}/{{broker}}/ownedNamespaces", owned),
        web.get(f"{ADMIN}/resourcegroups", answer([])),
    ]


def _configuration(broker: Broker) -> list[web.RouteDef]:
    """Settings are given at the start; none changes while a broker runs."""

    async def names(_: web.Request) -> web.Response:
        return web.json_response([])

    async def values(_: web.Request) -> web.Response:
        return web.json_response({})

    async def runtime(_: web.Request) -> web.Response:
        assert is_dataclass(broker.services.settings)
        return web.json_response(
            {name: str(value) for name, value in asdict(broker.services.settings).items()}
        )

    async def refuse(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        raise ConfigurationError(f"{name[:100]!r} cannot be changed while a broker runs: set it and restart")

    path = f"{ADMIN}/brokers/configuration"
    return [
        web.get(path, names),
        web.get(f"{path}/", names),
        web.get(f"{path}/values", values),
        web.get(f"{path}/runtime", runtime),
        web.post(f"{path}/{{name}}/{{value}}", refuse),
        web.delete(f"{path}/{{name}}", refuse),
    ]


def _check_cluster(broker: Broker, request: web.Request) -> None:
    named = request.match_info.get("cluster", broker.services.settings.cluster)
    if named != broker.services.settings.cluster:
        raise NotFound(f"there is no cluster {named}, only {broker.services.settings.cluster}")
