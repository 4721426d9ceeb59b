"""`quire broker`: what it refuses, in one clear sentence each, and the addresses that it tells."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from quire.metadata.cluster import begin_cluster
from quire.metadata.open import open_store
from quire.process.broker import advertised, advertised_http, broker, load
from quire.process.listeners import Listeners
from quire.process.settings import Given
from quire.runtime.errors import ConfigurationError
from quire.serving.settings import BrokerSettings
from tests.cluster.zookeeper import ZooKeeper, zookeeper  # noqa: F401

FREE = {"listen": "127.0.0.1:0", "http": "127.0.0.1:0"}


def test_the_address_that_clients_are_told() -> None:
    assert advertised("", "pulsar://127.0.0.1:7", "127.0.0.1:0") == "pulsar://127.0.0.1:7"
    assert advertised("pulsar://b:1", "pulsar://0.0.0.0:6650", "0.0.0.0:6650") == "pulsar://b:1"
    assert advertised_http("", "pulsar://broker-1:6650", "http://0.0.0.0:8080") == "http://broker-1:8080"
    assert advertised_http("", "pulsar://[::1]:6650", "http://[::]:8080") == "http://[::1]:8080"
    assert advertised_http("x:90", "pulsar://broker-1:6650", "http://0.0.0.0:8080") == "http://x:90"


@pytest.mark.parametrize(
    ("listen", "advertise", "host"),
    [
        ("0.0.0.0", "pulsar://localhost:6650", "localhost"),
        ("0.0.0.0", "", "0.0.0.0"),
        ("127.0.0.1", "pulsar://outside:6650", "127.0.0.1"),
    ],
)
def test_the_rest_address_of_one_process_has_a_host_that_can_be_reached(
    listen: str, advertise: str, host: str
) -> None:
    with socket.create_server((listen, 0)) as http:
        port = http.getsockname()[1]
        assert Listeners(None, http, None, None).http_url_at(advertise) == f"http://{host}:{port}"
    assert Listeners(None, None, None, None).http_url_at(advertise) == ""


@pytest.mark.parametrize(
    "advertise", ["pulsar://broker-1", "pulsar://broker-1:port", "pulsar://:", "pulsar://:6650"]
)
def test_an_advertised_address_that_is_none(advertise: str) -> None:
    with pytest.raises(ConfigurationError, match="write pulsar://HOST:PORT"):
        advertised(advertise, "pulsar://127.0.0.1:7", "127.0.0.1:0")


def test_listening_everywhere_needs_an_advertised_address() -> None:
    with pytest.raises(ConfigurationError, match="advertise must name the host"):
        advertised("", "pulsar://0.0.0.0:6650", "0.0.0.0:6650")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({}, "metadata must name the cluster's store"),
        ({"metadata": "zk://h/q", "ack_quorum": "3", "write_quorum": "2"}, "ack_quorum 3 must be between"),
        ({"metadata": "zk://h/q", "balance_moves_per_minute_max": "-1"}, "must not be negative"),
        ({"metadata": "zk://h/q", "namespace_bundles": "0"}, "namespace_bundles must be greater than 0"),
        ({"metadata": "zk://h/q", "http": "nowhere"}, "http 'nowhere' is not an address"),
    ],
)
def test_settings_that_cannot_be(flags: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        load(Given(flags, None))


async def test_two_brokers_with_one_address(zookeeper: ZooKeeper, tmp_path: Path) -> None:  # noqa: F811
    metadata = zookeeper.fresh_url(session_timeout="4s")
    store = await open_store(metadata)
    await begin_cluster(store, 0)
    await store.close()
    given = Given({**FREE, "metadata": metadata, "advertise": "pulsar://127.0.0.1:6650"}, None)
    async with broker(load(given)) as first:
        assert [one.broker for one in first.ownership.brokers()] == ["127.0.0.1:6650"]
        with pytest.raises(
            ConfigurationError, match=r"another broker is registered as 127\.0\.0\.1:6650; give each"
        ):
            async with asyncio.timeout(40), broker(load(given)):
                pass
        assert not first.why_not_ready()
    async with broker(load(given)) as again:
        assert not again.why_not_ready()


def test_listeners_are_urls_by_name() -> None:
    both = BrokerSettings(advertised_listeners="a:pulsar://h:1, b:pulsar://[::1]:2")
    both.validate()
    assert both.listeners == {"a": "pulsar://h:1", "b": "pulsar://[::1]:2"}
    assert BrokerSettings().listeners == {}


@pytest.mark.parametrize(
    "text",
    [
        "pulsar://h:1",
        "a:h:1",
        "a:pulsar://h",
        "a:http://h:1",
        "a:pulsar://h:1,a:pulsar://h:2",
        "a:pulsar://h:1/x",
    ],
)
def test_listeners_that_are_none(text: str) -> None:
    with pytest.raises(ConfigurationError, match="advertised_listeners"):
        BrokerSettings(advertised_listeners=text).validate()
