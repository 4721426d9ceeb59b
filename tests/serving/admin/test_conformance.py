"""Schemathesis makes requests of the OpenAPI document, right ones and wrong ones, and looks whether the answers are as
it says: a status that is named, the media type, the schema; never a 500; and no success where the request breaks the
document's schemas.

The same requests each time (`derandomize`); QUIRE_EXAMPLES=200 is the long form, for each route and kind of request.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import pytest
import requests
import schemathesis
from aiohttp import web
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from quire.serving.admin.app import make_app
from quire.serving.admin.openapi import PATH
from quire.serving.broker import Broker

EXAMPLES = int(os.environ.get("QUIRE_EXAMPLES", "2"))
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
REFUSALS = [400, 401, 403, 404, 405, 409, 412, 413, 501]
CONFIG = schemathesis.Config.from_dict(
    {"checks": {"negative_data_rejection": {"expected-statuses": REFUSALS}}}
)
SETTINGS = hypothesis_settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
KNOWN = {
    "domain": "persistent",
    "tenant": "public",
    "namespace": "default",
    "topic": "orders",
    "subscription": "s",
    "cluster": "standalone",
}
"""What is there whenever a route is asked."""

LINE_BYTES_MAX = 8000
"""aiohttp's parser refuses a longer request line (over 8,190 bytes) in plain text before any route sees the request."""

ANY_NAME = {"type": "string", "minLength": 1}
PARENT = {**KNOWN, "topic": "parts"}


@pytest.fixture
async def url(broker: Broker) -> AsyncIterator[str]:
    runner = web.AppRunner(make_app(broker), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    broker.addresses.http_url = "http://{}:{}".format(*runner.addresses[0][:2])
    yield broker.addresses.http_url
    await runner.cleanup()


class Asked(NamedTuple):
    """What a kind of request is, and which failures it had."""

    mode: GenerationMode
    names: Mapping[str, str]
    """Given in the path; others are made up."""


KINDS = {
    "right ones": Asked(GenerationMode.POSITIVE, KNOWN),
    "right ones of a topic with partitions": Asked(GenerationMode.POSITIVE, PARENT),
    "of what may not be there": Asked(GenerationMode.POSITIVE, {}),
    "wrong ones": Asked(GenerationMode.NEGATIVE, KNOWN),
    "wrong paths": Asked(GenerationMode.NEGATIVE, {}),
}


def restore(session: requests.Session, url: str) -> None:
    """What the names of `KNOWN` and `PARENT` mean, whatever was done before."""
    topics = f"{url}/admin/v2/persistent/public/default"
    for path, body in (
        (f"{url}/admin/v2/tenants/public", {}),
        (f"{url}/admin/v2/namespaces/public/default", {}),
        (f"{topics}/orders", {}),
        (f"{topics}/orders/subscription/s", "earliest"),
        (f"{topics}/parts/partitions", 2),
        (f"{topics}/parts/subscription/s", "earliest"),
    ):
        assert session.put(path, json=body).status_code in (200, 204, 409), path


def failures(url: str, document: dict[str, Any], asked: Asked, examples: int = EXAMPLES) -> list[str]:
    """What did not fit the document. Blocks. A request can be wrong in more ways than right, and than its path."""
    settings = hypothesis_settings(
        SETTINGS, max_examples=examples * (3 if asked is KINDS["wrong ones"] else 1)
    )
    session, found = requests.Session(), []
    literals = {word for path in document["paths"] for word in path.split("/")} - {
        *PARENT.values(),
        *KNOWN.values(),
    }
    schema = schemathesis.openapi.from_dict(document, config=CONFIG)
    for made in schema.get_all_operations():
        operation = made.ok()
        paths = list(operation.path_parameters)
        given_names = {one.name: asked.names[one.name] for one in paths if one.name in asked.names}
        if asked is KINDS["right ones of a topic with partitions"] and "topic" not in given_names:
            continue
        if asked is KINDS["wrong paths"] and all(one.definition["schema"] == ANY_NAME for one in paths):
            continue  # its path cannot be wrong, and the rest of the request has a kind of its own
        if operation.method.upper() != "GET":
            restore(session, url)

        @settings
        @given(case=operation.as_strategy(asked.mode, path_parameters=given_names or None))
        def conforms(case: Case) -> None:
            # A name such as `maxConsumersPerTopic` makes the path that of another operation.
            if not literals.isdisjoint(map(str, (case.path_parameters or {}).values())):
                return
            request = requests.Request(**case.as_transport_kwargs(base_url=url)).prepare()
            if len(request.path_url) > LINE_BYTES_MAX:
                return
            response = case.call(base_url=url, session=session, allow_redirects=False)
            case.validate_response(response, checks=CHECKS)

        try:
            conforms()
        except (FailureGroup, Failure) as error:
            found.append(f"{operation.label}: {error}")
        except Unsatisfiable:
            pass  # nothing can be wrong with it
    return found


@pytest.mark.timeout(300 + 300 * EXAMPLES)
@pytest.mark.parametrize("kind", KINDS)
async def test_answers_are_as_the_document_says(url: str, kind: str) -> None:
    document = await asyncio.to_thread(lambda: requests.get(url + PATH).json())
    found = await asyncio.to_thread(failures, url, document, KINDS[kind])
    assert not found, "\n\n".join(found)


async def test_a_document_that_is_wrong_is_found_out(url: str) -> None:
    right = await asyncio.to_thread(lambda: requests.get(url + PATH).json())
    properties = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/properties"
    tenants, its = right["paths"]["/admin/v2/tenants"]["get"], right["paths"][properties]["put"]
    tenants["responses"]["200"]["content"]["application/json"]["schema"] = {"type": "object"}
    its["requestBody"]["content"]["application/json"]["schema"] = {"type": "string"}
    wrong = {**right, "paths": {"/admin/v2/tenants": {"get": tenants}, properties: {"put": its}}}
    kinds = KINDS["right ones"], KINDS["wrong ones"]
    shown, taken = [await asyncio.to_thread(failures, url, wrong, kind, 40) for kind in kinds]
    assert [one.split(":")[0] for one in shown] == ["GET /admin/v2/tenants"]
    assert [one.split(":")[0] for one in taken] == [f"PUT {properties}"]
