"""The columns of a row, in Arrow and in Spark. One row is one message.

| column | type | is |
|---|---|---|
| topic | string | full name without `-partition-N` |
| partition | int | N of `-partition-N`; -1 for a topic without partitions |
| ledger, entry | bigint | the entry's position |
| batch_index | int | place in the entry's batch, -1 when the entry is one message |
| message_index | bigint | topic-wide (per partition) index; gaps are trimmed or compacted messages, and chunks |
| key | binary | the partition key, decoded if the producer marked it as base64; null: no key |
| value | binary | the payload, decompressed; null for a null value (a tombstone); typed with `value_schema` |
| properties | map<string,string> | the message's properties; empty when it has none |
| publish_time | timestamp | time of publishing by the producer's clock |
| event_time | timestamp | set by the application; null: not set, or beyond any timestamp |
| producer | string | the producer's name |
| sequence | bigint | the producer's sequence id |
| value_error | string | only with `value_schema` and `on_bad_value=null`: why a value or key does not fit its schema |
| undecoded | string | only with `on_undecodable=raw`: why the entry could not be decoded, null for all others |

With `on_undecodable=raw` an entry that cannot be decoded is one row: `value` has the whole stored entry (from its
magic 0x0e01 on), `undecoded` the reason; key, properties, times, producer and sequence are null.

A message that its producer sent in chunks (it was larger than `max_message_size`) is one row, with the position, index
and times of its last chunk; see `chunks`. With `chunks=raw` each chunk is one row, in order. Its `value` is its part of
the payload *as sent*, still compressed if the producer compresses. Four more properties contain what is needed to join
chunks: `quire.chunk.uuid`, `quire.chunk.id`, `quire.chunk.count`, `quire.chunk.compression`.

In keys, properties and names, U+FFFD replaces bytes that are not UTF-8, as in Pulsar's Java client.

Arrow types must be exactly those that Spark derives from its own: no large types, no dictionaries, microseconds in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import pyarrow as pa

TIME: Final = pa.timestamp("us", tz="UTC")
PROPERTIES: Final = pa.map_(pa.string(), pa.string())

UNDECODED: Final = "undecoded"
VALUE_ERROR: Final = "value_error"
SCHEMA_VERSION: Final = "schema_version"
"""Internal column: version of the topic's schema that a message was written with, in its encoding on the wire."""

REMOVES: Final = "removes"
"""Internal column: true if a message has no value, and so removes its key from a compacted topic."""
VALUE_BYTES: Final = "value_bytes"
"""Internal column: length of a value in bytes, null for a null value."""

FIELDS: Final = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "ledger": pa.int64(),
    "entry": pa.int64(),
    "batch_index": pa.int32(),
    "message_index": pa.int64(),
    "key": pa.binary(),
    "value": pa.binary(),
    "properties": PROPERTIES,
    "publish_time": TIME,
    "event_time": TIME,
    "producer": pa.string(),
    "sequence": pa.int64(),
    UNDECODED: pa.string(),
    VALUE_ERROR: pa.string(),
    SCHEMA_VERSION: pa.binary(),
    REMOVES: pa.bool_(),
    VALUE_BYTES: pa.int32(),
}
_BY_OPTION: Final = (UNDECODED, VALUE_ERROR, SCHEMA_VERSION, REMOVES, VALUE_BYTES)
COLUMNS: Final = tuple(name for name in FIELDS if name not in _BY_OPTION)

_SPARK: Final = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.binary(): "binary",
    PROPERTIES: "map<string,string>",
    TIME: "timestamp",
}


def arrow(columns: Sequence[str], typed: Mapping[str, pa.DataType] = MappingProxyType({})) -> pa.Schema:
    """Return the Arrow schema of these columns; `typed` are the types of keys and values that are not bytes."""
    return pa.schema([(name, typed.get(name, FIELDS[name])) for name in columns])


def ddl(columns: Sequence[str], typed: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the Spark DDL of these columns; `typed` are the types of keys and values that are not bytes."""
    return ", ".join(f"`{name}` {typed.get(name) or _SPARK[FIELDS[name]]}" for name in columns)
