"""A topic's schema, kept among the properties of its record. No I/O.

The first schema that a producer or consumer brings is the topic's, under version 0; the same one again is answered
with that version, another one is refused, since nothing here can tell whether the two are compatible. Plain bytes are
no schema and fit everything. A version crosses the wire as eight bytes, big-endian.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Final

from quire.runtime.errors import QuireError
from quire.wire import pulsar_pb2 as pb

PROPERTY: Final = "quire.schema"
VERSION: Final = (0).to_bytes(8, "big")


class SchemaRefused(QuireError):
    """The schema does not fit the topic's."""

    server_error = pb.IncompatibleSchema


def is_schema(schema: pb.Schema | None) -> bool:
    """False for plain bytes, and for a consumer that takes whatever the topic's schema is."""
    return schema is not None and schema.type not in (pb.Schema.Bytes, pb.Schema.AutoConsume)


def load(properties: dict[str, str]) -> pb.Schema | None:
    """The schema that a topic's properties hold."""
    raw = properties.get(PROPERTY)
    return None if raw is None else pb.Schema.FromString(b64decode(raw))


def stored(properties: dict[str, str], schema: pb.Schema) -> dict[str, str]:
    """The properties with `schema` among them."""
    return {**properties, PROPERTY: b64encode(schema.SerializeToString(deterministic=True)).decode()}


def is_same(left: pb.Schema, right: pb.Schema) -> bool:
    """Names and properties aside: they do not change what bytes mean."""
    return (left.type, left.schema_data) == (right.type, right.schema_data)
