"""Tokens: what is taken, and all that is not, told in sentences that quote nothing."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from quire.runtime.clock import SystemClock
from quire.runtime.errors import ConfigurationError, NotAuthenticated
from quire.security import followed
from quire.security.configuration import Token
from quire.security.tokens import TOKEN_BYTES_MAX, Tokens

SECRET = b"0123456789abcdef0123456789abcdef-secret"
NOW_S = 1_750_000_000


class Clock(SystemClock):
    def now_ms(self) -> int:
        return NOW_S * 1000


def inline(raw: bytes) -> str:
    return "data:;base64," + base64.b64encode(raw).decode()


def signed(claims: dict[str, Any], key: Any = None, algorithm: str = "HS256") -> bytes:
    key = key or OctKey.import_key(SECRET)
    return jwt.encode({"alg": algorithm}, claims, key, algorithms=[algorithm]).encode()


def public(key: Any) -> bytes:
    made = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    assert isinstance(made, bytes)
    return made


def private(key: Any) -> bytes:
    made = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    assert isinstance(made, bytes)
    return made


def by_hand(header: dict[str, Any], claims: dict[str, Any], secret: bytes) -> bytes:
    """A token that no library would make: HMAC with any bytes, or without a signature."""

    def part(value: Any) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    text = part(header) + b"." + part(claims)
    mac = hmac.digest(secret, text, hashlib.sha256) if secret else b""
    return text + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")


SECRET_TOKENS = Tokens(Token(secret_key=inline(SECRET)), Clock())
RSA = rsa.generate_private_key(65537, 2048)
DER = RSA.public_key().public_bytes(
    serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
)


async def test_a_right_token_has_its_role_and_its_end() -> None:
    identity = await SECRET_TOKENS.authenticate(signed({"sub": "app", "exp": NOW_S + 60}))
    assert (identity.role, identity.method) == ("app", "token")
    assert identity.expires_ms == (NOW_S + 60 + 10) * 1000, "the leeway counts"
    assert (await SECRET_TOKENS.authenticate(signed({"sub": "app"}))).expires_ms is None


@pytest.mark.parametrize(
    ("key", "kind", "algorithm"),
    [
        (RSA, RSAKey, "RS256"),
        (RSA, RSAKey, "PS512"),
        (ec.generate_private_key(ec.SECP256R1()), ECKey, "ES256"),
        (ec.generate_private_key(ec.SECP384R1()), ECKey, "ES384"),
        (ed25519.Ed25519PrivateKey.generate(), OKPKey, "EdDSA"),
    ],
)
async def test_each_kind_of_public_key(tmp_path: Path, key: Any, kind: Any, algorithm: str) -> None:
    file = tmp_path / "public.key"
    der = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    token = signed({"sub": "app"}, kind.import_key(private(key)), algorithm)
    for raw in (public(key), der):
        file.write_bytes(raw)
        provider = Tokens(Token(public_key=str(file)), Clock())
        assert (await provider.authenticate(token)).role == "app"
    with pytest.raises(NotAuthenticated):
        await SECRET_TOKENS.authenticate(token)


REFUSED = {
    "nothing": b"",
    "no token": b"hello",
    "two parts": b"e30.e30",
    "binary": bytes(range(256)),
    "huge": b"a" * (TOKEN_BYTES_MAX + 1),
    "no algorithm": by_hand({"alg": "none"}, {"sub": "admin"}, b""),
    "no algorithm, written otherwise": by_hand({"alg": "nOnE"}, {"sub": "admin"}, b""),
    "none, signed": by_hand({"alg": "none"}, {"sub": "admin"}, SECRET),
    "another key": by_hand({"alg": "HS256"}, {"sub": "admin"}, b"another" * 8),
    "empty signature": by_hand({"alg": "HS256"}, {"sub": "admin"}, b""),
    "algorithm of another key": by_hand({"alg": "RS256"}, {"sub": "admin"}, SECRET),
    "critical header": by_hand({"alg": "HS256", "crit": ["x"], "x": 1}, {"sub": "admin"}, SECRET),
    "header is no object": by_hand(["HS256"], {"sub": "admin"}, SECRET),  # type: ignore[arg-type]
    "claims are no object": by_hand({"alg": "HS256"}, ["admin"], SECRET),  # type: ignore[arg-type]
    "deep": b".".join([base64.urlsafe_b64encode(b"[" * 9_000).rstrip(b"="), b"e30", b"e30"]),
    "no role": signed({"iss": "x"}),
    "a role that is none": signed({"sub": ""}),
    "a role with a line": signed({"sub": "app\nadmin"}),
    "a role with a path": signed({"sub": "../admin"}),
    "a long role": signed({"sub": "a" * 257}),
    "two roles": by_hand({"alg": "HS256"}, {"sub": ["a", "b"]}, SECRET),
    "a number": by_hand({"alg": "HS256"}, {"sub": 7}, SECRET),
    "expired": signed({"sub": "app", "exp": NOW_S - 11}),
    "not yet": signed({"sub": "app", "nbf": NOW_S + 60}),
    "an end that is none": by_hand({"alg": "HS256"}, {"sub": "app", "exp": "never"}, SECRET),
    "an end that is no number": by_hand({"alg": "HS256"}, {"sub": "app", "exp": float("nan")}, SECRET),
    "for ever": by_hand({"alg": "HS256"}, {"sub": "app", "exp": float("inf")}, SECRET),
}


@pytest.mark.parametrize("token", REFUSED.values(), ids=REFUSED)
async def test_what_is_refused_is_not_quoted(token: bytes) -> None:
    with pytest.raises(NotAuthenticated) as refused:
        await SECRET_TOKENS.authenticate(token)
    for part in token.split(b"."):
        assert len(part) < 4 or part.decode("latin1") not in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_a_public_key_is_no_secret() -> None:
    """RS256 taken for HS256: whoever has the public key could sign."""
    provider = Tokens(Token(public_key=inline(public(RSA))), Clock())
    with pytest.raises(NotAuthenticated):
        await provider.authenticate(by_hand({"alg": "HS256"}, {"sub": "admin"}, public(RSA)))


async def test_kid_and_other_hints_lead_nowhere() -> None:
    header = {
        "alg": "HS256",
        "kid": "../../../../dev/null",
        "jku": "http://127.0.0.1:1/",
        "jwk": {"kty": "oct"},
    }
    with pytest.raises(NotAuthenticated):
        await SECRET_TOKENS.authenticate(by_hand(header, {"sub": "admin"}, b"\0" * 32))


async def test_issuer_and_audience_are_asked_for_where_they_are_set() -> None:
    provider = Tokens(
        Token(secret_key=inline(SECRET), issuer="https://us", audience="quire", role_claim="team"), Clock()
    )
    right = {"iss": "https://us", "aud": ["other", "quire"], "team": "app"}
    assert (await provider.authenticate(signed(right))).role == "app"
    for wrong in ({"iss": "https://them"}, {"aud": "other"}, {"iss": None}, {"aud": None}):
        claims = {name: value for name, value in {**right, **wrong}.items() if value is not None}
        with pytest.raises(NotAuthenticated, match=r"claim (iss|aud)"):
            await provider.authenticate(signed(claims))


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (Token(), "either"),
        (Token(secret_key=inline(SECRET), public_key=inline(public(RSA))), "either"),
        (Token(secret_key=inline(b"short")), "32"),
        (Token(secret_key=inline(public(RSA))), "PEM"),
        (Token(secret_key=inline(DER)), "is a public key"),
        (Token(secret_key="data:;base64,%%"), "base64"),
        (Token(secret_key="/nowhere/secret"), "cannot read"),
        (Token(public_key=inline(SECRET)), "not a public key in PEM or DER"),
        (Token(public_key=inline(public(RSA)[:200])), "truncated"),
        (Token(public_key=inline(private(RSA))), "public key"),
        (Token(public_key=inline(public(rsa.generate_private_key(65537, 1024)))), "2048"),
        (Token(public_key=inline(public(RSA)), algorithms=("HS256",)), "does not fit"),
        (Token(secret_key=inline(SECRET), algorithms=("none",)), "does not fit"),
        (Token(secret_key=inline(SECRET), algorithms=("HS256", "RS256")), "does not fit"),
    ],
)
def test_a_key_that_cannot_be_used_stops_the_start(settings: Token, word: str) -> None:
    with pytest.raises(ConfigurationError, match=word) as refused:
        Tokens(settings, Clock())
    assert SECRET.decode() not in str(refused.value)
    assert inline(SECRET) not in str(refused.value)


async def test_a_key_that_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "LOOK_S", 0.0)
    file = tmp_path / "secret.key"
    file.write_bytes(SECRET)
    tokens = Tokens(Token(secret_key=str(file)), SystemClock())
    old = signed({"sub": "app"})
    before = await tokens.authenticate(old)
    assert tokens.trusts(before.proof) and SECRET.decode() not in before.proof
    file.write_bytes(b"short")
    assert tokens.trusts(before.proof), "what cannot be used changes nothing"
    file.write_bytes(SECRET[::-1])
    assert not tokens.trusts(before.proof)
    with pytest.raises(NotAuthenticated):
        await tokens.authenticate(old)


@pytest.mark.parametrize(
    ("header", "is_taken"),
    [
        ({"pi.atm": "1", "nbf_hint": {"a": [1]}}, True),
        ({"kid": "x", "typ": "at+jwt", "x5c": ["A" * 3_000]}, True),
        ({"crit": ["pi.atm"], "pi.atm": "1"}, False),
        ({"crit": ["exp"], "exp": NOW_S + 60}, False),
        ({"crit": ["b64"], "b64": False}, False),
    ],
)
async def test_parameters_of_a_header_that_are_unknown_are_ignored_unless_critical(
    header: dict[str, Any], is_taken: bool
) -> None:
    tokens = Tokens(Token(secret_key=inline(SECRET)), Clock())
    token = by_hand({"alg": "HS256", **header}, {"sub": "app"}, SECRET)
    if is_taken:
        assert (await tokens.authenticate(token)).role == "app"
    else:
        with pytest.raises(NotAuthenticated):
            await tokens.authenticate(token)
