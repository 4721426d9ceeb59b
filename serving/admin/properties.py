"""`/admin/v2/namespaces/…/properties` and `…/property/KEY`: properties of a namespace, which applications define.

Single values are plain text, as Pulsar's clients expect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from aiohttp import web
from msgspec.structs import replace

from quire.metadata.records import Policies
from quire.security.authorization import Action
from quire.serving.admin.requests import Properties, properties_of
from quire.serving.admin.route import NAMESPACE, OF_NAMESPACE, Route, Text, body, path
from quire.serving.broker import Broker

PROPERTIES: Final = f"{NAMESPACE}/properties"
PROPERTY: Final = f"{NAMESPACE}/property/{{key}}"


def routes(broker: Broker) -> Sequence[Route]:
    policies = broker.admin.policies

    async def shown(tenant: str, namespace: str) -> Mapping[str, str]:
        return (await broker.namespaces.get(tenant, namespace)).policies.properties

    async def add(tenant: str, namespace: str, properties: Mapping[str, str]) -> None:
        """Add properties; a property that exists gets the new value."""

        def change(old: Policies) -> Policies:
            return replace(old, properties=properties_of({**old.properties, **properties}))

        await policies.change_namespace(tenant, namespace, change)

    async def clear(tenant: str, namespace: str) -> None:
        await policies.change_namespace(tenant, namespace, lambda old: replace(old, properties={}))

    async def show_one(tenant: str, namespace: str, key: str) -> Text | None:
        return _as_text((await shown(tenant, namespace)).get(key))

    async def add_one(tenant: str, namespace: str, key: str, value: str) -> None:
        await add(tenant, namespace, {key: value})

    async def remove_one(tenant: str, namespace: str, key: str) -> Text | None:
        """Remove a property and return its value; 204 if it does not exist."""
        removed: list[str | None] = []

        def change(old: Policies) -> Policies:
            removed[:] = [old.properties.get(key)]
            return replace(old, properties={name: one for name, one in old.properties.items() if name != key})

        await policies.change_namespace(tenant, namespace, change)
        return _as_text(removed[0])

    sent, may = body(properties_of, Properties), Action.ADMINISTER
    of_one = *OF_NAMESPACE, path("key")
    return (
        Route("GET", PROPERTIES, shown, *OF_NAMESPACE, may=may),
        Route("PUT", PROPERTIES, add, *OF_NAMESPACE, sent, may=may),
        Route("DELETE", PROPERTIES, clear, *OF_NAMESPACE, may=may),
        Route("GET", PROPERTY, show_one, *of_one, may=may),
        Route("PUT", f"{PROPERTY}/{{value}}", add_one, *of_one, path("value"), may=may),
        Route("DELETE", PROPERTY, remove_one, *of_one, may=may),
    )


def _as_text(value: str | None) -> Text | None:
    return None if value is None else web.Response(text=value)
