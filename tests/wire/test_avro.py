"""Trees of Avro definitions: names, logical types, defaults, what is refused, and definitions for `fastavro`."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from quire.wire import avro
from quire.wire.avro import (
    Array,
    AvroError,
    Enum,
    Fixed,
    Logical,
    Map,
    Primitive,
    Record,
    UndefinedType,
    Union,
    default_value,
    normal,
    writer_json,
)


def parse(definition: Any) -> Any:
    return avro.parse(json.dumps(definition))


def record(name: str, /, **fields: Any) -> dict[str, Any]:
    made = [{"name": key, "type": kind} for key, kind in fields.items()]
    return {"type": "record", "name": name, "fields": made}


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
BYTES = {"type": "bytes", "logicalType": "decimal"}


# -- names ---------------------------------------------------------------------------------------------


def test_a_name_is_the_type_that_it_refers_to() -> None:
    inner = {"type": "record", "name": "a.X", "fields": [{"name": "own", "type": ENUM}]}
    tree = parse({**record("R", x=inner, y="a.X", z="a.E", e="int"), "namespace": "com"})
    assert isinstance(tree, Record) and (tree.full_name, tree.name) == ("com.R", "R")
    x, y, z, _ = (one.type for one in tree.fields)
    assert x is y and x.full_name == "a.X"
    assert z is x.fields[0].type and z.full_name == "a.E", (
        "the enum has the namespace of the record around it"
    )


def test_types_of_one_name_in_two_namespaces() -> None:
    tree = parse(record("R", a=record("a.X"), b=record("b.X"), c="a.X", d="b.X"))
    a, b, c, d = (one.type for one in tree.fields)
    assert c is a and d is b and a is not b


def test_a_record_within_itself_is_a_cycle() -> None:
    tree = parse(record("R", next=["null", "R"], all={"type": "map", "values": "R"}))
    union, by_name = (one.type for one in tree.fields)
    assert isinstance(union, Union) and union.branches[1] is tree
    assert isinstance(by_name, Map) and by_name.values is tree


def test_types_within_objects() -> None:
    tree = parse(
        {"type": {"type": "array", "items": {"type": {"type": "string", "avro.java.string": "String"}}}}
    )
    assert isinstance(tree, Array) and tree.items is parse("string")
    assert isinstance(parse({"type": "error", "name": "com.Outer$Inner", "fields": []}), Record)


def test_aliases_and_defaults() -> None:
    fields = [
        {"name": "a", "type": "int", "aliases": ["b", 7, "c"], "default": None},
        {"name": "d", "type": "int", "aliases": "e"},
    ]
    tree = parse({"type": "record", "name": "R", "aliases": ["Old"], "fields": fields})
    found = [(one.aliases, one.has_default, one.default) for one in tree.fields]
    assert tree.aliases == ("Old",) and found == [(("b", "c"), True, None), ((), False, None)]


@pytest.mark.parametrize(("default", "kept"), [("A", "A"), ("Z", None), (None, None), ([], None)])
def test_the_default_of_an_enum_is_one_of_its_symbols(default: Any, kept: str | None) -> None:
    tree = parse({**ENUM, "default": default})
    assert isinstance(tree, Enum) and tree.default == kept


# -- logical types -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("definition", "logical"),
    [
        ({"type": "int", "logicalType": "date"}, Logical("date")),
        ({"type": "string", "logicalType": "of-ours"}, Logical("of-ours")),
        ({"type": "long", "logicalType": 17}, None),
        ({"type": {"type": "long"}, "logicalType": "timestamp-millis"}, None),
        ({**BYTES, "precision": 4}, Logical("decimal", 4, 0)),
        ({**BYTES, "precision": 4, "scale": 4}, Logical("decimal", 4, 4)),
        ({**BYTES, "precision": 4, "scale": 5}, None),
        ({**BYTES, "precision": 4, "scale": -1}, None),
        ({**BYTES, "precision": "4"}, None),
        ({**BYTES, "precision": True}, None),
        ({**BYTES, "precision": 0}, None),
        (BYTES, None),
        ({**BYTES, "type": "fixed", "name": "F", "size": 2, "precision": 4}, Logical("decimal", 4, 0)),
        ({**BYTES, "type": "fixed", "name": "F", "size": 2, "precision": 5}, None),
        ({**BYTES, "type": "fixed", "name": "F", "size": 0, "precision": 1}, None),
    ],
    ids=str,
)
def test_logical_types(definition: Any, logical: Logical | None) -> None:
    tree = parse(definition)
    assert isinstance(tree, Primitive | Fixed) and tree.logical == logical


# -- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (17, "it is not a type: a name, a list or an object with a type"),
        ([], "it is a union of nothing, or of the same type twice"),
        ({"type": "record", "name": "R"}, "it is a record and needs a list of fields"),
        ({"type": "record", "fields": []}, "it is of type record and needs a name"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a"}]},
            "each field of R needs a type and a name of its own, not 'a'",
        ),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2},
            "each field of R needs a type and a name of its own, not 'a'",
        ),
        ({"type": "enum", "name": "E", "symbols": "AB"}, "it is an enum and needs a list of symbols"),
        ({"type": "fixed", "name": "F", "size": True}, "it is of type fixed and needs a size in bytes"),
        ({"type": "fixed", "name": "F", "size": -1}, "it is of type fixed and needs a size in bytes"),
        ({"type": "array"}, "[] is not a type: a name, a list or an object with a type"),
        (record("R", a=["int", "int"]), ".a is a union of nothing, or of the same type twice"),
        (
            record("R", a=["long", {"type": "long", "logicalType": "timestamp-millis"}]),
            ".a is a union of nothing, or of the same type twice",
        ),
        (record("R", a=["int", ["string"]]), ".a is a union within a union"),
        (record("R", a=ENUM, b=ENUM), ".b defines E, which is another type already"),
        (record("R", a=record("int")), ".a defines int, which is another type already"),
        (
            record("R", a={"type": "map", "values": "E"}, b=ENUM),
            ".a[] is of type 'E', which is defined nowhere",
        ),
    ],
)
def test_what_is_no_definition_is_refused(definition: Any, reason: str) -> None:
    with pytest.raises(AvroError) as refused:
        parse(definition)
    assert str(refused.value).startswith(reason)


@pytest.mark.parametrize("raw", [b"", b"{", b"[" * 100_000, b"\xed\xa0\x80", b"NaN"])
def test_what_is_no_json_is_refused(raw: bytes) -> None:
    with pytest.raises(AvroError, match="it is not JSON"):
        avro.parse(raw)


def test_what_lies_too_deep_is_refused() -> None:
    with pytest.raises(AvroError, match="lies more than 64 types deep"):
        avro.parse('{"type": "array", "items":' * 70 + '"int"' + "}" * 70)


def test_an_undefined_type_and_its_place() -> None:
    with pytest.raises(UndefinedType) as refused:
        parse(record("R", a=["null", record("S", b="Nobody")]))
    assert (refused.value.at, refused.value.name) == (".a.b", "Nobody")


# -- from a tree ---------------------------------------------------------------------------------------

PRICE = {**BYTES, "precision": 4, "scale": 2}


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        ("bytes", "a\u00ff", b"a\xff"),
        ("string", "a\u00ff", "a\u00ff"),
        ("int", "x", "x"),
        (["null", "bytes"], None, None),
        (["bytes", "null"], "a", b"a"),
        (["null", "bytes"], "a", b"a"),
        ({"type": "fixed", "name": "F", "size": 1}, "a", b"a"),
        (PRICE, "\u00ff", Decimal("-0.01")),
        ({"type": "array", "items": "bytes"}, ["a"], [b"a"]),
        ({"type": "map", "values": ["bytes"]}, {"k": "a"}, {"k": b"a"}),
        (record("R", a="bytes", b="int"), {"a": "a", "more": 1}, {"a": b"a", "more": 1}),
        (record("R", next=["null", "R"], b="bytes"), {"next": {"b": "a"}}, {"next": {"b": b"a"}}),
    ],
)
def test_defaults_as_values(kind: Any, default: Any, value: Any) -> None:
    assert default_value(parse(kind), default) == value


def test_a_definition_for_fastavro() -> None:
    tree = parse(
        {
            "type": "record",
            "name": "com.R",
            "doc": "why",
            "fields": [
                {"name": "a", "type": {"type": {**ENUM, "default": "B"}}, "default": "Z", "aliases": "x"},
                {"name": "b", "type": ["null", {"type": "E"}], "doc": "why"},
                {"name": "c", "type": PRICE},
                {"name": "d", "type": {"type": "int", "logicalType": "date"}},
                {"name": "e", "type": {"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal"}},
                {"name": "f", "type": {"type": "map", "values": {"type": "array", "items": "R"}}},
            ],
        }
    )
    made = writer_json(tree, lambda _kind, logical: logical.name != "date")
    assert made == {
        "type": "record",
        "name": "com.R",
        "fields": [
            {"name": "a", "type": {**ENUM, "name": "com.E", "default": "B"}},
            {"name": "b", "type": ["null", "com.E"]},
            {"name": "c", "type": PRICE},
            {"name": "d", "type": "int"},
            {"name": "e", "type": {"type": "fixed", "name": "com.F", "size": 1}},
            {"name": "f", "type": {"type": "map", "values": {"type": "array", "items": "com.R"}}},
        ],
    }
    fastavro.parse_schema(made)


def test_prose_and_order_make_no_other_definition() -> None:
    plain = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "doc", "type": {"type": "string"}, "default": ""}],
    }
    wordy = {"doc": "why", "fields": [{"doc": "x", "default": "", "type": "string", "name": "doc"}], "name": "R",
             "type": "record"}  # fmt: skip
    assert normal(json.dumps(plain).encode()) == normal(json.dumps(wordy, indent=2).encode())
    assert normal(b'{"type": "record", "name": "R", "fields": []}') != normal(json.dumps(plain).encode())
