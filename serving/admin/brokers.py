"""`/admin/v2/clusters`, `/admin/v2/brokers`, `/quire/v1/brokers`: who is there, who owns what, since when and why.

A bundle can be given away, or split, by hand. `take` is what one broker asks of another, to which it gives a bundle: to
own it, and to load the topics that are named. Other clusters are not known, and this one has no parts that are kept
apart. Settings are given at the start; none changes while a broker runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, Final, NoReturn

from aiohttp import web
from msgspec import Struct

from quire import __version__
from quire.runtime.errors import ConfigurationError, NotFound, Unavailable
from quire.security.authorization import Action
from quire.serving.admin.requests import Absent, fields_of
from quire.serving.admin.route import Route, Text, body, flag, path, query
from quire.serving.broker import Broker

CLUSTERS: Final = "/admin/v2/clusters"
CLUSTER: Final = f"{CLUSTERS}/{{cluster}}"
BROKERS: Final = "/admin/v2/brokers"
CONFIGURATION: Final = f"{BROKERS}/configuration"
OWNERS: Final = "/quire/v1/brokers"
BUNDLE: Final = f"{OWNERS}/bundles/{{tenant}}/{{namespace}}/{{bundle}}"


def routes(broker: Broker) -> Sequence[Route]:
    return (*_configuration(broker), *_this_one(broker), *_cluster(broker), *_bundles(broker))


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
            raise NotFound(f"there is no cluster {name}, only {mine}")
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
        return [_host(one["httpUrl"] or one["httpUrlTls"]) for one in ownership.brokers()]

    def leader() -> dict[str, str]:
        """Brokers balance among themselves: what is asked of Pulsar's leader any of them answers."""
        url = addresses.http_url or addresses.http_url_tls
        return {"brokerId": _host(url), "serviceUrl": url}

    def owned(_: str, wanted: str) -> dict[str, Any]:
        names = {
            row["broker"]
            for row in ownership.brokers()
            if wanted in (row["broker"], _host(row["httpUrl"]), _host(row["httpUrlTls"]))
        }
        bundles = [row["bundle"] for row in ownership.bundles() if row["broker"] in names]
        status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        return dict.fromkeys(bundles, status)

    def refuse() -> NoReturn:
        raise Absent("a broker knows its own cluster alone, by the settings that it was started with")

    cluster = path("cluster", parse=known)
    return (
        Route("GET", f"{CLUSTER}/peers", _no_rows, cluster, may=Action.SUPERUSER),
        Route("GET", f"{CLUSTER}/failureDomains", _no_fields, cluster, may=Action.SUPERUSER),
        Route("GET", f"{CLUSTER}/namespaceIsolationPolicies", _no_fields, cluster, may=Action.SUPERUSER),
        Route("PUT", CLUSTER, refuse, may=Action.SUPERUSER),
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


def _configuration(broker: Broker) -> Sequence[Route]:
    def running() -> dict[str, str]:
        assert is_dataclass(broker.services.settings)
        return {name: str(value) for name, value in asdict(broker.services.settings).items()}

    def refuse(name: str) -> NoReturn:
        raise ConfigurationError(f"{name[:100]!r} cannot be changed while a broker runs: set it and restart")

    return (
        Route("GET", CONFIGURATION, _no_rows, may=Action.SUPERUSER),
        Route("GET", f"{CONFIGURATION}/", _no_rows, may=Action.SUPERUSER),
        Route("GET", f"{CONFIGURATION}/values", _no_fields, may=Action.SUPERUSER),
        Route("GET", f"{CONFIGURATION}/runtime", running, may=Action.SUPERUSER),
        Route("POST", f"{CONFIGURATION}/{{name}}/{{value}}", refuse, path("name"), may=Action.SUPERUSER),
        Route("DELETE", f"{CONFIGURATION}/{{name}}", refuse, path("name"), may=Action.SUPERUSER),
    )


def _bundles(broker: Broker) -> Sequence[Route]:
    async def unload(bundle: str) -> None:
        await broker.ownership.release(bundle, "an operator asked for it")

    async def split(bundle: str, at: str) -> list[str]:
        return list(await broker.bundles.split(bundle, at))

    bundle = path("tenant", "namespace", "bundle", parse=lambda *names: "/".join(names))
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


def _edge(text: str) -> str:
    if text and not re.fullmatch(r"(0x)?[0-9a-f]{8}", text):
        raise ConfigurationError(f"a bundle begins at eight hex digits, not at {text[:40]!r}")
    return text.removeprefix("0x")


class NamedTopics(Struct):
    """Topics that are to be loaded."""

    topics: list[str] = []


def _topics(value: Any) -> list[str]:
    topics: list[str] = fields_of({} if value is None else value, topics=list).get("topics", [])
    if not all(isinstance(topic, str) for topic in topics):
        raise ConfigurationError("topics must be a list of names")
    return topics
