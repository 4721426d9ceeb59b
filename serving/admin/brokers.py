"""`/admin/v2/clusters`, `/admin/v2/brokers`, `/quire/v1/brokers`: brokers, and the owners of bundles.

An operator can unload or split a bundle. A broker that hands a bundle over sends `take` to the new owner, which then
acquires the bundle and loads the listed topics. Other clusters and failure domains are not supported. `configuration`
and `broker_stats` have further requests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from aiohttp import web
from msgspec import Struct

from quire import __version__
from quire.runtime.errors import AlreadyExists, ConfigurationError, NotFound, Unavailable
from quire.security.authorization import Action
from quire.serving.admin import broker_stats, configuration
from quire.serving.admin.requests import Absent, fields_of
from quire.serving.admin.route import Route, Text, body, flag, path, query
from quire.serving.broker import Broker

CLUSTERS: Final = "/admin/v2/clusters"
CLUSTER: Final = f"{CLUSTERS}/{{cluster}}"
BROKERS: Final = "/admin/v2/brokers"
OWNERS: Final = "/quire/v1/brokers"
BUNDLE: Final = f"{OWNERS}/bundles/{{tenant}}/{{namespace}}/{{bundle}}"


def routes(broker: Broker) -> Sequence[Route]:
    return (
        *configuration.routes(broker),
        *broker_stats.routes(broker),
        *_this_one(broker),
        *_cluster(broker),
        *_bundles(broker),
    )


def _this_one(broker: Broker) -> Sequence[Route]:
    def health() -> Text:
        if reasons := broker.why_not_ready():
            raise Unavailable("; ".join(reasons))
        return web.Response(text="ok")

    def running() -> Text:
        return web.Response(text=__version__)

    return (
        Route("GET", f"{BROKERS}/health", health, may=Action.OPEN),
        Route("GET", f"{BROKERS}/version", running, may=Action.OPEN),
    )


def _cluster(broker: Broker) -> Sequence[Route]:
    ownership, addresses, mine = broker.ownership, broker.addresses, broker.services.settings.cluster

    def known(name: str) -> str:
        if name != mine:
            raise NotFound(f"cluster {name} does not exist, only {mine}")
        return name

    def address(_: str) -> dict[str, str]:
        return {
            "serviceUrl": addresses.http_url,
            "serviceUrlTls": addresses.http_url_tls,
            "brokerServiceUrl": addresses.service_url,
            "brokerServiceUrlTls": addresses.service_url_tls,
        }

    def clusters() -> list[str]:
        return [mine]

    def brokers(_: str = "") -> list[str]:
        return [_host(one.http_url or one.http_url_tls) for one in ownership.brokers()]

    def leader() -> dict[str, str]:
        """Return this broker: there is no leader among the brokers, so any of them answers such requests."""
        url = addresses.http_url or addresses.http_url_tls
        return {"brokerId": _host(url), "serviceUrl": url}

    def owned(_: str, wanted: str) -> dict[str, Any]:
        names = {
            one.broker
            for one in ownership.brokers()
            if wanted in (one.broker, _host(one.http_url), _host(one.http_url_tls))
        }
        bundles = [one.bundle for one in ownership.bundles() if one.broker in names]
        status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        return dict.fromkeys(bundles, status)

    def refuse() -> NoReturn:
        raise Absent("clusters cannot be changed: a broker knows only its own cluster, from its settings")

    def create(name: str) -> NoReturn:
        if name == mine:
            raise AlreadyExists(f"cluster {name} already exists")
        refuse()

    cluster = path("cluster", parse=known)
    return (
        Route("GET", f"{CLUSTER}/peers", _no_rows, cluster, may=Action.SUPERUSER),
        Route("GET", f"{CLUSTER}/failureDomains", _no_fields, cluster, may=Action.SUPERUSER),
        Route("GET", f"{CLUSTER}/namespaceIsolationPolicies", _no_fields, cluster, may=Action.SUPERUSER),
        Route("PUT", CLUSTER, create, path("cluster"), may=Action.SUPERUSER),
        Route("POST", CLUSTER, refuse, may=Action.SUPERUSER),
        Route("DELETE", CLUSTER, refuse, may=Action.SUPERUSER),
        Route("GET", f"{BROKERS}/leaderBroker", leader, may=Action.SUPERUSER),
        Route(
            "GET",
            f"{BROKERS}/{{cluster}}/{{broker}}/ownedNamespaces",
            owned,
            cluster,
            path("broker"),
            may=Action.SUPERUSER,
        ),
        Route("GET", "/admin/v2/resourcegroups", _no_rows, may=Action.SUPERUSER),
        Route("GET", CLUSTERS, clusters, may=Action.OPEN),
        Route("GET", CLUSTER, address, cluster, may=Action.SUPERUSER),
        Route("GET", BROKERS, brokers, may=Action.SUPERUSER),
        Route("GET", f"{BROKERS}/{{cluster}}", brokers, cluster, may=Action.SUPERUSER),
    )


def _host(http_url: str) -> str:
    return http_url.partition("://")[2]


def _no_rows(_: str = "") -> list[str]:
    return []


def _no_fields(_: str = "") -> dict[str, Any]:
    return {}


def _bundles(broker: Broker) -> Sequence[Route]:
    async def unload(bundle: str) -> None:
        await broker.ownership.release(bundle, "an operator requested it")

    async def split(bundle: str, at: str) -> list[str]:
        return list(await broker.bundles.split(bundle, at))

    bundle = path("tenant", "namespace", "bundle", parse=_bundle)
    at = query("at", _edge, "")
    return (
        Route("GET", OWNERS, broker.ownership.brokers, may=Action.SUPERUSER),
        Route("GET", f"{OWNERS}/bundles", broker.ownership.bundles, may=Action.SUPERUSER),
        Route("PUT", f"{BUNDLE}/unload", unload, bundle, may=Action.SUPERUSER),
        Route(
            "PUT",
            f"{BUNDLE}/forget",
            broker.bundles.forget,
            bundle,
            flag("accept_loss"),
            may=Action.SUPERUSER,
        ),
        Route("PUT", f"{BUNDLE}/split", split, bundle, at, may=Action.SUPERUSER),
        Route(
            "PUT",
            f"{BUNDLE}/take",
            broker.bundles.take,
            bundle,
            body(_topics, NamedTopics | None),
            may=Action.SUPERUSER,
        ),
    )


def _bundle(*names: str) -> str:
    if any("/" in name for name in names):
        raise ConfigurationError(
            f"{'/'.join(names)[:80]!r} is not a bundle, such as public/default/00000000_40000000"
        )
    return "/".join(names)


def _edge(text: str) -> str:
    if text and not re.fullmatch(r"(0x)?[0-9a-f]{8}", text):
        raise ConfigurationError(f"the split point must be eight hex digits, not {text[:40]!r}")
    return text.removeprefix("0x")


class NamedTopics(Struct):
    """Topics to load."""

    topics: list[str] = []


def _topics(value: Any) -> list[str]:
    topics: list[str] = fields_of({} if value is None else value, topics=list).get("topics", [])
    if not all(isinstance(topic, str) for topic in topics):
        raise ConfigurationError("topics must be a list of names")
    return topics
