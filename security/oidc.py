"""Tokens of identity providers: OAuth 2 and OpenID Connect.

Clients get a token from their issuer and send it by the method `token`. What is needed of the issuer are its public
keys (a JWKS), from a file or over HTTPS; where they are, its discovery document says. A token's claim `iss` chooses
among the issuers that are configured, and is verified with the rest: no token makes us ask an address of its own.

    keys are fetched      for the first token; when they are older than `keys_kept_s`, or their file has changed; when a
                          token names a key (`kid`) that is not there, but not more often than every `FETCH_EACH_S`
    and while that fails  the last ones count, for `STALE_S_MAX` at most; without any, clients are told to try again

Whoever was let in by a key goes when it is no longer among those that were fetched last (`trusts`).

A fetch has a time limit and a size limit, follows no redirect, and one is under way at a time. Keys are public keys
alone, and each takes the algorithms of its kind alone (`tokens`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

from quire.runtime.clock import Clock
from quire.runtime.errors import ConfigurationError, NotAuthenticated, Unavailable
from quire.runtime.limits import KIB
from quire.runtime.settings import is_loopback
from quire.runtime.tls import changes_of
from quire.security.configuration import Oidc
from quire.security.identity import Identity
from quire.security.tokens import (
    OF_RSA,
    RSA_BITS_MIN,
    TOKEN_BYTES_MAX,
    check_claims,
    identity_of,
    proof_of,
    verified,
)

DOCUMENT_BYTES_MAX: Final = 256 * KIB
KEYS_MAX: Final = 100
KEYS_TRIED_MAX: Final = 5
"""For a token that names none."""

FETCH_S: Final = 5.0
FETCH_EACH_S: Final = 10.0
STALE_S_MAX: Final = 86_400.0
DISCOVERY: Final = "/.well-known/openid-configuration"
_OF_CURVES: Final = {
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA", "Ed25519"),
}
_ALGORITHMS: Final = frozenset((*OF_RSA, *(one for some in _OF_CURVES.values() for one in some)))
_log = logging.getLogger(__name__)


class _Known(NamedTuple):
    """A key of an issuer; `proof` as in `Identity`."""

    kid: str
    key: Key
    algorithms: Sequence[str]
    proof: str


class Issuers:
    """The provider of the method `token` for tokens of identity providers."""

    def __init__(self, settings: Sequence[Oidc], clock: Clock) -> None:
        """Raises `ConfigurationError`."""
        self._issuers: dict[str, _Issuer] = {}
        for one in settings:
            if one.issuer in self._issuers:
                raise ConfigurationError(f"[[authentication.oidc]]: the issuer {one.issuer} is there twice")
            self._issuers[one.issuer] = _Issuer(one, clock)

    async def stop(self) -> None:
        for issuer in self._issuers.values():
            await issuer.stop()

    def knows(self, data: bytes) -> bool:
        return _unverified(data)[1].get("iss") in self._issuers

    async def authenticate(self, data: bytes, address: str = "") -> Identity:
        header, claims = _unverified(data)
        issuer = self._issuers.get(claims.get("iss", ""))
        if issuer is None:
            raise NotAuthenticated("the token's issuer is none that this broker trusts")
        return await issuer.authenticate(data, header)

    async def look(self) -> None:
        for issuer in self._issuers.values():
            await issuer.look()

    def trusts(self, proof: str) -> bool:
        return any(issuer.trusts(proof) for issuer in self._issuers.values())


def _unverified(data: bytes) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Header and claims as the token says them; nothing of it is proven. Empty when it is no token."""
    if len(data) > TOKEN_BYTES_MAX:
        return {}, {}
    try:
        token = jws.extract_compact(data)
        claims = json.loads(token.payload)
    except (JoseError, ValueError, TypeError, RecursionError):
        return {}, {}
    if not isinstance(claims, dict) or not isinstance(claims.get("iss"), str):
        return {}, {}
    return token.protected, claims


