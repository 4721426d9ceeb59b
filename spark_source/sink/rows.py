"""Conversion of Spark's rows to messages.

| column | type | null means |
|---|---|---|
| value | binary, string (as UTF-8), or a struct, see `values` | a null value: a delete, on a compacted topic |
| key | string or binary | none |
| properties | map<string,string> | none |
| event_time | timestamp; milliseconds are kept | none |
| ordering_key | binary or string | none |
| partition | int or bigint: number of the topic's partition; -1 is like null | by the key, or round-robin |
| topic | string: the row's topic, if there is no option topic | refused |

`value` is required, the others are optional. The source's other columns (ledger, …, sequence) are ignored, so that its
rows can be written unchanged. Rows are refused if the column `undecoded` or `value_error` marks them as unreadable. A
binary key that is UTF-8 becomes a text key, so that rows read from a topic are written to the same partition. Other
binary keys are sent in base64, as by Pulsar's clients.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Final

import pyarrow as pa

from quire.runtime.errors import ConfigurationError, QuireError
from quire.spark_source import schema
from quire.wire.message import OutgoingMessage

TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "value": ("binary", "string"),
    "key": ("string", "binary"),
    "properties": ("map<string,string>",),
    "event_time": ("timestamp",),
    "ordering_key": ("binary", "string"),
    "partition": ("int", "bigint"),
    "topic": ("string",),
}
"""Allowed types of each column, in Spark's notation."""

IGNORED: Final = frozenset(schema.COLUMNS) - TYPES.keys()
"""Columns of the source that producers do not set."""

_MARKS: Final = (schema.UNDECODED, schema.VALUE_ERROR)

ROWS_AT_ONCE: Final = 512
"""Number of rows that are converted to Python objects at once: some megabytes, if rows have some KiB."""


class RowRefused(QuireError):
    """Error for a row that cannot be a message, with its number in the Spark partition."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


Row = tuple[OutgoingMessage, int | None, str]
"""A message, the partition that its row names (or None), and its topic ("" for the option's topic)."""


def check_columns(types: Mapping[str, str], *, names_topics: bool = False) -> None:
    """Check that rows with these columns can be written. Raises `ConfigurationError` with a remedy.

    `names_topics` is true if the option topic is not set, so that the rows must name their topics.
    """
    if names_topics and "topic" not in types:
        raise ConfigurationError("no topic is set: set the option topic, or add a column topic to the rows")
    if names_topics and types.get("value", "").startswith("struct<"):
        raise ConfigurationError(
            "a struct needs the schema of one topic: set the option topic, or write to_json(value)"
        )
    if "value" not in types:
        raise ConfigurationError(
            f"format quire writes the column value, and these rows have {', '.join(types) or 'none'}; write "
            "select(to_json(struct('*')).alias('value')), or name one of them value"
        )
    for name, kind in types.items():
        if name in IGNORED:
            continue
        if name in _MARKS:
            raise ConfigurationError(
                f"a row whose column {name} is not null is not a message: use where({name} IS NULL) and drop({name})"
            )
        if name not in TYPES:
            raise ConfigurationError(
                f"format quire does not write a column {name}; it has {', '.join(TYPES)}: select these, and put the "
                "rest into value (to_json, to_avro) or properties (map)"
            )
        if kind not in TYPES[name] and not (name == "value" and kind.startswith("struct<")):
            raise ConfigurationError(
                f"column {name} is of type {kind}; it must be {' or '.join(TYPES[name])}: {_remedy(name, kind)}"
            )


def _remedy(name: str, kind: str) -> str:
    if name in ("properties", "event_time", "partition"):
        return f"write cast({name} AS {TYPES[name][0]})"
    if kind.startswith(("struct", "map", "array", "variant")):
        return f"write to_json({name}) or to_avro({name})"
    return f"write cast({name} AS string)"


Encode = Callable[[Mapping[str, Any]], bytes]
"""Encoder of a struct. Raises `ValueError`."""


def read(
    batch: pa.RecordBatch, first_row: int, encode: Encode | None = None, *, names_topics: bool = False
) -> Iterator[Row]:
    """Yield the rows of a record batch, whose first one is row `first_row` of the Spark partition.

    `encode` encodes values that are structs. Raises `RowRefused`.
    """
    for start in range(0, batch.num_rows, ROWS_AT_ONCE):
        yield from _read(batch.slice(start, ROWS_AT_ONCE), first_row + start, encode, names_topics)


def _read(batch: pa.RecordBatch, first_row: int, encode: Encode | None, names_topics: bool) -> Iterator[Row]:
    names = batch.schema.names
    nothing = [None] * batch.num_rows

    def column(name: str, kind: pa.DataType | None = None) -> Sequence[Any]:
        if name not in names:
            return nothing
        found = batch.column(names.index(name))
        listed: list[Any] = (found if kind is None else found.cast(kind)).to_pylist()
        return listed

    binary = pa.binary()
    every = zip(
        column("value", binary) if encode is None else _encoded(column("value"), first_row, encode),
        column("key", binary),
        _properties(column("properties"), first_row) if "properties" in names else repeat(_NONE),
        _milliseconds(batch, first_row) if "event_time" in names else repeat(0),
        column("ordering_key", binary),
        column("partition"),
        _topics(column("topic"), first_row) if names_topics else repeat(""),
        strict=False,
    )
    for value, key, properties, event_time_ms, ordering_key, partition, topic in every:
        text, is_base64 = (None, False) if key is None else _key(key)
        message = OutgoingMessage(value, text, properties, event_time_ms, ordering_key)
        message.key_is_base64 = is_base64
        yield message, None if partition == -1 else partition, topic


def _topics(names: Sequence[str | None], first_row: int) -> Iterator[str]:
    for row, name in enumerate(names, first_row):
        if not name:
            raise RowRefused(row, "its column topic is null or empty")
        yield name


def _encoded(values: Sequence[Any], first_row: int, encode: Encode) -> Iterator[bytes | None]:
    for row, value in enumerate(values, first_row):
        try:
            yield None if value is None else encode(value)
        except ValueError as error:
            raise RowRefused(row, f"it does not fit the topic's schema: {error}") from None


def _key(key: bytes) -> tuple[str, bool]:
    """Return a key's text on the wire, and whether that is base64."""
    try:
        return key.decode(), False
    except UnicodeDecodeError:
        return b64encode(key).decode(), True


_NONE: Final[Mapping[str, str]] = {}


def _properties(column: Sequence[Any], first_row: int) -> Iterator[Mapping[str, str]]:
    for row, pairs in enumerate(column, first_row):
        if not pairs:
            yield _NONE
            continue
        if any(value is None for _, value in pairs):
            name = next(key for key, value in pairs if value is None)
            raise RowRefused(row, f"its property {name} is null; omit the property, or write an empty string")
        yield dict(pairs)


def _milliseconds(batch: pa.RecordBatch, first_row: int) -> Iterator[int]:
    """Yield event times in milliseconds, 0 for null. Raises `RowRefused`."""
    times = batch.column(batch.schema.names.index("event_time"))
    in_us = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()).to_pylist()
    for row, us in enumerate(in_us, first_row):
        if us is not None and us < 0:
            raise RowRefused(row, "its event_time is before 1970, which a message cannot represent")
        yield 0 if us is None else us // 1000
