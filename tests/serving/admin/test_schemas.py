"""`/admin/v2/schemas`: what Pulsar's tools read and write, and the policies that go with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.serving.admin import schemas
from quire.serving.broker import Broker
from tests.serving.admin.conftest import TOPIC, Rest

NAMESPACE = "/admin/v2/namespaces/public/default"
SCHEMA = "/admin/v2/schemas/public/default/orders/schema"
BESIDE = SCHEMA.removesuffix("schema")


def avro(*fields: str, **more: Any) -> dict[str, Any]:
    """Fields of ints; those that end in `?` have a default."""
    made = [
        {"name": one.rstrip("?"), "type": "int", **({"default": 0} if one.endswith("?") else {})}
        for one in fields
    ]
    text = json.dumps({"type": "record", "name": "Order", "fields": made})
    return {"type": "AVRO", "schema": text, "properties": {"by": "test"}, **more}


async def test_versions_are_added_shown_and_deleted(rest: Rest, broker: Broker) -> None:
    assert (await rest.get(SCHEMA)).status == 404
    assert (await rest.get(f"{BESIDE}schemas")).body == {"getSchemaResponses": []}
    assert (await rest.post(SCHEMA, avro("a"))).body == {"version": 0}
    assert (await rest.post(SCHEMA, avro("a", "b?"))).body == {"version": 1}
    assert (await rest.post(SCHEMA, avro("a"))).body == {"version": 0}
    shown = (await rest.get(SCHEMA)).body
    assert abs(shown.pop("timestamp") - broker.services.clock.now_ms()) < 60_000
    assert shown == {
        "version": 1, "type": "AVRO", "data": avro("a", "b?")["schema"], "properties": {"by": "test"}
    }  # fmt: skip
    assert (await rest.get(f"{SCHEMA}/0")).body["data"] == avro("a")["schema"]
    assert (await rest.get(f"{SCHEMA}/2")).status == 404
    every = (await rest.get(f"{BESIDE}schemas")).body["getSchemaResponses"]
    assert [one["version"] for one in every] == [0, 1]
    assert (await rest.post(f"{BESIDE}version", avro("a"))).body == {"version": 0}
    assert (await rest.post(f"{BESIDE}version", avro("z"))).status == 404
    assert (await rest.delete(SCHEMA)).body == {"version": 2}
    assert (await rest.get(SCHEMA)).status == 404
    assert (await rest.delete(SCHEMA)).status == 404
    assert (await rest.post(SCHEMA, {"type": "STRING", "schema": ""})).body == {"version": 3}


async def test_all_versions_in_one_answer_are_bounded(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in range(3):
        await rest.post(SCHEMA, avro("a", f"b{version}?"))
    monkeypatch.setattr(schemas, "ALL_BYTES_MAX", 2 * len(avro("a", "b0?")["schema"]) + 100)
    answer = await rest.get(f"{BESIDE}schemas")
    assert answer.status == 413 and "request single versions" in answer.body["reason"]
    assert (await rest.get(f"{SCHEMA}/2")).status == 200


async def test_a_schema_that_does_not_fit_is_a_conflict(rest: Rest) -> None:
    await rest.post(SCHEMA, avro("a"))
    answer = await rest.post(SCHEMA, avro("a", "b"))
    assert answer.status == 409
    assert answer.body["reason"] == (
        "this schema is incompatible with version 0 of topic persistent://public/default/orders (FULL): it cannot "
        "read existing messages: field 'b' is not written, and has no default"
    )
    said = (await rest.post(f"{BESIDE}compatibility", avro("a", "b"))).body
    assert said == {
        "compatibility": False, "schemaCompatibilityStrategy": "FULL", "reason": answer.body["reason"]
    }  # fmt: skip
    assert (await rest.put(f"{NAMESPACE}/schemaCompatibilityStrategy", "FORWARD")).status == 204
    said = (await rest.post(f"{BESIDE}compatibility", avro("a", "b"))).body
    assert said == {"compatibility": True, "schemaCompatibilityStrategy": "FORWARD"}
    assert (await rest.post(SCHEMA, avro("a", "b"))).body == {"version": 1}


async def test_a_topics_strategy_comes_before_its_namespaces(rest: Rest) -> None:
    await rest.put(TOPIC)
    await rest.put(f"{NAMESPACE}/schemaCompatibilityStrategy", "ALWAYS_INCOMPATIBLE")
    await rest.post(SCHEMA, avro("a"))
    assert (await rest.post(SCHEMA, avro("a", "b?"))).status == 409
    assert (await rest.put(f"{TOPIC}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")).status == 204
    assert (await rest.get(f"{TOPIC}/schemaCompatibilityStrategy?applied=true")).body == "ALWAYS_COMPATIBLE"
    assert (await rest.post(SCHEMA, {"type": "STRING", "schema": ""})).body == {"version": 1}
    assert (await rest.put(f"{TOPIC}/schemaCompatibilityStrategy", "UNDEFINED")).status == 204
    assert (await rest.get(f"{TOPIC}/schemaCompatibilityStrategy?applied=true")).body == "ALWAYS_INCOMPATIBLE"


async def test_keys_and_values_are_shown_as_both(rest: Rest) -> None:
    body = {
        "type": "KEY_VALUE",
        "schema": json.dumps({"key": {"type": "int"}, "value": json.loads(avro("a")["schema"])}),
        "properties": {"key.schema.type": "AVRO", "value.schema.type": "AVRO", "kv.encoding.type": "INLINE"},
    }
    assert (await rest.post(SCHEMA, body)).body == {"version": 0}
    shown = (await rest.get(SCHEMA)).body
    assert json.loads(shown["data"]) == json.loads(body["schema"])
    assert shown["properties"] == body["properties"]


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {"schema": "{}"},
        {"type": "POEM", "schema": ""},
        {"type": "BYTES", "schema": ""},
        {"type": "AVRO", "schema": "{"},
        {"type": "AVRO", "schema": {"type": "int"}},
        {"type": "AVRO", "schema": '"int"', "properties": {"a": 1}},
        {"type": "KEY_VALUE", "schema": '{"key": 1, "value": 2}', "properties": {"key.schema.type": "AVRO"}},
    ],
)
async def test_a_schema_that_is_none_is_refused(rest: Rest, body: Any) -> None:
    for path in (SCHEMA, f"{BESIDE}version", f"{BESIDE}compatibility"):
        answer = await rest.post(path, body)
        assert answer.status == 400 and answer.body["reason"]
    assert (await rest.get(SCHEMA)).status == 404


async def test_an_unknown_namespace_takes_no_schema(rest: Rest) -> None:
    answer = await rest.post("/admin/v2/schemas/public/none/orders/schema", avro("a"))
    assert answer.status == 404 and "none" in answer.body["reason"]


async def test_a_strategy_that_is_none_is_refused_with_those_that_are(rest: Rest) -> None:
    answer = await rest.put(f"{NAMESPACE}/schemaCompatibilityStrategy", "SIDEWAYS")
    assert answer.status == 400 and "FULL_TRANSITIVE" in answer.body["reason"]


async def test_a_deleted_namespace_takes_along_what_topics_never_used(rest: Rest) -> None:
    space, path = "/admin/v2/namespaces/public/shop", "/admin/v2/schemas/public/shop/orders/schema"
    assert (await rest.put(space)).status == 204
    for number, fields in enumerate((["a"], ["a", "b" * 70_000 + "?"])):
        assert (await rest.post(path, avro(*fields))).body == {"version": number}
    assert (await rest.delete(space)).status == 204
    assert (await rest.put(space)).status == 204
    assert (await rest.post(path, avro("z"))).body == {"version": 0}


async def test_a_deleted_topic_takes_its_schema_along(rest: Rest) -> None:
    await rest.put(TOPIC)
    await rest.post(SCHEMA, avro("a"))
    assert (await rest.delete(TOPIC)).status == 204
    assert (await rest.get(SCHEMA)).status == 404
