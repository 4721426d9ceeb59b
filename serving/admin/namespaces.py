"""`/admin/v2/namespaces`: namespaces and their policies.

The policies themselves are in `policies`, which serves them for namespaces and topics alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from aiohttp import web
from msgspec.structs import replace

from quire.metadata.records import Policies
from quire.runtime.errors import ConfigurationError
from quire.serving.admin import policies
from quire.serving.admin.requests import json_of, no_content
from quire.serving.admin.target import AdminTarget

NAMESPACES = "/admin/v2/namespaces"
ONE = f"{NAMESPACES}/{{tenant}}/{{namespace}}"
MODES: Final = {
    "PERSISTENT": ("persistent",),
    "NON_PERSISTENT": ("non-persistent",),
    "ALL": ("persistent", "non-persistent"),
}


def routes(target: AdminTarget) -> list[web.RouteDef]:
    return [
        web.get(f"{NAMESPACES}/{{tenant}}", _list(target)),
        web.get(ONE, _show(target)),
        web.put(ONE, _create(target)),
        web.delete(ONE, _delete(target)),
        web.get(f"{ONE}/topics", _topics(target)),
        web.get(f"{ONE}/permissions", _permissions(target)),
        web.post(f"{ONE}/permissions/{{role}}", _grant(target)),
        web.delete(f"{ONE}/permissions/{{role}}", _revoke(target)),
    ]


Handler = Callable[[web.Request], Any]


def _names(request: web.Request) -> tuple[str, str]:
    return request.match_info["tenant"], request.match_info["namespace"]


def _list(target: AdminTarget) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response(await target.namespaces.list(request.match_info["tenant"]))

    return handle


def _show(target: AdminTarget) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        record = await target.namespaces.get(*_names(request))
        shown = policies.shown(record.policies)
        edges = [f"0x{edge}" for edge in record.boundaries]
        shown["bundles"] = {"boundaries": edges, "numBundles": len(edges) - 1}
        return web.json_response(shown)

    return handle


def _create(target: AdminTarget) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        await target.namespaces.create(*_names(request))
        return no_content()

    return handle


def _delete(target: AdminTarget) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        await target.namespaces.delete(*_names(request))
        return no_content()

    return handle


def _topics(target: AdminTarget) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        mode = request.query.get("mode", "PERSISTENT").upper()
        if mode not in MODES:
            raise ConfigurationError(f"{mode[:40]!r} is no mode of topics: use {', '.join(MODES)}")
        found = [await target.list_topics(*_names(request), domain) for domain in MODES[mode]]
        return web.json_response(sorted(name for names in found for name in names))

    return handle


def _permissions(target: AdminTarget) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        record = await target.namespaces.get(*_names(request))
        return web.json_response(
            {role: list(actions) for role, actions in record.policies.permissions.items()}
        )

    return handle


def _grant(target: AdminTarget) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        actions = await json_of(request)
        if not isinstance(actions, list) or not all(isinstance(action, str) for action in actions):
            raise ConfigurationError(
                "the request's body must be a list of actions, such as produce and consume"
            )
        role = request.match_info["role"]

        def change(all: Policies) -> Policies:
            return replace(all, permissions={**all.permissions, role: tuple(actions)})

        await target.change_namespace_policies(*_names(request), change)
        return no_content()

    return handle


def _revoke(target: AdminTarget) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        role = request.match_info["role"]

        def change(all: Policies) -> Policies:
            rest = {name: actions for name, actions in all.permissions.items() if name != role}
            return replace(all, permissions=rest)

        await target.change_namespace_policies(*_names(request), change)
        return no_content()

    return handle
