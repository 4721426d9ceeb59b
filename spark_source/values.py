"""Values as their topic's schema has them: the column `value` is typed, instead of bytes.

Each message says by which version of the topic's schema it was written; the column has one version, the newest or the
one that the user names. Avro is read by the writer's definition, which a task asks the broker for once a version, and
then taken by the names of the fields; JSON by the names alone. See `avro_types`.

The bytes come from the decoder as ever. So the rows are the same rows, and a value that does not fit its schema ends
the query, or is null and says why in `value_error`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from quire.runtime.errors import ConfigurationError, NotFound, QuireError
from quire.spark_source import schema
from quire.spark_source.avro_types import ValueSchema
from quire.spark_source.broker import Broker
from quire.spark_source.options import Options
from quire.spark_source.plan import topics_of

_PLACE: Final = ("ledger", "entry", "batch_index")
_REFUSED: Final = (ValueError, TypeError, ArithmeticError, EOFError, LookupError, RecursionError)
"""What values raise that are not what they should be; fastavro, json and Arrow have no one error for it."""


class BadValue(QuireError):
    """A value that its schema does not fit."""


def with_value_schema(options: Options, broker: Broker) -> Options:
    """The options with the schema that all the topics have, by what `value_schema` says.

    Raises `ConfigurationError` where there is none, or not one.
    """
    if options.value_schema is None:
        return options
    number = None if options.value_schema == "auto" else int(options.value_schema)
    found: dict[ValueSchema, str] = {}
    for topic in topics_of(options, broker):
        found.setdefault(_schema_of(topic, number, broker), topic)
    if len(found) > 1:
        one, other, *_ = found.values()
        raise ConfigurationError(
            f"topics {one} and {other} have different schemas, and value is one column; read them one by one"
        )
    if not found:
        raise ConfigurationError(
            "no topic is there yet whose schema values could have; use value_schema=none"
        )
    return replace(options, value=next(iter(found)))


def _schema_of(topic: str, number: int | None, broker: Broker) -> ValueSchema:
    try:
        answer = broker.schema(topic, number)
    except NotFound as error:
        raise ConfigurationError(f"{error}; with value_schema=none values are bytes") from None
    if answer["type"] not in ("AVRO", "JSON"):
        raise ConfigurationError(
            f"the schema of topic {topic} is {answer['type']}, and only AVRO and JSON become columns; with "
            "value_schema=none values are bytes"
        )
    return ValueSchema(answer["type"], answer["data"])


class Values:
    """Makes the values of one topic's record batches typed."""

    def __init__(self, options: Options, topic: str, broker: Broker) -> None:
        assert options.value is not None
        self._options = options
        self._topic = topic
        self._broker = broker
        self._schema = options.value
        self._column = options.value.column
        self._arrow = schema.arrow(options.columns, self._column.arrow)
        self._readers: dict[bytes | None, Callable[[bytes], Any]] = {}

    @property
    def columns(self) -> tuple[str, ...]:
        """What the decoder has to give."""
        wanted = [name for name in self._options.columns if name != schema.VALUE_ERROR]
        more = ("value", schema.SCHEMA_VERSION, *_PLACE)
        return (*wanted, *(name for name in more if name not in wanted))

    def typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the columns that the user wants. Raises `BadValue` where that ends the query."""
        values, errors = self._values(batch)
        made = {"value": values, schema.VALUE_ERROR: errors}
        arrays = [made[name] if name in made else batch.column(name) for name in self._options.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def _values(self, batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
        payloads = batch.column("value").to_pylist()
        versions = batch.column(schema.SCHEMA_VERSION).to_pylist()
        found = list(map(self._value, payloads, versions))
        try:
            values = pa.array([value for value, _ in found], self._column.arrow)
        except _REFUSED:
            found = [self._alone(*one) for one in found]
            values = pa.array([value for value, _ in found], self._column.arrow)
        errors = [error for _, error in found]
        if not self._options.null_bad_values:
            self._refuse(batch, errors)
        return values, pa.array(errors, pa.string())

    def _refuse(self, batch: pa.RecordBatch, errors: list[str | None]) -> None:
        for number, error in enumerate(errors):
            if error is not None:
                ledger, entry, index = (batch.column(name)[number].as_py() for name in _PLACE)
                place = f"{ledger}:{entry}" + ("" if index < 0 else f":{index}")
                raise BadValue(
                    f"the value of message {place} of {self._topic} does not fit its schema: {error}; option "
                    "on_bad_value=null leaves it empty and says why in value_error"
                )

    def _value(self, payload: bytes | None, version: bytes | None) -> tuple[Any, str | None]:
        """The value as Arrow takes it, and what is wrong with it."""
        try:
            return None if payload is None else self._column.convert(self._read(payload, version)), None
        except _REFUSED as error:
            return None, str(error) or type(error).__name__

    def _alone(self, value: Any, error: str | None) -> tuple[Any, str | None]:
        """A value, if Arrow takes it."""
        try:
            pa.array([value], self._column.arrow)
        except _REFUSED as refused:
            return None, str(refused)
        return value, error

    def _read(self, payload: bytes, version: bytes | None) -> Any:
        if self._schema.kind == "JSON":
            return json.loads(payload)
        if version not in self._readers:
            self._readers[version] = self._reader(version)
        return self._readers[version](payload)

    def _reader(self, version: bytes | None) -> Callable[[bytes], Any]:
        """What reads the values of one version. A message that names none was written by the column's own."""
        import fastavro  # only who reads Avro needs it

        definition = self._schema.definition
        if version:
            number = int.from_bytes(version, "big")
            try:
                definition = self._broker.schema(self._topic, number)["data"]
            except NotFound:
                return _unknown(number)
        parsed = fastavro.parse_schema(json.loads(definition))

        def read(payload: bytes) -> Any:
            stream = io.BytesIO(payload)
            value = fastavro.schemaless_reader(stream, parsed, None)
            if stream.tell() != len(payload):
                raise ValueError(f"{len(payload) - stream.tell()} bytes are left over")
            return value

        return read


def _unknown(number: int) -> Callable[[bytes], Any]:
    def read(payload: bytes) -> Any:
        raise ValueError(f"it was written by version {number} of the schema, which the topic has no more")

    return read
