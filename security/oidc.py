"""Tokens of identity providers: OAuth 2 and OpenID Connect ([discovery]).

A client gets a token from its issuer and sends it by the method `token`. Verification needs the issuer's public keys (a
JWKS), from a file or over HTTPS from the URL in the discovery document. A token's claim `iss` selects one of the
configured issuers, and is verified with the other claims, so a token cannot cause a request to another address.

    keys are fetched      for the first token; when they are older than `keys_kept_s`, or their file has changed; when a
                          token names an unknown key (`kid`), but not more often than every `FETCH_EACH_S`
    if a fetch fails      the previous keys stay valid for at most `STALE_S_MAX`; without keys, clients get a retryable
                          error

Identities are revoked (`trusts`) if the key that authenticated them is missing in the last fetched key set.

A fetch has limits of time and size, and follows no redirects; only one runs at a time. Only public keys are accepted,
each only with the algorithms of its type (`tokens`).

[discovery]: https://openid.net/specs/openid-connect-discovery-1_0.html
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
"""Number of keys to try for a token without a key id."""

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
    """Public key of an issuer. `proof` is its name, as in `Identity`."""

    kid: str
    key: Key
    algorithms: Sequence[str]
    proof: str


class Issuers:
    """Provider of the method `token` for tokens of identity providers."""

    def __init__(self, settings: Sequence[Oidc], clock: Clock) -> None:
        """Validate the configuration. Raises `ConfigurationError`."""
        self._issuers: dict[str, _Issuer] = {}
        for one in settings:
            if one.issuer in self._issuers:
                raise ConfigurationError(
                    f"[[authentication.oidc]]: the issuer {one.issuer} is configured twice"
                )
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
            raise NotAuthenticated("this broker does not trust the token's issuer")
        return await issuer.authenticate(data, header)

    async def look(self) -> None:
        for issuer in self._issuers.values():
            await issuer.look()

    def trusts(self, proof: str) -> bool:
        return any(issuer.trusts(proof) for issuer in self._issuers.values())


def _unverified(data: bytes) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return a token's header and claims without verification; both empty if it is malformed."""
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
            raise ConfigurationError("[[authentication.oidc]] needs both issuer and audience")
        strange = sorted(set(settings.algorithms) - _ALGORITHMS)
        if strange or not settings.algorithms:
            raise ConfigurationError(
                f"[[authentication.oidc]]: algorithms must be of public keys, not {', '.join(strange) or 'empty'}"
            )
        self._settings = settings
        self._clock = clock
        self._source = settings.jwks or settings.issuer.rstrip("/") + DISCOVERY
        self._file = settings.jwks if settings.jwks and "://" not in settings.jwks else ""
        self._seen: tuple[int, ...] = ()
        """Version of the key file that was read last."""
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
        problem = NotAuthenticated("the token's key id is not among its issuer's keys")
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
        """Fetch the keys again if a fetch is due. Does nothing until a first token was checked."""
        if self._keys:
            await self._fetch_if_due("")

    def trusts(self, proof: str) -> bool:
        return any(known.proof == proof for known in self._keys)

    # -- keys ------------------------------------------------------------------------------------------

    async def _keys_for(self, kid: str) -> Sequence[_Known]:
        await self._fetch_if_due(kid)
        if self._clock.monotonic() - self._fetched_s > max(STALE_S_MAX, self._settings.keys_kept_s):
            raise Unavailable(f"the keys of the issuer {self._settings.issuer} cannot be fetched; try again")
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
        """Fetch the keys; if that fails, keep the previous ones."""
        if self._file:
            self._seen = changes_of(self._file)
        try:
            async with asyncio.timeout(FETCH_S):
                document = await self._document(self._source)
                if not self._settings.jwks:
                    if document.get("issuer") != self._settings.issuer:
                        raise ValueError("the discovery document names another issuer")
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
            why = str(error) or "no answer within 5 s"
            _log.warning("cannot fetch the keys of the issuer %s: %s", self._settings.issuer, why[:200])
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
                raise ValueError(f"{place} answered with HTTP status {answer.status}")
            raw = bytearray()
            async for chunk in answer.content.iter_chunked(16 * KIB):
                raw += chunk
                if len(raw) > DOCUMENT_BYTES_MAX:
                    break
            return _parsed(bytes(raw))


def check_url(url: str) -> None:
    """Check that a URL is HTTPS, or HTTP on this machine. Raises `ConfigurationError`."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        raise ConfigurationError(f"{url[:200]!r} is not a URL") from None
    if parts.scheme == "https" and host:
        return
    if parts.scheme != "http" or not is_loopback(host):
        raise ConfigurationError(
            f"keys can be fetched only over HTTPS, or over HTTP from this machine, not from {url[:200]!r}"
        )


def _parsed(raw: bytes) -> dict[str, Any]:
    if len(raw) > DOCUMENT_BYTES_MAX:
        raise ValueError(f"the document is larger than {DOCUMENT_BYTES_MAX} bytes")
    found = json.loads(raw)
    if not isinstance(found, dict):
        raise ValueError("the document is not a JSON object")
    return found


def keys_of(document: Mapping[str, Any]) -> Sequence[_Known]:
    """Return the public keys for signatures in a JWKS; other keys are skipped. Raises `ValueError`."""
    listed = document.get("keys")
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise ValueError(f"the document is not a JSON Web Key Set of at most {KEYS_MAX} keys")
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
        raise ValueError("the key set contains no usable public key for signatures")
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
    raise ValueError("unsupported key type")
