"""`/admin/v2/schemas/…`: the schemas of topics.

Any broker answers, for they lie in the metadata store; partitions have their parent's. What is added over REST is asked
to be compatible as a producer's is, but needs no `isAllowAutoUpdateSchema`: this is how an operator adds schemas where
clients may not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from quire.runtime.errors import ConfigurationError, NotFound
from quire.security.authorization import Action
from quire.serving.admin.requests import fields_of
from quire.serving.admin.route import Route, body, path, path_number
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.policy.strategy import Strategy
from quire.serving.schema.definition import Definition, SchemaRefused, from_text, to_text
from quire.serving.schema.registry import Version

ONE = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"


def routes(broker: Broker) -> Sequence[Route]:
    schemas = broker.registry.schemas

    async def strategy_of(name: TopicName) -> Strategy:
        """What holds for the topic, there or not. Raises `NotFound` for an unknown namespace."""
        return Strategy((await broker.registry.policies.of(name)).schema_compatibility)

    async def find(name: TopicName, number: int | None = None) -> dict[str, Any]:
        found = await schemas.find(name, number)
        if found is None:
            what = "schema" if number is None else f"version {number} of its schema"
            raise NotFound(f"topic {name} has no {what}")
        return _shown(found)

    async def add(name: TopicName, definition: Definition) -> int:
        return await schemas.add(name, definition, await strategy_of(name))

    async def number_of(name: TopicName, definition: Definition) -> int:
        found = await schemas.number_of(name, definition)
        if found is None:
            raise NotFound(f"topic {name} has no such schema")
        return found

    async def compatible(name: TopicName, definition: Definition) -> dict[str, Any]:
        strategy = await strategy_of(name)
        said: dict[str, Any] = {"compatibility": True, "schemaCompatibilityStrategy": str(strategy)}
        try:
            await schemas.check(name, definition, strategy)
        except SchemaRefused as error:
            said |= {"compatibility": False, "reason": str(error)}
        return said

    topic = path("tenant", "namespace", "topic", parse=partial(TopicName, "persistent"))
    definition = body(_definition, SchemaJson)
    return (
        Route("GET", f"{ONE}/schema", find, topic, may=Action.LOOKUP),
        Route("GET", f"{ONE}/schema/{{version}}", find, topic, path_number("version"), may=Action.LOOKUP),
        Route("GET", f"{ONE}/schemas", schemas.versions, topic, answer=_all_shown, may=Action.LOOKUP),
        Route("POST", f"{ONE}/schema", add, topic, definition, answer=_numbered, may=Action.ADMINISTER),
        Route("DELETE", f"{ONE}/schema", schemas.delete, topic, answer=_numbered, may=Action.ADMINISTER),
        Route("POST", f"{ONE}/version", number_of, topic, definition, answer=_numbered, may=Action.LOOKUP),
        Route("POST", f"{ONE}/compatibility", compatible, topic, definition, may=Action.LOOKUP),
    )


def _numbered(number: int) -> dict[str, int]:
    return {"version": number}


def _all_shown(versions: Iterable[Version]) -> dict[str, Any]:
    return {"getSchemaResponses": [_shown(one) for one in versions]}


def _shown(version: Version) -> dict[str, Any]:
    definition = version.definition
    return {
        "version": version.number,
        "type": definition.kind,
        "timestamp": version.created_ms,
        "data": to_text(definition),
        "properties": dict(definition.properties),
    }


class SchemaJson(Struct):
    """`schema` is a text, for schemas of records JSON in it."""

    type: str
    schema: str = ""
    properties: dict[str, str] = {}


def _definition(value: Any) -> Definition:
    """`type`, `schema` (a text) and `properties`, as Pulsar's tools send them."""
    found = fields_of(value, type=str, schema=str, properties=dict)
    properties = found.get("properties", {})
    if "type" not in found or not all(isinstance(value, str) for value in properties.values()):
        raise ConfigurationError(
            "a schema needs type and schema, both texts, and may have properties, of texts"
        )
    return from_text(found["type"], found.get("schema", ""), properties)
