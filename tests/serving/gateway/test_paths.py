"""Paths and credentials on their way through a gateway, by raw sockets: a client library resolves `..` itself."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from aiohttp import web

from quire.gateway.gateway import Gateway
from quire.metadata import paths
from quire.metadata.records import BrokerRecord, encode
from quire.process.listeners import listen, url_of
from quire.runtime.clock import SystemClock
from quire.runtime.http_headers import RawHeadersResponse, latin_1
from quire.runtime.http_server import HttpServer
from quire.security import tls
from quire.security.certs import Authority
from quire.security.configuration import AuthorizationConfiguration, Credentials, load
from quire.security.listener import TlsListener
from quire.security.security import make_security
from quire.serving.admin.app import make_app
from quire.serving.names import TopicName
from quire.testing.metadata import MemoryStore
from tests.serving.conftest import BrokerHouse
from tests.serving.security import security, token

from .conftest import Front

PRINCIPAL = "X-Original-Principal: admin\r\n"
BEARER = "Authorization: Bearer {}\r\n"


async def ask(port: int, path: str, more: str = "", context: ssl.SSLContext | None = None) -> tuple[int, str]:
    """Status and body of a GET of exactly this path."""
    host = "localhost" if context else "127.0.0.1"
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}Connection: close\r\n\r\n"
    writer.write(request.encode())
    async with asyncio.timeout(30):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body.decode()


class Recorder:
    """A broker that answers everything and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[web.Request] = []
        self.headers: dict[str, str] = {}

    async def start(self) -> str:
        application = web.Application()
        application.router.add_route("*", "/{rest:.*}", self._answer)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        sock = listen("127.0.0.1:0")
        await web.SockSite(self._runner, sock).start()
        return url_of("http", sock)

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request)
        return RawHeadersResponse(text="answered", headers=self.headers)

    async def stop(self) -> None:
        await self._runner.cleanup()


def port_of(front: Front) -> int:
    return int(front.http_url.rpartition(":")[2])


@pytest.fixture
async def recorder() -> AsyncIterator[Recorder]:
    made = Recorder()
    url = await made.start()
    made.url = url  # type: ignore[attr-defined]
    yield made
    await made.stop()


@pytest.fixture
async def passing(front: Front, recorder: Recorder) -> Front:
    await front.register("only", "pulsar://127.0.0.1:1", recorder.url)  # type: ignore[attr-defined]
    return front


@pytest.fixture
async def proxy(recorder: Recorder, tmp_path: Path) -> AsyncIterator[Front]:
    own = Credentials(method="token", token=token("gateway"))
    rules = AuthorizationConfiguration(proxies=("gateway",))
    front = Front(security(tmp_path, client=own, authorization=rules))
    await front.start()
    await front.register("only", "pulsar://127.0.0.1:1", recorder.url)  # type: ignore[attr-defined]
    yield front
    await front.stop()


@pytest.mark.parametrize(
    "path",
    [
        "/admin/v2/persistent/t/n/a%2Fb/stats",
        "/admin/v2/persistent/t/n/a%252e%252e/stats?x=%2F..%2f&y=a+b",
        "/admin/v2//persistent/t/n/%41;x=1,2!$&'()*/stats",
        "/quire/v1/a...b/.c/d.",
    ],
)
async def test_a_path_reaches_the_broker_as_it_was_sent(
    passing: Front, recorder: Recorder, path: str
) -> None:
    assert (await ask(port_of(passing), path))[0] == 200
    assert [request.raw_path for request in recorder.asked] == [path]


