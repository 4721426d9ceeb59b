"""Stock and own clients through a gateway to a broker, and its REST interface."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pulsar
import pytest
from aiohttp import web

from quire.client import EARLIEST, Client
from quire.process.listeners import listen, url_of
from quire.serving.admin.app import make_app
from quire.serving.broker import Broker
from tests.client.conftest import QUICK
from tests.serving.conftest import BrokerHouse

from .conftest import Front


@pytest.fixture
async def served(front: Front, broker: Broker) -> AsyncIterator[Front]:
    rest = listen("127.0.0.1:0")
    runner = web.AppRunner(make_app(broker), shutdown_timeout=0.1)
    await runner.setup()
    await web.SockSite(runner, rest).start()
    broker.addresses.http_url = url_of("http", rest)
    await front.register("only", broker.service_url, broker.addresses.http_url)
    yield front
    await runner.cleanup()


async def test_the_stock_client_needs_nothing_but_the_gateways_url(served: Front, broker: Broker) -> None:
    def produce_and_consume() -> list[bytes]:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(served.service_url, logger=quiet, operation_timeout_seconds=10)
        try:
            consumer = client.subscribe("t", "s")
            producer = client.create_producer("t")
            for number in range(500):
                producer.send_async(b"%d" % number, lambda *_: None)
            producer.flush()
            got = []
            for _ in range(500):
                message = consumer.receive(10_000)
                consumer.acknowledge(message)
                got.append(message.data())
            assert client.get_topic_partitions("t") == ["persistent://public/default/t"]
            return got
        finally:
            client.close()

    assert await asyncio.to_thread(produce_and_consume) == [b"%d" % number for number in range(500)]
    assert served.gateway.metrics()["quire_gateway_relayed_bytes_total"] > 500


async def test_a_client_of_a_listener_goes_through_as_well(front: Front, house: BrokerHouse) -> None:
    """It names the broker by a URL that leads nowhere from the gateway's network."""
    broker = await house.start(advertised_listeners="outside:pulsar://outside:7650")
    await front.register("only", broker.service_url, listeners=broker.addresses.listeners)

    def produce(listener: str) -> bool:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(
            front.service_url, logger=quiet, listener_name=listener, operation_timeout_seconds=5
        )
        try:
            client.create_producer("t").send(b"hello")
            return True
        except pulsar.PulsarException:
            return False
        finally:
            client.close()

    assert await asyncio.to_thread(produce, "outside")
    assert not await asyncio.to_thread(produce, "unknown")
    assert front.gateway.metrics()["quire_gateway_relayed_bytes_total"] > 0


async def test_our_client_goes_through_as_well(served: Front) -> None:
    async with Client(served.service_url, settings=QUICK) as client:
        async with client.producer("t") as producer:
            await producer.send(b"hello")
        async with client.consumer("t", "s", start=EARLIEST) as consumer:
            assert (await consumer.receive()).payload == b"hello"


async def test_a_client_finds_its_topic_at_the_broker_that_comes_next(
    served: Front, broker: Broker, house: BrokerHouse
) -> None:
    async with Client(served.service_url, settings=QUICK) as client, client.producer("t") as producer:
        await producer.send(b"before")
        await served.unregister("only")
        await house.kill(broker)
        house.port = 0
        after = await house.start()
        await served.register("after", after.service_url)
        assert await producer.send(b"after")


async def test_rest_goes_to_a_broker_and_its_answer_comes_back_as_it_is(
    served: Front, broker: Broker
) -> None:
    async with aiohttp.ClientSession() as session:

        async def both(method: str, path: str) -> None:
            answers = []
            for origin in (served.http_url, broker.addresses.http_url):
                async with session.request(method, origin + path) as answer:
                    answers.append((answer.status, answer.content_type, await answer.read()))
            assert answers[0] == answers[1]

        async with session.put(
            f"{served.http_url}/admin/v2/persistent/public/default/p/partitions", json=3
        ) as made:
            assert made.status == 204
        await both("GET", "/admin/v2/persistent/public/default/p/partitions")
        await both("GET", "/admin/v2/persistent/public/default/nowhere%2Fhere/stats")
        await both("GET", "/lookup/v2/topic/persistent/public/default/p")
        await both("PUT", "/admin/v2/persistent/public/default/p/partitions")


async def test_metrics_join_the_brokers(served: Front) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{served.http_url}/metrics") as answer:
        text = await answer.text()
    assert 'quire_serving_connections_total{broker="only"} ' in text
    assert "quire_gateway_brokers 1\n" in text
    assert text.count("# TYPE quire_serving_connections ") == 1


async def test_ready_when_there_is_a_broker(front: Front) -> None:
    async with aiohttp.ClientSession() as session:

        async def status(path: str) -> int:
            async with session.get(front.http_url + path) as answer:
                return answer.status

        assert await status("/health/live") == 200
        assert await status("/health/ready") == 503
        await front.register("a", "pulsar://127.0.0.1:1")
        assert await status("/health/ready") == 200
        assert await status("/admin/v2/clusters") == 503
        assert await status("/elsewhere") == 404


async def redirecting(location: str) -> tuple[web.AppRunner, str]:
    async def to_the_owner(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(location + request.path_qs)

    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", to_the_owner)
    sock = listen("127.0.0.1:0")
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.SockSite(runner, sock).start()
    return runner, url_of("http", sock)


@pytest.mark.parametrize("registered", [True, False])
async def test_redirects_are_followed_to_registered_brokers_only(
    front: Front, broker: Broker, registered: bool
) -> None:
    owner = listen("127.0.0.1:0")
    runner = web.AppRunner(make_app(broker), shutdown_timeout=0.1)
    await runner.setup()
    await web.SockSite(runner, owner).start()
    first, first_url = await redirecting(url_of("http", owner))
    await front.register("first", "pulsar://127.0.0.1:1", first_url)
    if registered:
        await front.register("owner", broker.service_url, url_of("http", owner))
    async with aiohttp.ClientSession() as session:
        for _ in range(8):  # whichever broker is asked first
            async with session.get(f"{front.http_url}/admin/v2/clusters") as answer:
                assert answer.status == (200 if registered else 502)
    await runner.cleanup()
    await first.cleanup()
