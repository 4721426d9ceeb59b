"""Records of topics' schemas; see `records` for the rules that all records follow."""

from __future__ import annotations

from msgspec import field

from quire.metadata.records import Record


class SchemaBody(Record, frozen=True):
    """Definition of a schema; see `quire.serving.schema.definition`."""

    data: bytes = b""
    properties: dict[str, str] = field(default_factory=dict)
    name: str = ""


class SchemaVersion(Record, frozen=True):
    """One version of a topic's schema. Its definition is in `body`, or in a separate node at the path `apart`.

    A `deleted` version is a tombstone: it deletes all earlier versions, which can still be read by number.
    """

    number: int
    kind: str = ""
    fingerprint: str = ""
    created_ms: int = 0
    body: SchemaBody | None = None
    apart: str = ""
    deleted: bool = False


class SchemasRecord(Record, frozen=True):
    """All versions of a topic's schema, by number, from 0. Partitions share their parent's schema."""

    versions: tuple[SchemaVersion, ...] = ()
