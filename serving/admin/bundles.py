"""`/admin/v2/namespaces/…/{bundle}`: bundles of a namespace, such as `0x00000000_0x40000000`, and their topics."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, TypedDict

from quire.metadata.records import NamespaceRecord
from quire.runtime.errors import NotFound
from quire.security.authorization import Action
from quire.serving.admin.route import (
    DOMAIN,
    NAMESPACE,
    OF_NAMESPACE,
    SUBSCRIPTION_NAME,
    TOPICS,
    Route,
    path,
    query,
)
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.registry.bundles import bundle_of, hash_of

NAME: Final = "{bundle:0x[0-9a-f]{8}_0x[0-9a-f]{8}}"
BUNDLE: Final = f"{NAMESPACE}/{NAME}"
ONE: Final = (*OF_NAMESPACE, path("bundle"))


class TopicHashPositions(TypedDict):
    namespace: str
    bundle: str
    topicHashPositions: dict[str, int]


def routes(broker: Broker) -> Sequence[Route]:
    return (*_owners(broker), *_topics(broker))


def _owners(broker: Broker) -> Sequence[Route]:
    async def unload(tenant: str, namespace: str, bundle: str) -> None:
        await broker.bundles.unload(await _whole(broker, tenant, namespace, bundle))

    async def split(tenant: str, namespace: str, bundle: str) -> None:
        await broker.bundles.split(await _whole(broker, tenant, namespace, bundle))

    unload_all, may = broker.bundles.unload_namespace, Action.SUPERUSER
    return (
        Route(
            "GET",
            f"{NAMESPACE}/bundles",
            broker.namespaces.get,
            *OF_NAMESPACE,
            answer=bundles_of,
            may=Action.LIST_TOPICS,
        ),
        Route("PUT", f"{NAMESPACE}/unload", unload_all, *OF_NAMESPACE, may=may),
        Route("PUT", f"{BUNDLE}/unload", unload, *ONE, may=may),
        Route("PUT", f"{BUNDLE}/split", split, *ONE, may=may),
    )


def _topics(broker: Broker) -> Sequence[Route]:
    subscriptions = broker.admin.subscriptions

    async def clear(tenant: str, namespace: str, bundle: str, name: str | None = None) -> None:
        """Skip the backlogs of the topics of a bundle."""
        whole = await _whole(broker, tenant, namespace, bundle)
        await subscriptions.clear_backlog(tenant, namespace, name, whole)

    async def unsubscribe(tenant: str, namespace: str, bundle: str, name: str) -> None:
        """Delete a subscription from each topic of a bundle that has it."""
        whole = await _whole(broker, tenant, namespace, bundle)
        await subscriptions.delete_everywhere(tenant, namespace, name, whole)

    async def topics(tenant: str, namespace: str, bundle: str, domain: str) -> list[str]:
        """List the topics of a bundle, with each partition."""
        whole = await _whole(broker, tenant, namespace, bundle)
        record = await broker.namespaces.get(tenant, namespace)
        every = await broker.fan_out.topics(tenant, namespace, domain)
        return [one for one in every if bundle_of(record, TopicName.parse(one)) == whole]

    async def hashes(tenant: str, namespace: str, bundle: str, named: str) -> TopicHashPositions:
        """Return the hashes of topics, which decide their bundle: of the listed ones or, if none, of all topics."""
        found = await topics(tenant, namespace, bundle, "persistent")
        wanted = {one if "://" in one else f"persistent://{one}" for one in filter(None, named.split(","))}
        shown = [one for one in found if one in wanted or not wanted]
        positions = {one: int(hash_of(one), 16) for one in shown}
        return {"namespace": f"{tenant}/{namespace}", "bundle": bundle, "topicHashPositions": positions}

    administer, read = Action.ADMINISTER, Action.LIST_TOPICS
    of_one, named = (*ONE, SUBSCRIPTION_NAME), query("topics", str, "")
    return (
        Route("POST", f"{BUNDLE}/clearBacklog", clear, *ONE, may=administer),
        Route("POST", f"{BUNDLE}/clearBacklog/{{subscription}}", clear, *of_one, may=administer),
        Route("POST", f"{BUNDLE}/unsubscribe/{{subscription}}", unsubscribe, *of_one, may=administer),
        Route("GET", f"{NAMESPACE}/{{bundle}}/topicHashPositions", hashes, *ONE, named, may=read),
        Route("GET", f"{TOPICS}/{NAME}", topics, *ONE, DOMAIN, may=read),
    )


async def _whole(broker: Broker, tenant: str, namespace: str, bundle: str) -> str:
    """Return the name of a bundle in the cluster. Raises `NotFound`."""
    edges = (await broker.namespaces.get(tenant, namespace)).boundaries
    wanted = bundle.replace("0x", "")
    if wanted not in {f"{low}_{high}" for low, high in pairwise(edges)}:
        raise NotFound(f"namespace {tenant}/{namespace} has no bundle {bundle}")
    return f"{tenant}/{namespace}/{wanted}"


def bundles_of(record: NamespaceRecord) -> dict[str, Any]:
    edges = [f"0x{edge}" for edge in record.boundaries]
    return {"boundaries": edges, "numBundles": len(edges) - 1}
