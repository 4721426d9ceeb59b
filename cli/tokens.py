"""`quire tokens`: creates keys and signs tokens, without a broker."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from quire.cli.moments import shown
from quire.cli.noun import json_option
from quire.cli.output import Answer, done
from quire.runtime.clock import SystemClock
from quire.runtime.errors import ConfigurationError, NotAuthenticated
from quire.runtime.installation import pip_install
from quire.runtime.settings import parse_duration_ms
from quire.security.configuration import Token, read_key
from quire.security.identity import is_role

SECRET_BYTES: Final = 32
_Command = TypeVar("_Command", bound=Callable[..., Any])

KINDS: Final = ("secret", "rsa", "ec", "ed25519")


@click.group("tokens")
def command() -> None:
    """Create keys, sign tokens with them, and show and validate tokens.

    A broker takes tokens that were signed by the key that its security file names (docs/security.md). A secret key both
    signs and verifies; of a pair the private one signs, and the broker needs the public one alone.

    \b
    Examples:
      quire tokens create-key secret.key
      quire tokens create app --secret-key secret.key --expires 30d > app.token
      quire tokens create-key private.pem --kind ed25519 --public-key public.pem
      quire tokens create app --private-key private.pem > app.token
      quire tokens show app.token
      quire tokens validate app.token --secret-key secret.key
    """


def _file_alone(_context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Accept only a file name for a key, because command lines are visible to all users of the machine."""
    if value and value.startswith("data:"):
        raise ConfigurationError(
            f"{option.opts[0]} takes a file: everybody here sees what a command line says"
        )
    return value


def _key_option(name: str, help: str) -> Callable[[_Command], _Command]:
    return click.option(name, metavar="FILE", help=help, callback=_file_alone)


_secret_key = _key_option("--secret-key", "The secret key.")
_token = click.argument("token", type=click.File("rb"))


@command.command("create-key")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--kind", type=click.Choice(KINDS), default="secret", show_default=True, help="Kind of key.")
@click.option(
    "--public-key",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the public key of a pair.",
)
def create_key(file: Path, kind: str, public_key: Path | None) -> None:
    """Create a key in FILE, which must not exist; only its owner can read it.

    \b
    Examples:
      quire tokens create-key secret.key
      quire tokens create-key private.pem --kind ed25519 --public-key public.pem
    """
    if (kind == "secret") != (public_key is None):
        raise ConfigurationError("a pair of keys needs --public-key, and a secret key has none")
    if kind == "secret":
        _write_new(file, os.urandom(SECRET_BYTES), 0o600)
    else:
        private, public = _pair(kind)
        _write_new(file, private, 0o600)
        assert public_key is not None
        _write_new(public_key, public, 0o644)
    done(f"made {file}" + (f" and {public_key}" if public_key else "")).say(False)


def _need_library() -> None:
    """Check that the library for signing and verifying is installed. Raises `ConfigurationError`."""
    if find_spec("joserfc") is None:
        raise ConfigurationError(f"tokens need optional packages: {pip_install('security')}")


def _write_new(file: Path, raw: bytes, mode: int) -> None:
    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as made:
            made.write(raw)
    except FileExistsError:
        raise ConfigurationError(f"{file} already exists, and keys are never overwritten") from None
    except OSError as error:
        raise ConfigurationError(f"cannot write {file}: {error.strerror}") from None


def _pair(kind: str) -> tuple[bytes, bytes]:
    """Return a new private and public key as PEM."""
    _need_library()
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    made: Any
    if kind == "rsa":
        made = rsa.generate_private_key(public_exponent=65537, key_size=3072)
    else:
        made = (
            ec.generate_private_key(ec.SECP256R1()) if kind == "ec" else ed25519.Ed25519PrivateKey.generate()
        )
    pem = form.Encoding.PEM
    private = made.private_bytes(pem, form.PrivateFormat.PKCS8, form.NoEncryption())
    return private, made.public_key().public_bytes(pem, form.PublicFormat.SubjectPublicKeyInfo)


