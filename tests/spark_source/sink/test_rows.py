"""Spark's rows as messages, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from quire.runtime.errors import ConfigurationError
from quire.spark_source.schema import COLUMNS, UNDECODED, VALUE_ERROR, ddl
from quire.spark_source.sink.options import parse
from quire.spark_source.sink.rows import RowRefused, check_columns, read
from quire.wire.message import OutgoingMessage

SCHEMA = pa.schema(
    [
        ("value", pa.string()),
        ("key", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("event_time", pa.timestamp("us", "UTC")),
        ("ordering_key", pa.string()),
        ("partition", pa.int32()),
    ]
)
WHEN = datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC)


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([columns], SCHEMA)


def test_every_column() -> None:
    (row,) = read(
        batch(value="ä", key=b"k", properties=[("a", "b")], event_time=WHEN, ordering_key="o", partition=3), 0
    )
    expected = OutgoingMessage("ä".encode(), "k", {"a": "b"}, 1_767_323_045_678, b"o")
    assert row == (expected, 3, "")


def test_nulls_are_nothing() -> None:
    (row,) = read(batch(partition=-1), 0)
    assert row == (OutgoingMessage(None), None, "")


def test_a_key_that_is_no_text_is_in_base64() -> None:
    ((message, _, _),) = read(batch(value="", key=b"\xff\x00"), 0)
    assert (message.key, message.key_is_base64) == ("/wA=", True)


def test_many_rows_keep_their_order() -> None:
    values = [b"%d" % i for i in range(3000)]
    rows = read(pa.RecordBatch.from_pydict({"value": values}), 0)
    assert [message.payload for message, _, _ in rows] == values


def test_what_a_message_cannot_say_is_named() -> None:
    with pytest.raises(RowRefused, match="before 1970") as refused:
        list(read(batch(value="x", event_time=datetime(1969, 1, 1, tzinfo=UTC)), 40))
    assert refused.value.row == 40
    with pytest.raises(RowRefused, match="property a is null"):
        list(read(batch(value="x", properties=[("a", None)]), 0))


REFUSED = {
    "no value": ({"a": "int"}, r"select\(to_json"),
    "an array": ({"value": "array<int>"}, r"to_json\(value\) or to_avro\(value\)"),
    "a number": ({"value": "bigint"}, r"cast\(value AS string\)"),
    "a column of its own": ({"value": "string", "city": "string"}, "does not write a column city"),
    "properties of numbers": ({"value": "string", "properties": "map<string,int>"}, "cast"),
    "a time without zone": ({"value": "string", "event_time": "timestamp_ntz"}, "AS timestamp"),
}


@pytest.mark.parametrize(("types", "sentence"), REFUSED.values(), ids=REFUSED)
def test_columns_that_cannot_be_written_are_told_what_to_write(types: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        check_columns(types)


def test_columns_that_can() -> None:
    check_columns({"value": "binary"})
    check_columns({"partition": "bigint", "value": "string", "properties": "map<string,string>"})


def test_rows_name_their_topics_where_no_option_does() -> None:
    check_columns({"topic": "string", "value": "string"}, names_topics=True)
    with pytest.raises(ConfigurationError, match="set the option topic, or add a column topic"):
        check_columns({"value": "string"}, names_topics=True)
    with pytest.raises(ConfigurationError, match="a struct needs the schema of one topic"):
        check_columns({"topic": "string", "value": "struct<a:int>"}, names_topics=True)
    without = {name: value for name, value in GOOD.items() if name != "topic"}
    assert parse(without, rows_name_topics=True).topic == ""
    with pytest.raises(ConfigurationError, match="topic is missing"):
        parse(without)


def test_the_source_s_own_columns_are_written_as_they_are() -> None:
    source = {name.strip("`"): kind for name, kind in (one.split() for one in ddl(COLUMNS).split(", "))}
    check_columns(source)
    for mark in (UNDECODED, VALUE_ERROR):
        with pytest.raises(ConfigurationError, match=rf"is not a message: use where\({mark} IS NULL\)"):
            check_columns(source | {mark: "string"})


GOOD = {"service_url": "http://localhost:8080", "topic": "orders"}

WRONG = {
    "an unknown option": ({"colour": "red"}, "colour is not known"),
    "no topic": ({"topic": ""}, "topic is missing"),
    "a client's URL": ({"service_url": "pulsar://localhost:6650"}, "http://HOST:8080"),
    "a broker's HTTP URL": ({"broker_url": "http://localhost:8080"}, "pulsar://HOST:6650"),
    "a delivery": ({"delivery": "at_most_once"}, "exactly_once, at_least_once"),
    "a codec": ({"compression": "rar"}, "compression must be one of"),
    "an epoch of nobody": ({"epoch": "3"}, "requires producer_name"),
    "a number": ({"batch_messages_max": "many"}, "is not a number"),
    "no rows": ({"batch_messages_max": "0"}, "out of range"),
    "a hash": ({"hashing": "md5"}, "java or murmur3"),
}


@pytest.mark.parametrize(("wrong", "sentence"), WRONG.values(), ids=WRONG)
def test_options_that_are_wrong(wrong: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        parse(GOOD | wrong)


def test_options_of_spark_itself_are_passed_over() -> None:
    options = parse(GOOD | {"checkpointLocation": "/tmp/c", "queryName": "q", "Batching": "by_key"})
    assert options.topic == "persistent://public/default/orders"
    assert options.exactly_once and options.by_key and not options.sorts
    assert parse(GOOD | {"batching": "false"}).producer.batch_messages_max == 1
