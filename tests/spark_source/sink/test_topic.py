"""What the sink asks a broker over HTTP, and what it refuses to begin."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from quire.runtime.errors import ConfigurationError, QuireError, Unavailable
from quire.runtime.rest import Admin
from quire.serving.admin.app import make_app
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.spark_source.sink.options import SinkOptions, parse
from quire.spark_source.sink.topic import Target, prepare, publish_url
from tests.serving.conftest import BrokerHouse, in_thread

PATH = "/admin/v2/persistent/public/default/t"
NAME = TopicName.parse("persistent://public/default/t")


@pytest.fixture
async def broker(house: BrokerHouse) -> AsyncIterator[Broker]:
    made = await house.start()
    runner = web.AppRunner(make_app(made), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    made.addresses.http_url = f"http://{host}:{port}"
    yield made
    await runner.cleanup()


def options(broker: Broker, **given: str) -> SinkOptions:
    return parse({"service_url": broker.addresses.http_url, "topic": "t", **given})


async def test_a_topic_that_keeps_duplicates_is_refused_and_the_sentence_tells_how(broker: Broker) -> None:
    await broker.registry.create(NAME, 0, {})
    with pytest.raises(ConfigurationError, match="keeps duplicates") as refused:
        await in_thread(lambda: prepare(options(broker)))
    assert "enable_deduplication=true" in str(refused.value) and "curl -X POST" in str(refused.value)
    assert await in_thread(lambda: prepare(options(broker, delivery="at_least_once"))) == Target(0, None)
    assert await in_thread(lambda: prepare(options(broker, enable_deduplication="true"))) == Target(0, None)
    assert await in_thread(lambda: prepare(options(broker))) == Target(0, None)


async def test_a_topic_that_is_not_there_yet(broker: Broker) -> None:
    with pytest.raises(QuireError):
        await in_thread(lambda: prepare(options(broker)))
    assert await in_thread(lambda: prepare(options(broker, delivery="at_least_once"))) == Target(0, None)
    assert await in_thread(lambda: prepare(options(broker, enable_deduplication="true"))) == Target(0, None)
    assert await in_thread(lambda: prepare(options(broker))) == Target(0, None)


async def test_a_partitioned_topic(broker: Broker) -> None:
    await broker.registry.create(NAME, 3, {})
    assert await in_thread(lambda: prepare(options(broker, enable_deduplication="true"))) == Target(3, None)
    await broker.partitioned.grow(NAME, 5)
    assert await in_thread(lambda: prepare(options(broker))) == Target(5, None, grew_from=3)
    assert await in_thread(lambda: publish_url(options(broker), 3)) == broker.service_url


async def test_a_topic_that_takes_small_entries_only(broker: Broker) -> None:
    await broker.registry.create(NAME, 0, {})
    await in_thread(lambda: Admin(broker.addresses.http_url).post(f"{PATH}/maxMessageSize", 50_000))
    assert await in_thread(lambda: prepare(options(broker, enable_deduplication="true"))) == Target(0, 50_000)


async def test_what_keeps_nothing_cannot_have_it_once(broker: Broker) -> None:
    with pytest.raises(ConfigurationError, match="delivery=at_least_once"):
        await in_thread(lambda: prepare(options(broker, topic="non-persistent://public/default/t")))


async def test_where_clients_go(broker: Broker) -> None:
    await broker.registry.create(NAME, 0, {})
    assert await in_thread(lambda: publish_url(options(broker), 0)) == broker.service_url
    given = "pulsar://elsewhere:6650"
    assert await in_thread(lambda: publish_url(options(broker, broker_url=given), 0)) == given


async def test_nobody_there() -> None:
    nobody = parse({"service_url": "http://127.0.0.1:9", "topic": "t"})
    with pytest.raises(Unavailable, match="no broker answers at"):
        await in_thread(lambda: prepare(nobody))
