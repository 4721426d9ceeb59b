"""Keys and values typed by their topic's schema, instead of bytes.

Each message contains the version of the topic's schema that it was written with. The columns have the types of one
version: the newest, or the one that the user selects. An Avro value is read by the writer's definition, which a task
requests once for each version, and then converted by the names of its fields. A JSON value is converted by the names
alone. See `topic_schema` and `avro_types`.

The decoder produces the same rows as without a schema. A key or value that does not fit its schema ends the query, or
is null, with the reason in `value_error`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from quire.runtime.errors import ConfigurationError, NotFound, QuireError
from quire.spark_source import schema
from quire.spark_source.avro_types import written_with
from quire.spark_source.broker import Broker
from quire.spark_source.options import Options
from quire.spark_source.plan import topics_of
from quire.spark_source.topic_schema import PartSchema, TopicSchema, topic_schema
from quire.wire import key_value

_PLACE: Final = ("ledger", "entry", "batch_index")
_REFUSED: Final = (ValueError, TypeError, ArithmeticError, EOFError, LookupError, RecursionError)
"""Errors of fastavro, json and Arrow for values that do not fit; these have no common class."""

_Found = tuple[Any, str | None]
"""A converted key or value, or null and the reason why the key or value does not fit its schema."""


class BadValue(QuireError):
    """Error for a key or value that does not fit its schema."""


def with_value_schema(options: Options, broker: Broker) -> Options:
    """Return the options with the common schema of the topics, as `value_schema` selects it.

    Raises `ConfigurationError` if a topic has no schema, or the topics have different ones.
    """
    if options.value_schema is None:
        return options
    number = None if options.value_schema == "auto" else int(options.value_schema)
    found: dict[TopicSchema, str] = {}
    for topic in topics_of(options, broker):
        found.setdefault(_schema_of(topic, number, broker), topic)
    if len(found) > 1:
        one, other, *_ = found.values()
        raise ConfigurationError(
            f"topics {one} and {other} have different schemas, and value is one column; read them one by one"
        )
    if not found:
        raise ConfigurationError("no topic exists yet, so values have no schema; use value_schema=none")
    return replace(options, typed=next(iter(found)))


def ddl(options: Options) -> str:
    """Return the columns of a query as Spark's DDL. `options.typed` must have been set by `with_value_schema`."""
    typed = {} if options.typed is None else options.typed.parts
    return schema.ddl(options.columns, {name: part.column.ddl for name, part in typed.items()})


def _schema_of(topic: str, number: int | None, broker: Broker) -> TopicSchema:
    try:
        return topic_schema(topic, broker.schema(topic, number))
    except NotFound as error:
        raise ConfigurationError(f"{error}; with value_schema=none values are bytes") from None


