"""What a schema is, when two are the same, and what each strategy asks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.runtime.limits import SCHEMA_BYTES_MAX
from quire.serving.policy.strategy import Strategy, for_consumer
from quire.serving.schema.compatibility import refusal
from quire.serving.schema.definition import (
    KINDS,
    Definition,
    SchemaInvalid,
    fingerprint,
    from_text,
    key_and_value,
    to_text,
    validate,
)
from quire.wire import pulsar_pb2 as pb
from quire.wire.key_value import join


def record(*fields: str, kind: str = "AVRO") -> Definition:
    """Fields of ints; those that end in `?` have a default."""
    made = [
        {"name": one.rstrip("?"), "type": "int", **({"default": 0} if one.endswith("?") else {})}
        for one in fields
    ]
    return Definition(kind, json.dumps({"type": "record", "name": "R", "fields": made}).encode())


def pair(key: Definition, value: Definition) -> Definition:
    properties = {"key.schema.type": key.kind, "value.schema.type": value.kind}
    return Definition("KEY_VALUE", join(key.data, value.data), properties)


def test_every_kind_has_a_name() -> None:
    assert set(KINDS.values()) == set(pb.Schema.Type.values())


def test_a_schema_crosses_the_wire() -> None:
    made = Definition("JSON", b"{}", {"a": "b"}, "orders")
    assert Definition.of(made.message()) == made


@pytest.mark.parametrize(
    ("old", "new", "backward", "forward"),
    [
        (("a",), ("a",), True, True),
        (("a",), ("a", "b?"), True, True),
        (("a",), ("a", "b"), False, True),
        (("a", "b"), ("a",), True, False),
        (("a", "b?"), ("a",), True, True),
        (("a",), ("b",), False, False),
    ],
)
@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF", "KEY_VALUE"])
def test_strategies(
    kind: str, old: tuple[str, ...], new: tuple[str, ...], backward: bool, forward: bool
) -> None:
    def made(fields: tuple[str, ...]) -> Definition:
        if kind == "KEY_VALUE":
            return pair(Definition("STRING"), record(*fields))
        return record(*fields, kind=kind)

    expected = {
        Strategy.BACKWARD: backward,
        Strategy.FORWARD: forward,
        Strategy.FULL: backward and forward,
        Strategy.BACKWARD_TRANSITIVE: backward,
        Strategy.FORWARD_TRANSITIVE: forward,
        Strategy.FULL_TRANSITIVE: backward and forward,
        Strategy.ALWAYS_COMPATIBLE: True,
        Strategy.ALWAYS_INCOMPATIBLE: False,
    }
    found = {strategy: refusal(made(new), made(old), strategy) is None for strategy in Strategy}
    assert found == expected


@pytest.mark.parametrize("strategy", [one for one in Strategy if one is not Strategy.ALWAYS_COMPATIBLE])
def test_another_kind_fits_nowhere_but_where_anything_does(strategy: Strategy) -> None:
    assert refusal(Definition("STRING"), record("a"), strategy)
    assert refusal(pair(Definition("STRING"), record("a")), pair(Definition("INT32"), record("a")), strategy)
    assert refusal(Definition("STRING"), record("a"), Strategy.ALWAYS_COMPATIBLE) is None


def test_a_consumer_is_asked_to_read_only() -> None:
    assert {one: for_consumer(one).value for one in Strategy} == {
        Strategy.ALWAYS_INCOMPATIBLE: "ALWAYS_INCOMPATIBLE",
        Strategy.ALWAYS_COMPATIBLE: "ALWAYS_COMPATIBLE",
        Strategy.BACKWARD: "BACKWARD",
        Strategy.FORWARD: "BACKWARD",
        Strategy.FULL: "BACKWARD",
        Strategy.BACKWARD_TRANSITIVE: "BACKWARD_TRANSITIVE",
        Strategy.FORWARD_TRANSITIVE: "BACKWARD",
        Strategy.FULL_TRANSITIVE: "BACKWARD_TRANSITIVE",
    }


def test_native_protobuf_is_told_by_its_root_message() -> None:
    first, second = (
        Definition("PROTOBUF_NATIVE", json.dumps({"fileDescriptorSet": "", "rootMessageTypeName": name}).encode())
        for name in ("shop.Order", "shop.Bill")
    )  # fmt: skip
    validate(first)
    assert refusal(second, first, Strategy.BACKWARD) == (
        "it cannot read existing messages: message type shop.Order is not shop.Bill"
    )
    assert refusal(first, first, Strategy.FULL) is None


def test_the_same_schema_has_the_same_fingerprint() -> None:
    spaced = Definition("AVRO", json.dumps(json.loads(record("a").data), indent=4).encode(), {"x": "y"}, "n")
    assert fingerprint(spaced) == fingerprint(record("a"))
    others = [record("b"), record("a", kind="JSON"), pair(record("a"), record("a")), Definition("INT32")]
    assert len({fingerprint(one) for one in (record("a"), *others)}) == 5


@pytest.mark.parametrize(
    "definition",
    [
        Definition("AVRO", b""),
        Definition("JSON", b'{"$schema": "http://json-schema.org/draft-04/schema#"}'),
        Definition("PROTOBUF_NATIVE", b"{}"),
        Definition("PROTOBUF_NATIVE", b"[]"),
        Definition("KEY_VALUE", b"\0\0\0\1"),
        Definition("KEY_VALUE", b"\0\0\0\7abc"),
        Definition("KEY_VALUE", join(b"", b""), {"key.schema.type": "POEM"}),
        Definition("KEY_VALUE", join(b"", b""), {"key.schema.type": "KEY_VALUE"}),
        Definition("KEY_VALUE", join(b"{", b""), {"key.schema.type": "AVRO"}),
        Definition("STRING", bytes(SCHEMA_BYTES_MAX + 1)),
        Definition("STRING", b"", {"x": "y" * SCHEMA_BYTES_MAX}),
    ],
)
def test_what_is_no_definition_of_its_kind_is_refused(definition: Definition) -> None:
    with pytest.raises(SchemaInvalid):
        validate(definition)


@settings(max_examples=200)
@given(
    st.sampled_from([*KINDS]),
    st.one_of(st.binary(max_size=60), st.sampled_from([record("a").data, join(b"{}", b""), b"[]", b"{}"])),
    st.dictionaries(
        st.sampled_from(["key.schema.type", "value.schema.type"]), st.sampled_from([*KINDS, "x"])
    ),
)
def test_any_bytes_are_a_schema_or_refused(kind: str, data: bytes, properties: dict[str, str]) -> None:
    definition = Definition(kind, data, properties)
    assert Definition.of(definition.message()) == definition
    try:
        validate(definition)
    except SchemaInvalid:
        return
    assert fingerprint(definition) == fingerprint(Definition.of(definition.message()))
    assert to_text(definition) is not None
    for strategy in Strategy:
        allowed = refusal(definition, definition, strategy) is None
        assert allowed or strategy is Strategy.ALWAYS_INCOMPATIBLE


def test_java_writes_minus_one_for_a_part_without_a_definition() -> None:
    key, value = key_and_value(
        Definition(
            "KEY_VALUE",
            b"\xff\xff\xff\xff" + join(b"", b"{}")[4:],
            {"key.schema.type": "STRING", "value.schema.type": "JSON"},
        )
    )
    assert (key, value) == (Definition("STRING"), Definition("JSON", b"{}"))


@pytest.mark.parametrize("definition", [record("a"), pair(Definition("STRING"), record("a"))])
def test_text_and_back(definition: Definition) -> None:
    again = from_text(definition.kind, to_text(definition), definition.properties)
    validate(again)
    assert fingerprint(again) == fingerprint(definition)


@pytest.mark.parametrize(
    ("kind", "text"), [("POEM", ""), ("BYTES", ""), ("KEY_VALUE", "{"), ("KEY_VALUE", '{"key": "x"}')]
)
def test_text_that_is_none_is_refused(kind: str, text: str) -> None:
    with pytest.raises(SchemaInvalid):
        from_text(kind, text, {})
