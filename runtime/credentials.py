"""Credentials of a client, a token or a user and a password, for REST and the binary protocol.

Secrets are read from files for each use, so they may be renewed. They are never printed, and no flag accepts one,
because all users of a machine can see the command lines of its processes.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from quire.runtime.errors import ConfigurationError

SECRET_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True)
class Credentials:
    """A token, or a user with a password, or neither. A token is given as text, or in a file."""

    token: str = field(default="", repr=False)
    token_file: str = ""
    user: str = ""
    password_file: str = ""

    @property
    def method(self) -> str:
        """Return the name of the authentication method in CONNECT.

        Raises `ConfigurationError` for an invalid combination.
        """
        has_token = bool(self.token or self.token_file)
        if has_token and self.user:
            raise ConfigurationError("set either a token or a user and a password, not both")
        if bool(self.user) != bool(self.password_file):
            raise ConfigurationError("user and password_file must be set together")
        return "token" if has_token else "basic" if self.user else "none"

    def data(self) -> bytes:
        """Return the credentials for CONNECT. Raises `ConfigurationError` if a file is unreadable."""
        match self.method:
            case "token":
                return self.token.encode() or _secret_in(self.token_file)
            case "basic":
                return self.user.encode() + b":" + _secret_in(self.password_file)
        return b""

    def headers(self) -> Mapping[str, str]:
        """Return the headers of an HTTP request. Raises `ConfigurationError` if a file is unreadable."""
        match self.method:
            case "token":
                return {"Authorization": f"Bearer {self.data().decode(errors='replace')}"}
            case "basic":
                return {"Authorization": f"Basic {base64.b64encode(self.data()).decode()}"}
        return {}


NOBODY: Final = Credentials()
OPTIONS: Final = ("token_file", "user", "password_file")
"""Names of the options and flags that set credentials."""


def given_or_of_environment(given: Mapping[str, str]) -> Credentials:
    """Return the credentials in `given`.

    If `given` has none of `OPTIONS`, return those in the environment (QUIRE_TOKEN, QUIRE_TOKEN_FILE and so on).
    """
    found = {name: given[name] for name in OPTIONS if given.get(name)}
    if not found:
        found = {name: os.environ.get(f"QUIRE_{name.upper()}", "") for name in ("token", *OPTIONS)}
    return Credentials(**found)


def _secret_in(path: str) -> bytes:
    """Return the only line of a file."""
    try:
        with open(path, "rb") as file:
            raw = file.read(SECRET_BYTES_MAX + 1).strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from None
    if not raw or len(raw) > SECRET_BYTES_MAX or b"\n" in raw or b"\r" in raw:
        raise ConfigurationError(f"{path} must contain exactly one line, the token or the password")
    return raw
