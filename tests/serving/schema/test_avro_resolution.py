"""Whether data written by one Avro definition can be read by another: the rules one by one, and at random.

The random test compares with the checker of Apache's `avro`, where that is installed, and with itself turned round.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.runtime.limits import SCHEMA_BYTES_MAX
from quire.serving.schema.avro_resolution import unreadable
from quire.wire import avro
from quire.wire.avro import AvroError, parse, writer_json


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    """Fields are (name, type) or (name, type, default)."""
    made = [dict(zip(("name", "type", "default"), one, strict=False)) for one in fields]
    return {"type": "record", "name": name, "fields": made, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F") -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def why(reader: Any, writer: Any) -> str | None:
    return unreadable(parse(json.dumps(reader).encode()), parse(json.dumps(writer).encode()))


LIST = record(("next", ["null", "R"]), ("v", "int"))
READABLE: list[tuple[Any, Any]] = [
    ("int", "int"),
    ("double", "int"),
    ("string", "bytes"),
    (["null", "long"], "int"),
    (["null", "int"], ["null", "int"]),
    ("int", ["int"]),
    (record(("a", "int")), record(("a", "int"), ("b", "string"))),
    (record(("a", "int"), ("b", "string", "")), record(("a", "int"))),
    (record(("a", "int"), name="com.acme.New"), record(("a", "int"), name="Old")),
    ({**record(), "fields": [{"name": "new", "aliases": ["old"], "type": "int"}]}, record(("old", "int"))),
    (enum("A", "B"), enum("A")),
    (enum("A", default="A"), enum("A", "B")),
    ({**enum("A"), "namespace": "com.acme"}, enum("A")),
    (fixed(4), fixed(4)),
    (array("long"), array("int")),
    ({"type": "map", "values": "double"}, {"type": "map", "values": "float"}),
    (LIST, LIST),
    (record(("next", ["null", "R"]), ("v", "long")), LIST),
    ({"type": {"type": "string", "avro.java.string": "String"}}, "string"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4}, "bytes"),
]
UNREADABLE: list[tuple[Any, Any, str]] = [
    ("int", "long", "long cannot be read as int"),
    ("int", ["null", "int"], "null cannot be read as int"),
    (["null", "int"], "string", "string cannot be read as any of null, int"),
    (record(("a", "int"), ("b", "string")), record(("a", "int")), "field 'b' is not written, and has no default"),
    (record(("a", record(("b", "int"), name="S"))), record(("a", record(("b", "string"), name="S"))),
     "a.b: string cannot be read as int"),
    (record(("a", array("int"))), record(("a", array("long"))), "a[]: long cannot be read as int"),
    (enum("A"), enum("A", "B"), "symbol 'B' of enum E is not known to the reader"),
    (enum("A"), {**enum("A"), "name": "Other"}, "enum Other cannot be read as enum E: the names differ"),
    (fixed(4), fixed(8), "fixed F has 8 bytes, and 4 are to be read"),
    (record(("next", ["null", "R"]), ("v", "int")), record(("next", ["null", "R"]), ("v", "string")),
     "v: string cannot be read as int"),
    (record(("a", ["null", record(("x", "int"), name="S")])), record(("a", record(("y", "int"), name="S"))),
     "a: record S cannot be read as any of null, record S"),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "writer"), READABLE)
def test_what_can_be_read(reader: Any, writer: Any) -> None:
    assert why(reader, writer) is None


@pytest.mark.parametrize(("reader", "writer", "reason"), UNREADABLE)
def test_what_cannot_be_read_is_named(reader: Any, writer: Any, reason: str) -> None:
    assert why(reader, writer) == reason


def test_what_a_circle_assumed_is_taken_back() -> None:
    """A pair that held only because of another that fails later must fail, in whatever order they are met."""
    inner = record(("back", ["null", "R"]), name="S")
    for fields in ([("s", ["null", inner]), ("v", "int")], [("v", "int"), ("s", ["null", inner])]):
        other = [(name, "string" if name == "v" else kind) for name, kind in fields]
        assert why(record(*fields), record(*other)) is not None
        # A part that nothing but the circle could refuse, outside it.
        outer = [record(("first", array(record(*one))), name="Outer") for one in (fields, other)]
        assert why(*outer) is not None


def test_too_much_to_compare_is_refused() -> None:
    wide = [record(name=f"R{number}") for number in range(4000)]
    with pytest.raises(AvroError, match="too large"):
        why(wide, wide)


def test_the_largest_record_of_the_usual_kind_is_compared() -> None:
    fields = [(f"field{number}", ["null", "string"], None) for number in range(4200)]
    assert len(json.dumps(record(*fields))) > SCHEMA_BYTES_MAX
    assert why(record(*fields), record(*fields)) is None


# -- at random -----------------------------------------------------------------------------------------

PRIMITIVES = st.sampled_from(sorted(avro.PRIMITIVES))


def enlarged(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(array),
        inner.map(lambda values: {"type": "map", "values": values}),
        st.lists(inner.filter(lambda one: not isinstance(one, list)), min_size=1, max_size=3).map(unlike),
        st.lists(st.tuples(st.sampled_from("abc"), inner, st.booleans()), max_size=3).map(named_record),
    )


def unlike(branches: list[Any]) -> list[Any]:
    kinds = {json.dumps(one) if isinstance(one, str) else one["type"]: one for one in branches}
    return list(kinds.values())


def named_record(fields: list[tuple[str, Any, bool]]) -> dict[str, Any]:
    unique = {name: (name, kind, None) if default else (name, kind) for name, kind, default in fields}
    return record(*unique.values())


def with_distinct_names(value: Any, prefix: str = "R") -> Any:
    """The same place has the same name in reader and writer, and no name is defined twice."""
    if isinstance(value, list):
        return [with_distinct_names(one, f"{prefix}u{at}") for at, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    made = dict(value)
    for key in ("items", "values"):
        if key in made:
            made[key] = with_distinct_names(made[key], f"{prefix}i")
    if made["type"] in ("record", "enum", "fixed"):
        made["name"] = "N"
        made["namespace"] = prefix
    if "fields" in made:
        made["fields"] = [
            {**one, "type": with_distinct_names(one["type"], prefix + one["name"])} for one in made["fields"]
        ]
    return made


LEAVES = st.one_of(
    PRIMITIVES,
    st.sets(st.sampled_from("XYZ"), min_size=1).map(lambda symbols: enum(*sorted(symbols))),
    st.integers(1, 3).map(fixed),
)
DEFINITIONS = st.recursive(LEAVES, enlarged, max_leaves=6).map(with_distinct_names)


def changed(value: Any, draw: Any) -> Any:
    """A definition like `value`: here and there another leaf, a default more or less, a union around it."""
    if isinstance(value, str):
        return draw.choice(sorted(avro.PRIMITIVES)) if draw.random() < 0.2 else value
    if isinstance(value, list):
        return [one for one in value if draw.random() < 0.9] or value
    made = dict(value)
    for key in ("items", "values"):
        if key in made:
            made[key] = changed(made[key], draw)
    if "fields" in made:
        kept = [one for one in made["fields"] if draw.random() < 0.8]
        made["fields"] = [{**one, "type": changed(one["type"], draw)} for one in kept]
    if "symbols" in made and draw.random() < 0.3:
        made["symbols"] = made["symbols"][:1]
    return made


PAIRS = st.one_of(
    st.tuples(DEFINITIONS, DEFINITIONS),
    st.builds(lambda one, draw: (one, changed(one, draw)), DEFINITIONS, st.randoms(use_true_random=False)),
)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(PAIRS)
def test_the_answer_is_that_of_apaches_checker(pair: tuple[Any, Any]) -> None:
    schema = pytest.importorskip("avro.schema")
    compatibility = pytest.importorskip("avro.compatibility")
    for reader, writer in (pair, pair[::-1]):
        theirs = compatibility.ReaderWriterCompatibilityChecker().get_compatibility(
            schema.parse(json.dumps(reader)), schema.parse(json.dumps(writer))
        )
        is_compatible = theirs.compatibility is compatibility.SchemaCompatibilityType.compatible
        assert (why(reader, writer) is None) == is_compatible, (why(reader, writer), theirs.messages)


@settings(max_examples=100, deadline=None)
@given(DEFINITIONS)
def test_every_definition_reads_itself(definition: Any) -> None:
    assert why(definition, definition) is None
    if not isinstance(definition, list) and definition != "null":
        assert why(["null", definition], definition) is None
    again = writer_json(parse(json.dumps(definition).encode()))
    assert why(again, definition) is None and why(definition, again) is None
