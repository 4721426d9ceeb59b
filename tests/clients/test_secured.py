"""The stock clients of Go and Java with every kind of credentials, at a broker and through a gateway, by TLS.

What is tried is said once, here. Each program (`go/secured`, `java/src/Secured.java`) walks the same table, all of it
at once, and says of each what came of it. Python's client has the same in `tests/serving/session/test_login.py` and
`tests/serving/gateway/test_login.py`.

The role `app` may produce and consume, `reader` only consume, `stranger` nothing.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import bcrypt
import pytest
from aiohttp import web
from joserfc import jwt
from joserfc.jwk import RSAKey
from msgspec.structs import replace

from quire.client import Client
from quire.client.authentication import token as presenting_token
from quire.runtime.tls import ClientTls
from quire.security import oidc
from quire.security.certs import Authority
from quire.serving.broker import Broker
from tests.clients import programs
from tests.cluster.test_tls import cluster
from tests.cluster.zookeeper import ZooKeeper, zookeeper  # noqa: F401
from tests.serving.security import SECRET, token

TOPIC = "persistent://public/default/t"
PLAY_S = 150
SHORT_S = 8.0
"""How long the tokens of those cases are valid in which they expire."""

KEY = RSAKey.generate_key(2048, {"kid": "one"}, private=True)
CLIENTS = {"app": "quire", "stranger": "quire", "elsewhere": "another"}
"""Of the identity provider: for whom their tokens are."""


class Case(NamedTuple):
    """`says`: words of the error, any of them; none for what must be done."""

    name: str
    do: str
    credentials: Mapping[str, str]
    says: tuple[str, ...] = ()
    seconds: float = 0


REFUSED = ("AuthenticationException", "Failed to establish connection with broker")
FORBIDDEN = ("AuthorizationError", "AuthorizationException", "grant it", "may not")


def table(folder: Path, issuer: str) -> list[Case]:
    def by_token(name: str) -> dict[str, str]:
        return {"with": "token", "token": str(folder / f"{name}.token")}

    def by_password(user: str, password: str) -> dict[str, str]:
        return {"with": "basic", "user": user, "password": password}

    def by_certificate(name: str) -> dict[str, str]:
        place = folder / ("strange" if name == "strange" else "certs")
        return {"with": "tls", "certificate": f"{place}/{name}.pem", "key": f"{place}/{name}-key.pem"}

    def by_oauth2(client: str) -> dict[str, str]:
        return {
            "with": "oauth2",
            "issuer": issuer,
            "user": client,
            "client_file": str(folder / f"{client}.json"),
        }

    found = [Case("nobody", "produce", {"with": "none"}, REFUSED)]
    for kind, right, stranger, wrong in (
        ("token", by_token("app"), by_token("stranger"), by_token("forged")),
        ("basic", by_password("app", "secret"), by_password("stranger", "secret"), by_password("app", "no")),
        ("tls", by_certificate("app"), by_certificate("stranger"), by_certificate("strange")),
        ("oauth2", by_oauth2("app"), by_oauth2("stranger"), by_oauth2("elsewhere")),
    ):
        untrusted = ("certificate", "tls", "Closed", "closed", "reset", "connect", "timed out", "timeout")
        found += [
            Case(f"{kind}-produces", "produce", right),
            Case(f"{kind}-consumes", "consume", right),
            Case(f"{kind}-without-produce", "produce", stranger, FORBIDDEN),
            Case(f"{kind}-without-consume", "consume", stranger, FORBIDDEN),
            Case(f"{kind}-wrong", "produce", wrong, untrusted if kind == "tls" else REFUSED),
        ]
    return [
        *found,
        Case("reader-consumes", "consume", by_token("reader")),
        Case("reader-produces", "produce", by_token("reader"), FORBIDDEN),
        Case("basic-unknown", "consume", by_password("nobody", "secret"), REFUSED),
        Case(
            "oauth2-unknown",
            "produce",
            by_oauth2("unknown"),
            ("401", "nauthorized", "invalid_client", "token"),
        ),
        Case("expired", "produce", by_token("expired"), REFUSED),
        Case("renewed", "produce", by_token("renewed"), (), 2 * SHORT_S),
        Case("not-renewed", "produce", by_token("short"), ("",), 60),
    ]


# -- an identity provider ----------------------------------------------------------------------------------


@asynccontextmanager
async def provider() -> AsyncIterator[str]:
    """Its URL. Clients get tokens for their name (OAuth2's client credentials)."""
    application = web.Application()
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    url = ""

    async def discovery(_: web.Request) -> web.Response:
        return web.json_response({"issuer": url, "jwks_uri": f"{url}/keys", "token_endpoint": f"{url}/token"})

    async def keys(_: web.Request) -> web.Response:
        return web.json_response({"keys": [KEY.as_dict(private=False)]})

    async def give(request: web.Request) -> web.Response:
        asked = await request.post()
        name = str(asked["client_id"])
        if name not in CLIENTS or asked["client_secret"] != "secret":
            return web.json_response({"error": "invalid_client"}, status=401)
        claims = {"iss": url, "sub": name, "aud": CLIENTS[name], "exp": int(time.time()) + 3600}
        made = jwt.encode({"alg": "RS256", "kid": "one"}, claims, KEY)
        return web.json_response({"access_token": made, "token_type": "Bearer", "expires_in": 3600})

    application.router.add_get(oidc.DISCOVERY, discovery)
    application.router.add_get("/keys", keys)
    application.router.add_post("/token", give)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = "http://{}:{}".format(*runner.addresses[0][:2])
    yield url
    await runner.cleanup()


# -- what is written down ----------------------------------------------------------------------------------


def write_files(folder: Path, issuer: str) -> None:
    authority = Authority.make(folder / "certs")
    authority.sign_process("node", ["127.0.0.1", "localhost"], 1)
    for name in ("app", "stranger"):
        authority.sign_user(name, 1)
    Authority.make(folder / "strange").sign_user("strange", 1)
    (folder / "secret.key").write_bytes(SECRET)
    for name in ("app", "reader", "stranger", "admin", "broker", "gateway"):
        (folder / f"{name}.token").write_text(token(name))
    (folder / "forged.token").write_text(token("admin", secret=b"another secret, of more than 32 bytes too"))
    (folder / "expired.token").write_text(token("app", seconds=-5))
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    (folder / "users").write_text(f"app:{hashed}\nstranger:{hashed}\n")
    for name in (*CLIENTS, "unknown"):
        known = {
            "type": "client_credentials",
            "client_id": name,
            "client_secret": "secret",
            "issuer_url": issuer,
        }
        (folder / f"{name}.json").write_text(json.dumps(known))
    for name in ("broker", "gateway"):
        (folder / f"{name}.toml").write_text(
            f"""
            [tls]
            certificate = "certs/node.pem"
            key = "certs/node-key.pem"
            authority = "certs/authority.pem"
            client_certificates = "optional"
            listen = "127.0.0.1:0"
            http = "127.0.0.1:0"
            plain = false
            [internal]
            required = true
            [authentication.token]
            secret_key = "secret.key"
            leeway_s = 0
            [authentication.basic]
            file = "users"
            [authentication.certificate]
            [[authentication.oidc]]
            issuer = "{issuer}"
            audience = "quire"
            [authorization]
            superusers = ["admin", "broker", "gateway"]
            proxies = ["gateway"]
            [client]
            method = "token"
            token_file = "{name}.token"
            """
        )


async def grant(broker: Broker) -> None:
    granted = {"app": ("produce", "consume"), "reader": ("consume",)}
    await broker.admin.policies.change_namespace(
        "public", "default", lambda old: replace(old, permissions=granted)
    )


async def keep_renewing(file: Path) -> None:
    """As a sidecar of the client would, always before the token expires."""
    while True:
        beside = file.with_suffix(".new")
        beside.write_text(token("app", seconds=SHORT_S))
        beside.replace(file)
        await asyncio.sleep(SHORT_S / 6)


@pytest.mark.parametrize(
    "command",
    [lambda: programs.go("secured"), lambda: programs.java("Secured")],
    ids=["go", "java"],
)
async def test_credentials(
    command: Callable[[], list[str]],
    zookeeper: ZooKeeper,  # noqa: F811
    tmp_path: Path,
) -> None:
    words = await asyncio.to_thread(command)
    authority = str(tmp_path / "certs" / "authority.pem")
    async with provider() as issuer:
        write_files(tmp_path, issuer)
        files = tmp_path / "broker.toml", tmp_path / "gateway.toml"
        async with cluster(tmp_path, zookeeper.fresh_url(), *files) as (brokers, urls):
            await grant(brokers[0])
            admin = presenting_token((tmp_path / "app.token").read_text())
            async with (
                Client(urls[0], tls=ClientTls(authority), authentication=admin) as client,
                client.producer(TOPIC) as producer,
            ):
                await producer.send(b"first")
            cases = table(tmp_path, issuer)
            places = {"broker": brokers[0].addresses.service_url_tls, "gateway": urls[0]}
            expected = {f"{place}-{one.name}": one for place in places for one in cases}
            (tmp_path / "cases").write_text(
                "".join(
                    line(
                        {"name": f"{place}-{one.name}", "url": url, "authority": authority, "topic": TOPIC},
                        one,
                    )
                    for place, url in places.items()
                    for one in cases
                )
            )
            renewing = asyncio.create_task(keep_renewing(tmp_path / "renewed.token"))
            (tmp_path / "short.token").write_text(token("app", seconds=SHORT_S))
            found = await played([*words, str(tmp_path / "cases")])
            renewing.cancel()
    assert found.keys() == expected.keys()
    wrong = {
        name: found[name][:1000] for name, one in expected.items() if not is_as_expected(one, found[name])
    }
    assert not wrong, json.dumps(wrong, indent=1)


def is_as_expected(one: Case, error: str) -> bool:
    return bool(error) and any(word in error for word in one.says) if one.says else not error


def line(common: dict[str, str], one: Case) -> str:
    fields = {**common, "do": one.do, "seconds": str(one.seconds), **one.credentials}
    return "\t".join(f"{name}={value}" for name, value in fields.items()) + "\n"


async def played(words: list[str]) -> dict[str, Any]:
    """What became of each case."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(PLAY_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, (out + err).decode()[-3000:]
    lines = [json.loads(text) for text in out.decode().splitlines() if text.startswith("{")]
    return {one["name"]: one["error"] for one in lines}