class _Issuer:
    def __init__(self, settings: Oidc, clock: Clock) -> None:
        if not settings.issuer or not settings.audience:
            raise ConfigurationError("[[authentication.oidc]] needs issuer and audience, both not empty")
        strange = sorted(set(settings.algorithms) - _ALGORITHMS)
        if strange or not settings.algorithms:
            raise ConfigurationError(
                f"[[authentication.oidc]]: algorithms are of public keys, not {', '.join(strange) or 'none'}"
            )
        self._settings = settings
        self._clock = clock
        self._source = settings.jwks or settings.issuer.rstrip("/") + DISCOVERY
        self._file = settings.jwks if settings.jwks and "://" not in settings.jwks else ""
        self._seen: tuple[int, ...] = ()
        """What the file was when it was read."""
        if not self._file:
            check_url(self._source)
        self._keys: Sequence[_Known] = ()
        self._fetched_s = self._tried_s = float("-inf")
        self._fetching = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None

    async def stop(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def authenticate(self, data: bytes, header: Mapping[str, Any]) -> Identity:
        settings = self._settings
        kid = header.get("kid", "")
        keys = await self._keys_for(kid if isinstance(kid, str) else "")
        problem = NotAuthenticated("the token's key is none of its issuer's")
        for known in keys[:KEYS_TRIED_MAX]:
            algorithms = [one for one in known.algorithms if one in settings.algorithms]
            if not algorithms:
                continue
            try:
                claims = verified(data, known.key, algorithms)
            except NotAuthenticated as error:
                problem = error
                continue
            if claims.get("exp") is None:
                raise NotAuthenticated("the token has no claim exp")
            check_claims(
                claims, self._clock, settings.leeway_s, issuer=settings.issuer, audience=settings.audience
            )
            return identity_of(claims, settings, known.proof)
        raise problem

    async def look(self) -> None:
        """Fetch the keys again when it is time to; nothing before the first token."""
        if self._keys:
            await self._fetch_if_due("")

    def trusts(self, proof: str) -> bool:
        return any(known.proof == proof for known in self._keys)

    # -- keys ------------------------------------------------------------------------------------------

    async def _keys_for(self, kid: str) -> Sequence[_Known]:
        await self._fetch_if_due(kid)
        if self._clock.monotonic() - self._fetched_s > max(STALE_S_MAX, self._settings.keys_kept_s):
            raise Unavailable(f"the keys of the issuer {self._settings.issuer} cannot be had; try again")
        return self._with(kid)

    async def _fetch_if_due(self, kid: str) -> None:
        if self._is_due(kid):
            async with self._fetching:
                if self._is_due(kid):
                    await self._fetch()

    def _is_due(self, kid: str) -> bool:
        if self._file and changes_of(self._file) != self._seen:
            return True
        now = self._clock.monotonic()
        is_old = now - self._fetched_s > self._settings.keys_kept_s
        return (is_old or not self._with(kid)) and now - self._tried_s > FETCH_EACH_S

    def _with(self, kid: str) -> Sequence[_Known]:
        return [known for known in self._keys if not kid or known.kid == kid]

    async def _fetch(self) -> None:
        """Get the keys; when that fails the last ones stay."""
        if self._file:
            self._seen = changes_of(self._file)
        try:
            async with asyncio.timeout(FETCH_S):
                document = await self._document(self._source)
                if not self._settings.jwks:
                    if document.get("issuer") != self._settings.issuer:
                        raise ValueError("the discovery document is of another issuer")
                    place = str(document.get("jwks_uri"))
                    check_url(place)
                    document = await self._document(place)
            self._keys = keys_of(document)
            self._fetched_s = self._clock.monotonic()
        except (
            aiohttp.ClientError,
            OSError,
            ValueError,
            RecursionError,
            TimeoutError,
            ConfigurationError,
        ) as error:
            why = str(error) or "no answer in time"
            _log.warning("cannot get the keys of the issuer %s: %s", self._settings.issuer, why[:200])
        finally:
            self._tried_s = self._clock.monotonic()

    async def _document(self, place: str) -> dict[str, Any]:
        if "://" not in place:
            with await asyncio.to_thread(Path(place).open, "rb") as file:
                return _parsed(file.read(DOCUMENT_BYTES_MAX + 1))
        if self._session is None:
            self._session = aiohttp.ClientSession(max_line_size=8 * KIB, max_field_size=8 * KIB)
        async with self._session.get(place, allow_redirects=False) as answer:
            if answer.status != 200:
                raise ValueError(f"{place} answers {answer.status}")
            raw = bytearray()
            async for chunk in answer.content.iter_chunked(16 * KIB):
                raw += chunk
                if len(raw) > DOCUMENT_BYTES_MAX:
                    break
            return _parsed(bytes(raw))


def check_url(url: str) -> None:
    """HTTPS; HTTP from this machine alone. Raises `ConfigurationError`."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        raise ConfigurationError(f"{url[:200]!r} is no URL") from None
    if parts.scheme == "https" and host:
        return
    if parts.scheme != "http" or not is_loopback(host):
        raise ConfigurationError(f"keys are fetched by https alone, not from {url[:200]!r}")


def _parsed(raw: bytes) -> dict[str, Any]:
    if len(raw) > DOCUMENT_BYTES_MAX:
        raise ValueError(f"the document is larger than {DOCUMENT_BYTES_MAX} bytes")
    found = json.loads(raw)
    if not isinstance(found, dict):
        raise ValueError("the document is no JSON object")
    return found


def keys_of(document: Mapping[str, Any]) -> Sequence[_Known]:
    """The public keys of a JWKS that sign; what is of another kind is left out. Raises `ValueError`."""
    listed = document.get("keys")
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise ValueError(f"the document is no set of at most {KEYS_MAX} keys")
    found = []
    for one in listed:
        if not isinstance(one, dict) or one.get("use", "sig") != "sig":
            continue
        try:
            key, algorithms = _key(one)
        except (JoseError, ValueError, TypeError, KeyError):
            continue
        named = one.get("alg")
        if named is not None:
            algorithms = [name for name in algorithms if name == named]
        if algorithms:
            found.append(_Known(str(one.get("kid", "")), key, algorithms, proof_of(key)))
    if not found:
        raise ValueError("the set has no public key that signs tokens")
    return found


def _key(one: dict[str, Any]) -> tuple[Key, Sequence[str]]:
    kind, curve = one.get("kty"), str(one.get("crv", ""))
    if kind == "RSA":
        rsa = RSAKey.import_key(one)
        if rsa.public_key.key_size < RSA_BITS_MIN:
            raise ValueError("too weak")
        return rsa, OF_RSA
    if kind == "EC":
        return ECKey.import_key(one), _OF_CURVES[curve]
    if kind == "OKP" and curve == "Ed25519":
        return OKPKey.import_key(one), _OF_CURVES[curve]
    raise ValueError("another kind")
