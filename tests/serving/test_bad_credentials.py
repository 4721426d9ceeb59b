"""Bad input of those who want to be let in: refused with the right code and reason, written down without its secret,
and nothing was changed.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey

from quire.metadata import paths
from quire.process.listeners import Listeners, listen
from quire.runtime.tls import ClientTls
from quire.security import oidc
from quire.security.certs import Authority
from quire.security.configuration import AuthenticationConfiguration, Oidc, Tls, Token
from quire.security.identity import Presented
from quire.security.listener import TlsListener
from quire.security.tls import for_clients
from quire.serving.admin.app import make_app
from quire.serving.broker import Broker
from quire.serving.session import session
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb

from .conftest import BrokerHouse
from .security import SECRET, audit, security, token
from .test_every_door import TOPIC, Client, frame, refusal

RSA = rsa.generate_private_key(65537, 2048)
PUBLIC = RSA.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
ISSUER_S = 0.3


def by_hand(header: dict[str, Any], secret: bytes, **claims: Any) -> str:
    """A token that no library would make: HMAC by any bytes, or without a signature."""

    def part(value: Any) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    text = part(header) + b"." + part(claims)
    mac = hmac.digest(secret, text, hashlib.sha256) if secret else b""
    return (text + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


OF_SECRET = {
    "algorithm none": (by_hand({"alg": "none"}, b"", sub="admin"), "algorithm is not one of HS256"),
    "kid traversal": (
        by_hand({"alg": "HS256", "kid": "../../../../dev/null"}, b"\0" * 32, sub="admin"),
        "not signed by the key",
    ),
    "a role with a slash": (token("../admin"), "claim sub is not a role"),
    "a role with a newline": (token("app\nadmin"), "claim sub is not a role"),
    "no token": ("no-token-at-all-but-a-secret", "not a signed JSON web token"),
}
OF_RSA = {
    "RS/HS confusion": (by_hand({"alg": "HS256"}, PUBLIC, sub="admin"), "algorithm is not one of RS256"),
    "a key of another type": (
        jwt.encode({"alg": "ES256"}, {"sub": "admin"}, ECKey.generate_key("P-256", private=True)),
        "algorithm is not one of RS256",
    ),
    "a secret for a pair": (
        jwt.encode({"alg": "HS256"}, {"sub": "admin"}, OctKey.import_key(SECRET)),
        "algorithm is not one of RS256",
    ),
}


@asynccontextmanager
async def rest_of(broker: Broker) -> AsyncIterator[str]:
    runner = web.AppRunner(make_app(broker), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield "http://{}:{}".format(*runner.addresses[0][:2])
    await runner.cleanup()


async def everything(broker: Broker) -> dict[str, bytes]:
    """What the metadata store has of tenants, namespaces and topics."""
    store, found = broker.services.store, {}
    waiting = [paths.TENANTS]
    while waiting:
        place = waiting.pop()
        found[place] = (await store.get(place)).value
        waiting += [f"{place}/{name}" for name in await store.children(place)]
    return found


async def refused_everywhere(
    broker: Broker, folder: Path, shown: str, words: str, caplog: pytest.LogCaptureFixture
) -> tuple[int, int]:
    """By the binary protocol and over REST: the codes of both, which are told in the same words."""
    before = await everything(broker)
    client = await Client.open(broker)
    answer = await client.log_in(shown)
    assert answer is not None and answer.kind == pb.BaseCommand.ERROR
    assert words in answer.body.message  # type: ignore[union-attr]
    assert await client.read() is None, "it was closed"
    async with rest_of(broker) as url, aiohttp.ClientSession() as session:
        headers = {"Authorization": f"Bearer {shown}", "X-Request-ID": "mine"}
        async with session.put(f"{url}/admin/v2/tenants/made", json={}, headers=headers) as found:
            status, said = found.status, await found.json()
            assert found.headers["X-Request-ID"] == "mine"
    assert words in said["reason"]
    lines = audit(folder)
    assert [(line["event"], line["action"], line["role"]) for line in lines] == [
        ("login-failed", "CONNECT", ""),
        ("login-failed", "HTTP", ""),
    ]
    assert all(words in line["outcome"] for line in lines) and lines[1]["request"] == "mine"
    told = str(lines) + caplog.text + str(said) + answer.body.message  # type: ignore[union-attr]
    assert not [part for part in re.findall(r"[\w-]{12,}", shown) if part in told]
    assert await everything(broker) == before
    code = refusal(answer)
    assert code is not None
    return code, status


@pytest.mark.parametrize("name", [*OF_SECRET, *OF_RSA])
async def test_tokens(
    house: BrokerHouse, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "quire")
    changed: dict[str, Any] = {}
    if name in OF_RSA:
        (tmp_path / "public.pem").write_bytes(PUBLIC)
        provider = Token(public_key=str(tmp_path / "public.pem"))
        changed["authentication"] = AuthenticationConfiguration(token=provider)
    house.security = security(tmp_path, **changed)
    broker = await house.start()
    codes = await refused_everywhere(broker, tmp_path, *(OF_SECRET | OF_RSA)[name], caplog)
    assert codes == (pb.AuthenticationError, 401)


@pytest.mark.parametrize("issuer", ["hangs", "returns megabytes"])
async def test_a_jwks_that_cannot_be_had(
    house: BrokerHouse,
    tmp_path: Path,
    issuer: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(oidc, "FETCH_S", ISSUER_S)

    async def keys(_: web.Request) -> web.Response:
        if issuer == "hangs":
            await asyncio.sleep(60)
        return web.Response(body=b"[" * (8 << 20))

    application = web.Application()
    application.router.add_get("/keys", keys)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = "http://{}:{}".format(*runner.addresses[0][:2])
    provider = Oidc(issuer=url, audience="quire", jwks=f"{url}/keys")
    house.security = security(tmp_path, authentication=AuthenticationConfiguration(oidc=(provider,)))
    broker = await house.start()
    shown = token("admin", iss=url, aud="quire", seconds=60)
    codes = await refused_everywhere(broker, tmp_path, shown, "cannot be fetched; try again", caplog)
    assert codes == (pb.ServiceNotReady, 503)
    await house.security.stop()
    await runner.cleanup()


async def test_an_original_principal_of_who_is_no_proxy(house: BrokerHouse, tmp_path: Path) -> None:
    house.security = security(tmp_path)
    broker = await house.start()
    before = await everything(broker)
    client = await Client.open(broker)
    body = pb.CommandConnect(
        client_version="test",
        auth_method_name="token",
        auth_data=token("app").encode(),
        original_principal="admin",
    )
    answer = await client.ask(frame(connect=body))
    assert refusal(answer) == pb.AuthorizationError
    async with rest_of(broker) as url, aiohttp.ClientSession() as session:
        headers = {"Authorization": f"Bearer {token('app')}", "X-Original-Principal": "admin"}
        async with session.put(f"{url}/admin/v2/tenants/made", json={}, headers=headers) as found:
            assert found.status == 403
    lines = audit(tmp_path)
    assert [line["action"] for line in lines] == ["CONNECT", "HTTP"]
    assert {line["outcome"] for line in lines} == {
        "the role app is not a proxy, so it cannot act for another role"
    }
    assert await everything(broker) == before


@pytest.mark.parametrize(
    "path",
    [
        "/admin/v2/persistent/public/..%2F..%2Fsystem/orders",
        "/admin/v2/tenants/..%2F..%2Fmade",
        "/admin/v2/namespaces/public/%2E%2E%2Fmade",
    ],
)
async def test_paths_that_lead_elsewhere(house: BrokerHouse, tmp_path: Path, path: str) -> None:
    house.security = security(tmp_path)
    broker = await house.start()
    before = await everything(broker)
    async with rest_of(broker) as url, aiohttp.ClientSession() as session:
        for role in ("app", "admin"):
            headers = {"Authorization": f"Bearer {token(role)}"}
            target = aiohttp.client.URL(f"{url}{path}", encoded=True)
            async with session.put(target, json={}, headers=headers) as found:
                assert found.status in (400, 403, 404, 405), (role, await found.text())
    assert {line["event"] for line in audit(tmp_path)} <= {"denied", "failed"}
    assert await everything(broker) == before


async def test_a_certificate_of_another_authority(house: BrokerHouse, tmp_path: Path) -> None:
    authorities = {}
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        authorities[name] = Authority.make(tmp_path / name)
        authorities[name].sign_user("admin", 1)
    authorities["ours"].sign_process("node", ["127.0.0.1"], 1)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    served = Tls(
        certificate=str(ours / "node.pem"),
        key=str(ours / "node-key.pem"),
        authority=str(ours / "authority.pem"),
        client_certificates="required",
    )
    house.security = security(tmp_path, tls=served)
    broker = await house.start()
    listener = TlsListener(listen("127.0.0.1:0"), for_clients(served))
    Listeners(None, None, listener, None).audit(house.security)
    await broker.sessions.listen(None, listener)
    shown = ClientTls(str(ours / "authority.pem"), str(theirs / "admin.pem"), str(theirs / "admin-key.pem"))
    host, _, port = listener.address.rpartition(":")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        reader, writer = await asyncio.open_connection(host, int(port), ssl=shown.context())
        writer.write(commands.connect("test", "tls", b""))
        assert not await asyncio.wait_for(reader.read(), 10)
        raise ConnectionResetError
    (line,) = audit(tmp_path)
    assert (line["event"], line["action"], line["role"]) == ("login-failed", "TLS", "")
    assert "certificate is not accepted" in line["outcome"]


async def test_who_is_slow_before_he_is_let_in_is_closed(
    house: BrokerHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent, with half a CONNECT, and with credentials that take for ever; somebody else comes in meanwhile."""
    house.security = security(tmp_path)
    broker = await house.start()
    guard: Any = broker.registry.guard
    real: Callable[[Presented], Any] = guard.authentication.authenticate

    async def hanging(presented: Presented) -> Any:
        if presented.data == b"slow":
            await asyncio.sleep(60)
        return await real(presented)

    monkeypatch.setattr(guard.authentication, "authenticate", hanging)
    monkeypatch.setattr(session, "HANDSHAKE_S", 1.5)
    slow = commands.connect("test", "token", b"slow")
    said = (b"", slow[:10], slow)
    peers = [await Client.open(broker) for _ in said]
    for peer, words in zip(peers, said, strict=True):
        peer.writer.write(words)
    good = await Client.open(broker)
    welcome = await good.log_in(token("admin"))
    assert welcome is not None and welcome.kind == pb.BaseCommand.CONNECTED
    for peer in peers:
        answer = await peer.read()
        assert refusal(answer) is not None and await peer.read() is None
    assert (
        refusal(await good.ask(frame(lookupTopic=pb.CommandLookupTopic(topic=TOPIC, request_id=1)))) is None
    )
