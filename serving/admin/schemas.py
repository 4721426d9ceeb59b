"""`/admin/v2/schemas/…`: the schemas of topics.

Any broker answers, for they lie in the metadata store; partitions have their parent's. What is added over REST is asked
to be compatible as a producer's is, but needs no `isAllowAutoUpdateSchema`: this is how an operator adds schemas where
clients may not.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from quire.runtime.errors import ConfigurationError, NotFound
from quire.serving.admin.requests import fields_of, json_of, natural
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.policy.strategy import Strategy
from quire.serving.schema.definition import Definition, SchemaRefused, from_text, to_text
from quire.serving.schema.registry import Version

ONE = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"


def routes(broker: Broker) -> list[web.RouteDef]:
    return _reading(broker) + _changing(broker) + _asking(broker)


def _name(request: web.Request) -> TopicName:
    part = request.match_info
    return TopicName("persistent", part["tenant"], part["namespace"], part["topic"])


def _shown(version: Version) -> dict[str, Any]:
    definition = version.definition
    return {
        "version": version.number,
        "type": definition.kind,
        "timestamp": version.created_ms,
        "data": to_text(definition),
        "properties": dict(definition.properties),
    }


async def _definition(request: web.Request) -> Definition:
    """`type`, `schema` (a text) and `properties`, as Pulsar's tools send them."""
    found = fields_of(await json_of(request), type=str, schema=str, properties=dict)
    properties = found.get("properties", {})
    if "type" not in found or not all(isinstance(value, str) for value in properties.values()):
        raise ConfigurationError(
            "a schema needs type and schema, both texts, and may have properties, of texts"
        )
    return from_text(found["type"], found.get("schema", ""), properties)


def _reading(broker: Broker) -> list[web.RouteDef]:
    async def newest(request: web.Request) -> web.Response:
        found = await broker.registry.schemas.find(_name(request))
        if found is None:
            raise NotFound(f"topic {_name(request)} has no schema")
        return web.json_response(_shown(found))

    async def one(request: web.Request) -> web.Response:
        number = natural(request.match_info["version"], "the version in the path")
        found = await broker.registry.schemas.find(_name(request), number)
        if found is None:
            raise NotFound(f"topic {_name(request)} has no version {number} of its schema")
        return web.json_response(_shown(found))

    async def every(request: web.Request) -> web.Response:
        found = await broker.registry.schemas.versions(_name(request))
        return web.json_response({"getSchemaResponses": [_shown(one) for one in found]})

    return [
        web.get(f"{ONE}/schema", newest),
        web.get(f"{ONE}/schema/{{version}}", one),
        web.get(f"{ONE}/schemas", every),
    ]


def _changing(broker: Broker) -> list[web.RouteDef]:
    async def add(request: web.Request) -> web.Response:
        name, definition = _name(request), await _definition(request)
        strategy = await _strategy(broker, name)
        return web.json_response({"version": await broker.registry.schemas.add(name, definition, strategy)})

    async def delete(request: web.Request) -> web.Response:
        return web.json_response({"version": await broker.registry.schemas.delete(_name(request))})

    return [web.post(f"{ONE}/schema", add), web.delete(f"{ONE}/schema", delete)]


def _asking(broker: Broker) -> list[web.RouteDef]:
    async def number(request: web.Request) -> web.Response:
        name = _name(request)
        found = await broker.registry.schemas.number_of(name, await _definition(request))
        if found is None:
            raise NotFound(f"topic {name} has no such schema")
        return web.json_response({"version": found})

    async def compatible(request: web.Request) -> web.Response:
        name, definition = _name(request), await _definition(request)
        strategy = await _strategy(broker, name)
        said: dict[str, Any] = {"compatibility": True, "schemaCompatibilityStrategy": str(strategy)}
        try:
            await broker.registry.schemas.check(name, definition, strategy)
        except SchemaRefused as error:
            said |= {"compatibility": False, "reason": str(error)}
        return web.json_response(said)

    return [web.post(f"{ONE}/version", number), web.post(f"{ONE}/compatibility", compatible)]


async def _strategy(broker: Broker, name: TopicName) -> Strategy:
    """What holds for the topic, there or not. Raises `NotFound` for an unknown namespace."""
    return Strategy((await broker.registry.policies.of(name)).schema_compatibility)
