"""JSON Web Tokens ([RFC 7519](https://www.rfc-editor.org/rfc/rfc7519)) signed with one local key, as in Pulsar.

The allowed algorithms depend on the key, not on the token: a secret key allows HS256 to HS512, an RSA key RS256 to
RS512 and PS256 to PS512, an elliptic-curve key the ES algorithm of its curve, and an Ed25519 key EdDSA. So `none` is
refused, and so is a token signed with the bytes of a public key as a secret. `kid` and other hints of the token's
header are ignored.

When the key's file is replaced, tokens of the old key are refused, and their connections are closed.

Error texts contain neither the token nor a message of the library.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from joserfc import jwt
from joserfc.errors import (
    BadSignatureError,
    ExpiredTokenError,
    InvalidClaimError,
    JoseError,
    MissingClaimError,
    UnsupportedAlgorithmError,
)
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from joserfc.jwt import JWTClaimsRegistry

from quire.runtime.clock import Clock
from quire.runtime.errors import ConfigurationError, NotAuthenticated
from quire.runtime.limits import KIB
from quire.security.configuration import Oidc, Token, path_of_key, read_key
from quire.security.followed import Followed
from quire.security.identity import Identity, role_of

TOKEN_BYTES_MAX: Final = 16 * KIB
SECRET_BYTES_MIN: Final = 32
"""Minimum size of a secret. RFC 7518 requires at least the digest size of HS256; a shorter secret can be guessed."""

RSA_BITS_MIN: Final = 2048

OF_SECRETS: Final = ("HS256", "HS384", "HS512")
OF_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_OF_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


_SECRET: Final = os.urandom(32)


class _Registry(JWSRegistry):
    """Registry of header parameters, which ignores unknown ones unless `crit` lists them (RFC 7515, section 4)."""

    max_header_length = (
        TOKEN_BYTES_MAX  # the library's default, 512 bytes, is less than a certificate (`x5c`)
    )


class Trusted(NamedTuple):
    """A key with its allowed algorithms. `proof` is its name, as in `Identity`."""

    key: Key
    algorithms: Sequence[str]
    proof: str


class Tokens:
    """Provider of the method `token` for tokens signed with a local key."""

    def __init__(self, settings: Token, clock: Clock) -> None:
        """Load the key. Raises `ConfigurationError` if it cannot be used."""
        if bool(settings.secret_key) == bool(settings.public_key):
            raise ConfigurationError("[authentication.token] needs either secret_key or public_key")
        path = path_of_key(settings.secret_key or settings.public_key)
        self._settings = settings
        self._clock = clock
        self._key = Followed(self._read, [path] if path else [])

    def _read(self) -> Trusted:
        settings = self._settings
        if settings.secret_key:
            key, fitting = secret_key(read_key(settings.secret_key))
        else:
            key, fitting = public_key(read_key(settings.public_key))
        return Trusted(key, chosen(settings.algorithms, fitting, "[authentication.token]"), proof_of(key))

    @property
    def algorithms(self) -> Sequence[str]:
        return self._key.current().algorithms

    async def authenticate(self, data: bytes, address: str = "") -> Identity:
        """Verify a token, and return its identity. Raises `NotAuthenticated`."""
        settings, trusted = self._settings, self._key.current()
        claims = verified(data, trusted.key, trusted.algorithms)
        check_claims(
            claims, self._clock, settings.leeway_s, issuer=settings.issuer, audience=settings.audience
        )
        return identity_of(claims, settings, trusted.proof)

    async def look(self) -> None: ...

    def trusts(self, proof: str) -> bool:
        """Return whether the proof is that of the current key."""
        return proof == self._key.current().proof


def chosen(wanted: Sequence[str], fitting: Sequence[str], where: str) -> Sequence[str]:
    """Return the `wanted` algorithms, or all `fitting` ones.

    Raises `ConfigurationError` for an algorithm that does not fit the key.
    """
    strange = sorted(set(wanted) - set(fitting))
    if strange:
        raise ConfigurationError(
            f"{where}: the algorithm {strange[0][:20]!r} does not fit the key, which supports {', '.join(fitting)}"
        )
    return wanted or fitting


def secret_key(raw: bytes) -> tuple[Key, Sequence[str]]:
    """Return the secret key in `raw`, and its algorithms. Raises `ConfigurationError`."""
    if b"-----BEGIN" in raw:
        raise ConfigurationError(
            "secret_key is a PEM file, not a secret; if it is a public key, set public_key"
        )
    if len(raw) < SECRET_BYTES_MIN:
        raise ConfigurationError(
            f"the secret key has {len(raw)} bytes, but needs at least {SECRET_BYTES_MIN}; "
            "create one with `quire tokens create-key`"
        )
    try:
        return OctKey.import_key(raw), OF_SECRETS
    except ValueError:  # the library raises it for public keys
        raise ConfigurationError("secret_key is a public key, not a secret; set it as public_key") from None


def public_key(raw: bytes) -> tuple[Key, Sequence[str]]:
    """Return the public key in `raw`, PEM or DER, and its algorithms. Raises `ConfigurationError`."""
    try:
        found: Any
        if b"-----BEGIN" in raw:
            found = serialization.load_pem_public_key(raw)
        else:
            found = serialization.load_der_public_key(raw)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigurationError(
            "the file is not a public key in PEM or DER format, or is truncated"
        ) from None
    pem = found.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    if isinstance(found, rsa.RSAPublicKey):
        if found.key_size < RSA_BITS_MIN:
            raise ConfigurationError(
                f"an RSA key of {found.key_size} bits is too weak; at least {RSA_BITS_MIN} are required"
            )
        return RSAKey.import_key(pem), OF_RSA
    if isinstance(found, ec.EllipticCurvePublicKey) and found.curve.name in _OF_CURVES:
        return ECKey.import_key(pem), (_OF_CURVES[found.curve.name],)
    if isinstance(found, ed25519.Ed25519PublicKey):
        return OKPKey.import_key(pem), ("EdDSA", "Ed25519")
    raise ConfigurationError("this type of public key is not supported for tokens: use RSA, P-256 or Ed25519")


def private_key(raw: bytes) -> tuple[Key, str]:
    """Return the private key in `raw` (PEM), and its algorithm. Raises `ConfigurationError`."""
    try:
        found: Any = serialization.load_pem_private_key(raw, None)
        public = found.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    except (ValueError, TypeError, AttributeError, UnsupportedAlgorithm):
        raise ConfigurationError(
            "the private key must be PEM without a password; it is another format, or truncated"
        ) from None
    key, (algorithm, *_) = public_key(public)
    return type(key).import_key(raw), algorithm


# -- functions that `oidc` uses, too ---------------------------------------------------------------


def verified(data: bytes, key: Any, algorithms: Sequence[str]) -> Mapping[str, Any]:
    """Return the claims of a token after verifying its signature. Raises `NotAuthenticated`."""
    if not data:
        raise NotAuthenticated("no token was sent")
    if len(data) > TOKEN_BYTES_MAX:
        raise NotAuthenticated(f"the token is larger than {TOKEN_BYTES_MAX} bytes")
    try:
        return jwt.decode(
            data, key, registry=_Registry(algorithms=algorithms, strict_check_header=False)
        ).claims
    except BadSignatureError:
        raise NotAuthenticated("the token is not signed by the key that this broker trusts") from None
    except UnsupportedAlgorithmError:
        raise NotAuthenticated(f"the token's algorithm is not one of {', '.join(algorithms)}") from None
    except (JoseError, ValueError, TypeError, KeyError, RecursionError):
        raise NotAuthenticated("the credentials are not a signed JSON web token") from None


def check_claims(
    claims: Mapping[str, Any], clock: Clock, leeway_s: int, *, issuer: str = "", audience: str = ""
) -> None:
    """Check the token's issuer, audience and validity in time. Raises `NotAuthenticated`."""
    options: dict[str, Any] = {}
    if issuer:
        options["iss"] = {"essential": True, "value": issuer}
    if audience:
        options["aud"] = {"essential": True, "value": audience}
    try:
        JWTClaimsRegistry(now=clock.now_ms() // 1000, leeway=leeway_s, **options).validate(dict(claims))
    except ExpiredTokenError:
        raise NotAuthenticated("the token has expired; get a new one") from None
    except MissingClaimError as error:
        raise NotAuthenticated(f"the token has no claim {error.claim}") from None
    except InvalidClaimError as error:
        raise NotAuthenticated(
            f"the token's claim {error.claim} does not have the value that this broker requires"
        ) from None
    except (JoseError, ValueError, TypeError):
        raise NotAuthenticated("the token's claims are malformed") from None


def proof_of(key: Key) -> str:
    """Return an opaque name of a key; see `Identity.proof`."""
    return hmac.digest(_SECRET, key.thumbprint().encode(), "sha256").hex()


def identity_of(claims: Mapping[str, Any], settings: Token | Oidc, proof: str) -> Identity:
    """Return the identity for verified claims. Raises `NotAuthenticated`."""
    value = claims.get(settings.role_claim)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    expires = claims.get("exp")
    expires_ms = None if expires is None else int(min(expires + settings.leeway_s, 1 << 50) * 1000)
    role = role_of(value, f"the token's claim {settings.role_claim}", settings.prefix)
    return Identity(role, "token", expires_ms, proof=proof, prefix=settings.prefix)
