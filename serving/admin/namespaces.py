"""`/admin/v2/namespaces`: namespaces and their policies.

The policies themselves are in `policies`, which serves them for namespaces and topics alike. Permissions cannot be
granted, as nobody would heed them (`absent`); what was granted in former times can be revoked.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from aiohttp import web
from msgspec.structs import replace

from quire.metadata.records import NamespaceRecord, Policies
from quire.runtime.errors import ConfigurationError, NotFound
from quire.serving.admin import policy_json
from quire.serving.admin.namespace_json import namespace_of
from quire.serving.admin.requests import json_of, no_content
from quire.serving.broker import Broker

NAMESPACES = "/admin/v2/namespaces"
ONE = f"{NAMESPACES}/{{tenant}}/{{namespace}}"
BUNDLE: Final = "0x[0-9a-f]{8}_0x[0-9a-f]{8}"
MODES: Final = {
    "PERSISTENT": ("persistent",),
    "NON_PERSISTENT": ("non-persistent",),
    "ALL": ("persistent", "non-persistent"),
}


def routes(broker: Broker) -> list[web.RouteDef]:
    return [
        web.get(f"{NAMESPACES}/{{tenant}}", _list(broker)),
        web.get(ONE, _show(broker)),
        web.put(ONE, _create(broker)),
        web.delete(ONE, _delete(broker)),
        web.get(f"{ONE}/topics", _topics(broker)),
        web.get(f"{ONE}/bundles", _bundles(broker)),
        web.put(f"{ONE}/unload", _unload(broker)),
        web.put(f"{ONE}/{{bundle:{BUNDLE}}}/unload", _unload(broker)),
        web.post(f"{ONE}/clearBacklog", _clear(broker)),
        web.post(f"{ONE}/clearBacklog/{{subscription}}", _clear(broker)),
        web.post(f"{ONE}/unsubscribe/{{subscription}}", _unsubscribe(broker)),
        web.delete(f"{ONE}/permissions/{{role}}", _revoke(broker)),
    ]


Handler = Callable[[web.Request], Any]


def _names(request: web.Request) -> tuple[str, str]:
    return request.match_info["tenant"], request.match_info["namespace"]


def _list(broker: Broker) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response(await broker.namespaces.list(request.match_info["tenant"]))

    return handle


def _show(broker: Broker) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        record = await broker.namespaces.get(*_names(request))
        shown = policy_json.shown(record.policies, broker.services.settings.cluster)
        shown["bundles"] = _bundles_of(record)
        return web.json_response(shown)

    return handle


def _bundles_of(record: NamespaceRecord) -> dict[str, Any]:
    edges = [f"0x{edge}" for edge in record.boundaries]
    return {"boundaries": edges, "numBundles": len(edges) - 1}


def _bundles(broker: Broker) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response(_bundles_of(await broker.namespaces.get(*_names(request))))

    return handle


def _unload(broker: Broker) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        bundle = request.match_info.get("bundle")
        if bundle is None:
            await broker.bundles.unload_namespace(*_names(request))
            return no_content()
        edges = (await broker.namespaces.get(*_names(request))).boundaries
        wanted = bundle.replace("0x", "")
        if wanted not in {f"{low}_{high}" for low, high in pairwise(edges)}:
            raise NotFound(f"namespace {'/'.join(_names(request))} has no bundle {bundle}")
        await broker.bundles.unload("/".join((*_names(request), wanted)))
        return no_content()

    return handle


def _clear(broker: Broker) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        await broker.admin.subscriptions.clear_backlog(
            *_names(request), request.match_info.get("subscription")
        )
        return no_content()

    return handle


def _unsubscribe(broker: Broker) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        await broker.admin.subscriptions.delete_everywhere(
            *_names(request), request.match_info["subscription"]
        )
        return no_content()

    return handle


def _create(broker: Broker) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        policies, boundaries = namespace_of(await json_of(request), broker.services.settings.cluster)
        await broker.namespaces.create(*_names(request), policies, boundaries)
        return no_content()

    return handle


def _delete(broker: Broker) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        await broker.namespaces.delete(*_names(request))
        return no_content()

    return handle


def _topics(broker: Broker) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        mode = request.query.get("mode", "PERSISTENT").upper()
        if mode not in MODES:
            raise ConfigurationError(f"{mode[:40]!r} is no mode of topics: use {', '.join(MODES)}")
        found = [await broker.fan_out.topics(*_names(request), domain) for domain in MODES[mode]]
        return web.json_response(sorted(name for names in found for name in names))

    return handle


def _revoke(broker: Broker) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        role = request.match_info["role"]

        def change(all: Policies) -> Policies:
            rest = {name: actions for name, actions in all.permissions.items() if name != role}
            return replace(all, permissions=rest)

        await broker.admin.policies.change_namespace(*_names(request), change)
        return no_content()

    return handle
