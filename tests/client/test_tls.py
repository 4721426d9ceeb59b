"""Who speaks TLS is never sent on without it: credentials would go with him."""

from __future__ import annotations

from random import Random

import pytest

from quire.client import Authentication, ClientSettings
from quire.client.lookup import Lookup
from quire.runtime.errors import ConfigurationError, Unavailable
from quire.runtime.rest import Admin
from quire.runtime.tasks import Tasks
from quire.serving.ownership.port import Owner
from quire.wire import pulsar_pb2 as pb

PLAIN, TLS = "pulsar://b:6650", "pulsar+ssl://b:6651"


def lookup(service_url: str) -> Lookup:
    return Lookup(service_url, ClientSettings(), Authentication(), None, Tasks("test"), Random())


def answer(plain: str, tls: str, *, proxy: bool = False) -> pb.CommandLookupTopicResponse:
    return pb.CommandLookupTopicResponse(
        request_id=1, brokerServiceUrl=plain, brokerServiceUrlTls=tls, proxy_through_service_url=proxy
    )


async def test_a_client_takes_the_url_of_its_own_kind() -> None:
    assert lookup("pulsar://a")._url_of(answer(PLAIN, TLS)) == PLAIN
    assert lookup("pulsar+ssl://a")._url_of(answer(PLAIN, TLS)) == TLS
    assert lookup("pulsar+ssl://a")._url_of(answer(TLS, "")) == TLS, "where TLS ends before the broker"
    assert lookup("pulsar+ssl://a")._url_of(answer(PLAIN, "", proxy=True)) == PLAIN, "a name, for the proxy"


async def test_a_client_with_tls_is_not_led_astray() -> None:
    client = lookup("pulsar+ssl://a")
    for one in (answer(PLAIN, ""), answer("", "")):
        with pytest.raises(Unavailable, match="has no TLS"):
            client._url_of(one)
    with pytest.raises(Unavailable, match="has no TLS"):
        await client.at(PLAIN)


def test_a_broker_redirects_nobody_from_https_to_http() -> None:
    owner = Owner("b", PLAIN, "http://b:8080", is_here=False)
    assert owner.rest_url(tls=False) == "http://b:8080"
    assert owner.rest_url(tls=True) == ""
    both = owner._replace(http_url_tls="https://b:8443")
    assert (both.rest_url(tls=False), both.rest_url(tls=True)) == ("http://b:8080", "https://b:8443")
    assert both._replace(http_url="").rest_url(tls=False) == "https://b:8443"


def test_a_command_follows_nobody_from_https_to_http() -> None:
    assert Admin("https://a")._followed("https://b/x") == "https://b/x"
    assert Admin("http://a")._followed("http://b/x") == "http://b/x"
    with pytest.raises(ConfigurationError, match="has no TLS"):
        Admin("https://a")._followed("http://b/x")