class Values:
    """Converter of the keys and values in one topic's record batches."""

    def __init__(self, options: Options, topic: str, broker: Broker) -> None:
        assert options.typed is not None
        self._options = options
        self._topic = topic
        self._is_inline = options.typed.is_inline
        versions = _Versions(options.typed, topic, broker)
        self._parts = {
            name: _Part(part, versions)
            for name, part in options.typed.parts.items()
            if name in options.columns
        }
        types = {name: part.type for name, part in self._parts.items()}
        self._arrow = schema.arrow(options.columns, types)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that the decoder must return: the requested ones, and those needed to convert values."""
        wanted = [name for name in self._options.columns if name != schema.VALUE_ERROR]
        more = ("key", "value", schema.SCHEMA_VERSION, *_PLACE)
        return (*wanted, *(name for name in more if name not in wanted))

    def typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the requested columns. Raises `BadValue` for a bad value unless `on_bad_value=null`."""
        versions = batch.column(schema.SCHEMA_VERSION).to_pylist()
        made: dict[str, pa.Array] = {}
        errors: list[str | None] = [None] * batch.num_rows
        payloads = self._payloads(batch)
        for name, part in self._parts.items():
            made[name], found = part.array(payloads[name], versions)
            self._note(name, found, errors)
        if not self._options.null_bad_values:
            self._refuse(batch, errors)
        made[schema.VALUE_ERROR] = pa.array(errors, pa.string())
        arrays = [made[name] if name in made else batch.column(name) for name in self._options.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def _payloads(self, batch: pa.RecordBatch) -> dict[str, Sequence[bytes | ValueError | None]]:
        """Return the bytes of the keys and of the values; for an invalid pair of key and value, the error."""
        values = batch.column("value").to_pylist()
        if not self._is_inline:
            return {"key": batch.column("key").to_pylist(), "value": values}
        pairs = list(map(_pair, values))
        return {"key": [key for key, _ in pairs], "value": [value for _, value in pairs]}

    def _note(self, name: str, found: Sequence[str | None], errors: list[str | None]) -> None:
        """Record the first error of each row, prefixed with the column's name unless that is `value`."""
        for at, error in enumerate(found):
            if error is not None and errors[at] is None:
                errors[at] = error if name == "value" else f"{name}: {error}"

    def _refuse(self, batch: pa.RecordBatch, errors: list[str | None]) -> None:
        for number, error in enumerate(errors):
            if error is not None:
                ledger, entry, index = (batch.column(name)[number].as_py() for name in _PLACE)
                place = f"{ledger}:{entry}" + ("" if index < 0 else f":{index}")
                raise BadValue(
                    f"the value of message {place} of {self._topic} does not fit its schema: {error}; option "
                    "on_bad_value=null sets it to null and explains why in value_error"
                )


def _pair(payload: bytes | None) -> tuple[bytes | ValueError | None, bytes | ValueError | None]:
    try:
        return (None, None) if payload is None else key_value.split(payload)
    except ValueError as error:
        return error, error


class _Part:
    """Converter of one column: the keys or the values."""

    def __init__(self, part: PartSchema, versions: _Versions) -> None:
        self._part = part
        self._column = part.column
        self._versions = versions
        self._readers: dict[bytes | None, Callable[[bytes], Any]] = {}

    @property
    def type(self) -> pa.DataType:
        return self._column.arrow

    def array(
        self, payloads: Sequence[bytes | ValueError | None], versions: Sequence[bytes | None]
    ) -> tuple[pa.Array, list[str | None]]:
        """Return the column, and for each row the reason why its value does not fit."""
        found = list(map(self._value, payloads, versions))
        try:
            values = pa.array([value for value, _ in found], self.type)
        except _REFUSED:
            found = [self._alone(*one) for one in found]
            values = pa.array([value for value, _ in found], self.type)
        return values, [error for _, error in found]

    def _value(self, payload: bytes | ValueError | None, version: bytes | None) -> _Found:
        try:
            if isinstance(payload, ValueError):
                raise payload
            return None if payload is None else self._column.convert(self._read(payload, version)), None
        except _REFUSED as error:
            return None, str(error) or type(error).__name__

    def _alone(self, value: Any, error: str | None) -> _Found:
        """Return the value and its error if Arrow accepts the value, else null and Arrow's reason."""
        try:
            pa.array([value], self.type)
        except _REFUSED as refused:
            return None, str(refused)
        return value, error

    def _read(self, payload: bytes, version: bytes | None) -> Any:
        if version not in self._readers:
            self._readers[version] = self._part.read or self._avro_reader(version)
        return self._readers[version](payload)

    def _avro_reader(self, version: bytes | None) -> Callable[[bytes], Any]:
        """Return the parser of values of a version. A message without one was written with the column's version."""
        import fastavro  # needed only for Avro

        definition = self._part.definition
        if version:
            number = int.from_bytes(version, "big")
            written = self._versions.part(number, self._part.name)
            if written is None:
                return _unknown(number)
            definition = written.definition
        parsed = fastavro.parse_schema(written_with(definition))

        def read(payload: bytes) -> Any:
            stream = io.BytesIO(payload)
            value = fastavro.schemaless_reader(stream, parsed, None, return_named_type=True)
            if stream.tell() != len(payload):
                raise ValueError(f"{len(payload) - stream.tell()} bytes are left over")
            return value

        return read


class _Versions:
    """Cache of the versions of a topic's schema."""

    def __init__(self, own: TopicSchema, topic: str, broker: Broker) -> None:
        self._own = own
        self._topic = topic
        self._broker = broker
        self._found: dict[int, TopicSchema | None] = {}

    def part(self, number: int, name: str) -> PartSchema | None:
        """Return a version's schema of keys or values; None if its kind (such as AVRO) is not the column's."""
        if number not in self._found:
            self._found[number] = self._ask(number)
        found = self._found[number]
        part = None if found is None else found.parts.get(name)
        return part if part is not None and part.kind == self._own.parts[name].kind else None

    def _ask(self, number: int) -> TopicSchema | None:
        try:
            return topic_schema(self._topic, self._broker.schema(self._topic, number))
        except (NotFound, ConfigurationError):
            return None


def _unknown(number: int) -> Callable[[bytes], Any]:
    def read(payload: bytes) -> Any:
        raise ValueError(f"it was written by version {number} of the schema, which the topic no longer has")

    return read
