"""Rows that name the topics that they go to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import ANY

import pytest
from aiohttp import web

from quire.runtime.errors import QuireError
from quire.serving.admin.app import make_app
from quire.serving.names import TopicName
from quire.spark_source.sink.options import parse
from quire.spark_source.sink.task import TaskPlan, Written, run
from quire.spark_source.sink.topic import Target
from tests.serving.conftest import in_thread
from tests.spark_source.sink.conftest import Sink, batches_of, numbered


@pytest.fixture
async def http_url(sink: Sink) -> AsyncIterator[str]:
    runner = web.AppRunner(make_app(sink.broker), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    sink.broker.addresses.http_url = f"http://{host}:{port}"
    yield sink.broker.addresses.http_url
    await runner.cleanup()


async def test_rows_go_to_the_topics_they_name(sink: Sink, http_url: str) -> None:
    prefix = "persistent://public/default/"
    await sink.broker.registry.create(TopicName.parse(f"{prefix}plain"), 0, {})
    await sink.broker.registry.create(TopicName.parse(f"{prefix}parts"), 2, {})
    names = [f"{prefix}plain", "parts", "plain"]
    rows = [{"value": value, "key": "k", "topic": names[i % 3]} for i, value in enumerate(numbered(300))]

    async def write(rows: list[dict[str, Any]], **given: str) -> Written:
        options = parse({"service_url": http_url, "batch_messages_max": "20", **given}, rows_name_topics=True)
        plan = TaskPlan(options, "", Target(0, None), 0, "spark-query", 0)
        return await in_thread(lambda: run(plan, batches_of(rows)))

    for repeated in (0, 300):
        assert await write(rows) == Written(300, ANY, repeated)
    plain = [row["value"] for i, row in enumerate(rows) if i % 3 != 1]
    assert await sink.values(f"{prefix}plain") == plain
    found = [await sink.values(f"{prefix}parts-partition-{i}") for i in range(2)]
    assert sorted(map(len, found)) == [0, 100] and [*found[0], *found[1]] == numbered(1, 300, 3)
    await sink.broker.partitioned.grow(TopicName.parse(f"{prefix}parts"), 7)
    assert await write(rows) == Written(300, ANY, 300)
    for wrong, sentence in (
        ({"topic": None}, "row 0 .* is null or empty"),
        ({"topic": "a/b"}, "row 0 .*a/b"),
    ):
        with pytest.raises(QuireError, match=sentence):
            await write([rows[0] | wrong])
    with pytest.raises(QuireError, match="topic persistent://public/default/new does not exist"):
        await write([rows[0] | {"topic": "new"}])