async def test_an_answers_headers_reach_the_client_as_they_were_sent(
    passing: Front, recorder: Recorder
) -> None:
    recorder.headers = {"X-Key": latin_1("ü"), "X-Other": latin_1("ключ")}
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(passing))
    writer.write(b"GET /admin/v2/clusters HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(30):
        lines = (await reader.read()).split(b"\r\n")
    writer.close()
    assert b"X-Key: \xfc" in lines and "X-Other: ключ".encode() in lines and lines[-1] == b"answered"


@pytest.mark.parametrize("start", ["/console/", "/quire/v1/", "/admin/v2/", "/lookup/", "/console/a/"])
@pytest.mark.parametrize("dots", ["..", "%2e%2e", ".%2E", "..%2f..", "..\\..", ".", "%2e"])
async def test_dot_segments_reach_no_broker(
    passing: Front, recorder: Recorder, start: str, dots: str
) -> None:
    for path in (f"{start}{dots}/quire/v1/whoami", f"{start}{dots}"):
        for target in (path, f"http://localhost{path}"):
            assert (await ask(port_of(passing), target))[0] in (400, 404), target
    assert recorder.asked == []


async def test_an_absolute_target_is_asked_of_the_broker_alone(passing: Front, recorder: Recorder) -> None:
    assert (await ask(port_of(passing), "http://elsewhere:1/admin/v2/clusters?a=b"))[0] == 200
    assert [request.raw_path for request in recorder.asked] == ["/admin/v2/clusters?a=b"]


async def test_a_browser_at_the_root_goes_to_the_console(proxy: Front, recorder: Recorder) -> None:
    assert (await ask(port_of(proxy), "/", "Accept: text/html,*/*\r\n"))[0] == 302
    assert (await ask(port_of(proxy), "/"))[0] == 404
    assert recorder.asked == []


async def test_a_gateway_where_clients_log_in_passes_nothing_of_theirs_on(
    proxy: Front, recorder: Recorder
) -> None:
    port, own = port_of(proxy), f"Bearer {token('gateway')}"
    bearer = BEARER.format(token("app"))
    assert (await ask(port, "/console/js/app.js", PRINCIPAL + bearer + "Cookie: a=b\r\n"))[0] == 200
    assert (await ask(port, "/metrics", PRINCIPAL))[0] == 200
    assert (await ask(port, "/metrics", BEARER.format("wrong")))[0] == 200
    assert (await ask(port, "/metrics", bearer))[0] == 200
    assert (await ask(port, "/quire/v1/whoami", bearer))[0] == 200
    assert (await ask(port, "/quire/v1/whoami", PRINCIPAL))[0] == 401
    assert (await ask(port, "/quire/v1/whoami", PRINCIPAL + bearer))[0] == 403
    told = [
        (one.raw_path, one.headers.get("Authorization"), one.headers.get("X-Original-Principal"))
        for one in recorder.asked
    ]
    assert told == [
        ("/console/js/app.js", None, None),
        ("/metrics?names=false", None, None),
        ("/metrics?names=false", None, None),
        ("/metrics", own, "app"),
        ("/quire/v1/whoami", own, "app"),
    ]
    assert "Cookie" not in recorder.asked[0].headers


async def test_a_body_that_is_compressed_is_refused(passing: Front, recorder: Recorder) -> None:
    assert (await ask(port_of(passing), "/admin/v2/x", "Content-Encoding: gzip\r\n"))[0] == 415
    assert recorder.asked == []


# -- a gateway that brokers know by its certificate ------------------------------------------------------

SECURITY = """
[tls]
certificate = "{name}.pem"
key = "{name}-key.pem"
authority = "authority.pem"
client_certificates = "optional"
listen = "127.0.0.1:0"
http = "127.0.0.1:0"
plain = false
[authentication.certificate]
[authorization]
superusers = ["admin", "broker", "gateway"]
proxies = ["gateway"]
[client]
method = "tls"
certificate = "{name}.pem"
key = "{name}-key.pem"
"""
SECRET = "the-secret-topic"


@pytest.fixture
async def certified(tmp_path: Path) -> AsyncIterator[tuple[int, int]]:
    """The ports of a broker and of a gateway that is a superuser and a proxy by its certificate."""
    authority = Authority.make(tmp_path)
    for name in ("broker", "gateway"):
        authority.sign_process(name, ["localhost"], 1)
        (tmp_path / f"{name}.toml").write_text(SECURITY.format(name=name))
    of_broker, of_gateway = (load(str(tmp_path / f"{name}.toml")) for name in ("broker", "gateway"))
    house = BrokerHouse()
    house.security = make_security(of_broker, SystemClock())
    broker = await house.start()
    await broker.registry.create(TopicName.parse(SECRET))
    await broker.registry.open(TopicName.parse(SECRET))
    server = HttpServer(make_app(broker))
    await server.start()
    assert of_broker.tls is not None and of_gateway.tls is not None
    door = TlsListener(listen("127.0.0.1:0"), tls.for_clients(of_broker.tls))
    door.start(server)
    broker_port = int(door.address.rpartition(":")[2])

    store = MemoryStore()
    gateway = Gateway(
        store.join(),
        Random(1),
        100,
        tls=tls.to_brokers(of_gateway, shows_itself=True),
        security=make_security(of_gateway, SystemClock()),
    )
    rest = TlsListener(listen("127.0.0.1:0"), tls.for_clients(of_gateway.tls))
    await gateway.start(None, None, None, rest)
    url = f"https://localhost:{broker_port}"
    record = BrokerRecord(broker_id="only", service_url="pulsar://127.0.0.1:1", http_url="", http_url_tls=url)
    await store.create(paths.broker("only"), encode(record), ephemeral=True)
    async with asyncio.timeout(10):
        while not gateway.brokers.all():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    yield broker_port, int(rest.address.rpartition(":")[2])
    await gateway.stop()
    rest.close()
    door.close()
    await store.close()
    await server.stop()
    await house.close()


async def test_a_stranger_is_a_stranger_through_a_gateway_with_a_certificate(
    certified: tuple[int, int], tmp_path: Path
) -> None:
    context = ssl.create_default_context(cafile=str(tmp_path / "authority.pem"))
    broker, gateway = certified
    for path in (
        "/quire/v1/whoami",
        "/console/../quire/v1/whoami",
        "/console/%2e%2e/quire/v1/whoami",
        "/console/a/%2e%2e%2f../admin/v2/tenants",
        "/console//../../quire/v1/support",
    ):
        for port in (broker, gateway):
            for more in ("", PRINCIPAL):
                status, body = await ask(port, path, more, context)
                assert status in (400, 401, 404), (path, status, body)
    status, _ = await ask(gateway, "/console/js/app.js", PRINCIPAL, context)
    assert status == 200


async def test_metrics_through_a_gateway_name_topics_to_superusers_alone(
    certified: tuple[int, int], tmp_path: Path
) -> None:
    authority = Authority.load(tmp_path)
    files = {name: authority.sign_user(name, 1) for name in ("admin", "app")}
    found = {}
    for name in ("", "app", "admin"):
        context = ssl.create_default_context(cafile=str(tmp_path / "authority.pem"))
        if name:
            context.load_cert_chain(*files[name])
        for port in certified:
            status, text = await ask(port, "/metrics", "", context)
            assert status == 200
            found[name, port] = "public/default" in text
    broker, gateway = certified
    assert found == {
        ("", broker): False,
        ("", gateway): False,
        ("app", broker): False,
        ("app", gateway): False,
        ("admin", broker): True,
        ("admin", gateway): True,
    }
