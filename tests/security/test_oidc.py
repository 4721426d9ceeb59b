"""Identity providers: their keys fetched, kept and rotated; and what they or others may do wrong."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

from quire.runtime.clock import SystemClock
from quire.runtime.errors import ConfigurationError, NotAuthenticated, Unavailable
from quire.security import oidc
from quire.security.configuration import Oidc
from quire.security.oidc import Issuers, check_url, keys_of

ONE = RSAKey.generate_key(2048, {"kid": "one"}, private=True)
TWO = ECKey.generate_key("P-256", {"kid": "two"}, private=True)
SECRET = OctKey.import_key(b"a secret of more than 32 bytes, of course", {"kid": "secret"})


class Clock(SystemClock):
    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s

    def now_ms(self) -> int:
        return super().now_ms() + int(1000 * self.ahead_s)


def public(*keys: Any) -> dict[str, Any]:
    return {"keys": [key.as_dict(private=False) for key in keys]}


class Provider:
    """An identity provider on this machine."""

    def __init__(self) -> None:
        self.url = ""
        self.keys: Any = public(ONE)
        self.asked = 0
        self.hangs = False
        self.discovery: dict[str, Any] = {}

    async def start(self) -> web.AppRunner:
        application = web.Application()
        application.router.add_get(oidc.DISCOVERY, self._discovery)
        application.router.add_get("/keys", self._keys)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = "http://{}:{}".format(*runner.addresses[0][:2])
        self.discovery = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        return runner

    async def _discovery(self, _: web.Request) -> web.Response:
        return web.json_response(self.discovery)

    async def _keys(self, _: web.Request) -> web.Response:
        self.asked += 1
        if self.hangs:
            await asyncio.sleep(60)
        if isinstance(self.keys, bytes):
            return web.Response(body=self.keys)
        if isinstance(self.keys, int):
            return web.Response(status=self.keys, headers={"Location": "http://127.0.0.1:1/"})
        return web.json_response(self.keys)

    def token(self, key: Any = ONE, algorithm: str = "RS256", kid: str | None = None, **claims: Any) -> bytes:
        header = {"alg": algorithm, "kid": kid if kid is not None else key.kid}
        said = {"iss": self.url, "aud": "quire", "sub": "app", "exp": int(time.time()) + 3_600, **claims}
        return jwt.encode(header, said, key, algorithms=[algorithm]).encode()


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    provider = Provider()
    runner = await provider.start()
    yield provider
    await runner.cleanup()


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
async def issuers(provider: Provider, clock: Clock) -> AsyncIterator[Issuers]:
    made = Issuers([Oidc(issuer=provider.url, audience="quire", keys_kept_s=60)], clock)
    yield made
    await made.stop()


async def test_a_token_of_the_issuer_lets_in_and_its_keys_are_kept(
    provider: Provider, issuers: Issuers
) -> None:
    assert issuers.knows(provider.token())
    for _ in range(3):
        assert (await issuers.authenticate(provider.token())).role == "app"
    assert (await issuers.authenticate(provider.token(kid=""))).role == "app", "a key need not be named"
    assert provider.asked == 1


async def test_a_key_that_is_new_is_fetched(provider: Provider, issuers: Issuers, clock: Clock) -> None:
    await issuers.authenticate(provider.token())
    provider.keys = public(ONE, TWO)
    clock.ahead_s += oidc.FETCH_EACH_S + 1
    assert (await issuers.authenticate(provider.token(TWO, "ES256"))).role == "app"
    provider.keys = public(TWO)
    clock.ahead_s += 61
    with pytest.raises(NotAuthenticated):
        await issuers.authenticate(provider.token())


async def test_keys_that_do_not_exist_are_not_asked_for_all_the_time(
    provider: Provider, issuers: Issuers
) -> None:
    for number in range(20):
        with pytest.raises(NotAuthenticated):
            await issuers.authenticate(provider.token(kid=f"../../{number}"))
    assert provider.asked == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"aud": "other"},
        {"aud": None},
        {"exp": 1},
        {"nbf": 1 << 40},
        {"sub": None},
        {"sub": "a/b"},
    ],
)
async def test_claims_that_are_wrong(provider: Provider, issuers: Issuers, wrong: dict[str, Any]) -> None:
    with pytest.raises(NotAuthenticated):
        await issuers.authenticate(provider.token(**wrong))


async def test_signatures_that_are_wrong(provider: Provider, issuers: Issuers) -> None:
    other = RSAKey.generate_key(2048, {"kid": "one"}, private=True)
    for token in (
        provider.token(other),
        provider.token(SECRET, "HS256", kid="one"),
        provider.token(SECRET, "HS256"),
    ):
        with pytest.raises(NotAuthenticated):
            await issuers.authenticate(token)


async def test_other_issuers_are_not_asked(provider: Provider, issuers: Issuers) -> None:
    token = provider.token(iss="http://127.0.0.1:1")
    assert not issuers.knows(token) and not issuers.knows(b"no token") and not issuers.knows(b"a.b.c")
    with pytest.raises(NotAuthenticated):
        await issuers.authenticate(token)
    assert provider.asked == 0


@pytest.mark.parametrize(
    "keys",
    [
        b"x" * (oidc.DOCUMENT_BYTES_MAX + 1),
        b"no JSON",
        b"[" * 100_000,
        302,
        500,
        {},
        {"keys": "all"},
        {"keys": []},
        {"keys": [7, {"kty": "RSA"}, {"kty": "none"}]},
        {"keys": [{"kty": "oct", "k": "AAAA", "kid": "one"}]},
        {"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "one"}]},
        {"keys": [{**ONE.as_dict(private=False), "use": "enc"}]},
        {"keys": [{**ONE.as_dict(private=False), "alg": "HS256"}]},
        {"keys": [ONE.as_dict(private=False)] * 101},
    ],
    ids=["huge", "text", "deep", "redirect", "error", *(f"set {number}" for number in range(9))],
)
async def test_what_is_no_set_of_keys_lets_nobody_in(provider: Provider, issuers: Issuers, keys: Any) -> None:
    provider.keys = keys
    with pytest.raises(Unavailable):
        await issuers.authenticate(provider.token())


async def test_an_issuer_that_hangs(
    provider: Provider, issuers: Issuers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "FETCH_S", 0.2)
    provider.hangs = True
    tried = [issuers.authenticate(provider.token()) for _ in range(5)]
    found = await asyncio.gather(*tried, return_exceptions=True)
    assert {type(one) for one in found} == {Unavailable}
    assert provider.asked == 1


async def test_the_last_keys_count_while_the_issuer_is_away(
    provider: Provider, issuers: Issuers, clock: Clock
) -> None:
    await issuers.authenticate(provider.token())
    provider.keys = 500
    clock.ahead_s = 3600
    assert (await issuers.authenticate(provider.token())).role == "app"
    clock.ahead_s = oidc.STALE_S_MAX + 60
    with pytest.raises(Unavailable):
        await issuers.authenticate(provider.token())


async def test_a_discovery_of_another_issuer(provider: Provider, issuers: Issuers) -> None:
    provider.discovery["issuer"] = "https://other.example"
    with pytest.raises(Unavailable):
        await issuers.authenticate(provider.token())
    assert provider.asked == 0


async def test_a_discovery_that_leads_elsewhere_is_followed_by_https_alone(
    provider: Provider, issuers: Issuers
) -> None:
    provider.discovery["jwks_uri"] = "http://169.254.169.254/latest"
    with pytest.raises(Unavailable):
        await issuers.authenticate(provider.token())


async def test_keys_of_a_file(provider: Provider, tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(public(ONE)))
    issuers = Issuers([Oidc(issuer=provider.url, audience="quire", jwks=str(file))], clock)
    assert (await issuers.authenticate(provider.token())).role == "app"
    assert provider.asked == 0


@pytest.mark.parametrize(
    "settings",
    [
        Oidc(issuer="", audience="quire"),
        Oidc(issuer="https://issuer.example", audience=""),
        Oidc(issuer="http://issuer.example", audience="quire"),
        Oidc(issuer="https://issuer.example", audience="quire", jwks="ftp://issuer.example/keys"),
        Oidc(issuer="https://issuer.example", audience="quire", algorithms=("HS256",)),
        Oidc(issuer="https://issuer.example", audience="quire", algorithms=("none",)),
        Oidc(issuer="https://issuer.example", audience="quire", algorithms=()),
    ],
)
async def test_what_cannot_be_configured(settings: Oidc) -> None:
    with pytest.raises(ConfigurationError):
        Issuers([settings], SystemClock())


@pytest.mark.parametrize(
    "url", ["", "https://", "http://example.com", "file:///etc/passwd", "http://[::1", "gopher://x"]
)
def test_urls_that_are_not_asked(url: str) -> None:
    with pytest.raises(ConfigurationError):
        check_url(url)


def test_a_key_of_a_set_takes_what_the_set_says_it_is_for() -> None:
    (known,) = keys_of({"keys": [{**ONE.as_dict(private=False), "alg": "PS256"}]})
    assert known.algorithms == ["PS256"]


async def test_a_token_of_an_issuer_must_expire(provider: Provider, issuers: Issuers) -> None:
    with pytest.raises(NotAuthenticated, match="no claim exp"):
        await issuers.authenticate(provider.token(exp=None))


async def test_who_came_by_a_key_that_is_taken_away_goes(
    provider: Provider, issuers: Issuers, clock: Clock
) -> None:
    provider.keys = public(ONE, TWO)
    one, two = [
        await issuers.authenticate(token) for token in (provider.token(), provider.token(TWO, "ES256"))
    ]
    assert one.proof != two.proof and issuers.trusts(one.proof) and issuers.trusts(two.proof)
    provider.keys = public(TWO)
    await issuers.look()
    assert issuers.trusts(one.proof), "they are asked for from time to time"
    clock.ahead_s += 61
    await issuers.look()
    assert not issuers.trusts(one.proof) and issuers.trusts(two.proof)
    provider.keys = 500
    clock.ahead_s += 61
    await issuers.look()
    assert issuers.trusts(two.proof), "while the issuer is away the last ones count"


async def test_a_file_of_keys_is_read_again_when_it_changes(
    provider: Provider, tmp_path: Path, clock: Clock
) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(public(ONE)))
    issuers = Issuers([Oidc(issuer=provider.url, audience="quire", jwks=str(file))], clock)
    one = await issuers.authenticate(provider.token())
    file.write_text(json.dumps(public(TWO)))
    await issuers.look()
    assert not issuers.trusts(one.proof)
    assert (await issuers.authenticate(provider.token(TWO, "ES256"))).role == "app"
