"""`/admin/v2/schemas/…`: schemas of topics.

Any broker answers, because schemas are in the metadata store; partitions have those of their parent. A schema that is
added over REST must be compatible like a producer's, but does not need `isAllowAutoUpdateSchema`: so an operator can
add schemas even if clients may not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from aiohttp import web
from msgspec import Struct

from quire.runtime.errors import ConfigurationError, LimitExceeded, NotFound
from quire.runtime.limits import MIB
from quire.security.authorization import Action
from quire.serving.admin.requests import fields_of
from quire.serving.admin.route import REQUEST, Route, body, path, path_number, query, query_number
from quire.serving.admin.tables import visible
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.operations.topic_table import ROWS_MAX
from quire.serving.policy.strategy import Strategy
from quire.serving.schema.definition import Definition, SchemaRefused, from_text, to_text
from quire.serving.schema.registry import SchemaSummary, Version

ALL_BYTES_MAX: Final = 16 * MIB
"""Limit, in bytes, of all versions in one response: sixty-four of the largest, or tens of thousands of ordinary ones.
"""

ONE = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"


def routes(broker: Broker) -> Sequence[Route]:
    schemas = broker.registry.schemas

    async def strategy_of(name: TopicName) -> Strategy:
        """Return the effective strategy of a topic, which need not exist.

        Raises `NotFound` for an unknown namespace.
        """
        return Strategy((await broker.registry.policies.of(name)).schema_compatibility)

    async def find(name: TopicName, number: int | None = None) -> dict[str, Any]:
        found = await schemas.find(name, number)
        if found is None:
            what = "schema" if number is None else f"version {number} of its schema"
            raise NotFound(f"topic {name} has no {what}")
        return _shown(found)

    async def versions(name: TopicName) -> dict[str, Any]:
        """Return all valid versions, oldest first."""
        found: list[dict[str, Any]] = []
        size_bytes = 0
        async for version in schemas.versions(name):
            size_bytes += version.definition.size_bytes
            if size_bytes > ALL_BYTES_MAX:
                raise LimitExceeded(
                    f"the schemas of {name} have more than {ALL_BYTES_MAX} bytes in total: request single versions"
                )
            found.append(_shown(version))
        return {"getSchemaResponses": found}

    async def metadata(name: TopicName) -> SchemaMetadata:
        """Return the numbers of all valid versions. Schemas are in the metadata store, so there are no ledgers."""
        found = [SchemaEntry(number) for number in await schemas.numbers(name)]
        if not found:
            raise NotFound(f"topic {name} has no schema")
        return SchemaMetadata(found[-1], found)

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
        _of_all_topics(broker),
        Route("GET", f"{ONE}/schema", find, topic, may=Action.LOOKUP),
        Route("GET", f"{ONE}/schema/{{version}}", find, topic, path_number("version"), may=Action.LOOKUP),
        Route("GET", f"{ONE}/schemas", versions, topic, may=Action.LOOKUP, holds=2 * ALL_BYTES_MAX),
        Route("GET", f"{ONE}/metadata", metadata, topic, may=Action.LOOKUP),
        Route("POST", f"{ONE}/schema", add, topic, definition, answer=_numbered, may=Action.ADMINISTER),
        Route("DELETE", f"{ONE}/schema", schemas.delete, topic, answer=_numbered, may=Action.ADMINISTER),
        Route("POST", f"{ONE}/version", number_of, topic, definition, answer=_numbered, may=Action.LOOKUP),
        Route("POST", f"{ONE}/compatibility", compatible, topic, definition, may=Action.LOOKUP),
    )


def _of_all_topics(broker: Broker) -> Route:
    schemas = broker.registry.schemas

    async def all_topics(request: web.Request, contains: str, offset: int, limit: int) -> SchemaPage:
        """Return a page of the topics with a schema in all namespaces whose topics the caller may list."""
        names: list[TopicName] = []
        async for row in visible(broker, request):
            names += await schemas.topics(*row.namespace.split("/"))
        wanted = [one for one in names if contains.lower() in str(one).lower()]
        rows = [await schemas.summary(one) for one in wanted[offset : offset + limit]]
        return SchemaPage(len(wanted), [one for one in rows if one is not None])

    contains = query("contains", str, "")
    page = query_number("offset", "0"), query_number("limit", "50", least=1, most=ROWS_MAX)
    return Route("GET", "/quire/v1/schemas", all_topics, REQUEST, contains, *page, may=Action.OPEN)


class SchemaPage(Struct, rename="camel"):
    """Page of the topics that have, or had, a schema; those without a valid version are omitted from `schemas`."""

    total: int
    schemas: list[SchemaSummary]


def _numbered(number: int) -> dict[str, int]:
    return {"version": number}


def _shown(version: Version) -> dict[str, Any]:
    definition = version.definition
    return {
        "version": version.number,
        "type": definition.kind,
        "timestamp": version.created_ms,
        "data": to_text(definition),
        "properties": dict(definition.properties),
    }


class SchemaEntry(Struct, rename="camel"):
    """Version in Pulsar's JSON of schema metadata."""

    version: int
    ledger_id: int = -1
    entry_id: int = -1


class SchemaMetadata(Struct):
    """The newest version, and all versions, oldest first."""

    info: SchemaEntry
    index: list[SchemaEntry]


class SchemaJson(Struct):
    """Schema; `schema` is a string, which contains JSON for schemas of records."""

    type: str
    schema: str = ""
    properties: dict[str, str] = {}


def _definition(value: Any) -> Definition:
    """Parse `type`, `schema` (a string) and `properties`, as Pulsar's tools send them."""
    found = fields_of(value, type=str, schema=str, properties=dict)
    properties = found.get("properties", {})
    if "type" not in found or not all(isinstance(value, str) for value in properties.values()):
        raise ConfigurationError(
            "a schema must have type and schema, both strings, and may have properties, whose values are strings"
        )
    return from_text(found["type"], found.get("schema", ""), properties)
