"""Tokens that are signed by one key: JSON web tokens (RFC 7519), as Pulsar's and everybody's tools make them.

The key decides which algorithms a token may name, never the token: a secret key takes HS256 to HS512, an RSA key RS and
PS, a curve its ES, Ed25519 EdDSA. So `none` is refused, and so is a token that was signed with the bytes of a public
key as if they were a secret. `kid` and other hints of the token's header are not looked at.

The key's file is followed: when it is replaced, tokens of the old key let nobody in, and whoever they let in goes.

What is refused is told in a few fixed sentences: none quotes the token, or what a library says of it.
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
from joserfc.jwt import JWTClaimsRegistry

from quire.runtime.clock import Clock
from quire.runtime.errors import ConfigurationError, NotAuthenticated
from quire.runtime.limits import KIB
from quire.security.configuration import Oidc, Token, path_of_key, read_key
from quire.security.followed import Followed
from quire.security.identity import Identity, role_of

TOKEN_BYTES_MAX: Final = 16 * KIB
SECRET_BYTES_MIN: Final = 32
"""Of HS256's digest; RFC 7518 forbids less, and a word that somebody thought of is guessed."""

RSA_BITS_MIN: Final = 2048

OF_SECRETS: Final = ("HS256", "HS384", "HS512")
OF_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_OF_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


_SECRET: Final = os.urandom(32)


class Trusted(NamedTuple):
    """A key, which algorithms it takes, and what it is called while this process runs."""

    key: Key
    algorithms: Sequence[str]
    proof: str


class Tokens:
    """The provider of the method `token` for tokens of our own key."""

    def __init__(self, settings: Token, clock: Clock) -> None:
        """Raises `ConfigurationError` when the key cannot be used."""
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
        """Raises `NotAuthenticated`."""
        settings, trusted = self._settings, self._key.current()
        claims = verified(data, trusted.key, trusted.algorithms)
        check_claims(
            claims, self._clock, settings.leeway_s, issuer=settings.issuer, audience=settings.audience
        )
        return identity_of(claims, settings, trusted.proof)

    async def look(self) -> None: ...

    def trusts(self, proof: str) -> bool:
        """Whether it is the key that its file has now."""
        return proof == self._key.current().proof


def chosen(wanted: Sequence[str], fitting: Sequence[str], where: str) -> Sequence[str]:
    """Those of `wanted`, all when it is empty. Raises `ConfigurationError` for one that does not fit the key."""
    strange = sorted(set(wanted) - set(fitting))
    if strange:
        raise ConfigurationError(
            f"{where}: the algorithm {strange[0][:20]!r} does not fit its key, which takes {', '.join(fitting)}"
        )
    return wanted or fitting


def secret_key(raw: bytes) -> tuple[Key, Sequence[str]]:
    """A secret and the algorithms that it takes. Raises `ConfigurationError`."""
    if b"-----BEGIN" in raw:
        raise ConfigurationError("the secret key is a PEM file, so it is none: name it as public_key")
    if len(raw) < SECRET_BYTES_MIN:
        raise ConfigurationError(
            f"the secret key has {len(raw)} bytes, {SECRET_BYTES_MIN} are least: `quire tokens create-key` makes one"
        )
    try:
        return OctKey.import_key(raw), OF_SECRETS
    except ValueError:  # which the library says of public keys
        raise ConfigurationError(
            "the secret key is a public key, so it is none: name it as public_key"
        ) from None


def public_key(raw: bytes) -> tuple[Key, Sequence[str]]:
    """A public key, PEM or DER, and the algorithms that it takes. Raises `ConfigurationError`."""
    try:
        found: Any
        if b"-----BEGIN" in raw:
            found = serialization.load_pem_public_key(raw)
        else:
            found = serialization.load_der_public_key(raw)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigurationError(
            "the public key is neither PEM nor DER of a public key, or is cut short"
        ) from None
    pem = found.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    if isinstance(found, rsa.RSAPublicKey):
        if found.key_size < RSA_BITS_MIN:
            raise ConfigurationError(
                f"an RSA key of {found.key_size} bits is too weak: {RSA_BITS_MIN} are least"
            )
        return RSAKey.import_key(pem), OF_RSA
    if isinstance(found, ec.EllipticCurvePublicKey) and found.curve.name in _OF_CURVES:
        return ECKey.import_key(pem), (_OF_CURVES[found.curve.name],)
    if isinstance(found, ed25519.Ed25519PublicKey):
        return OKPKey.import_key(pem), ("EdDSA", "Ed25519")
    raise ConfigurationError(
        "the public key is of a kind that signs no tokens here: use RSA, P-256 or Ed25519"
    )


def private_key(raw: bytes) -> tuple[Key, str]:
    """A private key, PEM, and the algorithm that it signs by. Raises `ConfigurationError`."""
    try:
        found: Any = serialization.load_pem_private_key(raw, None)
        public = found.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    except (ValueError, TypeError, AttributeError, UnsupportedAlgorithm):
        raise ConfigurationError("the private key is not PEM without a password, or is cut short") from None
    key, (algorithm, *_) = public_key(public)
    return type(key).import_key(raw), algorithm


# -- what `oidc` has in common with this ---------------------------------------------------------------


def verified(data: bytes, key: Any, algorithms: Sequence[str]) -> Mapping[str, Any]:
    """The claims of a token whose signature is right. Raises `NotAuthenticated`."""
    if not data:
        raise NotAuthenticated("no token was sent")
    if len(data) > TOKEN_BYTES_MAX:
        raise NotAuthenticated(f"the token is larger than {TOKEN_BYTES_MAX} bytes")
    try:
        return jwt.decode(data, key, list(algorithms)).claims
    except BadSignatureError:
        raise NotAuthenticated("the token is not signed by the key that this broker trusts") from None
    except UnsupportedAlgorithmError:
        raise NotAuthenticated(f"the token's algorithm is none of {', '.join(algorithms)}") from None
    except (JoseError, ValueError, TypeError, KeyError, RecursionError):
        raise NotAuthenticated("what was sent is not a signed JSON web token") from None


def check_claims(
    claims: Mapping[str, Any], clock: Clock, leeway_s: int, *, issuer: str = "", audience: str = ""
) -> None:
    """Whether the token is for us, and now. Raises `NotAuthenticated`."""
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
        raise NotAuthenticated(f"the token's claim {error.claim} is not what this broker expects") from None
    except (JoseError, ValueError, TypeError):
        raise NotAuthenticated("the token's claims cannot be understood") from None


def proof_of(key: Key) -> str:
    """A name of a key that tells nothing of it; see `Identity.proof`."""
    return hmac.digest(_SECRET, key.thumbprint().encode(), "sha256").hex()


def identity_of(claims: Mapping[str, Any], settings: Token | Oidc, proof: str) -> Identity:
    """Whom the claims speak of. Raises `NotAuthenticated`."""
    value = claims.get(settings.role_claim)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    expires = claims.get("exp")
    expires_ms = None if expires is None else int(min(expires + settings.leeway_s, 1 << 50) * 1000)
    role = role_of(value, f"the token's claim {settings.role_claim}", settings.prefix)
    return Identity(role, "token", expires_ms, proof=proof)
