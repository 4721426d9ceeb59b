"""The OpenAPI document is made from the rows, all of them, and each row says enough."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import pytest
from aiohttp import web
from openapi_spec_validator import validate

from quire.security.authorization import Action
from quire.serving.admin import openapi
from quire.serving.admin.refusals import REFUSALS
from quire.serving.admin.resources import routes
from quire.serving.admin.route import NAMESPACE, REQUEST, TOPIC, TOPIC_NAME, Argument, Route, body, query
from quire.serving.broker import Broker
from tests.serving.admin.conftest import Rest


def of(*rows: Route, asks_who: bool = True) -> Any:
    return json.loads(json.dumps(openapi.document(rows, "1", asks_who=asks_who)))


def test_each_row_says_what_it_takes_and_answers(broker: Broker) -> None:
    for row in routes(broker):
        name = f"{row.method} {row.path}"
        openapi.answer_of(row)
        assert all(one.kind is not None for one in row.arguments if one is not REQUEST), name
        assert row.may in openapi.NEEDS, name


def test_a_row_that_does_not_say_what_it_answers_is_refused() -> None:
    def anything() -> Any: ...

    def response() -> web.Response: ...  # type: ignore[empty-body]

    for call in (anything, response, lambda: None):
        with pytest.raises(TypeError, match="has no response type"):
            of(Route("GET", "/quire/v1/strange", call, may=Action.OPEN))


def test_all_rows_are_in_the_document_and_it_is_one(broker: Broker) -> None:
    rows = routes(broker)
    document = openapi.document(rows, "1")
    validate(document)
    found = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert found == {(row.method, openapi.template(row)) for row in rows}
    assert len(found) == len(rows)


def test_it_says_who_may_ask(broker: Broker) -> None:
    document = of(*routes(broker))
    assert document["security"] == [{"token": []}, {"basic": []}, {"certificate": []}]
    asked = document["paths"]["/admin/v2/tenants"]["get"]
    assert asked["description"].endswith("Needs a superuser.") and "403" in asked["responses"]
    document = of(*routes(broker), asks_who=False)
    assert "security" not in document and "securitySchemes" not in document["components"]
    assert not {"401", "403"} & document["paths"]["/admin/v2/tenants"]["get"]["responses"].keys()


def test_what_is_not_here_says_why(broker: Broker) -> None:
    for row in routes(broker):
        if openapi.answer_of(row) is NoReturn and row.path.startswith((NAMESPACE, TOPIC)):
            (methods,) = of(row)["paths"].values()
            (asked,) = methods.values()
            assert asked["description"].startswith("Not supported: "), row.path
            assert "501" in asked["responses"] and not {"200", "204"} & asked["responses"].keys()


def test_every_refusal_has_a_reason() -> None:
    said = of()["components"]["responses"]
    assert said.keys() == {str(one.status) for one in REFUSALS}
    for status, one in said.items():
        if int(status) >= 400:
            schema = one["content"]["application/json"]["schema"]
            assert schema["required"] == ["reason"]
    assert said["307"]["headers"]["Location"]["required"]


def test_paths_have_their_patterns() -> None:
    def show(topic: object, at: str) -> None: ...

    path = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}/at/{at:0x[0-9a-f]{8}}"
    row = Route("GET", path, show, TOPIC_NAME, Argument("path", str, ("at",), str), may=Action.OPEN)
    ((template, methods),) = of(row)["paths"].items()
    assert template == "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/at/{at}"
    schemas = {one["name"]: one["schema"] for one in methods["get"]["parameters"]}
    assert schemas["domain"] == {"enum": ["persistent", "non-persistent"]}
    assert schemas["at"] == {"type": "string", "pattern": "^0x[0-9a-f]{8}$"}
    assert schemas["tenant"] == {"type": "string", "minLength": 1}


def test_none_beside_something_is_no_content_and_a_body_may_be_left_out() -> None:
    def call(value: int | None, limit: str) -> list[str] | None: ...

    taken = body(lambda value: value, int | None)
    row = Route("POST", "/quire/v1/things", call, taken, query("limit", str), may=Action.OPEN)
    operation = of(row)["paths"]["/quire/v1/things"]["post"]
    assert operation["responses"]["200"]["content"]["application/json"]["schema"] == {
        "type": "array",
        "items": {"type": "string"},
    }
    assert "204" in operation["responses"]
    assert operation["requestBody"]["required"] is False
    assert [one["name"] for one in operation["parameters"]] == ["limit"]


def test_bodies_take_numbers_in_quotes_and_null_and_answers_do_not(broker: Broker) -> None:
    schemas = of(*routes(broker))["components"]["schemas"]
    number = schemas["Retention"]["properties"]["retentionSizeInMB"]
    assert number["type"] == "integer"
    sent = schemas["Retention.sent"]["properties"]["retentionSizeInMB"]
    assert {"type": "null"} in sent["anyOf"] and openapi.QUOTED in sent["anyOf"][0]["anyOf"]


async def test_it_is_served(rest: Rest) -> None:
    answer = await rest.get(openapi.PATH)
    assert answer.status == 200 and answer.body["openapi"] == "3.1.0"
    assert openapi.PATH in answer.body["paths"]


@pytest.mark.parametrize("word", ["yes", "1", "", "null"])
async def test_a_flag_is_true_or_false(rest: Rest, word: str) -> None:
    topic = "/admin/v2/persistent/public/default/orders"
    await rest.put(topic)
    answer = await rest.delete(f"{topic}?force={word}")
    assert answer.status == 400 and re.match(
        "force in the query must be true or false", answer.body["reason"]
    )
    assert (await rest.delete(f"{topic}?force=True")).status == 204


async def test_clusters_of_a_tenant_are_names(rest: Rest) -> None:
    answer = await rest.put("/admin/v2/tenants/shop", {"allowedClusters": [1]})
    assert answer.status == 400 and "list of names" in answer.body["reason"]


async def test_whether_a_position_is_excluded_is_true_or_false(rest: Rest) -> None:
    topic = "/admin/v2/persistent/public/default/orders"
    await rest.put(f"{topic}/subscription/s")
    where = {"ledgerId": 1, "entryId": 0, "isExcluded": "maybe"}
    answer = await rest.post(f"{topic}/subscription/s/resetcursor", where)
    assert answer.status == 400 and "isExcluded" in answer.body["reason"]
