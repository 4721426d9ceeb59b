"""Rows of the REST interface fit what they call, and each answers in the one way that all have."""

from __future__ import annotations

import inspect
import re

from quire.serving.admin.resources import routes
from quire.serving.broker import Broker
from tests.serving.admin.conftest import Rest

IN_A_PATH = re.compile(r"\{(\w+)")


def test_each_row_has_the_arguments_that_it_calls_with(broker: Broker) -> None:
    for route in routes(broker):
        keywords = {one.keyword: None for one in route.arguments if one.keyword}
        by_place = [None for one in route.arguments if not one.keyword]
        inspect.signature(route.call).bind(*by_place, **keywords)


def test_what_a_row_reads_in_its_path_stands_there(broker: Broker) -> None:
    for route in routes(broker):
        there = set(IN_A_PATH.findall(route.path))
        read = {name for one in route.arguments if one.place == "path" for name in one.names}
        assert read <= there, f"{route.method} {route.path} has no {read - there}"


def test_no_row_stands_twice(broker: Broker) -> None:
    seen: set[tuple[str, str]] = set()
    for route in routes(broker):
        assert (route.method, route.path) not in seen
        seen.add((route.method, route.path))


async def test_arguments_are_read_before_anything_is_done(rest: Rest) -> None:
    topic = "/admin/v2/persistent/public/default/orders"
    await rest.put(topic)
    answer = await rest.delete(f"{topic}?parentGeneration=soon")
    assert (answer.status, answer.body["reason"]) == (
        400,
        "parentGeneration must be a number of at most 18 digits, not 'soon'",
    )
    assert (await rest.get(f"{topic}/stats")).status == 200