@command.command("create")
@click.argument("role")
@_secret_key
@_key_option("--private-key", "The private key of a pair, PEM.")
@click.option("--expires", metavar="TIME", help="Validity, such as 30d; by default unlimited.")
@click.option("--issuer", default="", help="Value of the claim iss.")
@click.option("--audience", default="", help="Value of the claim aud.")
@click.option("--role-claim", default="sub", show_default=True, help="Claim that contains the role.")
def create(
    role: str, secret_key: str | None, private_key: str | None, expires: str | None, **claims: str
) -> None:
    """Print a signed token for ROLE.

    \b
    Example:
      quire tokens create app --secret-key secret.key --expires 30d > app.token
    """
    _need_library()
    from joserfc import jwt

    if not is_role(role):
        raise ConfigurationError(
            f"{role[:100]!r} is not a role: 1 to 256 characters, without / and control characters"
        )
    if bool(secret_key) == bool(private_key):
        raise ConfigurationError("give either --secret-key or --private-key")
    key, algorithm = _signing(secret_key, private_key)
    now = int(time.time())
    made: dict[str, Any] = {claims["role_claim"]: role, "iat": now}
    if expires:
        made["exp"] = now + parse_duration_ms(expires) // 1000
    made |= {name: value for name, value in (("iss", claims["issuer"]), ("aud", claims["audience"])) if value}
    click.echo(jwt.encode({"alg": algorithm}, made, key, algorithms=[algorithm]))


def _signing(secret_key: str | None, private_key: str | None) -> tuple[Any, str]:
    """Return the key, and its signature algorithm."""
    from quire.security import tokens

    if secret_key:
        return tokens.secret_key(read_key(secret_key))[0], "HS256"
    assert private_key is not None
    return tokens.private_key(read_key(private_key))


def _when(time_ms: int | None) -> str:
    try:
        return "never" if time_ms is None else shown(time_ms)
    except (ValueError, OverflowError, OSError):
        return "beyond the calendar"


@command.command("show")
@_token
@json_option
def show(token: Any, as_json: bool) -> None:
    """Print the contents of the token in the file TOKEN (-: standard input) without verifying it; see `validate`.

    \b
    Example:
      quire tokens show app.token
    """
    parts = token.read().strip().split(b".")
    try:
        header, claims = (json.loads(base64.urlsafe_b64decode(part + b"==")) for part in parts[:2])
    except (ValueError, RecursionError):
        raise ConfigurationError("not a JSON Web Token") from None
    if len(parts) != 3 or not isinstance(header, dict) or not isinstance(claims, dict):
        raise ConfigurationError("not a JSON Web Token")
    lines = [f"{name}: {value}" for name, value in {**header, **claims}.items()]
    if isinstance(claims.get("exp"), int | float):
        lines.append(f"expires: {_when(int(1000 * min(claims['exp'], 1e15)))}")
    Answer({"header": header, "claims": claims}, *lines).say(as_json)


@command.command("validate")
@_token
@_secret_key
@_key_option("--public-key", "The public key of a pair.")
@click.option("--issuer", default="", help="Required value of the claim iss.")
@click.option("--audience", default="", help="Required value in the claim aud.")
@click.option("--role-claim", default="sub", show_default=True, help="Claim that contains the role.")
@json_option
def validate(
    token: Any, secret_key: str | None, public_key: str | None, as_json: bool, **claims: Any
) -> None:
    """Verify the token in the file TOKEN (-: standard input) as a broker with this key does, and print its role.

    \b
    Example:
      quire tokens validate app.token --secret-key secret.key
    """
    _need_library()
    import asyncio

    from quire.security.tokens import Tokens

    settings = Token(secret_key=secret_key or "", public_key=public_key or "", **claims)
    provider = Tokens(settings, SystemClock())
    try:
        identity = asyncio.run(provider.authenticate(token.read().strip()))
    except NotAuthenticated as error:
        raise NotAuthenticated(f"it would be refused: {error}") from None
    expires = _when(identity.expires_ms)
    done(f"{identity.role}; expires: {expires}", role=identity.role, expires=expires).say(as_json)
